"""SyncFlowScheduler: the same door between threads; synchronised by signals, never by sleeping."""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fairlead import ConfigError, Misuse
from fairlead.core import Gate
from fairlead.errors import QueueFull, WaitedTooLong
from fairlead.flows.blocking import BlockingFlow, SyncFlowScheduler
from fairlead.flows.loading import load
from tests.flows.door import balanced, concurrency, config, level, loaded, point_of, quota, used

PATIENCE = 30.0  # seconds after which a test has failed; never waited for otherwise


@pytest.fixture
def make() -> Iterator[Callable[..., SyncFlowScheduler]]:
    """Schedulers that are closed in the end, and leave no thread."""
    before = set(threading.enumerate())
    made: list[SyncFlowScheduler] = []

    def one(**sections: Any) -> SyncFlowScheduler:
        made.append(SyncFlowScheduler.from_config(config(**sections)))
        return made[-1]

    yield one
    for flows in made:
        flows.close()
        for point in flows.points.values():
            point.runtime.rest()
    assert [thread for thread in threading.enumerate() if thread not in before] == []


def until_waiting(flows: SyncFlowScheduler, count: int) -> None:
    """Return when so many wait.  There is no signal for a thread that blocks; the gate is asked until it shows."""
    deadline = time.monotonic() + PATIENCE
    while point_of(flows).gate.waiting != count:
        assert time.monotonic() < deadline


class Count:
    """How many are inside, counted by those who are: it knows nothing of the gate."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = self.passed = 0.0

    def enter(self, amount: float = 1) -> None:
        with self.lock:
            self.inside += amount
            self.passed += 1
            self.most = max(self.most, self.inside)

    def leave(self, amount: float = 1) -> None:
        with self.lock:
            self.inside -= amount


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_the_limit_is_never_exceeded(make, limit):
    flows = make(concurrency=concurrency(limit), scheduler={"tokens_label_key": "tokens"})
    count = Count()

    def worker(number: int) -> None:
        tokens = 1 + number % min(limit, 3)
        for _ in range(60):
            with flows.flow("p", {"tokens": str(tokens)}) as flow:
                assert flow.should_run()
                count.enter(tokens)
                count.leave(tokens)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(worker, range(16)))
    assert count.passed == 16 * 60
    assert 0 < count.most <= limit
    balanced(flows)
    assert point_of(flows).counts.ended_flows == 16 * 60


def test_as_many_as_may_are_inside_together(make):
    flows = make(concurrency=concurrency(4))
    together = threading.Barrier(4)

    def worker(_: int) -> None:
        with flows.flow("p"):
            together.wait(PATIENCE)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(worker, range(8)))
    balanced(flows)


def test_a_quota_is_never_exceeded(make):
    """From 8 threads that try without waiting: never more than the bucket and what has filled meanwhile."""
    flows = make(quota=quota(50, 200))
    began = time.monotonic()

    def worker(_: int) -> int:
        return sum(flows.start_flow("p", timeout=0).end() for _ in range(300))

    with ThreadPoolExecutor(8) as pool:
        accepted = sum(pool.map(worker, range(8)))
    assert 50 <= accepted <= 50 + 200 * (time.monotonic() - began)
    balanced(flows)


def test_quota_waiters_are_woken_by_the_timer(make):
    flows = make(quota=quota(1, 50))
    began = time.monotonic()

    def worker(_: int) -> bool:
        with flows.flow("p", timeout=PATIENCE) as flow:
            return bool(flow.should_run())

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(worker, range(6)))
    assert time.monotonic() - began >= 0.1
    balanced(flows)


@pytest.mark.parametrize("timeout", [0, 0.005, 0.05])
def test_a_timeout_refuses_and_leaves_nothing(make, timeout):
    flows = make(concurrency=concurrency(1))
    with flows.flow("p") as holder:
        assert holder.should_run()
        began = time.monotonic()
        with flows.flow("p", timeout=timeout) as flow:
            assert not flow.should_run()
            assert flow.retry_after > 0
            assert time.monotonic() - began >= timeout - 0.011
        assert used(flows) == 1
        assert point_of(flows).gate.waiting == 0
    balanced(flows)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_what_is_no_timeout_is_told(make, timeout):
    flows = make(concurrency=concurrency(1))
    with pytest.raises(ConfigError):
        flows.flow("p", timeout=timeout)
    balanced(flows)


def test_waiters_are_served_in_the_order_they_came(make):
    flows = make(concurrency=concurrency(1))
    order: list[int] = []

    def worker(number: int) -> None:
        with flows.flow("p"):
            order.append(number)

    holder = flows.start_flow("p")
    threads = []
    for number in range(10):
        threads.append(threading.Thread(target=worker, args=(number,)))
        threads[-1].start()
        until_waiting(flows, number + 1)
    holder.end()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == list(range(10))
    balanced(flows)


def test_exceptions_propagate_and_end_the_flow(make):
    flows = make(concurrency=concurrency(1))
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"), flows.flow("p"):
            raise ValueError("mine")
    balanced(flows)
    counts = point_of(flows).counts
    assert (counts.ended_flows, counts.failed_flows) == (3, 3)


class Interrupting(threading.Event):
    """A wait that a signal's handler breaks off, before or after the grant."""

    def __init__(self, before: Callable[[], Any]) -> None:
        super().__init__()
        self.before = before

    def wait(self, timeout: float | None = None) -> bool:
        self.before()
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_granted", [False, True], ids=["waiting", "just granted"])
def test_a_signal_while_it_waits_leaves_nothing(make, is_granted):
    flows = make(concurrency=concurrency(1))
    holder = flows.start_flow("p")
    flow = flows.flow("p")
    point = point_of(flows)
    with point.runtime.lock:
        flow.line_up()
        point.prepare(flow, point.runtime.now())
        point.runtime.offer(flow)
        point.waits(flow)
    with pytest.raises(KeyboardInterrupt):
        flow._wait(Interrupting(holder.end if is_granted else lambda: None))
    if not is_granted:
        assert point.gate.waiting == 0
        holder.end()
    balanced(flows)
    assert flows.start_flow("p", timeout=0).should_run()


