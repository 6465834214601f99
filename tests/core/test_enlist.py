"""Many at once: all wait, then the best start; all their room is given back, then the best start."""

import pytest

from fairlead.capacities import Pools, Slots
from fairlead.core import Gate, Policy, Recorder, State, Ticket, replay
from fairlead.errors import Misuse, PolicyError
from fairlead.policies import FIFO
from fairlead.testing import CheckedGate


class ByPriority(Policy):
    def key(self, ticket: Ticket) -> int:
        return -ticket.priority


def batch(*priorities: int) -> list[Ticket]:
    return [Ticket(place, priority) for place, priority in enumerate(priorities)]


def test_a_batch_starts_best_first_and_is_told() -> None:
    gate = CheckedGate(ByPriority(), Slots(2))
    tickets = batch(1, 5, 3, 9)
    assert [ticket.priority for ticket in gate.enlist(tickets, 0.0)] == [9, 5]
    assert [ticket.state for ticket in tickets[::2]] == [State.WAITING, State.WAITING]


def test_those_who_wait_compete_with_the_batch() -> None:
    gate = CheckedGate(ByPriority(), Slots(1))
    (busy, *waiting) = batch(0, 4)
    gate.enlist([busy, *waiting], 0.0)
    gate.enlist(more := batch(3, 2), 1.0)
    # 4 is the only one of the first batch that runs: it was the best of the two.
    assert [ticket.state for ticket in (busy, *waiting, *more)].count(State.RUNNING) == 1
    started = gate.finish_all(waiting, 2.0)
    assert [ticket.priority for ticket in started] == [3]


def test_what_is_given_back_together_goes_to_the_best() -> None:
    gate = CheckedGate(ByPriority(), Slots(3))
    gate.enlist(running := batch(1, 1, 1), 0.0)
    gate.enlist(batch(2, 7, 5), 1.0)
    assert [ticket.priority for ticket in gate.finish_all(running[:2], 2.0)] == [7, 5]
    assert gate.late == 0
    assert not gate.finish_all(running[:2], 3.0)
    assert gate.late == 2


def test_a_ticket_is_enlisted_once() -> None:
    gate = CheckedGate(FIFO(), Slots(1))
    ticket = Ticket("a")
    with pytest.raises(Misuse, match="offered before"):
        gate.enlist([ticket, ticket], 0.0)
    assert ticket.state is State.NEW
    gate.enlist([ticket], 0.0)
    with pytest.raises(Misuse, match="offered before"):
        gate.enlist([ticket], 0.0)
    assert gate.active == 1


def test_a_batch_that_cannot_be_queued_leaves_nothing_behind() -> None:
    class Picky(Policy):
        def key(self, ticket: Ticket) -> int:
            if ticket.key == 2:
                raise ValueError("no such key")
            return 0

    gate = CheckedGate(Picky(), Slots(1))
    tickets = batch(1, 1, 1, 1)
    with pytest.raises(PolicyError, match="no such key"):
        gate.enlist(tickets, 0.0)
    assert gate.waiting == gate.active == 0
    assert {ticket.state for ticket in tickets} == {State.REFUSED}


def test_the_last_beyond_a_limit_are_refused() -> None:
    gate = CheckedGate(FIFO(limit=2), Slots(1))
    tickets = batch(1, 1, 1, 1, 1)
    gate.enlist(tickets, 0.0)
    assert [ticket.state.value for ticket in tickets] == [
        "running",
        "waiting",
        "waiting",
        "refused",
        "refused",
    ]


def test_a_batch_is_recorded_and_replayed() -> None:
    def fresh(kind: type[Gate]) -> Gate:
        return kind(ByPriority(), Pools({"ocr": 2}))

    recorder = fresh(Recorder)
    assert isinstance(recorder, Recorder)
    tickets = [Ticket(number, number % 5, pool="ocr") for number in range(12)]
    recorder.enlist(tickets, 0.0)
    recorder.finish_all(list(recorder.holders), 1.0)
    recorder.withdraw(tickets[:3], 2.0)
    states = [(number, ticket.state.value) for number, ticket in enumerate(tickets)]
    last: dict[int, str] = {}
    for verdicts in replay(recorder.entries, fresh(Gate)):
        last.update(verdicts)
    assert sorted(last.items()) == states
