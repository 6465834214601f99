"""Record every verb a gate was given, and replay it: the same verbs give the same verdicts.

An entry is a tuple of plain values, `(verb, now, ...)`: JSON keeps it.  Tickets are named by their number in the
recording; one that was never offered has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.core.gate import Change, Gate
from fairlead.core.ticket import NEW, Outcome, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FIELDS = (
    "key",
    "priority",
    "cost",
    "rank",
    "tenant",
    "workload",
    "pool",
    "estimate",
    "deadline",
    "labels",
    "wait_until",
    "hold_until",
    "arrived_at",
    "can_preempt",
    "evictable",
    "evictions",
)

Entry = tuple[Any, ...]
Verdict = tuple[int, str]


class Recorder(Gate):
    """A gate that keeps the log of its verbs in `entries`.

    >>> from fairlead.policies import FIFO
    >>> from fairlead.capacities import Slots
    >>> gate = Recorder(FIFO(), Slots(1))
    >>> _ = gate.offer(Ticket("a"), now=0.0)
    >>> replay(gate.entries, Gate(FIFO(), Slots(1)))
    [[(0, 'running')]]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries: list[Entry] = []
        self._numbers: dict[Ticket, int] = {}

    def _number(self, ticket: Ticket) -> int | None:
        return self._numbers.get(ticket)

    def _described(self, ticket: Ticket) -> tuple[int, dict[str, Any]]:
        number = self._numbers.setdefault(ticket, len(self._numbers))
        fields = {name: getattr(ticket, name) for name in FIELDS}
        fields["labels"] = _plain(ticket.labels)
        return number, fields

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        self.entries.append(("offer", now, *self._described(ticket)))
        return super().offer(ticket, now)

    def enlist(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        tickets = list(tickets)
        self.entries.append(("enlist", now, [self._described(ticket) for ticket in tickets]))
        return super().enlist(tickets, now)

    def finish(
        self,
        ticket: Ticket,
        now: float,
        outcome: Outcome = Outcome.OK,
        spent: float | None = None,
    ) -> Sequence[Ticket]:
        self.entries.append(("finish", now, self._number(ticket), outcome.value, spent))
        return super().finish(ticket, now, outcome, spent)

    def finish_all(
        self, tickets: Iterable[Ticket], now: float, outcome: Outcome = Outcome.OK
    ) -> Sequence[Ticket]:
        tickets = list(tickets)
        numbers = [self._number(ticket) for ticket in tickets]
        self.entries.append(("finish_all", now, numbers, outcome.value))
        return super().finish_all(tickets, now, outcome)

    def withdraw(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        tickets = list(tickets)
        self.entries.append(("withdraw", now, [self._number(ticket) for ticket in tickets]))
        return super().withdraw(tickets, now)

    def adjust(self, change: Change, now: float) -> Sequence[Ticket]:
        self.entries.append(("adjust", now, change.part, change.verb, _plain(list(change.args))))
        return super().adjust(change, now)

    def commit(self, ticket: Ticket) -> bool:
        self.entries.append(("commit", self.now, self._number(ticket)))
        return super().commit(ticket)

    def advance(self, now: float) -> Sequence[Ticket]:
        self.entries.append(("advance", now))
        return super().advance(now)


def replay(
    entries: Iterable[Entry], gate: Gate, make: Callable[..., Ticket] = Ticket
) -> list[list[Verdict]]:
    """Apply a recording to a fresh gate; tell, per entry, which tickets changed and to what.

    A verb that failed when it was recorded fails again, and the replay goes on as the gate did.
    """
    tickets: dict[int | None, Ticket] = {None: make()}  # one for all that were never offered
    numbers: dict[Ticket, int] = {}
    verdicts = []

    def arriving(number: int, fields: dict[str, Any]) -> Ticket:
        fields = {name: _read(value) for name, value in fields.items()}
        if number not in tickets:
            tickets[number] = ticket = make(**fields)
            numbers[ticket] = number
        elif tickets[number].state is NEW:  # it could not be offered, and was put right since
            for name, value in fields.items():
                setattr(tickets[number], name, value)
        return tickets[number]

    for verb, now, *rest in entries:
        own: list[Ticket] = []
        changed: Sequence[Ticket] = ()
        act: Callable[[], Any]
        # First whatever an entry may lack; beyond that, what fails is the verb.
        if verb == "offer":
            own = [arriving(*rest)]
            act = partial(gate.offer, own[0], float(now))
        elif verb == "enlist":
            own = [arriving(*described) for described in rest[0]]
            act = partial(gate.enlist, own, float(now))
        elif verb == "finish":
            own = [tickets[rest[0]]]
            act = partial(gate.finish, own[0], float(now), Outcome(rest[1]), rest[2])
        elif verb == "finish_all":
            own = [tickets[number] for number in rest[0]]
            act = partial(gate.finish_all, own, float(now), Outcome(rest[1]))
        elif verb == "withdraw":
            own = [tickets[number] for number in rest[0]]
            act = partial(gate.withdraw, own, float(now))
        elif verb == "adjust":
            act = partial(gate.adjust, Change(rest[0], rest[1], _read(rest[2])), float(now))
        elif verb == "commit":
            own = [tickets[rest[0]]]
            act = partial(_commit, gate, own[0])
        else:
            act = partial(gate.advance, float(now))
        try:
            changed = act()
        except AssertionError:
            raise  # a CheckedGate has found a fault
        except Exception:
            changed = ()
        told = dict.fromkeys(ticket for ticket in (*own, *changed) if ticket in numbers)
        verdicts.append([(numbers[ticket], ticket.state.value) for ticket in told])
    return verdicts


def _commit(gate: Gate, ticket: Ticket) -> Sequence[Ticket]:
    gate.commit(ticket)
    return ()


def _plain(value: Any) -> Any:
    """Copy what a caller may change later; what tells itself in plain values, as a Level does, is kept as these."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value.plain() if hasattr(value, "plain") else value


def _read(value: Any) -> Any:
    """JSON makes lists of tuples, which may have been names."""
    return tuple(map(_read, value)) if type(value) in (list, tuple) else value