class TestDecorator:
    def test_calls_are_flows(self, make):
        flows = make(concurrency=concurrency(2))
        count = Count()

        @flows.decorate("p", labels=lambda number: {"n": str(number)})
        def work(number: int) -> int:
            """Double."""
            count.enter()
            count.leave()
            return 2 * number

        assert (work.__name__, work.__doc__) == ("work", "Double.")
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(200))) == [2 * number for number in range(200)]
        assert count.most <= 2
        balanced(flows)

    def test_a_refusal_is_raised_or_answered(self, make):
        flows = make(concurrency=concurrency(1), scheduler={"max_queue": 0})

        def work() -> None:
            pytest.fail("it ran")

        with flows.flow("p"):
            with pytest.raises(QueueFull) as caught:
                flows.decorate("p")(work)()
            assert caught.value.retry_after is not None
            assert caught.value.retry_after > 0
            assert flows.decorate("p", on_reject=lambda: "busy")(work)() == "busy"
        flows = make(concurrency=concurrency(1))
        with flows.flow("p"), pytest.raises(WaitedTooLong):
            flows.decorate("p", timeout=0.001)(work)()
        balanced(flows)

    def test_it_ends_the_flow_of_a_call_that_fails(self, make):
        flows = make(concurrency=concurrency(1))

        @flows.decorate("p")
        def work() -> None:
            raise KeyError("mine")

        for _ in range(3):
            with pytest.raises(KeyError, match="mine"):
                work()
        balanced(flows)

    def test_a_coroutine_function_is_told(self, make):
        async def work() -> None: ...

        with pytest.raises(Misuse, match="decorate it with a FlowScheduler"):
            make().decorate("p")(work)


def test_reserve_and_settle(make):
    flows = make(quota=quota(100, 1e-6), scheduler={"tokens_label_key": "tokens"})
    for tokens, left in ((4.0, 96.0), (30.0, 66.0)):
        flow = flows.start_flow("p", {"tokens": "10"})
        assert flow.end(tokens=tokens)
        assert not flow.end(tokens=tokens)
        assert level(flows) == pytest.approx(left)


