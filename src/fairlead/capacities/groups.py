"""So many groups at once: whoever belongs to one that is in play may go, a new one has to wait for another to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.capacity import Capacity
from fairlead.core.checks import read_by
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

    from fairlead.core.ticket import Ticket

    # Told of each group that comes into play, and (None) out of it.
    Told = Callable[[Hashable, float | None], None]


class Groups(Capacity):
    """At most `limit` groups in play; None for any number.

    A group comes into play with the first of its tickets that starts, or by `begin`.  It goes out with the last of
    them; or, if `until_told`, by `end` alone, once nothing of it runs: between two of its tickets it keeps its place.
    A start that never was (*lost*) puts a group in play only if another of its tickets does.

    A ticket's scope names its group, so that a queue keeps groups apart; what refuses it is one scope for all new
    groups.  Where tickets of one group differ in other scopes, or stand in several queues, these have to hear that it
    is in play (`told`): a policy of the plain kind would leave one parked.

    >>> per_document = Groups(16, by=lambda ticket: ticket.key)
    """

    scoped = True

    def __init__(
        self,
        limit: int | None,
        by: str | Callable[[Ticket], Hashable] = "group",
        *,
        until_told: bool = False,
        told: Told | None = None,
        name: str = "groups",
    ) -> None:
        self.name = name
        self._scope = (name, None)
        self._key = read_by(by)
        self._until_told = until_told
        self._told = told
        self.active: dict[Hashable, float] = {}  # since when
        self._running: dict[Hashable, int] = {}
        self._ending: dict[Hashable, None] = {}  # ended, but something of it still runs
        self.limit: int | None = None
        self.resize(limit)

    def resize(self, limit: int | None) -> None:
        """Change the limit; a smaller one ends no group."""
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ConfigError(
                f"the number of {self.name} must be 1 or more, or None; got {limit!r}"
            )
        self.limit = limit
        self.opened.append(self._scope)

    def begin(self, groups: Iterable[Hashable], since: float) -> None:
        """Note groups that are in play already, above the limit if need be."""
        for group in groups:
            self._ending.pop(group, None)
            if group not in self.active:
                self._enter(group, since)

    def end(self, groups: Iterable[Hashable]) -> None:
        """Note groups of which nothing more will come."""
        for group in groups:
            if group in self._running:
                self._ending[group] = None
            elif group in self.active:
                self._leave(group)

    def running(self, group: Hashable) -> int:
        """Tell how many of a group run."""
        return self._running.get(group, 0)

    def _enter(self, group: Hashable, since: float) -> None:
        self.active[group] = since
        if self.limit is not None:
            self.opened.append(self._scope)  # others of the group may have been refused
        if self._told is not None:
            self._told(group, since)

    def _leave(self, group: Hashable) -> None:
        del self.active[group]
        if self.limit is not None:
            self.opened.append(self._scope)
        if self._told is not None:
            self._told(group, None)

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        return ((self.name, self._key(ticket)),)

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        limit = self.limit
        if limit is None:
            return None
        active = self.active
        group = self._key(ticket)
        if group in active:
            if without is None or self._until_told or self._key(without) != group:
                return None
            return None if self._running[group] > 1 or len(active) <= limit else self._scope
        others = len(active)
        if without is not None and not self._until_told:
            others -= self._running.get(self._key(without), 0) == 1
        return None if others < limit else self._scope

    def take(self, ticket: Ticket, now: float) -> None:
        group = self._key(ticket)
        if group not in self.active:
            self._enter(group, now)
        self._running[group] = self._running.get(group, 0) + 1

    def give(self, ticket: Ticket, now: float) -> None:
        group = self._key(ticket)
        left = self._running[group] - 1
        if left:
            self._running[group] = left
            return
        del self._running[group]
        if not self._until_told or group in self._ending:
            self._ending.pop(group, None)
            self._leave(group)

    def refund(self, ticket: Ticket, amount: float, now: float) -> None:
        group = self._key(ticket)
        unproven = self.active.get(group) == ticket.started_at and group not in self._running
        if amount > 0 and unproven:
            self._leave(group)

    def room(self) -> Mapping[Hashable, float]:
        return {} if self.limit is None else {self.name: max(0, self.limit - len(self.active))}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        return f"{len(self.active)} of at most {self.limit} {self.name} are in play"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        expected: dict[Hashable, int] = {}
        for ticket in holders:
            group = self._key(ticket)
            expected[group] = expected.get(group, 0) + 1
        if expected != self._running:
            return f"{self.name}: {self._running}, holders say {expected}"
        idle = [group for group in expected if group not in self.active]
        return f"{self.name}: {idle} run and are not in play" if idle else None
