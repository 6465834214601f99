"""A policy written as a sort over what waits.

A plan is made once per round, over the tickets no closed scope parks, and used until something arrives, leaves, opens
or time moves.  What a plan leaves out is withheld until the next one.  The price is a pass over the waiting per round:
for orders that a key cannot express.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from fairlead.core.capacity import STOP
from fairlead.core.policy import Policy
from fairlead.errors import ConfigError, FairleadError, PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from fairlead.core.policy import Admit
    from fairlead.core.ticket import Ticket

    Plan = Callable[[Sequence[Ticket], float], Iterable[Ticket]]


class Planner(Policy):
    """Serve in the order of `plan(waiting, now)`; override it, or pass a function.

    >>> earliest_deadline = Planner(lambda waiting, now: sorted(waiting, key=lambda ticket: ticket.deadline))
    """

    shortcut = False

    _given: Plan | None
    _tickets: dict[Hashable, dict[Ticket, None]]  # by scopes
    _closed: dict[Hashable, Hashable]  # scopes -> the one that refused
    _groups: dict[Hashable, dict[Hashable, None]]  # the one that refused -> scopes
    _round: Iterator[Ticket] | None
    _round_at: float

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._given = None
        self._tickets = {}
        self._closed = {}
        self._groups = {}
        self._round = None
        self._round_at = 0.0
        return self

    def __init__(
        self, plan: Plan | None = None, *, name: str = "", limit: int | None = None
    ) -> None:
        if plan is not None and not callable(plan):
            raise ConfigError(f"Planner needs a function of (waiting, now); got {plan!r}")
        self._given = plan
        self.name = name
        self.limit = limit

    def plan(self, waiting: Sequence[Ticket], now: float) -> Iterable[Ticket]:
        """Order what waits (in order of arrival within a lane); leave out what should be withheld."""
        return waiting if self._given is None else self._given(waiting, now)

    def push(self, ticket: Ticket, now: float) -> None:
        ticket.place = lane = self._tickets.setdefault(ticket.scopes, {})
        lane[ticket] = None
        self._size += 1
        self._round = None

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        if self._round is None or now != self._round_at:
            self._round = self._new_round(now)
            self._round_at = now
        for ticket in self._round:
            if ticket not in (getattr(ticket, "place", None) or ()):
                raise PolicyError(
                    f"planner {self._called} planned {ticket!r}, which does not wait here"
                )
            if ticket.scopes in self._closed:
                continue  # closed by a ticket planned before it
            refusal = admit(ticket)
            if refusal is None:
                self._forget(ticket)
                return ticket
            if refusal is STOP:
                self._round = None  # the next round may start with another
                return None
            self._closed[ticket.scopes] = refusal
            self._groups.setdefault(refusal, {})[ticket.scopes] = None
        return None

    def _new_round(self, now: float) -> Iterator[Ticket]:
        lanes = [lane for scopes, lane in self._tickets.items() if scopes not in self._closed]
        waiting = [ticket for lane in lanes for ticket in lane]
        try:
            planned = list(self.plan(waiting, now))
        except FairleadError:
            raise
        except Exception as error:
            raise PolicyError(f"planner {self._called} raised {error!r}") from error
        if len(set(map(id, planned))) < len(planned):
            raise PolicyError(f"planner {self._called} planned a ticket twice")
        return iter(planned)

    @property
    def _called(self) -> str:
        return self.name or getattr(self._given, "__name__", type(self).__name__)

    def open(self, scope: Hashable, now: float) -> None:
        for scopes in self._groups.pop(scope, ()):
            if self._closed.get(scopes) == scope:
                del self._closed[scopes]
            self._round = None

    def remove(self, ticket: Ticket, now: float) -> None:
        self._forget(ticket)
        self._round = None

    def _forget(self, ticket: Ticket) -> None:
        lane = ticket.place
        ticket.place = None
        del lane[ticket]
        self._size -= 1
        if not lane:
            del self._tickets[ticket.scopes]
            scope = self._closed.pop(ticket.scopes, None)
            if scope is not None:
                del self._groups[scope][ticket.scopes]

    def head(self, now: float) -> Ticket | None:
        return next(iter(self._new_round(now)), None)

    def explain(self, ticket: Ticket, now: float) -> str | None:
        if ticket.scopes in self._closed:
            return None
        planned = list(self._new_round(now))
        if ticket not in planned:
            return f"planner {self._called} withholds it"
        return f"planner {self._called} puts it at position {planned.index(ticket) + 1} of {len(planned)}"

    def __iter__(self) -> Iterator[Ticket]:
        for lane in self._tickets.values():
            yield from lane
