"""The gateway as a process: start-up, refusal to start, reload, and an end that loses nothing."""

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.gateway.loading import load
from fairlead.gateway.serving import Gateway, serve
from fairlead.gateway.serving import run as run_gateway
from tests.gateway.rig import (
    HEALTHY,
    Backend,
    Client,
    Cut,
    configured,
    connected,
    fetch,
    gateway,
    run,
    until,
    within,
)

CLASSES = {
    "interactive": {"reserved_floor": 0, "reserved_per_slot": 0},
    "default": {"reserved_floor": 0, "reserved_per_slot": 0},
    "system": {"reserved_floor": 0},
}
SCHEDULED = {
    "priority_scheduler": {
        "enabled": True,
        "default_max_class": "interactive",
        "classes": CLASSES,
    }
}
BULK, INTERACTIVE = ([("x-fairlead-priority", name)] for name in ("bulk", "interactive"))


class Process:
    """A gateway in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = self.admin = ""

    async def line(self) -> str:
        """Read a line of its standard error."""
        assert self.process.stderr is not None
        raw: bytes = await within(self.process.stderr.readline())
        return raw.decode()

    async def started(self) -> str:
        """Read on until it says where it listens."""
        line = await self.line()
        while not line.startswith("fairlead gateway: http"):
            assert line, "it ended without a word"
            line = await self.line()
        words = line.replace(";", " ").split()
        self.url, self.admin = (word for word in words if word.startswith("http"))
        return line

    async def ended(self) -> int:
        code: int = await within(self.process.wait())
        return code

    async def output(self) -> list[Any]:
        """Read its standard output, lines of JSON, to the end."""
        assert self.process.stdout is not None
        raw: bytes = await within(self.process.stdout.read())
        return [json.loads(line) for line in raw.splitlines()]


def write(path: Path, config: Any) -> None:
    path.write_text(config if isinstance(config, str) else json.dumps(config))


@asynccontextmanager
async def process(path: Path, config: Any) -> AsyncIterator[Process]:
    write(path, config)
    code = f"import sys; from fairlead.gateway.serving import run; sys.exit(run({str(path)!r}))"
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Process(made)
    finally:
        if made.returncode is None:
            made.kill()
            await made.wait()
        made._transport.close()  # type: ignore[attr-defined]


def test_it_serves_and_a_signal_ends_it_without_loss(tmp_path):
    async def main():
        async with Backend() as one:
            config = configured({"url": one.url, "capacity": 1, **HEALTHY}, **SCHEDULED)
            async with process(tmp_path / "gateway.yaml", config) as running:
                line = await running.started()
                assert "→ 1 upstream, 1 slots; admin http://127.0.0.1:" in line
                async with (
                    connected(running.url) as first,
                    connected(running.url) as second,
                    connected(running.url) as idle,
                ):
                    first.request("GET", "/first")
                    held = await one.arrival()
                    second.request("GET", "/second")
                    await until_waiting(running.admin, 1)
                    running.process.send_signal(signal.SIGTERM)
                    await until_draining(running.admin)
                    assert await idle.ended() == b""
                    with pytest.raises((ConnectionError, Cut)):
                        await fetch(running.url)
                    held.answer()
                    assert (await first.response())[1] == b"done"
                    held = await one.arrival()
                    assert held.target == "/second"
                    held.answer()
                    assert (await second.response())[1] == b"done"
                assert await running.ended() == 0
                lines = await running.output()
                assert [line["path"] for line in lines] == ["/first", "/second"]

    run(main())


async def until_waiting(admin: str, count: int) -> None:
    """Wait until so many wait for a slot, as the metrics tell."""
    async with asyncio.timeout(10):
        while True:
            _, body = await fetch(admin, "GET", "/metrics")
            depth = [
                float(line.split()[-1])
                for line in body.decode().splitlines()
                if "depth" in line and not line.startswith("#")
            ]
            if sum(depth) == count:
                return


async def until_draining(admin: str) -> None:
    async with asyncio.timeout(10):
        while (await fetch(admin, "GET", "/readyz"))[0].status != 503:
            pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(tmp_path, number):
    async def main():
        async with Backend() as one:
            config = configured({"url": one.url, "capacity": 1}, shutdown_grace="100s")
            async with process(tmp_path / "gateway.yaml", config) as running:
                await running.started()
                async with connected(running.url) as client:
                    client.request("GET", "/")
                    held = await one.arrival()
                    running.process.send_signal(number)
                    await until_draining(running.admin)
                    running.process.send_signal(number)
                    assert await running.ended() == 1
                    await within(held.gone.wait())

    run(main())


def test_what_outlives_its_grace_is_cut(tmp_path):
    async def main():
        async with Backend() as one:
            config = configured({"url": one.url, "capacity": 1}, shutdown_grace="100ms")
            async with process(tmp_path / "gateway.yaml", config) as running:
                await running.started()
                async with connected(running.url) as client:
                    client.request("GET", "/")
                    held = await one.arrival()
                    running.process.send_signal(signal.SIGTERM)
                    assert await running.ended() == 0
                    await within(held.gone.wait())

    run(main())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"admin": {"listen": "0.0.0.0:0"}}, "token"),
        ({"listen": "nowhere", "admin": {"listen": "there"}}, "admin.listen"),
        ({"strict": True, "priority_scheduler": {"enabled": "perhaps"}}, "enabled"),
        ("listen: [", "gateway.yaml"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(tmp_path, capfd, config, said):
    path = tmp_path / "gateway.yaml"
    write(path, config)
    assert run_gateway(path) == 2
    error = capfd.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_an_address_that_is_taken_is_named(tmp_path):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            for config in (
                configured() | {"listen": address},
                configured(admin={"listen": address}),
            ):
                async with process(tmp_path / "gateway.yaml", config) as running:
                    assert await running.ended() == 2
                    assert running.process.stderr is not None
                    said = (await running.process.stderr.read()).decode()
                    assert f"cannot listen on {address}" in said
                    assert "Traceback" not in said

    run(main())


def test_a_misconfigured_scheduler_serves_all_the_same_and_says_so(tmp_path):
    async def main():
        async with Backend(auto=True) as one:
            wrong = {"priority_scheduler": {"enabled": True, "classes": {"bulk": {"queue": 1}}}}
            async with gateway({"url": one.url, "capacity": 8}, **wrong) as running:
                assert (await fetch(running.data_listener.url))[0].status == 200
                _, body = await fetch(running.admin_listener.url, "GET", "/readyz")
                assert json.loads(body)["status"] == "degraded"

    run(main())


def test_a_changed_file_is_followed_and_a_bad_one_changes_nothing(tmp_path, caplog):
    async def main():
        async with Backend(auto=True) as one, Backend(auto=True) as two:
            path = tmp_path / "gateway.yaml"
            write(path, configured({"url": one.url, "capacity": 4}, **SCHEDULED))
            stop, started = asyncio.Event(), asyncio.Queue[Any]()
            serving = asyncio.create_task(
                serve(load(path), stop, watch=path, started=started.put_nowait)
            )
            running = await within(started.get())
            write(path, "upstreams: [{url: 5}]")
            await until(lambda: "not applied" in caplog.text, 3.0)
            assert running.fleet.capacities() == {"": 4}
            _, body = await fetch(running.admin_listener.url, "GET", "/metrics")
            assert b'fairlead_gateway_reloads_total{outcome="refused"} 1.0' in body
            changed = configured({"url": two.url, "capacity": 8}, **SCHEDULED)
            write(path, changed | {"limits": {"body_bytes": 10}})
            await until(lambda: running.fleet.capacities() == {"": 8}, 3.0)
            head, _ = await fetch(running.data_listener.url, "POST", "/", body=b"x" * 11)
            assert head.status == 413
            await fetch(running.data_listener.url)
            assert (one.seen, two.seen) == (0, 1)
            stop.set()
            await within(serving)

    run(main())


def test_preemption_ends_the_call_at_the_backend():
    async def main():
        async with (
            Backend() as one,
            gateway({"url": one.url, "capacity": 1, **HEALTHY}, **SCHEDULED) as running,
            connected(running.data_listener.url) as bulk,
            connected(running.data_listener.url) as interactive,
        ):
            bulk.request("GET", "/bulk", BULK)
            victim = await one.arrival()
            interactive.request("GET", "/interactive", INTERACTIVE)
            head, body = await bulk.response()
            assert (head.status, head.get("retry-after")) == (503, "1")
            assert head.get("x-fairlead-preempted") == "true"
            assert json.loads(body)["code"] == "scheduler_preempted"
            await within(victim.gone.wait(), 0.25)
            held = await one.arrival()
            assert held.target == "/interactive"
            held.answer()
            assert (await interactive.response())[1] == b"done"

    run(main())


def test_a_client_that_leaves_frees_its_slot_and_ends_its_call():
    async def main():
        async with (
            Backend() as one,
            gateway({"url": one.url, "capacity": 1, **HEALTHY}, **SCHEDULED) as running,
            connected(running.data_listener.url) as leaver,
            connected(running.data_listener.url) as waiter,
        ):
            leaver.request("GET", "/leaver")
            held = await one.arrival()
            waiter.request("GET", "/waiter")
            leaver.close()
            await within(held.gone.wait(), 0.25)
            held = await one.arrival()
            held.answer()
            assert (await waiter.response())[1] == b"done"

    run(main())


def test_a_backend_that_dies_between_head_and_body_is_502_while_the_head_is_kept_back():
    async def main():
        async with (
            Backend() as one,
            gateway({"url": one.url, "capacity": 1, **HEALTHY}, **SCHEDULED) as running,
            connected(running.data_listener.url) as client,
        ):
            client.request("GET", "/v1/x", BULK)
            held = await one.arrival()
            held.stream()
            await held.drained()
            held.hang_up()
            head, body = await client.response()
            assert head.status == 502
            assert json.loads(body)["error"]["code"] == "upstream_failed"
            client.request("GET", "/", BULK)
            (await one.arrival()).answer()
            assert (await client.response())[0].status == 200

    run(main())


def test_a_backend_that_falls_silent_gives_its_slot_back_and_is_504_while_the_head_is_kept_back():
    async def main():
        async with (
            Backend() as one,
            gateway(
                {"url": one.url, "capacity": 1, **HEALTHY}, upstream_timeout="150ms", **SCHEDULED
            ) as running,
            connected(running.data_listener.url) as client,
        ):
            for begun in (False, True):
                client.request("GET", "/v1/x", BULK)
                held = await one.arrival()
                if begun:
                    held.stream()
                    await held.drained()
                head, body = await client.response()
                assert head.status == 504
                assert json.loads(body)["error"]["code"] == "upstream_timeout"
                await within(held.gone.wait())
            client.request("GET", "/", BULK)
            (await one.arrival()).answer()
            assert (await client.response())[0].status == 200
            assert running.admission.metrics.ended[0, "failed"] == 2

    run(main())


def test_capacity_follows_the_fleet_up_and_down_to_503():
    async def main():
        async with Backend() as one, Backend() as two:
            one.health_document = {"max_running_requests": 1}
            async with (
                gateway(
                    {"url": one.url, "capacity": "reported", **HEALTHY},
                    {"url": two.url, "capacity": 1, **HEALTHY},
                    **SCHEDULED,
                ) as running,
                connected(running.data_listener.url) as first,
                connected(running.data_listener.url) as second,
                connected(running.data_listener.url) as third,
            ):
                for client in (first, second, third):
                    client.request("GET", "/")
                held = [await one.arrival(), await two.arrival()]
                one.health_document = {"max_running_requests": 2}
                held.append(await one.arrival())  # the third goes up with the capacity
                one.health_status = two.health_status = 500
                await until(lambda: running.fleet.capacities() == {"": 0})
                head, body = await fetch(running.data_listener.url, "GET", "/v1/x")
                assert head.status == 503
                assert int(head.get("retry-after")) >= 1
                assert json.loads(body)["error"]["code"] == "no_healthy_upstream"
                for each in held:
                    each.answer()  # what runs is finished all the same
                for client in (first, second, third):
                    assert (await client.response())[1] == b"done"

    run(main())


def test_pools_by_model_do_not_wait_for_each_other():
    async def main():
        async with (
            Backend() as one,
            Backend(auto=True) as two,
            gateway(
                {"url": one.url, "capacity": 1, "models": ["m"]},
                {"url": two.url, "capacity": 1, "models": ["n"]},
                pool_by="model",
                **SCHEDULED,
            ) as running,
            connected(running.data_listener.url) as first,
        ):
            url = running.data_listener.url
            media = [("content-type", "application/json")]
            first.request("POST", "/v1/chat/completions", media, b'{"model": "m"}')
            held = await one.arrival()
            head, _ = await fetch(url, "POST", "/v1/chat/completions", media, b'{"model": "n"}')
            assert head.status == 200
            head, body = await fetch(url, "POST", "/v1/chat/completions", media, b'{"model": "x"}')
            assert (head.status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
            held.answer()
            assert (await first.response())[0].status == 200

    run(main())


JSON = ("content-type", "application/json")


def ask(client: Client, model: str, priority: str = "default") -> None:
    """Ask for a model."""
    headers = [JSON, ("x-fairlead-priority", priority)]
    client.request("POST", "/v1/x", headers, b'{"model": "%s"}' % model.encode())


def waiting(running: Gateway) -> int:
    return sum(pool.gate.waiting for pool in running.admission.pools.values())


def in_flight(running: Gateway) -> int:
    return sum(each["in_flight"] for each in running.fleet.describe())


def test_a_model_whose_backends_are_down_takes_no_slot_of_those_it_shares_a_pool_with():
    async def main():
        async with Backend() as one, Backend() as two:
            upstreams = (
                {"url": one.url, "capacity": 1, "models": ["x"], **HEALTHY},
                {"url": two.url, "capacity": 1, "models": ["x", "y"], **HEALTHY},
            )
            async with (
                gateway(*upstreams, pool_by="model", **SCHEDULED) as running,
                connected(running.data_listener.url) as bulk,
                connected(running.data_listener.url) as queued,
                connected(running.data_listener.url) as client,
            ):
                ask(bulk, "x", "bulk")
                held = [await one.arrival()]
                ask(client, "y")
                held.append(await two.arrival())
                ask(queued, "y")
                await until(lambda: waiting(running) == 1)
                two.health_status = 500
                head, _ = await queued.response()  # as soon as that is known
                assert (head.status, head.get("x-fairlead-error-code")) == (
                    503,
                    "no_healthy_upstream",
                )
                held.pop().answer()
                await client.response()
                for priority in ("default", "interactive"):
                    ask(client, "y", priority)
                    head, body = await client.response()
                    assert head.status == 503
                    assert json.loads(body)["error"]["code"] == "no_healthy_upstream"
                held.pop().answer()
                assert (await bulk.response())[0].status == 200, "nobody preempted it in vain"

    run(main())


def test_who_waits_when_the_last_backend_goes_down_is_told_at_once():
    async def main():
        async with Backend() as one:
            given = {"url": one.url, "capacity": 1, **HEALTHY}
            async with (
                gateway(given, **SCHEDULED) as running,
                connected(running.data_listener.url) as first,
                connected(running.data_listener.url) as second,
            ):
                first.request()
                held = await one.arrival()
                second.request()
                await until(lambda: waiting(running) == 1)
                one.health_status = 500
                head, body = await second.response()
                assert (head.status, json.loads(body)["code"]) == (503, "no_healthy_upstream")
                assert int(head.get("retry-after")) >= 1
                held.answer()
                assert (await first.response())[0].status == 200

    run(main())


def test_who_waits_stays_while_a_new_backend_has_not_been_looked_at():
    async def main():
        async with Backend() as one, Backend() as two:
            given = {"url": one.url, "capacity": 1, "models": ["m"], **HEALTHY}
            for models in (["m"], ["m", "n"]):
                async with (
                    gateway(given, pool_by="model", **SCHEDULED) as running,
                    connected(running.data_listener.url) as first,
                    connected(running.data_listener.url) as second,
                ):
                    ask(first, "m")
                    held = await one.arrival()
                    ask(second, "m")
                    await until(lambda: waiting(running) == 1)
                    other = given | {"url": two.url, "models": models}
                    running.retune(load(configured(other, pool_by="model", **SCHEDULED)))
                    assert not sum(running.fleet.capacities().values())
                    held.answer()
                    (await two.arrival()).answer()
                    for client in (first, second):
                        assert (await client.response())[0].status == 200

    run(main())


def test_a_pool_that_gets_another_name_goes_on_counting_what_it_runs():
    async def main():
        async with Backend() as one:
            given = {"url": one.url, "capacity": 1, "models": ["m"]}
            more = [given | {"models": ["m", f"n{count}"]} for count in range(2)]
            plain = {"enabled": False}
            limiter = {"max_concurrent_requests": 1}
            async with (
                gateway(given, pool_by="model", **SCHEDULED) as running,
                connected(running.data_listener.url) as first,
                connected(running.data_listener.url) as second,
            ):
                ask(first, "m")
                held = await one.arrival()
                ask(second, "m")
                await until(lambda: waiting(running) == 1)
                for config in (
                    configured(more[0], pool_by="model", **SCHEDULED),
                    configured(more[1], pool_by="model", **SCHEDULED),
                    configured(
                        more[1], pool_by="model", priority_scheduler=plain, fallback=limiter
                    ),
                    configured(given, pool_by="model", **SCHEDULED),
                    configured(given, **SCHEDULED),
                ):
                    running.retune(load(config))
                    await until(lambda: waiting(running) == 1)
                    assert in_flight(running) == 1
                held.answer()
                (await one.arrival()).answer()
                for client in (first, second):
                    assert (await client.response())[0].status == 200
                await until(lambda: list(running.admission.pools) == [""])
                assert running.admission.pools[""].capacity.total == 1

    run(main())


@pytest.mark.parametrize("priority", [(), INTERACTIVE, [("priority", "u=1")]])
def test_a_model_goes_where_it_is_served_whatever_else_the_request_says(priority):
    async def main():
        async with (
            Backend(auto=True) as one,
            Backend(auto=True) as two,
            gateway(
                {"url": one.url, "capacity": 5, "models": ["a"]},
                {"url": two.url, "capacity": 5, "models": ["b"]},
                **SCHEDULED,
            ) as running,
        ):
            for method in ("POST", "PUT"):
                for path in ("/v1/x", "/x"):
                    asked = (method, path, [JSON, *priority])
                    url = running.data_listener.url
                    head, _ = await fetch(url, *asked, b'{"model": "a"}')
                    assert head.status == 200
                    head, _ = await fetch(url, *asked, b'{"model": "z"}')
                    found = (head.status, head.get("x-fairlead-error-code"))
                    assert found == (404, "model_not_found")
            assert (one.seen, two.seen) == (4, 0)

    run(main())


def test_the_access_log_can_be_switched_on_while_it_runs(tmp_path, monkeypatch):
    file = tmp_path / "gateway.json"
    file.write_text(json.dumps(configured(access_log=False)))
    enabled = []

    def served(*_: object, **__: object) -> int:
        enabled.append(logging.getLogger("fairlead.access").isEnabledFor(logging.INFO))
        return 0

    monkeypatch.setattr("fairlead.serving.process.run", served)
    assert run_gateway(file) == 0
    assert enabled == [True]


def test_a_body_that_grows_too_long_is_logged_as_what_it_was_answered(caplog):
    async def main():
        async with Backend() as one:
            given = {"url": one.url, "capacity": 1}
            limits = {"body_bytes": 1000, "body_before_slot": 0}
            async with (
                gateway(given, limits=limits, **SCHEDULED) as running,
                connected(running.data_listener.url) as client,
            ):
                client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
                client.send("2\r\nhi\r\n")
                await one.arrival()
                client.send(b"7d0\r\n%b\r\n0\r\n\r\n" % (b"z" * 2000))
                assert (await client.response())[0].status == 413
                await until(lambda: not in_flight(running) and lines())

    def lines() -> list[Any]:
        found = [each for each in caplog.records if each.name == "fairlead.access"]
        return [json.loads(each.getMessage())["status"] for each in found]

    with caplog.at_level(logging.INFO, "fairlead.access"):
        run(main())
    assert lines() == [413]
