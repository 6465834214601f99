"""Slots that somebody else has, lent one by one: what a door may use beside room of its own.

A slot is lent for one ticket.  When that ticket ends the slot goes back, also if another of the same door waits: who is
next is for the lender to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.capacities.both import Both
from fairlead.core.capacity import FULL, Capacity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from fairlead.core.ticket import Ticket


class Lent(Capacity):
    """What is lent now.  Counted all told: `taken` what was lent, and of it `given` back after use, or `unused`."""

    def __init__(self, lender: str, total: Callable[[], int]) -> None:
        self.name = f"lent by {lender}"
        self._lender, self._total = lender, total
        self.spare = 0  # lent and not in use; below 0 if tickets that ran already were adopted
        self.used = 0
        self.taken = self.given = self.unused = 0
        self.short = False  # the last one asked had room of its own, and lacked a slot

    def lend(self, slots: int) -> None:
        """Have more slots."""
        self.spare += slots
        self.taken += slots

    def return_spare(self) -> None:
        """Give back what nobody here can use."""
        self.unused += self.spare
        self.spare = 0

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        return None if self.spare > 0 else FULL  # what another gives is not for this one

    def take(self, ticket: Ticket, now: float) -> None:
        self.spare -= 1
        self.used += 1

    def give(self, ticket: Ticket, now: float) -> None:
        self.used -= 1
        self.given += 1

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        return f"it needs one of the {self._total()} slots of {self._lender}, which others share"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        if self.used != len(holders):
            return f"{self.name}: {self.used} in use, {len(holders)} holders"
        return None


class Borrowing(Both):
    """Room of one's own and a slot that is lent: all or none.

    A slot is missed only by a ticket that has room of its own; none is asked for in vain.
    """

    def __init__(self, own: Capacity, lent: Lent) -> None:
        super().__init__(own, lent, name=f"{own.name}, and {lent.name}")
        self.own, self.lent = own, lent

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        refusal = self.own.refusal(ticket, now, without)
        return self.lent.refusal(ticket, now, without) if refusal is None else refusal

    def admit(self, ticket: Ticket, now: float) -> Hashable | None:
        refusal = self.own.refusal(ticket, now)
        self.lent.short = refusal is None and self.lent.spare <= 0
        if self.lent.short:
            return FULL
        if refusal is None:
            self.full = self.take(ticket, now)
        return refusal

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        part = self.lent if self.own.refusal(ticket, now) is None else self.own
        return part.describe(ticket, now, refusal)
