"""`fairlead flows check` and `serve`: summaries, faults with their places, a process from start to end."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from fairlead.cli import main as command
from fairlead.documents import watching
from fairlead.flows import messages as wire
from fairlead.flows.loading import load
from fairlead.flows.serving import FlowServer, serve
from tests.flows.service_rig import (
    JSON,
    ONE,
    active,
    body_of,
    check,
    end,
    post,
    serving,
    until_waiting,
    url,
)
from tests.gateway.rig import connected, fetch, run, until, within

VALID = """\
control_points:
  checkout:
    quota: {bucket_capacity: 30, fill_amount: 10, interval: 1s, limit_by_label_key: api_key}
    concurrency: {max_concurrency: 10, max_inflight_duration: 60s}
    load: {controller: aimd, signal: latency_p95, setpoint: 250ms}
    scheduler:
      workloads:
        - {name: paid, match_labels: {tier: paid}, priority: 3}
"""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "flows.yaml"


def test_a_valid_file_is_summed_up(file, capsys):
    file.write_text(VALID)
    assert command(["flows", "check", str(file)]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert out.startswith(f"{file}: valid\n1 control point, limits of each process alone\n")
    assert (
        "checkout: quota 10 per 1 s up to 30 for each api_key, concurrency 10, load by aimd" in out
    )
    assert "workloads paid, default" in out


def test_every_fault_is_told_with_its_place(file, capsys):
    bad = VALID.replace("interval: 1s", "interval: soon").replace("priority: 3", "priority: -3")
    bad += "      max_quue: 5\nredis: localhost\n"
    file.write_text(bad)
    assert command(["flows", "check", str(file)]) == 2
    out, err = capsys.readouterr()
    assert not out
    lines = err.splitlines()
    assert len(lines) == 4
    assert "Traceback" not in err
    places = [":".join(line.removeprefix(f"{file}:").split(":")[:1]) for line in lines]
    assert places == ["3", "8", "9", "10"]
    for line, field in zip(
        lines, ("quota.interval", "workloads[0].priority", "max_quue", "redis"), strict=True
    ):
        assert field in line


@pytest.mark.parametrize(
    "text", ["control_points: [", "\t", "a: &x [*x]", "[]", "!!python/object:a b"]
)
def test_what_is_no_configuration_is_said_to_be_none(file, capsys, text):
    file.write_text(text)
    assert command(["flows", "check", str(file)]) == 2
    assert command(["flows", "serve", "--config", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert command(["flows", "check", str(tmp_path / "none.yaml")]) == 2
    assert command(["flows", "serve", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("args", [[], ["--help"]])
def test_help(capsys, args):
    assert command(["flows", *args]) == 0
    out = capsys.readouterr().out
    assert "serve" in out
    assert "check" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--http", "0.0.0.0:0"], "token"),
        (["--grpc", "0.0.0.0:0"], "token"),
        (["--grpc", ":0"], "token"),
        (["--http", "nowhere"], "host:port"),
        (["--http", "127.0.0.1:99999"], "host:port"),
        (["--http", "192.0.2.1:0", "--token", "t"], "cannot listen on 192.0.2.1:0"),
        (["--http", "127.0.0.1:0", "--grpc", "192.0.2.1:0", "--token", "t"], "cannot listen on"),
    ],
)
def test_where_it_may_not_listen(file, capsys, args, said, monkeypatch):
    monkeypatch.delenv("FAIRLEAD_FLOWS_TOKEN", raising=False)
    file.write_text(VALID)
    assert command(["flows", "serve", "--config", str(file), *args]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("kind", ["--http", "--grpc"])
def test_an_address_that_is_taken(file, capsys, kind):
    file.write_text(VALID)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert command(["flows", "serve", "--config", str(file), kind, address]) == 2
    assert f"cannot listen on {address}" in capsys.readouterr().err


class Process:
    """A service in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = self.grpc = ""

    async def line(self) -> str:
        assert self.process.stderr is not None
        raw: bytes = await within(self.process.stderr.readline(), 30)
        return raw.decode()

    async def started(self) -> str:
        line = await self.line()
        assert line.startswith("fairlead flows: "), line
        for part in line.removeprefix("fairlead flows: ").split("; "):
            if part.startswith("http"):
                self.url = part
            elif part.startswith("grpc"):
                self.grpc = part.split()[1]
        return line

    async def ask(self, path: str, content: Any) -> Any:
        head, body = await fetch(self.url, "POST", path, JSON, body_of(content))
        return {"status": head.status, **json.loads(body)}


