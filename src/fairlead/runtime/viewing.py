"""A gate seen through another object: what it is read for comes from there, and each verb can be followed up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.core import Gate, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from fairlead.core import Change, Ticket
    from fairlead.core.explain import Explanation


class GateView(Gate):
    """A gate whose verbs are those of `core`; `_do` carries each of them out."""

    def __init__(self, core: Gate) -> None:
        self._core = core

    def _do(self, verb: Callable[..., Sequence[Ticket]], *args: Any) -> Sequence[Ticket]:
        """Do a verb of the core."""
        return verb(*args)

    # Reading

    @property
    def now(self) -> float:  # type: ignore[override]
        return self._core.now

    @property
    def due(self) -> float:  # type: ignore[override]
        return self._core.due

    @property
    def late(self) -> int:  # type: ignore[override]
        return self._core.late

    @property
    def waiting(self) -> int:  # type: ignore[override]
        return self._core.waiting

    @property
    def holders(self) -> dict[Ticket, bool]:  # type: ignore[override]
        return self._core.holders

    def waiters(self) -> list[Ticket]:
        return self._core.waiters()

    def next_wakeup(self, now: float) -> float:
        return self._core.next_wakeup(now)

    def closed_to(self, ticket: Ticket) -> Hashable | None:
        return self._core.closed_to(ticket)

    def closed_by(self, scope: Hashable) -> Ticket | None:
        return self._core.closed_by(scope)

    def claimed(self, ticket: Ticket) -> bool:
        return self._core.claimed(ticket)

    def explain(self, ticket: Ticket, now: float) -> Explanation:
        return self._core.explain(ticket, now)

    # The verbs

    def commit(self, ticket: Ticket) -> bool:
        return self._core.commit(ticket)

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        return self._do(self._core.offer, ticket, now)

    def enlist(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        return self._do(self._core.enlist, tickets, now)

    def finish(
        self,
        ticket: Ticket,
        now: float,
        outcome: Outcome = Outcome.OK,
        spent: float | None = None,
    ) -> Sequence[Ticket]:
        return self._do(self._core.finish, ticket, now, outcome, spent)

    def finish_all(
        self, tickets: Iterable[Ticket], now: float, outcome: Outcome = Outcome.OK
    ) -> Sequence[Ticket]:
        return self._do(self._core.finish_all, tickets, now, outcome)

    def withdraw(self, tickets: Iterable[Ticket], now: float) -> Sequence[Ticket]:
        return self._do(self._core.withdraw, tickets, now)

    def adjust(self, change: Change, now: float) -> Sequence[Ticket]:
        return self._do(self._core.adjust, change, now)

    def advance(self, now: float) -> Sequence[Ticket]:
        return self._do(self._core.advance, now)

    def surrender(self) -> list[Ticket]:
        return self._core.surrender()

    def adopt(self, tickets: Iterable[Ticket], now: float) -> None:
        self._core.adopt(tickets, now)
