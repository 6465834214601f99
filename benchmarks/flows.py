"""The flows suite: what a decision costs in this process, among processes that share a limit, and over the network.

Every case admits: a limiter that refuses has less to do.  CPU time, except where another process answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from time import process_time
from typing import Any

from benchmarks import flows_service, flows_shared
from benchmarks.harness import HEAP, Measure, Table, Target
from benchmarks.shapes import FLOWS, Shape
from benchmarks.sizes import Sizes
from benchmarks.steady import Steady
from fairlead.core import Gate
from fairlead.core.ticket import LeanTicket
from fairlead.flows import FlowScheduler, SyncFlowScheduler
from fairlead.flows.flow import Flow
from fairlead.flows.order import policy_of
from fairlead.flows.parts import bucket_of
from fairlead.flows.settings import Quota, Scheduler

PLENTY = 1e9
QUOTA = {"bucket_capacity": PLENTY, "fill_amount": PLENTY, "interval": "1s"}
CONCURRENCY = {"max_concurrency": 1000}
WORKLOADS = {
    "workloads": [{"name": name, "match_labels": {"tier": name}} for name in ("paid", "free")],
    "fairness_label_key": "user_id",
    "tokens_label_key": "tokens",
}
LABELS = {"tier": "free", "user_id": "u1", "tokens": "4"}
BY_LABEL = "quota and concurrency, workload, user and tokens by label"
POINTS: dict[str, tuple[dict[str, Any], dict[str, str] | None]] = {
    "quota": ({"quota": QUOTA}, None),
    "concurrency": ({"concurrency": CONCURRENCY}, None),
    "quota and concurrency": ({"quota": QUOTA, "concurrency": CONCURRENCY}, None),
    BY_LABEL: ({"quota": QUOTA, "concurrency": CONCURRENCY, "scheduler": WORKLOADS}, LABELS),
}
REPORTED = ("quota", "concurrency", "quota and concurrency")
# What limits and aiolimiter do too; neither bounds what is in flight, nor has anything to give back.
TARGETED = ("quota",)
AIOLIMITER = "aiolimiter"
# Hits of one key: limits keeps a list of a moving window's hits, and each moves them all.
PER_KEY = 1_000

Strategy = Callable[[Any], Any]


def tables(sizes: Sizes) -> Iterator[Table]:
    yield on_a_loop(sizes.free // 2)
    yield between_threads(sizes.free // 2)
    yield contended(sizes)
    yield from flows_shared.tables(sizes)
    yield from flows_service.tables(sizes)


# Nobody waits


def on_a_loop(n: int) -> Table:
    """`async with flows.flow(...)` beside limiters of the same form."""
    cases: dict[str, Measure] = {
        f"fairlead, {name}": looped(checked(said, labels, n))
        for name, (said, labels) in POINTS.items()
    }
    cases["fairlead, quota, start_flow and end"] = looped(started(n))
    notes = []
    windows = []
    if find_spec("limits"):
        windows = [f"limits.aio, {name} window" for name in ("fixed", "moving")]
        cases |= dict(zip(windows, map(looped, limits_on_a_loop(n)), strict=True))
    else:
        notes.append("limits is not installed: left out.")
    if find_spec("aiolimiter"):
        cases[AIOLIMITER] = looped(lambda: with_aiolimiter(n))
    else:
        notes.append("aiolimiter is not installed: left out.")
    targets = [
        target
        for name in TARGETED
        for target in (
            *(Target(f"fairlead, {name}", 0.5, (window,)) for window in windows),
            Target(f"fairlead, {name}", 2.0, (AIOLIMITER,)),
        )
    ]
    return Table(
        title="Flows: nobody waits, check and end on an event loop",
        unit="CPU µs per flow",
        cases=cases,
        base=AIOLIMITER,
        targets=targets,
        notes=[
            "2× the rate of limits is 0.5× the time, 0.5× that of aiolimiter 2×. limits gets a new key every "
            f"{PER_KEY:,} hits, which favours its moving window; neither has an end, an order or metrics, and neither "
            "bounds what is in flight: they are compared with the quota.",
            *notes,
        ],
    )


def between_threads(n: int) -> Table:
    """`with flows.flow(...)` beside `limits`, which locks too."""
    cases: dict[str, Measure] = {
        f"fairlead, {name}": lambda said=said, labels=labels: checked_in_a_thread(said, labels, n)  # type: ignore[misc]
        for name, (said, labels) in POINTS.items()
    }
    windows = []
    if find_spec("limits"):
        found = limits_in_a_thread(n)
        windows, cases = list(found), cases | found
    return Table(
        title="Flows: nobody waits, check and end in a thread",
        unit="CPU µs per flow",
        cases=cases,
        base=windows[0] if windows else "",
        targets=[
            Target(f"fairlead, {name}", 0.5, (window,)) for name in TARGETED for window in windows
        ],
    )


def looped(run: Callable[[], Awaitable[float]]) -> Measure:
    async def go() -> float:
        return await run()

    return lambda: asyncio.run(go())


def checked(
    said: dict[str, Any], labels: dict[str, str] | None, n: int
) -> Callable[[], Awaitable[float]]:
    async def run() -> float:
        flows = FlowScheduler.from_config({"control_points": {"checkout": said}})
        began = process_time()
        for _ in range(n):
            async with flows.flow("checkout", labels) as flow:
                flow.should_run()
        took = process_time() - began
        await flows.close()
        return took / n * 1e6

    return run


def started(n: int) -> Callable[[], Awaitable[float]]:
    async def run() -> float:
        flows = FlowScheduler.from_config({"control_points": {"checkout": {"quota": QUOTA}}})
        began = process_time()
        for _ in range(n):
            flow = await flows.start_flow("checkout")
            flow.end("ok" if flow.should_run() else "error")
        took = process_time() - began
        await flows.close()
        return took / n * 1e6

    return run


def checked_in_a_thread(said: dict[str, Any], labels: dict[str, str] | None, n: int) -> float:
    flows = SyncFlowScheduler.from_config({"control_points": {"checkout": said}})
    began = process_time()
    for _ in range(n):
        with flows.flow("checkout", labels) as flow:
            flow.should_run()
    took = process_time() - began
    flows.close()
    return took / n * 1e6


async def with_aiolimiter(n: int) -> float:
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(PLENTY, 1)
    began = process_time()
    for _ in range(n):
        async with limiter:
            pass
    return (process_time() - began) / n * 1e6


def limits_on_a_loop(n: int) -> list[Callable[[], Awaitable[float]]]:
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

    def case(strategy: Strategy) -> Callable[[], Awaitable[float]]:
        async def run() -> float:
            limiter, item = strategy(MemoryStorage()), RateLimitItemPerSecond(int(PLENTY))
            keys = [str(i // PER_KEY) for i in range(n)]
            began = process_time()
            for key in keys:
                await limiter.hit(item, key)
            return (process_time() - began) / n * 1e6

        return run

    return [case(FixedWindowRateLimiter), case(MovingWindowRateLimiter)]


def limits_in_a_thread(n: int) -> dict[str, Measure]:
    from limits import RateLimitItemPerSecond
    from limits.storage import MemoryStorage
    from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

    def case(strategy: Strategy) -> Measure:
        def run() -> float:
            storage = MemoryStorage()
            limiter, item = strategy(storage), RateLimitItemPerSecond(int(PLENTY))
            keys = [str(i // PER_KEY) for i in range(n)]
            began = process_time()
            for key in keys:
                limiter.hit(item, key)
            took = process_time() - began
            storage.timer.cancel()
            storage.timer.join()
            return took / n * 1e6

        return run

    return {
        "limits, fixed window": case(FixedWindowRateLimiter),
        "limits, moving window": case(MovingWindowRateLimiter),
    }


# Everybody waits


def contended(sizes: Sizes) -> Table:
    """Weighted fair queueing over one bucket, in the core: no loop, no door, the door's own policy and tickets."""
    flat = f"{FLOWS} workloads on one bucket"
    shapes = {
        flat: shape({}),
        f"{FLOWS} workloads of 4 users": shape({"fairness_label_key": "user_id"}),
        f"{FLOWS} tenants of workloads of 4 users": shape(
            {"fairness_label_key": "user_id", "tenant_label_key": "tenant"}
        ),
        f"{FLOWS} workloads, some of priority 0": shape({"priority_label_key": "priority"}),
        f"{FLOWS} workloads, a bucket for each of {FLOWS} keys": shape({}, limit_by="api_key"),
        f"{FLOWS} workloads, {FLOWS} tokens at once": shape({}, burst=FLOWS),
    }
    cases = {name: Steady(one, sizes.waiting, sizes.tickets) for name, one in shapes.items()}

    def done() -> None:
        for case in cases.values():
            case.empty()

    return Table(
        title=f"Flows: weighted fair queueing, {sizes.waiting:,} waiting",
        unit="CPU µs per flow, offer to finish, making it excluded",
        cases=cases,
        base=HEAP,
        targets=[Target(flat, 5.0)],
        done=done,
        notes=["A flow comes at each step and a token arrives with it; all but the first wait."],
    )


def shape(scheduler: dict[str, Any], limit_by: str | None = None, burst: float = 1.0) -> Shape:
    """A gate as the door makes it, whose bucket gains what one flow costs at each step, or a burst at once."""
    # Where nothing is said of workloads, all stand in one line.
    settings = Scheduler.model_validate({"workload_label_key": "workload", **scheduler})
    quota = Quota(
        bucket_capacity=burst,
        fill_amount=1.0 if limit_by else float(FLOWS),
        interval=1.0,
        continuous_fill=burst == 1,
        limit_by_label_key=limit_by,
    )

    def gate() -> Gate:
        policy = policy_of(settings)
        policy.limit = None
        return Gate(policy, bucket_of(quota))

    def ticket(i: int) -> LeanTicket:
        number = i * 31 % FLOWS
        flow = Flow("checkout", {"api_key": str(number)})
        flow.line_up()
        zero = settings.priority_label_key is not None and number % 8 == 0
        flow.workload = (str(number), 0.0 if zero else float(1 + number % 4))
        flow.rank = 0 if zero else 1
        flow.user, flow.tenant = str(i // FLOWS % 4), str(number)
        return flow

    return Shape(gate, ticket, step=1 / FLOWS)
