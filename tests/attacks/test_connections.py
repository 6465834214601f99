"""Attacks with connections: more than there may be, more than there are descriptors for, and those that do nothing."""

import asyncio
import json
import random
import re
import resource
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fairlead.gateway.upstream import look
from fairlead.serving.connections import Caps, Connections, out_of_descriptors
from fairlead.serving.limits import Limits
from fairlead.serving.listener import Listener
from tests.gateway.rig import Backend, Client, Cut, connected, fetch, run, until, within
from tests.gateway.sockets import site

HALF = "GET / HTTP/1.1\r\nHos"


class Idle:
    """A connection as the book sees it."""

    def __init__(self) -> None:
        self.idle, self.served, self.open = True, False, True

    def give_way(self) -> None:
        assert self.idle
        self.open = False


def book(total: int, per_address: int, exempt: str = "") -> Connections:
    return Connections("here", lambda: Caps(total, per_address), lambda address: address == exempt)


class TestTheBook:
    """Which connection is admitted, and which gives way."""

    def test_over_random_connections_the_caps_hold(self):
        for seed in range(200):
            chance = random.Random(seed)
            total, per_address = chance.randint(1, 12), chance.randint(1, 6)
            tested = book(total, per_address, "d")
            known: list[tuple[Idle, str]] = []
            for _ in range(100):
                present = [one for one in known if one[0].open]
                if present and chance.random() < 0.4:
                    one, address = chance.choice(present)
                    deed = chance.choice(("leave", "work", "rest"))
                    if deed == "leave":
                        one.open = False
                        tested.leave(one, address)
                    else:
                        one.idle, one.served = deed == "rest", True
                else:
                    one, address = Idle(), chance.choice("abcd")
                    idle = [other.idle for other, _ in present]
                    own = [other.idle for other, where in present if where == address]
                    if tested.admit(one, address, 0.0):
                        known.append((one, address))
                    elif len(own) >= per_address and address != "d":
                        assert not any(own), "an idle one would have given way"
                    else:
                        assert len(idle) >= total
                present = [one for one in known if one[0].open]
                assert tested.count == len(present) <= total
                for name in "abc":
                    assert sum(where == name for _, where in present) <= per_address

    def test_the_address_with_the_most_gives_way_first_with_what_never_brought_a_request(self):
        tested = book(4, 4)
        quiet, kept, half, other = Idle(), Idle(), Idle(), Idle()
        kept.served = True
        for one in (kept, half, quiet):
            assert tested.admit(one, "a", 0.0)
        assert tested.admit(other, "b", 0.0)
        assert tested.admit(Idle(), "c", 0.0)
        assert [one.open for one in (kept, half, quiet, other)] == [True, False, True, True]

    def test_a_search_for_an_idle_one_is_short_and_goes_on_where_it_ended(self):
        tested = book(1000, 1000)
        for number in range(1000):
            one = Idle()
            one.idle = number == 999
            tested.admit(one, "a", 0.0)
        tries = 1
        while not tested.admit(Idle(), "a", 0.0):
            tries += 1
        assert tries == 16


def limited(**given: int) -> dict[str, Any]:
    return {"limits": {"header_timeout": "30s", **given}}


