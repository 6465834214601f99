"""Flows of a quota alone hold nothing: they are drawn, and are counted, settled and forgotten like all others."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fairlead.core import State
from fairlead.errors import Misuse
from fairlead.flows import FlowScheduler, SyncFlowScheduler
from fairlead.flows.drawn import Drawn
from fairlead.flows.ending import Ending
from fairlead.flows.flow import Flow
from tests.flows.door import (
    balanced,
    concurrency,
    config,
    granted,
    level,
    loaded,
    now,
    point_of,
    quota,
    run,
    scheduler,
    until,
    used,
    waiting,
)

QUOTA: dict[str, Any] = {"quota": quota(100, 1e-6)}
# To another gate, which goes on with the same bucket.
MOVED: dict[str, dict[str, Any]] = {
    "in place": {"quota": quota(200, 1e-6)},
    "moved": {"quota": quota(100, 1e-6, delay_initial_fill=True)},
    "held from then on": QUOTA | {"concurrency": concurrency(5)},
    "moved twice": QUOTA | {"scheduler": {"fairness_label_key": "user"}},
}


def are_counted() -> None:
    async def main() -> None:
        flows = scheduler(**QUOTA)
        await (await flows.start_flow("p")).__aexit__(None, None, None)  # enters the loop
        for number in range(5):
            async with flows.flow("p") as flow:
                assert flow.should_run()
                assert flow.drawn is not None
                assert (flow.tokens, flow.workload) == (1, ("default", 1.0))
                assert point_of(flows).in_flight == 1
                assert not point_of(flows).gate.active
                assert point_of(flows).counts.ended_flows == number + 1
        with pytest.raises(KeyError):
            async with flows.flow("p"):
                raise KeyError
        assert (await flows.start_flow("p")).end("error")
        counts = point_of(flows).counts
        (workload,) = counts.workloads.values()
        assert (counts.ended_flows, counts.failed_flows, counts.late_ends) == (8, 2, 0)
        assert (workload.accepted_flows, workload.accepted_tokens) == (8, 8)
        assert level(flows) == pytest.approx(92, abs=0.1)
        balanced(flows)

    run(main())


def end_once() -> None:
    async def main() -> None:
        flows = scheduler(**QUOTA)
        (await flows.start_flow("p")).end()
        async with flows.flow("p") as flow:
            assert flow.end()
            assert not flow.end("error")
        assert not flow.end(tokens=50)
        assert level(flows) == pytest.approx(98, abs=0.1)
        assert (point_of(flows).counts.ended_flows, point_of(flows).counts.failed_flows) == (2, 0)
        balanced(flows)

    run(main())


def are_settled(change: dict[str, Any]) -> None:
    """Also by an end that comes when another gate has the bucket."""

    async def main() -> None:
        flows = scheduler(**QUOTA)
        (await flows.start_flow("p")).end()
        more, less, same, never = [await flows.start_flow("p") for _ in range(4)]
        assert more.drawn is not None
        flows.retune(loaded(**QUOTA | change))
        if "scheduler" in change:
            flows.retune(loaded(**MOVED["moved"] | change))
        point = point_of(flows)
        assert (point.in_flight, point.counts.ended_flows) == (4, 1)
        before = level(flows)
        assert more.end(tokens=31)
        assert less.end("error", tokens=0)
        assert same.end()
        assert level(flows) == pytest.approx(before - 30 + 1, abs=0.1)
        assert (point.in_flight, point.counts.ended_flows, point.counts.failed_flows) == (1, 4, 1)
        async with flows.flow("p") as flow:
            assert flow.should_run()
            assert point.in_flight == 2
        assert never.end()
        assert point.counts.ended_flows == 6
        (workload,) = point.counts.workloads.values()
        assert workload.accepted_flows == 6
        balanced(flows)

    run(main())


def are_forgotten() -> None:
    async def main() -> None:
        flows = scheduler(**QUOTA)
        (await flows.start_flow("p")).end()
        lost = await flows.start_flow("p")
        await until(1800)
        kept = await flows.start_flow("p")
        await until(3602)
        point = point_of(flows)
        assert (point.in_flight, point.counts.forgotten, point.counts.ended_flows) == (1, 1, 1)
        assert lost.state is State.EXPIRED, "or a table of flows would keep it"
        assert not lost.end(tokens=11)
        assert not lost.end(tokens=50)
        assert kept.end()
        assert (point.counts.late_ends, point.counts.ended_flows) == (1, 3)
        assert level(flows) == pytest.approx(100 - 13, abs=0.1)
        balanced(flows)

    run(main())


def test_they_are_counted() -> None:
    are_counted()


def test_they_end_once() -> None:
    end_once()


@pytest.mark.parametrize("how", MOVED)
def test_what_was_charged_is_settled_wherever_the_bucket_is(how: str) -> None:
    are_settled(MOVED[how])


def test_those_that_nobody_ends_are_forgotten() -> None:
    are_forgotten()


def test_other_tokens_count_from_the_reload_on() -> None:
    async def main() -> None:
        flows = scheduler(**QUOTA)
        (await flows.start_flow("p")).end()
        first = await flows.start_flow("p")
        flows.retune(loaded(**QUOTA, scheduler={"default_workload": {"tokens": 10, "priority": 2}}))
        (await flows.start_flow("p")).end()
        assert first.end()
        counted = {
            key: one.accepted_tokens for key, one in point_of(flows).counts.workloads.items()
        }
        assert counted == {("default", 1.0): 2, ("default", 2.0): 10}
        balanced(flows)

    run(main())


def test_who_came_before_a_reload_is_drawn_after_it() -> None:
    async def main() -> None:
        flows = scheduler(**QUOTA, scheduler={"fairness_label_key": "user"})
        (await flows.start_flow("p")).end()
        flow, before = flows.flow("p"), point_of(flows)
        flows.retune(loaded(**QUOTA))
        async with flow:
            assert point_of(flows) is not before
            assert flow.should_run()
            assert flow.point is point_of(flows)
        assert level(flows) == pytest.approx(98, abs=0.1)
        balanced(flows)

    run(main())


def test_a_point_that_is_removed_lets_them_end() -> None:
    async def main() -> None:
        flows = scheduler(**QUOTA)
        (await flows.start_flow("p")).end()
        flow, point = await flows.start_flow("p"), point_of(flows)
        flows.retune(loaded_without_any())
        assert flow.end(tokens=5)
        assert (point.in_flight, point.counts.ended_flows) == (0, 2)

    run(main())


def loaded_without_any() -> Any:
    from fairlead.flows.loading import load

    return load({"control_points": {}})


def test_one_is_entered_once() -> None:
    async def main() -> None:
        flows = scheduler(**QUOTA)
        (await flows.start_flow("p")).end()
        async with flows.flow("p") as flow:
            flows.retune(loaded(**QUOTA, scheduler={"default_workload": {"tokens": 10}}))
            with pytest.raises(Misuse, match="entered before"):
                await flow.__aenter__()
            assert flow.tokens == 1
            assert flow.end(tokens=0)
        assert level(flows) == pytest.approx(99, abs=0.1)
        balanced(flows)

    run(main())


def test_nobody_passes_who_waits() -> None:
    async def main() -> None:
        flows = scheduler(quota=quota(1, 1))
        (await flows.start_flow("p")).end()
        waiter = await waiting(flows)
        assert not (await flows.start_flow("p", timeout=0.0)).should_run()
        await until(1.01)
        (await granted(waiter)).end()
        balanced(flows)

    run(main())


def test_each_key_has_its_own_bucket() -> None:
    async def main() -> None:
        flows = scheduler(quota=quota(2, 1e-6, limit_by_label_key="user"))
        for user in ("ann", "bob"):
            for _ in range(2):
                flow = await flows.start_flow("p", {"user": user})
                assert flow.should_run()
                flow.end(tokens=0.5)
        assert level(flows, "ann") == pytest.approx(1, abs=0.1)
        assert (await flows.start_flow("p", {"user": "ann"}, 0.0)).end()
        assert not (await flows.start_flow("p", {"user": "ann"}, 0.0)).should_run()
        assert (await flows.start_flow("p", {"user": "bob"}, 0.0)).end()
        balanced(flows)

    run(main())


@pytest.mark.parametrize("change", [{}, {"scheduler": {"fairness_label_key": "user"}}])
def test_a_limit_that_a_reload_adds_holds_what_runs(change: dict[str, Any]) -> None:
    async def main() -> None:
        flows = scheduler(**QUOTA)
        (await flows.start_flow("p")).end()
        running = [await flows.start_flow("p") for _ in range(3)]
        await until(5)
        flows.retune(loaded(**QUOTA, concurrency=concurrency(3), **change))
        assert (point_of(flows).in_flight, point_of(flows).gate.active, used(flows)) == (3, 3, 3)
        waiter = await waiting(flows)
        assert running[0].arrived_at == running[0].started_at == 0
        assert running[0].end(tokens=0)
        assert not running[0].end()
        late = await granted(waiter)
        for flow in (*running[1:], late):
            assert flow.end()
        assert point_of(flows).counts.ended_flows == 5
        assert level(flows) == pytest.approx(96, abs=0.1)
        balanced(flows)

    run(main())


def test_what_runs_teaches_costs_that_a_reload_wants_learned() -> None:
    async def main() -> None:
        flows = scheduler(**QUOTA)
        (await flows.start_flow("p")).end()
        flow = await flows.start_flow("p")
        flows.retune(loaded(**QUOTA, scheduler={"workload_latency_based_tokens": True}))
        await until(0.004)
        assert flow.end()
        await until(6)
        assert (await flows.start_flow("p")).tokens == pytest.approx(4, abs=0.1)

    run(main())


def test_the_level_is_of_now_after_a_reload() -> None:
    async def main() -> None:
        flows = scheduler(quota=quota(100, 10))
        (await flows.start_flow("p")).end()
        lost = [await flows.start_flow("p") for _ in range(89)]
        flows.retune(loaded(quota=quota(100, 10, delay_initial_fill=True)))
        await until(2)
        assert b'bucket_level{control_point="p"} 30.0' in flows.metrics()[0]
        assert all(flow.end() for flow in lost)

    run(main())


def one_a_second(key: str | None) -> FlowScheduler:
    return scheduler(quota=quota(1, 1, limit_by_label_key=key), scheduler={"max_queue": 20})


async def hint(flows: FlowScheduler) -> float | None:
    """What is told to who comes behind a full queue."""
    refused = await flows.start_flow("p", {"user": "ann"})
    assert refused.reject_reason == "queue_full"
    assert point_of(flows).gate.waiting == 20
    return refused.retry_after


@pytest.mark.parametrize("key", [None, "user"])
def test_hints_know_how_fast_flows_were_drawn(key: str | None) -> None:
    """Of a limit by key no single bucket tells it."""

    async def main() -> None:
        flows = one_a_second(key)
        for _ in range(30):
            (await flows.start_flow("p", {"user": "ann"})).end()
            await until(now() + 1)
        (await flows.start_flow("p", {"user": "ann"})).end()
        for _ in range(20):
            await waiting(flows, {"user": "ann"})
        assert await hint(flows) == pytest.approx(21, rel=0.1)

    run(main())


@pytest.mark.parametrize("key", [None, "user"])
def test_hints_know_how_fast_flows_went_that_waited(key: str | None) -> None:
    async def main() -> None:
        flows = one_a_second(key)

        async def steady() -> None:
            while True:
                flow = await flows.start_flow("p", {"user": "ann"})
                flow.end()
                await asyncio.sleep(0 if flow.accepted else 0.1)

        callers = [asyncio.ensure_future(steady()) for _ in range(30)]
        await until(30.5)
        assert await hint(flows) == pytest.approx(21, rel=0.1)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)

    run(main())


# Between threads


class Awaited:
    """A lock that tells when somebody comes to it."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.asked = lock, threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_who_waits_for_the_lock_of_a_point_that_is_replaced_asks_the_new_one() -> None:
    flows = SyncFlowScheduler.from_config(config(**QUOTA))
    flows.start_flow("p").end()
    old = point_of(flows)
    lock = old.runtime.lock = Awaited(old.runtime.lock)
    asked: list[Any] = []
    thread = threading.Thread(target=lambda: asked.append(flows.start_flow("p")))
    with lock.lock:
        thread.start()
        assert lock.asked.wait(30.0)
        flows.retune(loaded(quota=quota(100, 1e-6, delay_initial_fill=True)))
    thread.join(30.0)
    (flow,) = asked
    assert flow.point is point_of(flows)
    assert level(flows) == pytest.approx(98, abs=0.1)
    assert flow.end()
    balanced(flows)
    flows.close()


