"""Which tenants have a label of their own in metrics: those with a policy or a key, then those who ask most.

A label that a client can make up is memory it can take, here and wherever metrics are kept.  So there are only so many,
all others are `other`, and a label changes hands only to who has asked twice as often as the least of those who have
one: with n requests each place changes hands log₂ n times at most.  Who might be due one is counted as Misra and Gries
do (1982, "Finding repeated elements"): of n requests none is missed that made more than n/CANDIDATES of them.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

OTHER = "other"  # no tenant's key
CANDIDATES = 1_000


class TenantLabels:
    """Bounded labels.  `asked` counts requests by label; `lost` is called with each label that is taken back."""

    def __init__(self, asked: Mapping[str, int], lost: Callable[[str], object]) -> None:
        self.most = 0  # a lower number takes no label back: its counters are there
        self.candidates: dict[str, int] = {}  # how often those without one asked, or less
        self._asked = asked
        self._lost = lost
        self._named: frozenset[str] = frozenset()
        self._labels: dict[str, int] = {}  # and how often they had asked before
        self._least = 0.0  # what the least of those that nobody named asked, or less

    def __contains__(self, label: str) -> bool:
        return label in self._labels

    def expect(self, named: Iterable[str]) -> None:
        """Have a label for each of these, as long as there are any."""
        first = tuple(named)
        self._named = frozenset(first)
        for tenant in first:
            if tenant not in self._labels and len(self._labels) >= self.most:
                least = self._least_of_them()
                if least is None:
                    break
                self._take_back(least)
            self.of(tenant)

    def of(self, tenant: str) -> str:
        """Tell the label of a tenant."""
        if tenant in self._labels:
            return tenant
        if len(self._labels) >= self.most:
            return OTHER
        self._give(tenant)
        return tenant

    def notice(self, tenant: str) -> bool:
        """Count a request of a tenant without a label; whether labels have changed hands."""
        candidates = self.candidates
        asked = candidates.get(tenant, 0) + 1
        if asked > 1 or len(candidates) < CANDIDATES:
            candidates[tenant] = asked
        else:
            self.candidates = {one: count - 1 for one, count in candidates.items() if count > 1}
        if asked < 2 * max(self._least, 1):
            return False
        least = self._least_of_them()
        if asked < 2 * max(self._least, 1) or least is None:
            return False
        self._take_back(least)
        self._give(tenant)
        return True

    def _give(self, tenant: str) -> None:
        self._labels[tenant] = self.candidates.pop(tenant, 0)
        self._least = 0

    def _take_back(self, label: str) -> None:
        asked = self._all_asked(label)
        if asked and len(self.candidates) < CANDIDATES:
            self.candidates[label] = asked
        del self._labels[label]
        self._lost(label)

    def _all_asked(self, label: str) -> int:
        return self._labels[label] + self._asked.get(label, 0)

    def _least_of_them(self) -> str | None:
        """Find who of those that nobody named asked least, and remember how often."""
        free = {label: self._all_asked(label) for label in self._labels if label not in self._named}
        least = min(free, key=lambda label: (free[label], label), default=None)
        self._least = inf if least is None else free[least]
        return least
