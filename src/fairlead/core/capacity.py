"""Is there room, and when could there be?  The contract every capacity keeps, with defaults for what few need.

A capacity answers for one ticket at one instant and knows nothing of queues.  Three rules make the gate exact:

- `refusal` is pure; `take` is called only right after it returned None, and never fails.
- A refusal names who else is refused: `FULL` everybody, `STOP` everybody ranked later, `NEVER` this ticket for
  ever, or a *scope* (any other hashable out of `scopes(ticket)`) everybody ranked later who shares it.
- `ready_at` is the very instant from which `refusal` would be None if nothing else happened.  Keep it as a time, not
  as a level: a level that rounds the other way makes a timer spin at one instant for ever.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fairlead.core.part import Part

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from fairlead.core.ticket import Ticket


class Halt(Enum):
    """The refusals that are not scopes."""

    STOP = "nobody ranked after this ticket"
    FULL = "nobody at all"
    NEVER = "this ticket can never fit"

    __hash__ = object.__hash__  # that of an enum runs Python code: benchmarks/flows.py


STOP, FULL, NEVER = Halt


class Hold(NamedTuple):
    """The scope of a class kept out by a reservation above it.  A promotion passes through it."""

    rank: int
    whose: Hashable = None  # where doors with classes of their own share a gate


class Later(NamedTuple):
    """A scope that may gain room by itself, though not before that instant."""

    scope: Hashable
    at: float


class Capacity(Part):
    """The base of every capacity; a user's own needs `refusal`, `take` and `give`.

    >>> class OneAtATime(Capacity):
    ...     busy = False
    ...     def refusal(self, ticket, now, without=None):
    ...         return FULL if self.busy and without is None else None
    ...     def take(self, ticket, now):
    ...         self.busy = True
    ...     def give(self, ticket, now):
    ...         self.busy = False
    """

    name = "capacity"
    scoped = False  # does scopes() ever name one?
    watches = False  # does it want enter() and leave()?
    # Its gate, where threads share it: a door given the same capacity may join.
    thread_gate: Any = None
    full: bool  # did the last admission leave room for nobody?
    # Is it a number of slots, `used` of `total`?  Then the gate counts, and need not ask.
    counts = False
    spends = False  # is all it takes used up by starting?  Then `give` does nothing, and the gate may `draw`.
    lasts = False  # does a STOP stand until `ready_at`, unless something is in `opened` before?
    # Does `admit`, when it refuses, leave in `ends_at` what `ready_at` would say of the refusal?
    foretells = False
    ends_at: float
    # Scopes that gained room since the gate last looked, and each Later that it is to look at; FULL in it: any scope.
    opened: list[Hashable]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Set up here, so that a subclass with its own __init__ need not call ours.
        self = super().__new__(cls)
        self.opened = []
        self.full = False
        return self

    def __init_subclass__(cls) -> None:
        # A step that joins others is not inherited, nor a promise: whatever a subclass overrides is asked.
        if "admit" not in cls.__dict__:
            cls.admit = Capacity.admit  # type: ignore[method-assign]
        if "lasts" not in cls.__dict__:
            cls.lasts = False
        if "foretells" not in cls.__dict__:
            cls.foretells = False
        if "counts" not in cls.__dict__:
            cls.counts = False
        if "spends" not in cls.__dict__:
            cls.spends = False

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        """Name the scopes that may refuse this ticket; asked once, at offer."""
        return ()

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        """Say why not, or None; with `without`, as if that holder had given back."""
        raise NotImplementedError

    def take(self, ticket: Ticket, now: float) -> bool | None:
        """Take the room; `refusal` has just returned None.  May return True to say that now it is FULL."""
        raise NotImplementedError

    def admit(self, ticket: Ticket, now: float) -> Hashable | None:
        """Refuse or take in one step: `refusal`, and if there is none, `take`."""
        refusal = self.refusal(ticket, now)
        if refusal is None:
            self.full = self.take(ticket, now) is True
        return refusal

    def give(self, ticket: Ticket, now: float) -> None:
        """Give back what lasts as long as the work does."""
        raise NotImplementedError

    def refund(self, ticket: Ticket, amount: float, now: float) -> None:
        """Give back (or, if negative, take further) what is used up by starting."""

    def adopt(self, ticket: Ticket, now: float) -> bool | None:
        """Take the room of a ticket that runs already; what is used up by starting was paid."""
        full = self.take(ticket, now)
        self.refund(ticket, ticket.cost, now)
        return full

    def ready_at(self, ticket: Ticket, now: float, scope: Hashable) -> float:
        """Say from when `scope` would no longer refuse this ticket if nothing else happened."""
        return inf

    def report_to(self, opened: list[Hashable]) -> None:
        """Note opened scopes in the list of the capacity this one is part of."""
        self.opened = opened

    def enter(self, ticket: Ticket, now: float) -> None:
        """Note that a ticket starts to wait."""

    def leave(self, ticket: Ticket, now: float) -> None:
        """Note that a ticket waits no longer."""

    def room(self) -> Mapping[Hashable, float]:
        """Tell the free room by name, for planners and metrics."""
        return {}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        """Say in one clause why `refusal` refuses this ticket."""
        return f"{self.name} has no room"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        """Compare the books with the holders; say what is wrong, or None."""
        return None

    def part(self, name: str) -> Capacity | None:
        """Find this capacity, or one inside it, by name."""
        return self if name == self.name else None
