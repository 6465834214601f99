"""The shared ledger on a real Valkey: exact books, fair order across processes, concurrency never exceeded."""

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from math import ceil, inf
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from fairlead.capacities import LeasedTokens
from fairlead.core import State
from fairlead.errors import ConfigError, Misuse
from fairlead.ledger.ledger import Ledger
from fairlead.ledger.link import Call, Fault, Link, Script
from fairlead.ledger.slots_lease import SlotsLease
from tests.engines import Valkey, external, valkey
from tests.flows.ledger_rig import Asker, Node, quota_node, slots_node, until
from tests.sizes import FULL

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as running:
        yield running


@pytest.fixture
def url(server: Valkey) -> str:
    return external() or server.url


def processes(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run workers in processes of their own, started together."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.flows.ledger_worker", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for spec in specs
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline().strip() == "ready"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        return [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


# Quota


def test_one_process_gets_the_whole_bucket_and_then_the_rate(url: str):
    async def run() -> None:
        async with quota_node(url, "whole", 30, 10) as (node, ledger):
            for _ in range(30):
                assert await node.use(1.0)
            assert not await node.use(0.01)
            assert node.admitted == 30
            started = time.monotonic()
            assert await node.use(1.0)
            assert time.monotonic() - started < 0.8
            assert ledger.describe()["state"] == "connected"

    asyncio.run(run())


def test_who_would_not_wait_is_still_answered_by_the_ledger(url: str):
    """What is lent here may be used up, or nothing lent yet, while the ledger has more."""

    async def run() -> None:
        async with quota_node(url, "tries", 12, 0.1) as (node, ledger):
            got = 0
            for _ in range(20):
                asking = asyncio.ensure_future(node.use(5.0))
                await asyncio.sleep(0)
                if not asking.done():
                    assert await ledger.answered()
                    await asyncio.sleep(0)
                got += asking.done() and asking.result()
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                node.runtime.withdraw(node.runtime.gate.waiters())
            assert got == 12

    asyncio.run(run())


@asynccontextmanager
async def stalls() -> AsyncIterator[list[float]]:
    """Note by how many seconds this process came too late, each time it should have run."""
    found = [0.0]

    async def watch() -> None:
        due = time.monotonic()
        while True:
            found.append(max(0.0, time.monotonic() - due))
            due = time.monotonic() + 0.005
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    try:
        yield found
    finally:
        watching.cancel()


@pytest.mark.parametrize(
    ("continuous", "delay", "accepted"),
    [(True, False, 129), (True, True, 99), (False, False, 120), (False, True, 100)],
)
def test_the_refill_matrix_by_the_servers_clock(url, continuous, delay, accepted):
    """Bucket 30, fill 10 per 0.1 s, for 0.99 s: ten times as fast as the specification has it."""

    async def run() -> None:
        settings = {"continuous_fill": continuous, "delay_initial_fill": delay}
        name = f"matrix {continuous} {delay}"
        async with quota_node(url, name, 30, 10, 0.1, **settings) as (node, _):
            started = time.monotonic()
            async with stalls() as stalled:
                await node.press(40, started + 0.96)
            elapsed = time.monotonic() - started
            late = 10 * ceil(max(0.0, elapsed - 0.99) / 0.1)
            # What came last may come too late here: one fill if they are whole, what one poll brings if not, and what
            # was filled in while this machine did nothing.
            early = (18 if not continuous else 8) + ceil(max(stalled) * 100)
            assert accepted - early <= node.admitted <= accepted + 1 + late

    asyncio.run(run())


def test_keys_have_buckets_of_their_own(url: str):
    async def run() -> None:
        by = lambda ticket: ticket.tenant  # noqa: E731
        async with quota_node(url, "keys", 5, 0.1, by=by) as (node, _):
            asking = [node.use(0.3, tenant=key) for key in "abc" for _ in range(8)]
            assert sum(await asyncio.gather(*asking)) == 15
            assert await node.use(0.0)  # without the label it is not limited

    asyncio.run(run())


def test_large_costs_are_saved_up_for(url: str):
    async def run() -> None:
        async with quota_node(url, "large", 20, 50) as (node, _):
            small = [node.use(3.0, workload=("small", 1.0)) for _ in range(40)]
            large = [node.use(3.0, 20, workload=("large", 1.0)) for _ in range(2)]
            assert all(await asyncio.gather(*small, *large))

    asyncio.run(run())


def test_what_one_process_borrowed_and_does_not_use_comes_back(url: str):
    async def run() -> None:
        async with (
            quota_node(url, "idle", 200, 0.1) as (one, _),
            quota_node(url, "idle", 200, 0.1) as (other, _),
        ):
            for _ in range(100):  # fast enough to be lent ahead
                assert await one.use(1.0)
            got = await asyncio.gather(*(other.use(2.0) for _ in range(100)))
            assert sum(got) == 100
            assert not await other.use(0.3)

    asyncio.run(run())


def test_a_reload_of_the_limit_counts_at_once(url: str):
    async def run() -> None:
        async with quota_node(url, "reload", 10, 0.1) as (node, ledger):
            for _ in range(10):
                assert await node.use(1.0)
            lease: Any = node.lease  # type: ignore[attr-defined]
            lease.retune(10, 1000, 1.0, ledger.now())
            assert await node.use(1.0)
            assert lease.describe()["mode"] == "leased"
            with pytest.raises(ConfigError):
                lease.retune(10, 0, 1.0, ledger.now())

    asyncio.run(run())


def test_processes_with_other_settings_for_one_limit_are_both_named(url: str, caplog: Any):
    async def press(*nodes: Any) -> None:
        for node in nodes:
            if (ticket := await node.ask(1.0)) is not None:
                node.runtime.finish(ticket)

    def told(ledger: Ledger) -> str:
        (limit,) = ledger.describe()["limits"]
        return str(limit["other_rule"])

    async def run() -> None:
        async with (
            quota_node(url, "unlike", 100, 1000) as (a, one),
            quota_node(url, "unlike", 100, 1000) as (b, other),
        ):
            for _ in range(5):
                await press(a, b)
                await asyncio.sleep(0.02)
            assert told(one) == told(other) == ""
            lease: Any = b.lease  # type: ignore[attr-defined]
            lease.retune(100, 500, 1.0, other.now())
            while not (told(one) and told(other)):
                await press(a, b)
                await asyncio.sleep(0.01)
            assert told(one) == f"500 tokens every 1 s, 100 at most ({other.node})"
            assert told(other) == f"1000 tokens every 1 s, 100 at most ({one.node})"
            lease.retune(100, 1000, 1.0, other.now())
            while told(one) or told(other):
                await press(a, b)
                await asyncio.sleep(0.01)
        async with (
            slots_node(url, "unlike", 10) as (a, one),
            slots_node(url, "unlike", 20) as (b, other),
        ):
            while not (told(one) and told(other)):
                held = [await each.ask(1.0) for each in (a, b)]
                await asyncio.sleep(0.06)
                for each, ticket in zip((a, b), held, strict=True):
                    assert ticket is not None
                    each.runtime.finish(ticket)
            assert told(one) == f"20 in flight, each for 60 s at most ({other.node})"
            assert told(other) == f"10 in flight, each for 60 s at most ({one.node})"

    asyncio.run(asyncio.wait_for(run(), 30))
    lines = [line for line in caplog.messages if "not the same everywhere" in line]
    assert len(lines) == 4, "each process once for each"
    assert all(f":{os.getpid()}-" in line for line in lines)


def test_nothing_is_left_for_ever_and_nothing_is_kept_after_a_stop(url: str, server: Valkey):
    async def run() -> None:
        async with (
            quota_node(url, "ttl", 10, 10) as (node, _),
            slots_node(url, "ttl", 10) as (slots, _),
        ):
            assert await node.use(1.0)
            ticket = await slots.ask(1.0)
            assert ticket is not None
            slots.runtime.finish(ticket)
        link = Link(url, time.monotonic)
        client = redis.asyncio.Redis.from_url(url, decode_responses=True)
        keys = [key async for key in client.scan_iter("fairlead:*")]
        assert keys
        for key in keys:
            assert await client.pttl(key) > 0, key
        slots_script = Script("slots")
        ask = {"node": "me", "seq": 1, "limit": 10, "ttl": 2, "longest": 60, "settle": 2, "held": 0}
        ask |= {"kept": 66, "ahead": 0, "epoch": "", "claims": [["a", 1, 1, 10, 1, 1]]}
        (answer,) = await link.run(
            [Call(slots_script, "fairlead:{ttl:in flight}:slots", (json.dumps(ask),))]
        )
        assert isinstance(answer, list)
        assert float(answer[1]) == 10  # all of it: nothing was left behind
        await link.drop()
        await client.aclose()

    asyncio.run(run())


def test_a_ledger_is_started_once_and_stopped_in_peace(url: str):
    async def run() -> None:
        ledger = Ledger(url)
        await ledger.stop()
        assert not await ledger.answered()
        await ledger.start()
        with pytest.raises(Misuse):
            await ledger.start()
        await ledger.stop()
        await ledger.stop()
        assert ledger.describe()["state"] == "stopped"

    asyncio.run(run())


@pytest.mark.parametrize("bad", ["127.0.0.1:6379", "http://127.0.0.1", ""])
def test_an_address_that_is_none_is_refused(bad: str):
    with pytest.raises(ConfigError, match="redis://"):
        Ledger(bad)


@pytest.mark.parametrize(("seconds", "error"), [(30, 0.01)] if FULL else [(6, 0.02)])
def test_eight_processes_at_three_times_the_quota_admit_just_it(url, seconds, error):
    fill, burst = 1000, 100
    spec = {
        "kind": "quota",
        "url": url,
        "name": f"eight {seconds}",
        "capacity": burst,
        "fill": fill,
        "seconds": seconds,
        "timeout": 0.05,
        "offers": [["a", 1, 3 * fill / 8]],
    }
    results = processes([spec] * 8)
    admitted = sum(result["admitted"] for result in results)
    # Who asked last may still be served within its timeout.
    longest = max(result["elapsed"] for result in results)
    assert admitted <= (burst + fill * longest) * 1.001
    assert admitted >= (burst + fill * seconds) * (1 - error)
    assert all(result["ledger"]["losses"] == 0 for result in results)


def test_shares_follow_priority_across_processes(url: str):
    """One process has both workloads, the other only the unimportant one (scenario 41)."""
    spec = {"kind": "quota", "url": url, "name": "w3", "capacity": 20, "fill": 400, "seconds": 5}
    spec |= {"timeout": 0.2}
    results = processes(
        [
            spec | {"offers": [["high", 3, 600], ["low", 1, 600]]},
            spec | {"offers": [["low", 1, 600]]},
        ]
    )
    high = sum(result["by_workload"].get("high", 0) for result in results)
    low = [result["by_workload"].get("low", 0) for result in results]
    assert high / (high + sum(low)) == pytest.approx(0.75, abs=0.05)
    # Within a workload by users: one here, one there.
    assert low[0] == pytest.approx(low[1], rel=0.1)


# The books themselves


class Books:
    """Ask a script directly, as several processes would."""

    def __init__(self, link: Link, script: str, key: str) -> None:
        self.link, self.script, self.key = link, Script(script), key
        self.seq = count(1)

    async def ask(self, node: str, **said: Any) -> list[str]:
        defaults: dict[str, Any] = {"node": node, "seq": next(self.seq), "claims": [], "ahead": 0}
        if self.script.name == "quota":
            defaults |= {"capacity": 100, "fill": 0.001, "interval": 1, "continuous": True}
            defaults |= {"delay": False, "ttl": 1, "back": 0, "debit": 0, "spent": 0}
            defaults |= {"idle": 0}
        else:
            defaults |= {"limit": 12, "ttl": 2, "longest": 60, "settle": 2, "held": 0, "epoch": ""}
            defaults |= {"kept": 66}
        text = json.dumps(defaults | said)
        (answer,) = await self.link.run([Call(self.script, self.key, (text,))])
        if isinstance(answer, Fault):
            raise answer
        return answer


def books(url: str, script: str, test: Any) -> None:
    async def run() -> None:
        link = Link(url, time.monotonic)
        try:
            await test(Books(link, script, f"fairlead:{{{test.__qualname__}}}"))
        finally:
            await link.drop()

    asyncio.run(run())


def mail(answer: list[str]) -> dict[str, float]:
    return dict(zip(answer[8::2], map(float, answer[9::2]), strict=True))


def test_what_is_scarce_is_divided_by_weight_then_by_users_then_by_need(url: str):
    async def shares(quota: Books) -> None:
        await quota.ask("x", ahead=100)  # empties it
        one = [["hi", 3, 1, 50, 1, 1], ["lo", 1, 3, 50, 1, 1]]
        await quota.ask("a", claims=one)
        await quota.ask("b", claims=[["lo", 1, 1, 50, 1, 1]])
        await quota.ask("x", back=40)
        a, b = mail(await quota.ask("a", claims=one)), mail(await quota.ask("b"))
        assert (a["hi"], a["lo"] + b["lo"]) == (30, 10)
        assert a["lo"] in (7, 8)  # three users of four

    books(url, "quota", shares)


def test_who_joins_late_gets_its_share_from_then_on_and_no_more(url: str):
    async def late(quota: Books) -> None:
        await quota.ask("x", ahead=100)
        claims = [["w", 1, 1, 200, 1, 1]]
        await quota.ask("a", claims=claims)
        for _ in range(5):
            await quota.ask("x", back=10)
        assert mail(await quota.ask("a", claims=claims)) == {"w": 50}
        await quota.ask("b", claims=claims)
        for _ in range(5):
            await quota.ask("x", back=10)
        assert mail(await quota.ask("a", claims=claims))["w"] == pytest.approx(25, abs=1)
        assert mail(await quota.ask("b", claims=claims))["w"] == pytest.approx(25, abs=1)

    books(url, "quota", late)


def test_a_weight_of_nothing_goes_only_when_nobody_else_waits(url: str):
    async def idle(quota: Books) -> None:
        await quota.ask("x", ahead=100)
        await quota.ask("a", claims=[["zero", 0, 1, 10, 1, 1]])
        await quota.ask("b", claims=[["one", 1, 1, 10, 1, 1]])
        await quota.ask("x", back=12)
        assert mail(await quota.ask("b")) == {"one": 10}
        assert mail(await quota.ask("a")) == {"zero": 2}

    books(url, "quota", idle)


def test_mail_nobody_fetches_comes_back(url: str):
    async def silent(quota: Books) -> None:
        await quota.ask("x", ahead=100)
        await quota.ask("dead", claims=[["w", 1, 1, 10, 1, 1]], ttl=0.2)
        assert float((await quota.ask("x", back=10))[3]) == pytest.approx(0, abs=0.01)
        deadline = time.monotonic() + 5
        while (level := float((await quota.ask("x"))[3])) < 9.9:
            assert time.monotonic() < deadline, level
        assert level < 10.1

    books(url, "quota", silent)


def test_an_ask_that_comes_after_a_later_one_is_ignored(url: str):
    async def stale(quota: Books) -> None:
        await quota.ask("a", seq=10, ahead=10)
        assert await quota.ask("a", seq=9, back=90) == ["stale"]
        assert float((await quota.ask("a", seq=11))[3]) == pytest.approx(90, abs=0.1)

    books(url, "quota", stale)


def test_what_was_used_in_a_loss_is_taken_off_but_makes_no_debt(url: str):
    async def spent(quota: Books) -> None:
        assert float((await quota.ask("a", spent=30))[3]) == pytest.approx(70, abs=0.1)
        assert float((await quota.ask("a", spent=300))[3]) == pytest.approx(0, abs=0.1)
        assert float((await quota.ask("a", debit=7))[3]) == pytest.approx(-7, abs=0.1)

    books(url, "quota", spent)


def test_a_debt_larger_than_the_bucket_is_owed_in_full(url: str):
    async def owed(quota: Books) -> None:
        assert float((await quota.ask("a", debit=450))[3]) == pytest.approx(-350, abs=0.1)
        assert float((await quota.ask("a", spent=30))[3]) == pytest.approx(-350, abs=0.1)
        answer = await quota.ask("a", fill=10, claims=[["w", 1, 1, 1, 1, 1]])
        assert float(answer[2]) == pytest.approx(35, abs=1)

    books(url, "quota", owed)


def test_a_bucket_unused_for_its_idle_time_counts_as_full(url: str):
    """For those too who wait and ask meanwhile: to wait is not to use."""

    async def unused(quota: Books) -> None:
        started = time.monotonic()
        await quota.ask("a", ahead=60)
        claims = [["w", 1, 1, 70, 70, 70]]
        assert float((await quota.ask("b", claims=claims))[2]) > 1000
        with redis.Redis.from_url(url) as client:
            assert client.pttl(quota.key) > 60_000
            answer = await quota.ask("b", idle=0.5, claims=claims)
            assert float(answer[2]) <= 0.5
            assert client.pttl(quota.key) < 3000
        while not mail(answer):
            assert time.monotonic() < started + 10
            answer = await quota.ask("b", idle=0.5, claims=claims)
        assert mail(answer) == {"w": 70}
        assert time.monotonic() >= started + 0.49
        assert float(answer[3]) == pytest.approx(30, abs=0.1)

    books(url, "quota", unused)


def test_room_in_flight_is_never_lent_twice_and_moves_to_whom_it_belongs(url: str):
    async def moves(slots: Books) -> None:
        hungry = [["w", 1, 1, 50, 1, 1]]
        held = float((await slots.ask("a", claims=hungry))[1])
        assert held == 12
        answer = await slots.ask("b", claims=hungry)
        assert (float(answer[1]), float(answer[2])) == (0, 6)
        answer = await slots.ask("a", held=12, claims=hungry)
        assert float(answer[2]) == 6  # its part; it holds more until some of its work ends
        await slots.ask("a", held=9, claims=hungry)
        assert float((await slots.ask("b", claims=hungry))[1]) == 3
        await slots.ask("a", held=6, claims=hungry)
        assert float((await slots.ask("b", held=3, claims=hungry))[1]) == 6

    books(url, "slots", moves)


def test_what_does_not_divide_goes_round(url: str):
    async def round_and_round(slots: Books) -> None:
        hungry = [["w", 1, 1, 50, 1, 1]]
        held = {"a": 0.0, "b": 0.0}
        had = {"a": 0, "b": 0}
        deadline = time.monotonic() + 3
        while min(had.values()) < 2 and time.monotonic() < deadline:
            for node in held:
                answer = await slots.ask(node, limit=1, held=held[node], claims=hungry)
                before, held[node] = held[node], min(float(answer[1]), float(answer[2]))
                had[node] += held[node] > before
            assert sum(held.values()) <= 1
        assert min(had.values()) >= 2, had

    books(url, "slots", round_and_round)


def test_books_that_were_lost_lend_nothing_until_all_have_said_what_they_hold(url: str):
    async def lost(slots: Books) -> None:
        hungry = [["w", 1, 1, 50, 1, 1]]
        answer = await slots.ask("b", epoch="another time", claims=hungry)
        assert float(answer[1]) == 0
        await slots.ask("a", epoch="another time", held=9, claims=hungry)
        deadline = time.monotonic() + 10
        while float((await slots.ask("b", epoch=answer[4], claims=hungry))[1]) == 0:
            assert time.monotonic() < deadline
            await slots.ask("a", epoch=answer[4], held=9, claims=hungry)
        assert float((await slots.ask("b", held=3, epoch=answer[4], claims=hungry))[1]) == 3

    books(url, "slots", lost)


# Concurrency


def epoch_sent(lease: SlotsLease, now: float) -> str:
    """What a lease would tell the ledger that it remembers, at an instant of its own."""
    lease.capacity.look_at("in flight")
    ((_, _, call),) = lease.calls("fairlead", "node", 1, now, sweep=False)
    epoch: str = json.loads(call.args[0])["epoch"]
    return epoch


def test_books_are_kept_for_as_long_as_anybody_remembers_them(url: str):
    """Books of an idle limit that went before its processes forgot them would be taken for lost."""

    async def run() -> None:
        async with slots_node(url, "kept", 10) as (node, ledger):
            ticket = await node.ask(1.0)
            assert ticket is not None
            node.runtime.finish(ticket)
            await until(lambda: not node.capacity.keys)  # type: ignore[attr-defined]
            with redis.Redis.from_url(url) as client:
                left = client.pttl("fairlead:{kept:in flight}:slots") / 1000
            (lease,) = ledger.leases
        assert isinstance(lease, SlotsLease)
        node.runtime.offer(Asker(wait_until=inf))
        now = ledger.now()
        assert epoch_sent(lease, now), "a loss right after it would not be noticed"
        sent = [epoch_sent(lease, now + past) for past in range(int(left))]
        assert not sent[-1]

    asyncio.run(run())


def test_books_are_remembered_through_a_loss_however_long_it_lasts(url: str):
    """Who could not ask meanwhile is the one that has to say that the books are not those it knew."""

    async def run() -> None:
        async with slots_node(url, "remembered", 10) as (node, ledger):
            assert await node.ask(1.0) is not None
            (lease,) = ledger.leases
        assert isinstance(lease, SlotsLease)
        assert epoch_sent(lease, ledger.now() + 100_000)

    asyncio.run(run())


def test_slots_are_used_and_wait_their_turn(url: str):
    async def run() -> None:
        async with slots_node(url, "turns", 3) as (node, _):
            tickets = [await node.ask(1.0) for _ in range(3)]
            assert all(tickets)
            assert await node.ask(0.05) is None
            asking = asyncio.ensure_future(node.ask(2.0))
            await asyncio.sleep(0)
            assert tickets[0] is not None
            node.runtime.finish(tickets[0])
            assert (await asking) is not None
            assert node.runtime.gate.active == 3

    asyncio.run(run())


def test_concurrency_is_never_exceeded_and_well_used(url: str):
    """Four processes with ten callers each on ten slots; what is in flight is counted outside of all of them.

    `closed`, for any other policy would rather exceed the limit than wait for an answer on a machine that stands still.
    """
    spec = {"kind": "slots", "url": url, "name": "ten", "limit": 10, "seconds": 4, "work": 0.05}
    spec |= {"settings": {"on_loss": "closed"}}
    results = processes([spec | {"callers": [["a", 1, 10]]}] * 4)
    most, left = counted(url)
    assert most <= 10
    assert left == 0
    done = [result["admitted"] for result in results]
    assert sum(done) >= 0.7 * 10 * 4 / 0.05
    assert min(done) >= 0.5 * sum(done) / 4


def counted(url: str) -> tuple[int, int]:
    """Tell the most that was ever in flight, and what still is; counted by the workers in keys of their own."""
    with redis.Redis.from_url(url) as client:
        most, left = client.get("most"), client.get("in flight")
        client.delete("most", "in flight")
    return int(most or 0), int(left or 0)


def test_slots_are_shared_by_priority_across_processes(url: str):
    spec = {"kind": "slots", "url": url, "name": "prio", "limit": 8, "seconds": 4, "work": 0.02}
    high, low = processes(
        [spec | {"callers": [["high", 3, 20]]}, spec | {"callers": [["low", 1, 20]]}]
    )
    most, _ = counted(url)
    assert most <= 8
    total = high["admitted"] + low["admitted"]
    assert high["admitted"] / total == pytest.approx(0.75, abs=0.07)


def test_the_room_of_a_process_that_died_comes_back_but_not_before_its_work_could_have_ended(url):
    async def run() -> None:
        spec = {"kind": "slots", "url": url, "name": "dead", "limit": 4, "seconds": 60, "work": 30}
        spec |= {"callers": [["a", 1, 4]], "longest": 1.0}
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.flows.ledger_worker",
            json.dumps(spec),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert (await worker.stdout.readline()).strip() == b"ready"
        worker.stdin.write(b"go\n")
        async with slots_node(url, "dead", 4, longest=1.0) as (node, _):
            await until(lambda: busy(url) == 4)
            worker.kill()
            died = time.monotonic()
            await worker.wait()
            ticket = await node.ask(10.0)
            assert ticket is not None
            assert 0.9 <= time.monotonic() - died <= 5.0
        counted(url)

    def busy(url: str) -> int:
        with redis.Redis.from_url(url) as client:
            return int(client.get("in flight") or 0)

    asyncio.run(run())


def test_a_cancelled_waiter_leaves_nothing_behind(url: str):
    async def run() -> None:
        async with slots_node(url, "cancel", 1) as (node, _):
            holder = await node.ask(1.0)
            assert holder is not None
            waiting = [asyncio.ensure_future(node.ask(5.0)) for _ in range(5)]
            await asyncio.sleep(0)
            node.runtime.withdraw(node.runtime.gate.waiters()[:3])
            for task in waiting[:3]:
                task.cancel()
            node.runtime.finish(holder)
            first = await asyncio.wait_for(waiting[3], 2)
            assert first is not None
            assert first.state is State.RUNNING
            node.runtime.finish(first)
            second = await asyncio.wait_for(waiting[4], 2)
            assert second is not None
            node.runtime.finish(second)
            assert node.runtime.gate.active == node.runtime.gate.waiting == 0
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())


def test_the_rig_is_as_small_as_it_says():
    async def run() -> None:
        node = Node(LeasedTokens(1))
        assert not await node.use(0.0)

    asyncio.run(run())


# Whatever is asked, and mutants of the books


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("delay", [True, False])
def test_never_more_is_lent_than_the_burst_and_what_the_time_brought(url, continuous, delay):
    async def random_asks(quota: Books) -> None:
        rng = random.Random(5)
        quota.key += f"{continuous}{delay}"
        lent = 0.0
        settings = {"capacity": 10, "fill": 5, "interval": 0.02, "continuous": continuous}
        started = time.monotonic()
        for _ in range(600):
            claims = [
                [name, rng.choice((0, 1, 3)), rng.randint(1, 3), rng.choice((1, 4, 30)), 1, 1]
                for name in rng.sample("uvw", rng.randint(0, 3))
            ]
            back = rng.choice((0, 0, 1)) if lent > 1 else 0
            answer = await quota.ask(
                rng.choice("abcd"),
                claims=claims,
                ahead=rng.choice((0, 5, 100)),
                back=back,
                delay=delay,
                **settings,
            )
            lent += float(answer[1]) + sum(mail(answer).values()) - back
            elapsed = time.monotonic() - started
            assert lent <= 10 + 250 * elapsed + 5 + 0.5, elapsed
            assert float(answer[3]) <= 10

    books(url, "quota", random_asks)


def test_never_more_is_in_flight_than_the_limit_whatever_is_asked(url: str):
    async def random_asks(slots: Books) -> None:
        rng = random.Random(6)
        held = dict.fromkeys("abcd", 0.0)
        for _ in range(800):
            node = rng.choice("abcd")
            held[node] = max(0.0, held[node] - rng.choice((0, 0, 1, 2, 12)))
            claims = [
                [name, rng.choice((0, 1, 3)), rng.randint(1, 3), rng.choice((1, 4, 30)), 1, 1]
                for name in rng.sample("uvw", rng.randint(0, 3))
            ]
            answer = await slots.ask(node, held=held[node], claims=claims, ahead=rng.randint(0, 3))
            held[node] = float(answer[1])
            assert sum(held.values()) <= 12 + 1e-6, held

    books(url, "slots", random_asks)


MUTANTS = [
    (
        test_what_is_scarce_is_divided_by_weight_then_by_users_then_by_need,
        "  level = level - given",
        "",
    ),
    (
        test_what_is_scarce_is_divided_by_weight_then_by_users_then_by_need,
        "given / (line.weight > 0 and line.weight or 1)",
        "given",
    ),
    (
        test_what_is_scarce_is_divided_by_weight_then_by_users_then_by_need,
        "given / claim.users",
        "given",
    ),
    (
        test_who_joins_late_gets_its_share_from_then_on_and_no_more,
        "claim.tag = math.max(claim.tag, class.clock)",
        "",
    ),
    (
        test_a_weight_of_nothing_goes_only_when_nobody_else_waits,
        "line.weight > 0 and 0 or 1",
        "0",
    ),
    (test_mail_nobody_fetches_comes_back, "state.level = state.level + tokens", "local lost = 0"),
    (test_an_ask_that_comes_after_a_later_one_is_ignored, "mine.seq >= ask.seq", "false"),
    (
        test_room_in_flight_is_never_lent_twice_and_moves_to_whom_it_belongs,
        "ask.limit - others - mine.held",
        "ask.limit",
    ),
    (
        test_what_does_not_divide_goes_round,
        "(one.node.part - one.node.held) * elapsed / 0.1",
        "0",
    ),
    (
        test_books_that_were_lost_lend_nothing_until_all_have_said_what_they_hold,
        "if pausing then free",
        "if false then free",
    ),
]


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_mutants_of_the_scripts_are_caught(url, monkeypatch, number: int):
    test, old, new = MUTANTS[number]
    broken = 0

    class Mutant(Script):
        def __init__(self, name: str) -> None:
            nonlocal broken
            super().__init__(name)
            broken += old in self.text
            self.text = self.text.replace(old, new)
            self.sha = hashlib.sha1(self.text.encode()).hexdigest()

    monkeypatch.setattr(sys.modules[__name__], "Script", Mutant)
    with redis.Redis.from_url(url) as client:
        client.delete(*(client.keys("fairlead:*") or ["none"]))
    with pytest.raises((AssertionError, KeyError)):
        test(url)
    assert broken, f"{old!r} is not in the script any more"
