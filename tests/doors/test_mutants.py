"""Deliberately broken variants, several of them the seed's own: each is caught by the test that holds the property."""

import asyncio
import gc
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Aging, Dag, QueueFull, Scheduler
from fairlead.core import Gate, Outcome
from fairlead.testing import run_virtual
from tests.doors import test_aging_door, test_cancellation, test_dag, test_shutdown, test_submit

# A broken door fails an assertion, or stands still, which the virtual loop reports.
CAUGHT = (AssertionError, RuntimeError, pytest.fail.Exception)


@pytest.fixture(autouse=True)
def wreckage() -> Iterator[None]:
    """Clear away in silence what a broken door leaves behind."""
    log = logging.getLogger("asyncio")
    log.disabled = True
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
    log.disabled = False


@pytest.mark.parametrize("ask", [test_cancellation.submit_function, test_cancellation.turn])
def test_a_slot_leaked_between_grant_and_start(monkeypatch, ask):
    """The seed: nobody is left to release what a cancelled caller was granted."""
    finish = Gate.finish

    def leaky(self, ticket, now, outcome=Outcome.OK, spent=None):
        return [] if outcome is Outcome.LOST else finish(self, ticket, now, outcome, spent)

    test_cancellation.test_at_every_suspension(ask, test_cancellation.SLOTS)
    monkeypatch.setattr(Gate, "finish", leaky)
    with pytest.raises(CAUGHT):
        test_cancellation.test_at_every_suspension(ask, test_cancellation.SLOTS)


@pytest.mark.parametrize("verb", ["submit", "turn", "spawn"])
def test_a_waiter_not_withdrawn_when_it_is_cancelled(monkeypatch, verb):
    """The seed: the entry stays queued and is later granted to nobody."""
    monkeypatch.setattr(Gate, "withdraw", lambda self, tickets, now: [])
    with pytest.raises(CAUGHT):
        test_cancellation.test_a_cancelled_waiter_is_withdrawn_and_the_next_one_runs(verb, False)


def test_a_storm_finds_both(monkeypatch):
    monkeypatch.setattr(Gate, "withdraw", lambda self, tickets, now: [])
    with pytest.raises(CAUGHT):
        test_cancellation.test_a_storm_of_cancellations(1000)


class ChecksFirst(Scheduler):
    """The seed: whether the queue is full is asked in one step, and the task inserted in the next."""

    async def submit(self, priority: int, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        waiting = self.stats().queued_count
        if waiting >= 10:
            raise QueueFull("scheduler", waiting, 10)
        await asyncio.sleep(0)
        return await super().submit(priority, work, *args, **kwargs)


def test_a_limit_checked_before_the_insert():
    async def main():
        async with ChecksFirst.bounded(max_concurrency=1) as scheduler:
            return await test_submit.most_waiting(scheduler)

    most, _ = run_virtual(main())
    assert most > 10


def test_barging(monkeypatch):
    """A released slot lies free until the loop comes round, and whoever asks meanwhile takes it."""

    def blind(verb):
        def mutated(self, *args):
            hidden, self.waiting = self.waiting, 0
            try:
                return verb(self, *args)
            finally:
                self.waiting += hidden
                if self.waiting:
                    self.due = self.now

        return mutated

    monkeypatch.setattr(Gate, "offer", blind(Gate.offer))
    monkeypatch.setattr(Gate, "finish", blind(Gate.finish))
    with pytest.raises(CAUGHT):
        test_submit.test_a_released_slot_goes_to_the_waiter_not_to_a_newcomer_of_its_rank()


def test_equals_out_of_order(monkeypatch):
    """The newest of one priority first."""

    def at_the_front(self, ticket, now):
        self._insert(ticket, ticket.priority, None)
        ticket.place.entries.rotate(1)

    monkeypatch.setattr(Aging, "push", at_the_front)
    with pytest.raises(CAUGHT):
        test_submit.test_equal_priorities_run_in_submission_order()


@pytest.mark.parametrize("timeout", ["60s", "10s"])
def test_a_starvation_timeout_that_is_never_read(monkeypatch, timeout):
    """The seed: the rate is +10 per 5 s whatever the timeout."""
    monkeypatch.setattr(Aging, "over", classmethod(lambda cls, timeout, **settings: cls(2.0)))
    with pytest.raises(CAUGHT):
        factor = 2 if timeout == "60s" else 1 / 3
        test_aging_door.TestTable().test_the_times_scale_with_the_timeout(25, 50, timeout, factor)


@pytest.mark.parametrize("rate", [1.9, 2.1, 0.0])
def test_a_rate_that_is_a_little_off(monkeypatch, rate):
    monkeypatch.setattr(Aging, "over", classmethod(lambda cls, timeout, **settings: cls(rate)))
    with pytest.raises(CAUGHT):
        for waited, effective in test_aging_door.TABLE:
            table = test_aging_door.TestTable()
            table.test_just_before_the_newcomer_of_that_priority_goes_first(waited, effective)
            table.test_at_that_time_arrival_decides(waited, effective)


def test_no_ceiling(monkeypatch):
    """Without it an old task would outrank critical work of its own age."""
    monkeypatch.setattr(Aging, "over", classmethod(lambda cls, timeout, **settings: cls(2.0, 1000)))
    with pytest.raises(CAUGHT):
        test_aging_door.test_at_the_ceiling_arrival_order_decides()


def test_a_drain_that_opens_every_gate(monkeypatch):
    """The seed: at shutdown all that waits is let go at once, beyond the limit."""
    shutdown = Scheduler.shutdown

    async def all_at_once(self, *args, **kwargs):
        self.resize(1000)
        await shutdown(self, *args, **kwargs)

    monkeypatch.setattr(Scheduler, "shutdown", all_at_once)
    with pytest.raises(CAUGHT):
        test_shutdown.test_a_drain_keeps_to_the_limit_and_to_the_order()


def test_a_shutdown_that_waits_for_nobody(monkeypatch):
    async def at_once(self, *args, **kwargs):
        self.shutting_down = True

    monkeypatch.setattr(Scheduler, "shutdown", at_once)
    with pytest.raises(CAUGHT):
        test_shutdown.test_a_drain_keeps_to_the_limit_and_to_the_order()


@pytest.mark.parametrize("slots", [1, 2])
def test_a_dag_whose_nodes_wait_inside_their_slots(monkeypatch, slots):
    """The seed: downstream nodes, ranked higher, hold every slot while their inputs are queued behind them."""

    async def run(self, scheduler):
        done = {name: asyncio.get_running_loop().create_future() for name in self._nodes}

        async def step(node):
            for dependency in node.dependencies:
                await done[dependency]
            done[node.name].set_result(await node.fn(*node.args))

        busy = scheduler.spawn(100, asyncio.sleep, 0)
        await asyncio.gather(
            busy, *(scheduler.spawn(node.priority, step, node) for node in self._nodes.values())
        )

    monkeypatch.setattr(Dag, "run", run)
    with pytest.raises(CAUGHT):
        test_dag.test_a_node_holds_no_slot_while_it_waits_for_its_inputs(slots)