class TestTheListener:
    def test_answers_503_beyond_its_connections_while_all_are_busy(self):
        async def main() -> None:
            async with site(4, **limited(connections=2)) as here:
                first, held_1 = await here.running_one()
                second, held_2 = await here.running_one()
                async with connected(here.url) as third:
                    third.request()
                    head, body = await third.response()
                    assert (head.status, head.get("retry-after")) == (503, "1")
                    assert json.loads(body)["code"] == "too_many_connections"
                    assert await third.ended() == b""
                held_1.answer()
                held_2.answer()
                assert (await first.response())[0].status == 200
                assert (await second.response())[0].status == 200
                assert here.admission.metrics.refused_requests["too_many_connections"] == 1
                await here.quiet()

        run(main())

    def test_closes_an_idle_connection_for_a_new_one(self):
        async def main() -> None:
            async with (
                site(4, backend=Backend(auto=True), **limited(connections=2)) as here,
                AsyncExitStack() as stack,
            ):
                old = [await stack.enter_async_context(connected(here.url)) for _ in range(2)]
                for client in old:
                    client.send(HALF)
                assert (await fetch(here.url))[0].status == 200
                ended = [asyncio.create_task(client.reader.read()) for client in old]
                done, waiting = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
                assert (len(done), len(waiting)) == (1, 1)
                for task in waiting:
                    task.cancel()

        run(main())

    @pytest.mark.parametrize("trusted", [False, True])
    def test_bounds_an_address_unless_it_is_a_trusted_proxy_s(self, trusted):
        async def main() -> None:
            tenants = {"trusted_proxies": ["127.0.0.0/8" if trusted else "10.0.0.0/8"]}
            given = limited(connections=100, connections_per_address=2)
            async with site(4, tenants=tenants, **given) as here:
                for _ in range(2):
                    await here.running_one()
                third = await here.ask()
                if trusted:
                    (await here.backend.arrival()).answer()
                head, _ = await third.response()
                assert head.status == (200 if trusted else 503)
                if not trusted:
                    reader, writer = await asyncio.open_connection(
                        *here.url.removeprefix("http://").split(":"), local_addr=("127.0.0.9", 0)
                    )
                    client = Client(reader, writer)
                    client.request()
                    (await here.backend.arrival()).answer()
                    assert (await client.response())[0].status == 200
                    client.close()

        run(main())

    def test_of_any_door_has_a_part_of_the_descriptors(self):
        async def app(scope: Any, receive: Any, send: Any) -> None: ...

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        listener = Listener(app, "127.0.0.1:0")
        listener.bind()
        listener.close()
        assert listener.connections._caps() == Caps(soft // 8, soft // 8 // 4)

    def test_never_has_more_than_the_system_allows(self):
        limits = Limits(connections=10_000_000)
        assert Caps.of(1024, 0.5, limits).total == 896

    def test_says_once_that_it_is_full(self, caplog):
        tested = book(1, 1, "a")
        busy = Idle()
        busy.idle = False
        tested.admit(busy, "a", 0.0)
        for now in (1.0, 2.0, 30.0, 70.0):
            assert not tested.admit(Idle(), "a", now)
        told = [line for line in caplog.messages if "all 1 connections" in line]
        assert len(told) == 2


FLOOD = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
kept = []
for _ in range(600):
    try:
        s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
        s.sendall(b"GET /x HTTP/1.1\\r\\nHos")
        kept.append(s)
    except OSError:
        pass
print(len(kept), flush=True)
sys.stdin.readline()
"""


def test_a_gateway_short_of_descriptors_serves_on_and_blames_no_backend(tmp_path: Path):
    """256 descriptors, 600 half-open clients: a connected client, a new one and the admin port are served."""

    async def main() -> None:
        async with Backend(auto=True) as backend, AsyncExitStack() as stack:
            file = tmp_path / "gateway.yaml"
            file.write_text(
                "listen: 127.0.0.1:0\nadmin: {listen: '127.0.0.1:0'}\naccess_log: false\n"
                f"upstreams: [{{url: '{backend.url}', capacity: 64, health: /health}}]\n"
                "health: {interval: 100ms}\n"
            )
            command = f"ulimit -n 256; exec {sys.executable} -m fairlead gateway --config {file}"
            gateway = await asyncio.create_subprocess_exec(
                "sh", "-c", command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
            )  # fmt: skip
            lines = gateway.stderr
            assert lines is not None
            try:
                found = None
                while found is None:
                    line = (await within(lines.readline(), 60)).decode()
                    assert line
                    found = re.search(r"gateway: (http://\S+) .*admin (http://\S+)", line)
                data, admin = found[1], found[2]
                there = await stack.enter_async_context(connected(data))
                assert (await there.ask())[0].status == 200
                for writer in list(backend.connections):
                    writer.transport.abort()  # the next call needs a descriptor
                flood = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", FLOOD, data.rpartition(":")[2],
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
                assert flood.stdout is not None
                assert int(await within(flood.stdout.readline(), 60)) > 300
                assert (await there.ask())[0].status == 200, "a client that was there"
                assert (await fetch(data))[0].status == 200, "a new client"
                head, body = await fetch(admin, "GET", "/workers")
                assert head.status == 200
                assert json.loads(body)["workers"][0]["state"] == "healthy"
                checks = backend.health_checks
                await until(lambda: backend.health_checks > checks + 2)
                flood.kill()
                await flood.wait()
                assert (await fetch(data))[0].status == 200
            finally:
                gateway.terminate()
                log = (await lines.read()).decode()
                await gateway.wait()
            assert "unhealthy" not in log
            assert "unreachable" not in log
            assert log.count("connections that may be open are") == 1

    run(main(), 120)


def test_a_look_that_finds_no_descriptor_is_not_the_backend_s_death():
    class Short:
        def get(self, *args: Any, **given: Any) -> Any:
            raise OSError(24, "Too many open files")

    async def main() -> None:
        async with site(1) as here:
            upstream = next(iter(here.running.fleet._upstreams.values()))
            assert (await look(Short(), upstream, 1.0)).healthy  # type: ignore[arg-type]

    assert out_of_descriptors(OSError(24, "Too many open files"))
    assert not out_of_descriptors(ConnectionRefusedError(111, "Connection refused"))
    run(main())


def test_connections_that_come_and_go_leave_nothing_in_the_book():
    async def main() -> None:
        chance = random.Random(5)
        given = limited(connections=20)
        async with site(4, backend=Backend(auto=True), **given) as here:

            async def one() -> None:
                async with connected(here.url) as client:
                    kind = chance.randrange(4)
                    if kind == 0:
                        client.send(HALF)
                        await asyncio.sleep(chance.random() / 50)
                    elif kind == 1:
                        client.reset()
                    else:
                        client.request()
                        try:
                            head, _ = await client.response()
                        except Cut:
                            return
                        assert head.status in {200, 503}

            for _ in range(10):
                await asyncio.gather(*(one() for _ in range(40)))
            book = here.running.data_listener.connections
            await until(lambda: book.count == 0)
            await until(lambda: not book._refused)
            assert not book._open
            assert (await fetch(here.url))[0].status == 200

    run(main())
