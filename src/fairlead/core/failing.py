"""A policy that fails: its verb raises, what had changed by then is told by the next one, and no room is lost."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NoReturn

from fairlead.core.policy import title
from fairlead.core.ticket import REFUSED, WAITING, Outcome
from fairlead.errors import FairleadError, PolicyError

if TYPE_CHECKING:
    from fairlead.core.capacity import Capacity
    from fairlead.core.policy import Policy
    from fairlead.core.ticket import State, Ticket


class Failing:
    """How a gate goes on; the state is that of `Dispatcher`."""

    policy: Policy
    capacity: Capacity
    due: float
    holders: dict[Ticket, bool]
    _admitted: list[Ticket]
    _counted: Any
    _failed: FairleadError | None
    _full: bool
    _untold: list[Ticket]

    if TYPE_CHECKING:

        def _drop(self, ticket: Ticket, state: State, now: float) -> None: ...
        def _release(
            self, ticket: Ticket, now: float, outcome: Outcome, spent: float | None
        ) -> None: ...

    def _tell_later(self, changed: list[Ticket]) -> None:
        """The verb fails: what it has changed by now is told by the next one, which `due` sends to `_arrive`."""
        self._untold, self._failed = changed, None
        self.due = -inf

    def _blame(
        self, deed: str, ticket: Ticket, error: Exception, changed: list[Ticket]
    ) -> NoReturn:
        """The policy could not do its deed, and the verb fails: raise what says so."""
        self._tell_later(changed)
        if isinstance(error, FairleadError):
            raise error
        raise PolicyError(f"{title(self.policy)} could not {deed} {ticket!r}: {error!r}") from error

    def _not_charged(
        self, ticket: Ticket, now: float, error: Exception, changed: list[Ticket]
    ) -> NoReturn:
        """The policy would not charge one that was about to start: its room is given back."""
        self.capacity.give(ticket, now)
        self.capacity.refund(ticket, ticket.cost, now)
        self._blame("charge", ticket, error, changed)

    def _skips(self, ticket: Ticket) -> bool:
        try:
            return self.policy.skips(ticket)
        except Exception:
            return False  # `push` will say what is wrong with it

    def _retract(self, ticket: Ticket, now: float, error: Exception) -> None:
        """The policy failed while its ticket was offered: take the ticket out again."""
        if ticket.state is WAITING:
            self._drop(ticket, REFUSED, now)
        elif ticket in self.holders:
            del self.holders[ticket]
            self._release(ticket, now, Outcome.LOST, None)
            ticket.state = REFUSED
        ticket.reason = str(error)
        if ticket in self._untold:
            self._untold.remove(ticket)

    def _recant(self, tickets: list[Ticket], now: float, error: Exception) -> None:
        """The same for all that were offered at once."""
        for ticket in tickets:
            self._retract(ticket, now, error)
            ticket.state = REFUSED

    def _misled(
        self, picked: Exception | Ticket | None, now: float, changed: list[Ticket]
    ) -> NoReturn:
        """The policy failed, maybe after room was taken: that is given back, so that its error costs nobody a slot."""
        wrong = f"returned {picked!r} though {self._admitted or 'nobody'} was admitted"
        for ticket in self._admitted:
            if ticket.state is WAITING and self._counted is None:  # else counted after the pick
                self._full = False
                self.capacity.give(ticket, now)
                self.capacity.refund(ticket, ticket.cost, now)
        self._admitted.clear()
        self._tell_later(changed)
        if isinstance(picked, PolicyError):
            raise picked
        if isinstance(picked, Exception):
            raise PolicyError(f"{title(self.policy)} raised {picked!r} in pick") from picked
        raise PolicyError(f"{title(self.policy)} {wrong}")
