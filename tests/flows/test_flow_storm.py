"""Cancellation at every await, and storms of offers, cancellations, ends and losses: nothing is lost or made up."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fairlead.core import Change
from fairlead.flows.scheduler import AsyncFlow, FlowScheduler
from tests.doors.rig import Injected, at_every_step, cancelled_at
from tests.flows.door import (
    balanced,
    concurrency,
    level,
    now,
    point_of,
    quota,
    run,
    scheduler,
    ticks,
    until,
    used,
)
from tests.sizes import FULL

LABELS = {"tokens": "2", "user": "u"}


async def work() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(1)


async def in_a_context(flows: FlowScheduler) -> None:
    async with flows.flow("p", LABELS):
        await work()


async def with_a_timeout(flows: FlowScheduler) -> None:
    async with flows.flow("p", LABELS, timeout=30) as flow:
        assert flow.should_run()
        await work()


async def too_late(flows: FlowScheduler) -> None:
    async with flows.flow("p", LABELS, timeout=0.1) as flow:
        assert not flow.should_run()
        await work()


async def by_hand(flows: FlowScheduler) -> None:
    flow = await flows.start_flow("p", LABELS)
    try:
        await work()
    finally:
        flow.end(tokens=1)


async def decorated(flows: FlowScheduler) -> None:
    await flows.decorate("p", labels=LABELS)(work)()


async def nested(flows: FlowScheduler) -> None:
    async with flows.flow("p", LABELS), flows.flow("p", LABELS):
        await work()


ASKED: list[Callable[[FlowScheduler], Coroutine[Any, Any, None]]] = [
    in_a_context,
    with_a_timeout,
    by_hand,
    decorated,
    nested,
]


def door() -> FlowScheduler:
    return scheduler(
        concurrency=concurrency(4),
        quota=quota(100, 1e-6),
        scheduler={"tokens_label_key": "tokens", "fairness_label_key": "user"},
    )


@pytest.mark.parametrize("busy", [0, 4], ids=["room", "no room"])
@pytest.mark.parametrize("asks", [*ASKED, too_late], ids=lambda asks: asks.__name__)
def test_cancelled_at_every_suspension(asks, busy):
    """Thrown as it suspends and, in a second pass, as it is resumed: just granted."""
    if asks is too_late and not busy:
        busy = 4

    async def main():
        async def scenario(step: int, resumed: bool) -> bool:
            flows = door()
            if busy:
                holder = await flows.start_flow("p", {"tokens": str(busy)})
                asyncio.get_running_loop().call_later(1, holder.end)
            with pytest.raises((asyncio.CancelledError, Injected)) as caught:
                await cancelled_at(asks(flows), step, resumed)
            await asyncio.sleep(100)
            balanced(flows)
            counts = point_of(flows).counts
            spent = sum(one.accepted_tokens for one in counts.workloads.values())
            if asks is not by_hand:  # who settles for less has more left
                assert level(flows) == pytest.approx(100 - spent, abs=0.01)
            assert (await flows.start_flow("p", {"tokens": "4"}, timeout=0)).should_run()
            return caught.type is asyncio.CancelledError

        return await at_every_step(scenario)

    assert run(main()) >= 2


@pytest.mark.parametrize("asks", ASKED, ids=lambda asks: asks.__name__)
def test_cancelled_at_every_step_of_the_loop(asks):
    async def main():
        for released_after in (0, 2, 5):
            for step in range(10):
                flows = door()
                holder = await flows.start_flow("p", {"tokens": "4"})
                task = asyncio.ensure_future(asks(flows))
                await asyncio.sleep(0)
                for at in range(step):
                    if at == released_after:
                        holder.end()
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                holder.end()
                await asyncio.sleep(100)
                balanced(flows)

    run(main())


CAPACITY, FILL, LIMIT, HELD = 40.0, 100.0, 12.0, 2.0


async def storm(flows: FlowScheduler, count: int, seed: int) -> Counter[str]:
    """Ask, wait, give up, work, end, settle, end twice or never, from a hundred callers; check every grant."""
    rng = random.Random(seed)
    spent: Counter[str] = Counter()  # by key, less what came back
    inside = 0.0
    what: Counter[str] = Counter()

    def note(kind: str) -> None:
        what[kind] += 1

    async def one(key: str | None, tokens: float, timeout: float | None, kind: int) -> None:
        nonlocal inside
        labels = {"tokens": repr(tokens), "user": rng.choice("xyz"), "class": rng.choice("ab")}
        if key is not None:
            labels["key"] = key
        flow: AsyncFlow = await flows.start_flow("p", labels, timeout)
        if not flow.should_run():
            assert flow.retry_after is not None
            assert not flow.end()
            note("refused")
            return
        note("accepted")
        inside += tokens
        assert inside <= LIMIT
        if key is not None:
            spent[key] += tokens  # type: ignore[assignment]
            assert spent[key] <= CAPACITY + FILL * now() + 1e-6
        try:
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.1)))
            if kind == 0:  # never heard of again: its tokens are free when its time is up
                note("lost")
                # Until just before: whoever is granted what it held may take its step first.
                await asyncio.sleep(HELD - 1e-6 - (now() - flow.started_at))
                return
        finally:
            inside -= tokens
            settled = tokens * rng.choice((0.0, 0.5, 1.0, 2.0)) if kind == 1 else None
            if kind != 0:
                assert flow.end(rng.choice(("ok", "error")), settled)
                assert not flow.end()
                if settled is not None and key is not None:
                    spent[key] += settled - tokens  # type: ignore[assignment]

    tasks: list[asyncio.Task[None]] = []
    live: list[asyncio.Task[None]] = []
    for _ in range(count):
        key = rng.choice(["k1", "k2", "k3", None])
        timeout = rng.choice([None, 0.0, 0.05, 0.5])
        task = asyncio.ensure_future(
            one(key, rng.choice((0.5, 1, 2, 5)), timeout, rng.randrange(8))
        )
        tasks.append(task)
        live.append(task)
        if rng.random() < 0.3:
            await asyncio.sleep(0 if rng.random() < 0.5 else rng.random() / 20)
        while len(live) > 60:
            task = live.pop(rng.randrange(len(live)))
            if rng.random() < 0.5 and not task.done():
                task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if task.cancelled():
            note("cancelled")
        else:
            task.result()
    return what


@pytest.mark.parametrize(("count", "seed"), [(100_000, 2)] if FULL else [(20_000, 1)])
def test_a_storm_conserves_tokens(count, seed):
    """Σ granted ≤ capacity + fill·t for each key at each grant; in flight never above the limit; and 0 in the end."""

    async def main():
        flows = scheduler(
            quota=quota(CAPACITY, FILL, limit_by_label_key="key"),
            concurrency=concurrency(LIMIT, max_inflight_duration=f"{HELD:g}s"),
            scheduler={
                "workloads": [
                    {"name": "a", "match_labels": {"class": "a"}, "priority": 2},
                    {"name": "b", "match_labels": {"class": "b"}},
                ],
                "tokens_label_key": "tokens",
                "fairness_label_key": "user",
            },
        )
        what = await storm(flows, count, seed)
        await until(now() + HELD)
        await ticks()
        balanced(flows)
        assert used(flows) == 0
        for kind in ("accepted", "refused", "cancelled", "lost"):
            assert what[kind] > count / 100, what
        counts = point_of(flows).counts
        accepted = sum(one.accepted_flows for one in counts.workloads.values())
        assert accepted == what["accepted"]
        assert (await flows.start_flow("p", {"tokens": repr(LIMIT)}, timeout=0)).should_run()

    run(main())


def test_no_wake_up_is_lost():
    """Limits that flap: whenever the loop comes to rest, nobody waits who could go."""

    async def main():
        flows = scheduler(concurrency=concurrency(1), scheduler={"fairness_label_key": "user"})
        rng = random.Random(7)
        point = point_of(flows)
        held: list[AsyncFlow] = []
        tasks: list[asyncio.Task[AsyncFlow]] = []
        for _ in range(3_000):
            verb = rng.randrange(4)
            if verb == 0:
                tasks.append(
                    asyncio.ensure_future(flows.start_flow("p", {"user": rng.choice("ab")}))
                )
            elif verb == 1 and held:
                held.pop(rng.randrange(len(held))).end()
            elif verb == 2 and tasks:
                tasks.pop(rng.randrange(len(tasks))).cancel()
            elif verb == 3:
                point.runtime.adjust(Change("concurrency", "resize", (rng.randrange(1, 6),)))
            await ticks(3)
            held += [task.result() for task in tasks if task.done()]
            tasks = [task for task in tasks if not task.done()]
            limit: Any = point.parts.concurrency
            assert len(held) == point.gate.active
            assert not tasks or used(flows) >= limit.limit
        while tasks or held:
            for flow in held:
                flow.end()
            await ticks(3)
            held = [task.result() for task in tasks if task.done()]
            tasks = [task for task in tasks if not task.done()]
        balanced(flows)

    run(main())
