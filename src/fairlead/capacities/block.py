"""What a ledger has lent for one key of a quota, how it is used, and what to ask for next.

A block is to last for about `AHEAD` seconds of recent use, and more is asked for when half of it is gone.  What waits
is asked for as it is, within reason: tickets may wait for another limit of the same gate, and to borrow for all of
them would keep tokens from others.  So nothing is asked for a workload that has enough for any one of its tickets,
and never more than twice what was used since the last look, `REACH` tickets' worth at least.
"""

from __future__ import annotations

from math import floor, inf
from typing import TYPE_CHECKING, NamedTuple

from fairlead.capacities.demand import Claim, Demand, Rate

if TYPE_CHECKING:
    from collections.abc import Hashable

AHEAD = 0.1  # seconds of recent use to be lent ahead of need
WORTH = 2.0  # tickets: for fewer than that nothing is asked ahead
REACH = 64.0  # tickets' worth that may be asked for at once, however little was used of late
DUST = 1e-9  # sums of fractional costs do not cancel exactly


class TokenWant(NamedTuple):
    """What to tell the ledger about one key: who waits, what to lend ahead, what comes back, what was overdrawn."""

    key: Hashable
    claims: list[Claim]
    ahead: float
    back: float  # tokens lent and not used
    debit: float  # tokens used beyond what was lent, by settling estimates
    spent: float  # tokens used while the ledger was lost


class Block:
    """Tokens lent for one key: free ones, and those marked for a workload that waits; void from `until` on."""

    __slots__ = (
        "level",
        "marks",
        "until",
        "dry_until",
        "expected_at",
        "waiting",
        "told",
        "rate",
        "used",
        "missed",
        "low",
        "back",
        "debit",
        "spent",
    )

    def __init__(self, now: float) -> None:
        self.level = 0.0
        self.marks: dict[Hashable, float] = {}
        self.until = -inf
        self.dry_until = -inf  # the ledger has nothing to say before this instant
        self.expected_at = -inf  # its guess when there will be some
        self.waiting = Demand()
        self.told = False  # does the ledger know of some that wait?
        self.rate = Rate(now)
        self.used = 0.0  # tokens taken since the last look
        self.missed = 0.0  # tokens asked for in vain since then
        self.low = 0.0  # below this level it is time to ask for more
        self.back = 0.0
        self.debit = 0.0
        self.spent = 0.0

    def empty(self) -> None:
        """Forget what was lent."""
        self.level, self.low = 0.0, 0.0
        self.until = self.dry_until = self.expected_at = -inf
        self.told = False
        self.marks.clear()

    def idle(self, now: float) -> bool:
        """Tell whether there is nothing to remember."""
        return not (
            self.waiting.lines
            or self.level > 0
            or self.marks
            or self.rate.per_second
            or self.told
            or now < self.dry_until
        )

    def want(self, key: Hashable, now: float) -> TokenWant | None:
        """Look at what was used, and tell what to ask for, if anything; what came back is handed over with it."""
        reach = 2 * self.used
        rate = self.rate.look(self.used + self.missed, now)
        self.used = self.missed = 0.0
        if now >= self.until:
            self.back += self.level + sum(self.marks.values())
            self.level = 0.0
            self.marks.clear()
        claims = self._claims(reach)
        unit = min((claim.unit for claim in claims), default=1.0)
        ahead = rate * AHEAD
        ahead = floor(ahead) if ahead >= WORTH * unit else 0.0
        self.low = ahead / 2
        lacking = ahead - self.level if self.level <= self.low else 0.0
        news = self.back or self.debit or self.spent > 0 or (self.told and not claims)
        if not news and (now < self.dry_until or not (claims or lacking)):
            return None
        self.told = bool(claims)
        want = TokenWant(key, claims, lacking, self.back, self.debit, max(0.0, self.spent))
        self.back = self.debit = self.spent = 0.0
        return want

    def _claims(self, reach: float) -> list[Claim]:
        claims = []
        free = self.level
        for claim in self.waiting.claims():
            at_hand = free + self.marks.get(claim.workload, 0.0)
            if at_hand + DUST >= claim.largest:
                continue  # it waits for something else
            tokens = min(claim.tokens - at_hand, max(reach, REACH * claim.unit))
            claims.append(claim._replace(tokens=tokens, unit=min(claim.unit, tokens)))
            free = 0.0
        return claims

    def surplus(self) -> float:
        """Tell how many free tokens are more than will soon be used."""
        soon = self.rate.per_second * AHEAD
        if self.waiting.lines or self.level <= 2 * soon:
            return 0.0
        return self.level - (floor(soon) if soon >= WORTH else 0.0)
