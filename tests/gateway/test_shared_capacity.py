"""One capacity for several gateways: real processes, a real Valkey, and a backend that counts."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.gateway.loading import load
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.gateway.serving import Gateway
from tests.engines import Valkey, valkey
from tests.gateway.rig import (
    HEALTHY,
    Backend,
    Client,
    configured,
    connected,
    fetch,
    gateway,
    run,
    until,
    within,
)
from tests.gateway.test_serving import Process, process

CLASSES = {
    name: {"reserved_floor": 0, "reserved_per_slot": 0} for name in ("interactive", "default")
} | {"system": {"reserved_floor": 0}}
SCHEDULED = {
    "priority_scheduler": {
        "enabled": True,
        "default_max_class": "interactive",
        "classes": CLASSES,
    }
}
SLOTS = 4
FREED = 20.0  # seconds for what takes five


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as running:
        yield running


@pytest.fixture
def books(server) -> str:
    server.command("FLUSHALL")
    return str(server.url)


class Counted(Backend):
    """A backend that knows how many requests it holds, and the most it ever held."""

    def __init__(self) -> None:
        super().__init__()
        self.holding: list[Any] = []
        self.most = 0
        self._counting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Counted":
        await self.start()
        return self

    async def start(self) -> None:
        await super().start()
        self._counting = asyncio.create_task(self._count())

    async def stop(self) -> None:
        if self._counting is not None:
            self._counting.cancel()
        await super().stop()

    async def _count(self) -> None:
        while True:
            one = await self.arrivals.get()
            self.holding.append(one)
            self.most = max(self.most, self.held())

    def held(self) -> int:
        self.holding = [one for one in self.holding if not (one.done.is_set() or one.gone.is_set())]
        return len(self.holding)

    def answer(self, count: int = 1) -> None:
        self.held()
        for one in self.holding[:count]:
            one.answer()


def shared(books: str, **more: Any) -> dict[str, Any]:
    return {"shared_capacity": {"redis": books, **more}}


def upstream(backend: Backend, slots: int = SLOTS) -> dict[str, Any]:
    return {"url": backend.url, "capacity": slots, **HEALTHY}


@asynccontextmanager
async def two(tmp_path: Path, backend: Backend, books: str, **more: Any) -> AsyncIterator[Any]:
    config = configured(upstream(backend), **SCHEDULED, **shared(books, **more))
    async with (
        process(tmp_path / "one.yaml", config) as one,
        process(tmp_path / "two.yaml", config) as other,
    ):
        await one.started()
        await other.started()
        yield one, other


@asynccontextmanager
async def asking(url: str, count: int, **given: Any) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(url)) for _ in range(count)]
        for client in clients:
            client.request("GET", "/work", **given)
        yield clients


def test_the_sum_of_two_processes_stays_within_the_capacity(tmp_path, books):
    async def main():
        async with Counted() as backend, two(tmp_path, backend, books) as (one, other):
            async with asking(one.url, 12) as first, asking(other.url, 12) as second:
                for left in range(24, 0, -2):
                    await until(lambda left=left: backend.held() >= min(SLOTS, left))
                    backend.answer(2)
                for client in (*first, *second):
                    head, _ = await client.response()
                    assert head.status == 200
            assert backend.seen == 24
            assert backend.most == SLOTS
            for running in (one, other):
                await until_metric(running, b"fairlead_gateway_shared_capacity_connected 1.0")
                # The first learns of the second when it next speaks with the ledger.
                await until_metric(running, b"fairlead_gateway_shared_capacity_gateways 2.0")

    run(main(), 90.0)


def test_without_sharing_the_same_two_exceed_it(tmp_path, books):
    """The test above can fail."""

    async def main():
        async with Counted() as backend:
            config = configured(upstream(backend), **SCHEDULED)
            async with (
                process(tmp_path / "one.yaml", config) as one,
                process(tmp_path / "two.yaml", config) as other,
            ):
                await one.started()
                await other.started()
                async with asking(one.url, 6), asking(other.url, 6):
                    await until(lambda: backend.held() == 2 * SLOTS)

    run(main(), 60.0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_gateway_held_that_is_no_more_goes_to_the_other(tmp_path, books, how):
    async def main():
        async with Counted() as backend, two(tmp_path, backend, books) as (one, other):
            async with asking(one.url, SLOTS):
                await until(lambda: backend.held() == SLOTS)
                async with asking(other.url, SLOTS) as clients:
                    line = b'fairlead_gateway_queue_depth{class="default",pool=""} %d.0' % SLOTS
                    await until_metric(other, line)  # it is lent nothing
                    assert backend.most == SLOTS
                    one.process.send_signal(how)
                    if how is signal.SIGTERM:  # it finishes what it has first
                        backend.answer(SLOTS)
                    await within(one.process.wait(), FREED)
                    await until(lambda: backend.held() == SLOTS, FREED)
                    assert backend.seen == 2 * SLOTS
                    backend.answer(SLOTS)
                    for client in clients:
                        assert (await client.response())[0].status == 200
            assert backend.most == SLOTS

    run(main(), 90.0)


def test_higher_classes_are_served_first_between_gateways(tmp_path, books):
    async def main():
        async with Counted() as backend, two(tmp_path, backend, books) as (one, other):
            bulk = [("x-fairlead-priority", "bulk")]
            urgent = [("x-fairlead-priority", "interactive")]
            async with (
                asking(one.url, 12, headers=bulk),
                asking(other.url, 3, headers=urgent) as clients,
            ):
                await until(lambda: backend.held() == SLOTS)

                async def answer_all() -> None:
                    while True:
                        backend.answer(1)
                        await asyncio.sleep(0.05)

                answering = asyncio.create_task(answer_all())
                for client in clients:
                    await client.response()
                answering.cancel()
                # Of twelve that came before them, not all went first.
                assert backend.seen < 15

    run(main(), 60.0)


@pytest.mark.parametrize(("on_loss", "parts"), [("local", 2), ("closed", 0), ("open", 4)])
def test_without_the_ledger_each_goes_on_as_it_was_told(tmp_path, on_loss, parts):
    """local: its part of the capacity; closed: nothing starts; open: as if it were alone."""

    async def main():
        with valkey() as server:
            async with (
                Counted() as backend,
                two(tmp_path, backend, server.url, on_loss=on_loss) as (one, other),
            ):
                await until_metric(one, b"shared_capacity_gateways 2.0")
                await until_metric(other, b"shared_capacity_gateways 2.0")
                server.kill()
                await until_metric(one, b"shared_capacity_connected 0.0")
                async with asking(one.url, 6) as clients:
                    if parts:
                        await until(lambda: backend.held() == parts)
                    assert backend.most == parts
                    server.start()
                    await until_metric(one, b"shared_capacity_connected 1.0")
                    await until(lambda: backend.held() == SLOTS, FREED)
                    for _ in clients:
                        await until(lambda: backend.held() > 0)
                        backend.answer(1)
                    for client in clients:
                        assert (await client.response())[0].status == 200
                assert backend.most == SLOTS

    run(main(), 90.0)


async def until_metric(running: Process, text: bytes) -> None:
    async with asyncio.timeout(FREED):
        while True:
            _, page = await fetch(running.admin, "GET", "/metrics")
            if text in page:
                return
            await asyncio.sleep(0.02)


def test_nobody_is_preempted_for_a_slot_that_can_be_lent(books):
    async def main():
        async with Counted() as backend:
            preempting = {
                "priority_scheduler": {
                    "enabled": True,
                    "default_max_class": "interactive",
                    "classes": CLASSES
                    | {"interactive": {"can_preempt": True, **CLASSES["default"]}},
                }
            }
            async with gateway(upstream(backend), **preempting, **shared(books)) as one:
                url = one.data_listener.url
                bulk = [("x-fairlead-priority", "bulk")]
                urgent = [("x-fairlead-priority", "interactive")]
                async with asking(url, SLOTS - 1, headers=bulk) as low:
                    await until(lambda: backend.held() == SLOTS - 1)
                    async with asking(url, 1, headers=urgent):
                        await until(lambda: backend.held() == SLOTS)
                        assert one.admission.metrics.preemptions == {}
                        async with asking(url, 1, headers=urgent):  # and now there is none left
                            await until(lambda: one.admission.metrics.preemptions)
                            await until(lambda: backend.seen == SLOTS + 1)
                            backend.answer(SLOTS)
                            told = [(await client.response())[0].status for client in low]
                            assert sorted(told) == [200] * (SLOTS - 2) + [503]
            assert backend.most == SLOTS

    run(main(), 60.0)


def test_a_pool_that_is_no_more_gives_back(books):
    async def main():
        async with Counted() as backend:
            given = upstream(backend) | {"models": ["a"]}
            config = configured(given, pool_by="model", **SCHEDULED, **shared(books))
            async with Gateway(load(config)) as one:
                sharing = one.admission.sharing
                assert sharing is not None
                assert [lease.name for lease in sharing.ledger.leases] == ["a"]
                one.fleet.remove(backend.url)
                await until(lambda: not sharing.ledger.leases)
                assert not one.admission.pools

    run(main())


def test_the_middleware_shares_too(books):
    async def main():
        held: list[asyncio.Event] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            leave = asyncio.Event()
            held.append(leave)
            await leave.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        config = {"capacity": 2, **SCHEDULED, **shared(books)}
        both = [PriorityMiddleware(app, config) for _ in range(2)]
        answers: list[Any] = []

        async def ask(guarded: Any) -> None:
            scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}
            scope |= {"client": None, "http_version": "1.1"}
            never = asyncio.Event()
            first = [{"type": "http.request", "body": b"", "more_body": False}]

            async def receive() -> Any:
                if first:
                    return first.pop()
                await never.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                answers.append(message)

            await guarded(scope, receive, send)

        asked = [asyncio.create_task(ask(guarded)) for guarded in both for _ in range(3)]
        for count in range(2, 7):
            await until(lambda count=count: len(held) == count)
            assert sum(not leave.is_set() for leave in held) <= 2
            next(leave for leave in held if not leave.is_set()).set()
        for leave in held:
            leave.set()
        await within(asyncio.gather(*asked))
        for guarded in both:
            assert guarded.admission.sharing is not None
            await guarded.admission.sharing.stop()

    run(main())


def test_a_wrong_address_is_told_and_keeps_its_password(tmp_path):
    loaded = load({"shared_capacity": {"redis": "http://user:secret@x"}})
    (line,) = loaded.lines
    assert "shared_capacity.redis" in line
    assert "secret" not in line
