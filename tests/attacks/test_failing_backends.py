"""Backends that say they are healthy and fail: over real sockets, how many clients hear of it, and who is left out."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from fairlead.gateway.serving import Gateway
from tests.gateway.rig import Cut, Head, connected, fetch, gateway, read_head, run, until

BODY = json.dumps({"model": "alpha", "messages": [{"role": "user", "content": "hi"}]}).encode()
JSON = [("content-type", "application/json")]
SCHEDULER = {
    "enabled": True,
    "default_max_class": "interactive",
    "classes": {"interactive": {"reserved_floor": 0}, "system": {"reserved_floor": 0}},
}


class Backend:
    """Answers /health with 200 always, and calls as its `mood` is: well, or one of FAULTS."""

    def __init__(self, service: float = 0.05) -> None:
        self.mood = "well"
        self.service = service
        self.calls = 0
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Backend"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(Cut, ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            while True:
                head = await read_head(reader)
                await reader.readexactly(int(head.get("content-length", "0")))
                if head.first[1] == "/health":
                    writer.write(answer(200))
                elif not await self._call(writer, head):
                    break
                await writer.drain()
        writer.transport.abort()

    async def _call(self, writer: asyncio.StreamWriter, head: Head) -> bool:
        self.calls += 1
        mood = self.mood
        if mood == "well":
            await asyncio.sleep(self.service)
            writer.write(answer(400 if head.first[1] == "/wrong" else 200))
        elif mood == "hang up":
            return False
        elif mood == "cut":
            writer.write(b"HTTP/1.1 200 So\r\ncontent-length: 9\r\n\r\nhalf")
            await writer.drain()
            await asyncio.sleep(0.01)  # the half is on its way
            return False
        elif mood == "full":
            writer.write(answer(503, b"retry-after: 1\r\n"))
        else:
            writer.write(answer(int(mood)))
        return True


FAULTS = ("500", "502", "503", "hang up", "cut")


def answer(status: int, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d So\r\ncontent-length: 2\r\n%b\r\nok" % (status, more)


@asynccontextmanager
async def fleet_of(*backends: Backend, **more: Any) -> AsyncIterator[Gateway]:
    listed = [{"url": one.url, "capacity": 64, "health": "/health"} for one in backends]
    async with gateway(*listed, priority_scheduler=SCHEDULER, **more) as running:
        yield running


@asynccontextmanager
async def pair(service: float, **more: Any) -> AsyncIterator[tuple[Gateway, Backend, Backend]]:
    """Run a gateway before two backends."""
    one, two = Backend(service), Backend(service)
    async with one.running(), two.running(), fleet_of(one, two, **more) as running:
        yield running, one, two


async def load(
    running: Gateway,
    clients: int = 6,
    each: int = 20,
    method: str = "POST",
    path: str = "/v1/chat/completions",
) -> Counter[str]:
    """Send requests, from clients that each wait for the answer before; count the answers."""
    found: Counter[str] = Counter()

    async def client() -> None:
        for _ in range(each):
            async with connected(running.data_listener.url) as connection:
                try:
                    body = BODY if method == "POST" else None
                    head, _ = await connection.ask(method, path, JSON, body)
                    found[str(head.status)] += 1
                except Cut:
                    found["cut"] += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return found


async def workers(running: Gateway) -> dict[str, dict[str, Any]]:
    _, body = await fetch(running.admin_listener.url, "GET", "/workers")
    return {one["url"]: one for one in json.loads(body)["workers"]}


def failed(found: Counter[str]) -> int:
    return sum(found.values()) - found["200"]


@pytest.mark.parametrize(("mood", "most"), [("500", 6), ("503", 1)])
def test_a_black_hole_draws_no_traffic(mood, most):
    async def main() -> None:
        async with pair(0.05) as (running, hole, _):
            assert await load(running) == {"200": 120}
            hole.mood = mood
            found = await load(running)
            assert sum(found.values()) == 120
            assert failed(found) <= most

    run(main())


def test_without_ejection_it_would_draw_nearly_all():
    async def main() -> None:
        async with pair(0.05, outliers={"enabled": False}) as (running, hole, _):
            hole.mood = "500"
            assert failed(await load(running)) > 60

    run(main())


@pytest.mark.parametrize("seed", range(4))
def test_random_fleets_of_which_less_than_half_fail(seed):
    rng = random.Random(seed)

    async def main() -> None:
        backends = [Backend(rng.choice((0.002, 0.02))) for _ in range(rng.randint(3, 6))]
        clients = rng.randint(1, 12)
        async with AsyncExitStack() as stack:
            for one in backends:
                await stack.enter_async_context(one.running())
            bad = backends[: rng.randint(1, (len(backends) - 1) // 2)]
            async with fleet_of(*backends) as running:
                await load(running, clients, 3)
                for one in bad:
                    one.mood = rng.choice(FAULTS)
                # Of each that fails, what makes it an outlier and what was on its way at that moment.
                found = await load(running, clients, 20)
                assert failed(found) <= len(bad) * (5 + clients)
                before = [one.calls for one in bad]
                assert failed(await load(running, clients, 5)) <= len(bad)
                assert sum(one.calls for one in bad) <= sum(before) + len(bad)
                shown = await workers(running)
                good = [one.url for one in backends if one not in bad]
                assert all(shown[url]["state"] == "healthy" for url in good)

    run(main())


def out(running: Gateway) -> list[str]:
    """Tell which backends are left out now."""
    return [one.url for one in running.fleet._upstreams.values() if one.record.ejected]


def test_one_that_is_mended_is_brought_back_by_one_probe():
    async def main() -> None:
        # Its penalty alone would keep it from failing so often that it is ejected.
        quick = {"consecutive": 1, "first": "100ms", "longest": "200ms"}
        async with pair(0.002, outliers=quick) as (running, hole, _):
            hole.mood = "500"
            while not out(running):
                await load(running, 6, 5)
            assert (await workers(running))[hole.url]["state"] == "ejected"
            hole.mood = "well"
            calls = hole.calls
            while out(running):
                assert await load(running, 1, 5) == {"200": 5}
            assert (await workers(running))[hole.url]["state"] == "healthy"
            assert await load(running, 6, 20) == {"200": 120}
            assert hole.calls > calls + 10

    run(main())


def test_where_all_fail_at_most_half_are_left_out_and_all_come_back():
    async def main() -> None:
        quick = {"first": "50ms", "longest": "50ms"}
        async with pair(0.002, outliers=quick) as (running, one, two):
            one.mood = two.mood = "500"
            found = await load(running)
            assert found["500"] == sum(found.values())
            assert len(out(running)) <= 1
            one.mood = two.mood = "well"
            assert failed(await load(running)) == 0
            while out(running):
                assert failed(await load(running, 1, 5)) == 0

    run(main())


@pytest.mark.parametrize("mood", ["full", "400"])
def test_one_that_is_full_or_that_clients_ask_wrongly_stays(mood):
    async def main() -> None:
        async with pair(0.002) as (running, one, _):
            one.mood = mood
            await load(running, 6, 20)
            assert all(
                item["state"] == "healthy" and item["errors"] == 0
                for item in (await workers(running)).values()
            )

    run(main())


def test_a_client_that_leaves_is_no_fault_of_the_backend():
    async def main() -> None:
        async with pair(0.2) as (running, one, two):
            for _ in range(20):
                async with connected(running.data_listener.url) as client:
                    calls = one.calls + two.calls
                    client.request("POST", "/v1/completions", JSON, BODY)
                    await until(lambda calls=calls: one.calls + two.calls > calls)
                    client.reset()
            pools = running.admission.pools.values()
            await until(lambda: not any(pool.gate.active for pool in pools))
            assert all(item["errors"] == 0 for item in (await workers(running)).values())

    run(main())
