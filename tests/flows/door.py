"""What tests of the flows' door share: one control point, clients on virtual time, and books that balance."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.capacities import InFlight
from fairlead.flows.flow import Flow
from fairlead.flows.loading import Loaded, load
from fairlead.flows.point import Point
from fairlead.flows.points import Points
from fairlead.flows.scheduler import AsyncFlow, FlowScheduler
from fairlead.testing import run_virtual

POINT = "p"
# Seconds nothing here takes: a scheduler's own ticking keeps a virtual loop from seeing a deadlock.
LONG = 20_000.0


def config(**sections: Any) -> dict[str, Any]:
    return {"control_points": {POINT: sections}}


def loaded(**sections: Any) -> Loaded:
    told = load(config(**sections))
    assert not told.problems, told.lines
    return told


def scheduler(**sections: Any) -> FlowScheduler:
    return FlowScheduler.from_config(config(**sections))


def point_of(flows: Points, name: str = POINT) -> Point:
    return flows.points[name]


def concurrency(limit: float = 1, **more: Any) -> dict[str, Any]:
    return {"max_concurrency": limit, "max_inflight_duration": "366d"} | more


def quota(capacity: float, fill: float, **more: Any) -> dict[str, Any]:
    """A bucket that nothing but time and refunds fill: it is not given up when it is idle."""
    said = {"bucket_capacity": capacity, "fill_amount": fill, "interval": "1s", "max_idle_time": 0}
    return said | more


def used(flows: Points, key: Hashable = None) -> float:
    part = point_of(flows).parts.concurrency
    assert isinstance(part, InFlight)
    return part.used(key)


def level(flows: Points, key: Hashable = None) -> float:
    """The tokens in the quota's bucket."""
    quota_part: Any = point_of(flows).parts.quota
    result: float = quota_part.level(point_of(flows).runtime.now(), key)
    return result


def run(main: Coroutine[Any, Any, Any], longest: float = LONG) -> Any:
    """Run on virtual time; what stands still fails."""

    async def bounded() -> Any:
        return await asyncio.wait_for(main, longest)

    return run_virtual(bounded())


async def ticks(count: int = 10) -> None:
    """Let everything that is ready take its steps."""
    for _ in range(count):
        await asyncio.sleep(0)


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - now()))


def ask(
    flows: FlowScheduler, labels: Mapping[str, str] | None = None, timeout: float | None = None
) -> asyncio.Task[AsyncFlow]:
    """Ask in a task of its own."""
    return asyncio.get_running_loop().create_task(flows.start_flow(POINT, labels, timeout))


async def waiting(
    flows: FlowScheduler, labels: Mapping[str, str] | None = None, timeout: float | None = None
) -> asyncio.Task[AsyncFlow]:
    """Ask, and see that it has to wait."""
    before = point_of(flows).gate.waiting
    task = ask(flows, labels, timeout)
    await ticks(2)
    assert point_of(flows).gate.waiting == before + 1
    assert not task.done()
    return task


async def granted(task: asyncio.Task[AsyncFlow]) -> AsyncFlow:
    """See that a waiter has been granted what it asked for, without any time passing."""
    await ticks()
    assert task.done()
    flow = task.result()
    assert flow.should_run()
    return flow


def balanced(flows: Points) -> None:
    """See that nothing waits, nothing is in flight, and the sums say so."""
    for point in flows.points.values():
        gate = point.gate
        assert (gate.waiting, point.in_flight, len(gate.waiters()), len(point.policy)) == (0,) * 4
        assert abs(point.queued) < 1e-6 * max(1.0, point.admitted)
        part = point.parts.concurrency
        if isinstance(part, InFlight):
            assert part._used == {}
        answers = point.counts.workloads.values()
        rejected = sum(one.rejected_flows for one in answers)
        assert rejected == point.counts.reasons.total()


@dataclass
class Source:
    """Flows of `tokens` at a rate, from one caller; each waits `timeout` and works for no time."""

    name: str
    rate: float
    tokens: float = 1.0
    timeout: float | None = 0.05
    labels: dict[str, str] = field(default_factory=dict)
    from_: float = 0.0

    @property
    def demand(self) -> float:
        return self.rate * self.tokens


async def offer(
    flows: FlowScheduler, sources: Iterable[Source], seconds: float, served: Counter[str]
) -> None:
    """Have sources ask at their rates for so long, from now on, and count the tokens each is granted in time."""
    began, tasks = now(), set()

    async def one(source: Source) -> None:
        labels = source.labels | {"tokens": str(source.tokens), "class": source.name}
        flow = await flows.start_flow(POINT, labels, source.timeout)
        if flow.should_run() and now() < began + seconds:
            served[source.name] += flow.tokens  # type: ignore[assignment]
        flow.end()

    async def many(source: Source, phase: float) -> None:
        for number in range(int(source.rate * (seconds - source.from_))):
            await until(began + source.from_ + (number + phase) / source.rate)
            task = asyncio.get_running_loop().create_task(one(source))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    listed = list(sources)
    phases = [(number + 0.5) / len(listed) for number in range(len(listed))]
    await asyncio.gather(*map(many, listed, phases))
    await until(began + seconds)
    while tasks:
        await asyncio.wait(set(tasks))


async def backlog(
    flows: FlowScheduler, asked: Iterable[tuple[Hashable, Mapping[str, str]]]
) -> list[tuple[Hashable, Flow]]:
    """Queue everything behind one holder of the only room, then let it go; tell who was granted, in order."""
    order: list[tuple[Hashable, Flow]] = []
    holder = await flows.start_flow(POINT)
    assert holder.should_run()

    async def one(who: Hashable, labels: Mapping[str, str]) -> None:
        flow = await flows.start_flow(POINT, labels)
        order.append((who, flow))
        flow.end()

    tasks = [asyncio.ensure_future(one(who, labels)) for who, labels in asked]
    await ticks(2)
    assert point_of(flows).gate.waiting == len(tasks)
    holder.end()
    await asyncio.gather(*tasks)
    return order