def test_a_storm_with_reloads(make):
    """Limits move while 12 threads ask, wait, give up and end: nothing is lost and nobody stays behind."""
    flows = make(concurrency=concurrency(3))
    stop, seen = threading.Event(), Count()

    def worker(number: int) -> int:
        accepted = 0
        for turn in range(80):
            flow: BlockingFlow
            timeout = [None, 0.0, 0.02, 0.05][(number + turn) % 4]
            with flows.flow("p", {"user": str(number % 3)}, timeout) as flow:
                if flow.should_run():
                    seen.enter()
                    accepted += 1
                    seen.leave()
        return accepted

    def reload() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            said: dict[str, Any] = {"concurrency": concurrency(1 + turn % 4)}
            if turn % 3 == 0:
                said["scheduler"] = {"fairness_label_key": "user"}  # another gate
            if turn % 7 == 0:
                flows.retune(load({"control_points": {}}))
            flows.retune(loaded(**said))
            flows.metrics()

    reloading = threading.Thread(target=reload)
    reloading.start()
    try:
        with ThreadPoolExecutor(12) as pool:
            accepted = sum(pool.map(worker, range(12), timeout=PATIENCE))
    finally:
        stop.set()
        reloading.join(PATIENCE)
    assert accepted == seen.passed >= 12 * 20
    point = point_of(flows)
    assert (point.gate.waiting, point.gate.active) == (0, 0)


class TestClose:
    def test_it_ends_the_thread_and_may_be_called_again(self, make):
        flows = make(concurrency=concurrency(1))
        names = lambda: [thread.name for thread in threading.enumerate()]  # noqa: E731
        before = names().count("fairlead-flows")
        flows.start_flow("p").end()
        assert names().count("fairlead-flows") == before + 1
        flows.close()
        flows.close()
        assert names().count("fairlead-flows") == before

    def test_flows_go_on_being_decided(self, make):
        flows = make(concurrency=concurrency(1))
        flows.close()
        with flows.flow("p") as first, flows.flow("p", timeout=0) as second:
            assert (first.should_run(), second.should_run()) == (True, False)
        balanced(flows)

    def test_a_flow_is_entered_once(self, make):
        flows = make(concurrency=concurrency(1))
        with flows.flow("p") as flow:
            with pytest.raises(Misuse):
                flow.__enter__()
            assert used(flows) == 1
        balanced(flows)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")
def test_what_the_parent_has_used_is_refused_in_a_fork_and_what_it_has_not_is_the_childs(make):
    used, unused = make(concurrency=concurrency(2)), make(concurrency=concurrency(2))
    held = used.start_flow("p")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, from 3.12 on
        child = os.fork()
    if not child:
        code = 1
        try:
            unused.start_flow("p").end()
            used.start_flow("p")
        except Misuse as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held.end()
    with used.flow("p") as flow, unused.flow("p") as other:
        assert flow.should_run()
        assert other.should_run()


def test_a_flow_that_ends_while_its_point_is_replaced_frees_its_slot(make, monkeypatch):
    flows = make(concurrency=concurrency(1))
    flow = flows.start_flow("p")
    ending = threading.Thread(target=flow.end)
    adopt = Gate.adopt

    def interrupted(gate: Gate, tickets: Any, now: float) -> Any:
        ending.start()
        ending.join(0.3)  # it has ended by then, or waits for what goes on here
        return adopt(gate, tickets, now)

    monkeypatch.setattr(Gate, "adopt", interrupted)
    flows.retune(loaded(concurrency=concurrency(1), scheduler={"fairness_label_key": "user"}))
    ending.join(PATIENCE)
    assert list(point_of(flows).gate.holders) == []


def test_nobody_new_passes_those_who_move_to_another_gate(make):
    flows = make(concurrency=concurrency(1))
    holder = flows.start_flow("p")
    order: list[int] = []

    def one(number: int) -> None:
        with flows.flow("p"):
            order.append(number)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for number, thread in enumerate(threads):
        thread.start()
        until_waiting(flows, number + 1)
    flows.retune(loaded(concurrency=concurrency(1), scheduler={"fairness_label_key": "user"}))
    assert point_of(flows).gate.waiting == 3
    assert not flows.start_flow("p", timeout=0).should_run()
    holder.end()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == [0, 1, 2]
    balanced(flows)
