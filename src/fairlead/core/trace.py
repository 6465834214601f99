"""Record every verb a gate was given, and replay it: the same verbs give the same verdicts.

An entry is a tuple of plain values, `(verb, now, ...)`: JSON keeps it.  Tickets are named by their number in the recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.core.gate import Change, Gate
from fairlead.core.ticket import Outcome, Ticket

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

    def _number(self, ticket: Ticket) -> int:
        return self._numbers.setdefault(ticket, len(self._numbers))

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        fields = [(name, getattr(ticket, name)) for name in FIELDS]
        self.entries.append(("offer", now, self._number(ticket), dict(fields)))
        return super().offer(ticket, now)

    def finish(
        self,
        ticket: Ticket,
        now: float,
        outcome: Outcome = Outcome.OK,
        spent: float | None = None,
    ) -> Sequence[Ticket]:
        self.entries.append(("finish", now, self._number(ticket), outcome.value, spent))
        return super().finish(ticket, now, outcome, spent)

    def withdraw(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        tickets = list(tickets)
        self.entries.append(("withdraw", now, [self._number(ticket) for ticket in tickets]))
        return super().withdraw(tickets, now)

    def adjust(self, change: Change, now: float) -> Sequence[Ticket]:
        self.entries.append(("adjust", now, change.part, change.verb, list(change.args)))
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
    """Apply a recording to a fresh gate; tell, per entry, which tickets changed and to what."""
    tickets: dict[int, Ticket] = {}
    numbers: dict[Ticket, int] = {}
    verdicts = []
    for verb, now, *rest in entries:
        if verb == "offer":
            number, fields = rest
            ticket = tickets[number] = make(**fields)
            numbers[ticket] = number
            changed = [ticket, *gate.offer(ticket, now)]
        elif verb == "finish":
            number, outcome, spent = rest
            ticket = tickets[number]
            changed = [ticket, *gate.finish(ticket, now, Outcome(outcome), spent)]
        elif verb == "withdraw":
            withdrawn = [tickets[number] for number in rest[0]]
            changed = [*withdrawn, *gate.withdraw(withdrawn, now)]
        elif verb == "adjust":
            part, name, args = rest
            changed = list(gate.adjust(Change(part, name, tuple(args)), now))
        elif verb == "commit":
            gate.commit(tickets[rest[0]])
            changed = []
        else:
            changed = list(gate.advance(now))
        verdicts.append([(numbers[ticket], ticket.state.value) for ticket in changed])
    return verdicts