def in_threads(count: int = 8, each: int = 200) -> None:
    flows = SyncFlowScheduler.from_config(config(quota=quota(1e6, 1e-6)))
    flows.start_flow("p").end()
    shared = [flows.start_flow("p") for _ in range(each)]
    together = threading.Barrier(count)

    def work(_: int) -> int:
        together.wait(30.0)
        for flow in shared:
            with flows.flow("p") as own:
                assert own.should_run()
                assert own.drawn is not None
            ended.append(flow.end())
        return 0

    def scrape() -> None:
        last = 0
        while not over.is_set():
            assert last <= (last := point_of(flows).counts.ended_flows)
            assert point_of(flows).drawn.forget(0.0) == 0

    ended: list[bool] = []
    over = threading.Event()
    with ThreadPoolExecutor(count + 1) as pool:
        scraping = pool.submit(scrape)
        try:
            list(pool.map(work, range(count)))
        finally:
            over.set()
        scraping.result(30.0)
    assert ended.count(True) == each, "each was ended by one thread"
    counts = point_of(flows).counts
    (workload,) = counts.workloads.values()
    total = 1 + each + count * each
    assert (counts.ended_flows, workload.accepted_flows) == (total, total)
    assert level(flows) == pytest.approx(1e6 - total, abs=1)
    balanced(flows)
    flows.close()


