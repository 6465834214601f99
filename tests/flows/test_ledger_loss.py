"""The ledger lost and found: every fault, every policy, on a real Valkey behind a way that can be broken."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from fairlead.capacities import LeasedSlots, LeasedTokens
from fairlead.core import Ticket
from fairlead.ledger.ledger import Ledger
from tests.engines import Proxy, Valkey, proxy, valkey
from tests.flows.ledger_rig import Node, flow_of, quota_node, slots_node, until

RATE, BURST = 100, 20
POLICIES = ("local", "closed", "open")


@pytest.fixture
def server() -> Iterator[Valkey]:
    with valkey() as running:
        yield running


class Fault(NamedTuple):
    """How to bring a loss about, and how to end it."""

    break_it: Callable[[Valkey, Proxy], Any]
    mend_it: Callable[[Valkey, Proxy], Any]


def set_up(name: str, value: Any, mended: Any) -> Fault:
    return Fault(
        lambda server, way: setattr(way, name, value),
        lambda server, way: setattr(way, name, mended),
    )


def lock_out(server: Valkey, way: Proxy) -> None:
    assert "OK" in server.command("CONFIG", "SET", "requirepass", "other")
    way.reset()


def let_in(server: Valkey, way: Proxy) -> None:
    import redis

    with redis.Redis(unix_socket_path=server.path, password="other") as client:
        client.config_set("requirepass", "")


FAULTS = {
    "killed": Fault(lambda server, way: server.kill(), lambda server, way: server.start()),
    "frozen": Fault(lambda server, way: server.freeze(), lambda server, way: server.thaw()),
    "slow": set_up("delay", 2.0, 0.0),
    "half-open": set_up("silent", True, False),
    "refused": Fault(lambda server, way: way.refuse(), lambda server, way: way.refuse(False)),
    "loading": set_up("says", b"-LOADING Redis is loading the dataset in memory\r\n", None),
    "a foreign reply": set_up("says", b"*1\r\n$5\r\nhello\r\n", None),
    "no protocol at all": set_up("says", b"HTTP/1.1 400 Bad Request\r\n\r\n", None),
    "read-only": Fault(
        lambda server, way: server.command("REPLICAOF", "127.0.0.1", "1"),
        lambda server, way: server.command("REPLICAOF", "NO", "ONE"),
    ),
    "wrong password": Fault(lock_out, let_in),
}


@asynccontextmanager
async def limits(url: str) -> AsyncIterator[tuple[Ledger, dict[str, Node], dict[str, Node]]]:
    """One process with a quota and a concurrency limit for each policy."""
    ledger = Ledger(url)
    quotas, slots = {}, {}
    for policy in POLICIES:
        node = quotas[policy] = Node(LeasedTokens(BURST, flow=flow_of))
        ledger.quota(
            policy,
            node.capacity,  # type: ignore[arg-type]
            BURST,
            RATE,
            on_loss=policy,  # type: ignore[arg-type]
            adjust=node.runtime.adjust,
        )
        node = slots[policy] = Node(LeasedSlots(4, flow=flow_of, expire_after=60.0))
        ledger.concurrency(
            policy,
            node.capacity,  # type: ignore[arg-type]
            4,
            60.0,
            on_loss=policy,  # type: ignore[arg-type]
            adjust=node.runtime.adjust,
        )
    await ledger.start()
    try:
        yield ledger, quotas, slots
    finally:
        await ledger.stop()


def modes(ledger: Ledger) -> set[str]:
    return {lease.describe()["mode"] for lease in ledger.leases}


async def in_time(decision: Any, within: float = 0.25) -> Any:
    started = time.monotonic()
    answer = await decision
    assert time.monotonic() - started <= within, "a decision waited for the ledger"
    return answer


async def in_flight(node: Node, count: int) -> int:
    tickets = await asyncio.gather(*(in_time(node.ask(0.05)) for _ in range(count)))
    found = [ticket for ticket in tickets if ticket is not None]
    for ticket in found:
        node.runtime.finish(ticket)
    return len(found)


@pytest.mark.parametrize("name", FAULTS)
def test_each_policy_does_what_it_says_in_every_loss(server: Valkey, name: str):
    fault = FAULTS[name]

    async def run() -> None:
        async with proxy(server.path) as way, limits(way.url) as (ledger, quotas, slots):
            for node in quotas.values():
                assert await node.use(1.0)
            assert modes(ledger) == {"leased"}
            fault.break_it(server, way)
            # Nobody waits for the ledger, also as long as it is not known to be lost.
            for _ in range(10):
                assert await in_time(quotas["open"].use(1.0), 0.3)
                assert await in_time(quotas["local"].use(1.0), 0.3)
            assert await until(lambda: ledger.lost, 2.0) <= 1.0
            assert modes(ledger) == set(POLICIES)
            assert ledger.describe()["state"] == "lost"
            # closed
            assert not await in_time(quotas["closed"].use(0.05))
            assert await in_flight(slots["closed"], 3) == 0
            # open
            opened = await asyncio.gather(*(in_time(quotas["open"].use(0.05)) for _ in range(500)))
            assert all(opened)
            assert await in_flight(slots["open"], 50) == 50
            # local: one live node keeps the full rate
            local = quotas["local"]
            local.admitted = 0
            started = time.monotonic()
            await local.press(20, started + 0.5, timeout=0.2)
            elapsed = time.monotonic() - started
            assert 0.8 * RATE * 0.5 <= local.admitted <= BURST + RATE * elapsed + 1
            assert await in_flight(slots["local"], 9) == 4
            # and back
            fault.mend_it(server, way)
            assert await until(lambda: not ledger.lost, 6.0) <= 5.0
            assert modes(ledger) == {"leased"}
            for node in quotas.values():
                assert await node.use(2.0)
            for node in slots.values():
                ticket = await node.ask(5.0)
                assert ticket is not None
                node.runtime.finish(ticket)
            said = ledger.describe()
            assert said["losses"] == 1
            assert said["lost_seconds"] > 0.4
            assert all(one["switches"] == 2 and one["faults"] >= 1 for one in said["limits"])
            assert all(one["fault"] for one in said["limits"])

    asyncio.run(run())


def test_a_server_that_is_not_there_is_a_loss_from_the_start():
    async def run() -> None:
        started = time.monotonic()
        async with limits("redis://127.0.0.1:1/0") as (ledger, quotas, _):
            assert time.monotonic() - started <= 1.0
            assert modes(ledger) == set(POLICIES)
            assert sum([await in_time(quotas["local"].use(0.0)) for _ in range(40)]) >= BURST
            assert not await quotas["closed"].use(0.0)

    asyncio.run(run())


def test_scripts_that_were_flushed_are_sent_again_and_nothing_is_lost(server: Valkey):
    async def run() -> None:
        async with limits(server.url) as (ledger, quotas, _):
            for _ in range(3):
                server.command("SCRIPT", "FLUSH")
                before = ledger.describe()["script_reloads"]
                for node in quotas.values():
                    assert await node.use(1.0)
                await until(lambda before=before: ledger.describe()["script_reloads"] > before)  # type: ignore[misc]
            assert ledger.describe()["losses"] == 0
            assert modes(ledger) == {"leased"}

    asyncio.run(run())


@pytest.mark.parametrize("foreign", [("LPUSH", "x"), ("SET", "hello"), ("SET", "")])
def test_a_foreign_value_at_one_key_loses_that_limit_only(server: Valkey, foreign):
    key = "fairlead:{local:tokens}:quota"
    verb, value = foreign
    server.command(verb, key, value)

    async def run() -> None:
        async with limits(server.url) as (ledger, quotas, _):
            lease = next(lease for lease in ledger.leases if lease.name == "local")
            assert await quotas["closed"].use(1.0)
            assert await in_time(quotas["local"].use(1.0), 1.0)
            await until(lambda: lease.lost)
            assert not ledger.lost
            assert lease.describe()["fault"]
            assert await quotas["local"].use(0.0)
            server.command("DEL", key)
            assert await until(lambda: not lease.lost, 6.0) <= 5.0
            assert await quotas["local"].use(2.0)

    asyncio.run(run())


def test_in_a_loss_live_nodes_divide_the_rate_and_afterwards_they_pay(server: Valkey):
    """Two processes at full pressure through a loss: never more than the rate, and one burst on the way back."""

    async def run() -> None:
        async with (
            quota_node(server.url, "two", BURST, RATE) as (one, first),
            quota_node(server.url, "two", BURST, RATE) as (other, second),
        ):
            await until(lambda: first.live == second.live == 2)
            started = time.monotonic()
            ends = started + 4.0
            pressing = asyncio.gather(one.press(20, ends, 0.2), other.press(20, ends, 0.2))
            await until(lambda: time.monotonic() > started + 0.3)
            server.freeze()
            await until(lambda: first.lost and second.lost)
            before, lost_at = one.admitted + other.admitted, time.monotonic()
            await until(lambda: time.monotonic() > lost_at + 1.5)
            during = one.admitted + other.admitted - before
            lasted = time.monotonic() - lost_at
            server.thaw()
            assert 0.85 * RATE * lasted <= during <= BURST + RATE * lasted + 2
            await until(lambda: not (first.lost or second.lost))
            await pressing
            total, elapsed = one.admitted + other.admitted, time.monotonic() - started
            assert total <= 2 * BURST + RATE * elapsed + 5
            assert total >= 0.8 * RATE * elapsed

    asyncio.run(run())


@pytest.mark.parametrize("continuous", [True, False])
def test_a_fill_that_was_put_off_is_put_off_in_a_loss_too(server: Valkey, continuous: bool):
    async def run() -> None:
        settings = {"continuous_fill": continuous, "delay_initial_fill": True}
        name = f"put off {continuous}"
        async with quota_node(server.url, name, 30, 10, 100.0, **settings) as (node, ledger):
            assert await node.use(1.0, 30)
            drawn_by = ledger.now()
            await ledger.answered()
            server.kill()
            await until(lambda: ledger.lost)
            tokens = node.capacity
            assert isinstance(tokens, LeasedTokens)
            first = tokens.expected_at(Ticket(), ledger.now())
            due = 310.0 if continuous else 300.0
            assert drawn_by + due - 5 <= first <= drawn_by + due + 5

    asyncio.run(run())


def test_books_lost_with_the_server_never_lend_what_is_in_flight_elsewhere(server: Valkey):
    async def run() -> None:
        async with (
            slots_node(server.url, "again", 6, on_loss="closed") as (one, first),
            slots_node(server.url, "again", 6, on_loss="closed") as (other, second),
        ):
            held = [await one.ask(2.0) for _ in range(5)]
            assert all(held)
            server.kill()
            await until(lambda: first.lost and second.lost)
            asking = [asyncio.ensure_future(other.ask(8.0)) for _ in range(6)]
            server.start()
            await until(lambda: not (first.lost or second.lost))
            await asyncio.wait(asking, timeout=8.0, return_when=asyncio.FIRST_COMPLETED)
            assert one.runtime.gate.active == 5
            assert other.runtime.gate.active == 1
            for ticket in held:
                assert ticket is not None
                one.runtime.finish(ticket)
            assert all(await asyncio.gather(*asking))

    asyncio.run(run())


def test_a_process_that_stands_still_does_not_take_it_for_a_loss(server: Valkey):
    async def run() -> None:
        async with limits(server.url) as (ledger, quotas, _):
            for _ in range(3):
                asyncio.ensure_future(ledger.answered())  # noqa: RUF006
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                time.sleep(0.7)  # noqa: ASYNC251  # what the operating system does to it
                assert await quotas["closed"].use(1.0)
            assert ledger.losses == 0

    asyncio.run(run())


def test_a_server_that_may_forget_is_warned_of():
    with valkey("--maxmemory-policy", "allkeys-lru") as server:

        async def run() -> None:
            async with limits(server.url) as (ledger, _, _):
                assert "allkeys-lru" in ledger.describe()["warnings"][0]

        asyncio.run(run())