@asynccontextmanager
async def process(file: Path, *args: str) -> AsyncIterator[Process]:
    code = "import sys; from fairlead.cli import main; sys.exit(main(sys.argv[1:]))"
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, "flows", "serve", "--config", str(file), *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "FAIRLEAD_FLOWS_TOKEN"},
    )
    try:
        yield Process(made)
    finally:
        if made.returncode is None:
            made.kill()
        await made.communicate()


async def until_queued(where: str) -> None:
    """Wait until one flow waits, as the metrics tell."""
    line = b'fairlead_flows_queue_length{control_point="one"} 1.0'
    async with asyncio.timeout(10):
        while line not in (await fetch(where, "GET", "/metrics"))[1]:
            pass


async def until_draining(where: str) -> None:
    """Wait until it says that it welcomes nobody more."""
    async with asyncio.timeout(10):
        while (await fetch(where, "GET", "/readyz"))[0].status != 503:
            pass


def test_it_serves_and_a_signal_lets_those_who_wait_finish(file):
    file.write_text(json.dumps(ONE))

    async def main():
        async with process(file, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0") as running:
            line = await running.started()
            assert "1 control point" in line
            first = await running.ask("/v1/flows/check", {"control_point": "one"})
            assert first["decision"] == "accepted"
            async with connected(running.url) as client, connected(running.url) as other:
                client.request("POST", "/v1/flows/check", JSON, body_of({"control_point": "one"}))
                await until_queued(running.url)
                running.process.send_signal(signal.SIGTERM)
                await until_draining(running.url)
                for one in (first["flow_id"], None):
                    if one is None:
                        head, body = await client.response()
                        assert (head.status, json.loads(body)["decision"]) == (200, "accepted")
                        one = json.loads(body)["flow_id"]
                    head, said = await post(other, "/v1/flows/end", {"flow_id": one})
                    assert (head.status, said) == (200, {"ended": True})
            assert await within(running.process.wait()) == 0

    run(main(), 60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(file, number):
    file.write_text(json.dumps(ONE))

    async def main():
        async with process(file, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0") as running:
            await running.started()
            await running.ask("/v1/flows/check", {"control_point": "one"})
            async with connected(running.url) as client:
                asked = body_of({"control_point": "one"})
                client.request("POST", "/v1/flows/check", JSON, asked)
                await until_queued(running.url)
                running.process.send_signal(number)
                await until_draining(running.url)
                running.process.send_signal(number)
                head, body = await client.response()
                assert (head.status, json.loads(body)["decision"]) == (503, "rejected")
                assert head.get("retry-after") == "1"
                assert await within(running.process.wait()) == 1

    run(main(), 60)


def test_those_who_outwait_the_grace_are_refused_not_dropped():
    async def main():
        async with serving(grpc=True, grace=0.05) as server:
            await check(server)
            asking = asyncio.create_task(check(server))
            assert server.grpc is not None
            channel = grpc.aio.insecure_channel(server.grpc.address)
            asked = wire.message("CheckRequest")(control_point="one")
            call = asyncio.ensure_future(checking(channel)(asked, timeout=20))
            await until_waiting(server, 2)
        head, said = await asking
        assert (head.status, said["reason"]) == (503, "cancelled")
        assert "shutting down" in said["message"]
        reply = await call
        assert (reply.decision_type, reply.wait_time.seconds) == (wire.REJECTED, 1)
        await channel.close()

    run(main())


@pytest.mark.parametrize("known", [True, False])
def test_while_it_drains_nobody_new_is_let_in_by_either_way(known):
    name = "one" if known else "nothing is said of it"

    async def main():
        async with serving(grpc=True, grace=20.0) as server:
            _, held = await check(server)
            assert server.grpc is not None
            channel = grpc.aio.insecure_channel(server.grpc.address)
            asked = wire.message("CheckRequest")(control_point=name)
            await checking(channel)(wire.message("CheckRequest")(control_point="nowhere"))
            ending = asyncio.create_task(server.__aexit__())
            await until(lambda: server.service.draining)
            before = server.flows.points["one"].counts.of(("default", 1.0)).rejected_flows
            head, said = await check(server, name)
            reply = await checking(channel)(asked, timeout=20)
            if known:
                assert (head.status, said["reason"]) == (503, "cancelled")
                assert head.get("retry-after") == "1"
                assert (reply.decision_type, reply.wait_time.seconds) == (wire.REJECTED, 1)
                after = server.flows.points["one"].counts.of(("default", 1.0)).rejected_flows
                assert after == before + 2
            else:
                assert (said["decision"], reply.decision_type) == ("accepted", wire.ACCEPTED)
            assert not ending.done()
            assert (await end(server, held["flow_id"]))[1] == {"ended": True}
            await ending
            await channel.close()

    run(main())


def test_what_nobody_has_to_end_is_not_waited_for():
    said = {"bucket_capacity": 5, "fill_amount": 5, "interval": "1s"}
    quota = {"control_points": {"one": {"quota": said}}}

    async def main():
        async with serving(quota, grace=20.0) as server:
            await check(server)
            assert active(server) == 1

    run(main(), 10)


def checking(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(
        f"/{wire.SERVICE}/Check",
        request_serializer=wire.message("CheckRequest").SerializeToString,
        response_deserializer=wire.CheckResponse.FromString,
    )


def test_grpc_alone(file):
    file.write_text(json.dumps(ONE))

    async def main():
        async with process(file, "--grpc", "127.0.0.1:0") as running:
            await running.started()
            assert not running.url
            async with grpc.aio.insecure_channel(running.grpc) as channel:
                reply = await checking(channel)(
                    wire.message("CheckRequest")(control_point="one"), timeout=20
                )
                assert reply.decision_type == wire.ACCEPTED
            running.process.send_signal(signal.SIGTERM)
            assert await within(running.process.wait(), 20) == 0

    run(main(), 60)


def test_http_and_grpc_end_each_others_flows():
    async def main():
        async with FlowServer(load(ONE), http="127.0.0.1:0", grpc="127.0.0.1:0") as server:
            assert server.grpc is not None
            async with grpc.aio.insecure_channel(server.grpc.address) as channel:
                asked = wire.message("CheckRequest")(control_point="one", expect_end=True)
                reply = await checking(channel)(asked, timeout=20)
                key = reply.limiter_decisions[0].concurrency_scheduler_info.request_id
                body = body_of({"flow_id": key})
                _, said = await fetch(url(server), "POST", "/v1/flows/end", JSON, body)
                assert json.loads(said) == {"ended": True}

    run(main())


def test_a_changed_file_is_followed_and_a_bad_one_is_not(file, monkeypatch, caplog):
    monkeypatch.setattr(watching, "INTERVAL", 0.01)
    monkeypatch.setattr(watching, "SETTLED", 0.01)
    file.write_text(json.dumps(ONE))

    async def main():
        stop, ready = asyncio.Event(), asyncio.Event()
        loaded = load(file)
        server = FlowServer(loaded, http="127.0.0.1:0")
        task = asyncio.create_task(
            serve(server, stop, watch=file, since=loaded, started=lambda one: ready.set())
        )
        await within(ready.wait())
        asked = body_of({"control_point": "one", "timeout": 0})

        async def status() -> int:
            return (await fetch(url(server), "POST", "/v1/flows/check", JSON, asked))[0].status

        assert [await status(), await status()] == [200, 503]
        waiting = asyncio.create_task(
            fetch(url(server), "POST", "/v1/flows/check", JSON, body_of({"control_point": "one"}))
        )
        await until(lambda: server.flows.points["one"].gate.waiting == 1)
        file.write_text("control_points: {one: {concurrency: {max_concurrency: none}}}")
        await until(lambda: "not applied" in caplog.text)
        assert not waiting.done()
        file.write_text(json.dumps(ONE).replace('"max_concurrency": 1', '"max_concurrency": 2'))
        assert (await within(waiting))[0].status == 200  # whoever waited got the new room
        assert await status() == 503
        server.hurry()  # nobody ends what was let in
        stop.set()
        await within(task)

    run(main())