def test_between_threads_each_is_counted_once() -> None:
    in_threads()


def test_threads_settle_while_the_bucket_moves() -> None:
    """The end of one comes while a reload puts another gate in its place, time and again."""
    flows = SyncFlowScheduler.from_config(config(**QUOTA))
    flows.start_flow("p").end(tokens=0)
    stop = threading.Event()

    def reload() -> None:
        for how in [*MOVED, *MOVED] * 10:
            flows.retune(loaded(**QUOTA | MOVED[how]))
        stop.set()

    reloading = threading.Thread(target=reload)
    reloading.start()
    ends = 0
    while not stop.is_set():
        with flows.flow("p") as flow:
            assert flow.should_run()
            assert flow.end(tokens=0)
        ends += 1
    reloading.join(30.0)
    counts = point_of(flows).counts
    assert (counts.ended_flows, counts.late_ends) == (ends + 1, 0)
    assert level(flows) == pytest.approx(100, abs=0.1)
    balanced(flows)
    flows.close()


# What is wrong is caught


def not_told(self: Drawn, counts: Any) -> None:
    """Nothing is counted."""


def never(self: Drawn, oldest: float) -> int:
    return 0


def here(self: Ending, flow: Flow, tokens: float, now: float) -> None:
    """It is settled at a bucket that nobody draws from any more."""
    self.heir = None
    settle(self, flow, tokens, now)


settle = Ending._settle


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "case"),
    [
        (Drawn, "tell", not_told, are_counted),
        (Flow, "end_drawn", lambda _: True, end_once),
        (Drawn, "forget", never, are_forgotten),
        (Ending, "_settle", here, lambda: are_settled(MOVED["moved"])),
        (Ending, "_settle", lambda *_: None, lambda: are_settled(MOVED["in place"])),
    ],
    ids=["not counted", "never ended", "kept for ever", "settled elsewhere", "not settled"],
)
def test_mutants(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Any, case: Callable[[], None]
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError):
        case()
