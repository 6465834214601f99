"""Room where several apps share one capacity: each has its own workers beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core import Capacity

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from fairlead.core import Ticket


class AppWorkers(Capacity):
    """Slots per app, told by the ticket's `scheduler`."""

    scoped = True
    called = "workers of apps"

    def __init__(self) -> None:
        self.name = self.called
        self._limits: dict[Hashable, int] = {}
        self._used: dict[Hashable, int] = {}

    def admit_app(self, app: Hashable, workers: int) -> None:
        """Let an app's batches in."""
        self._limits[app] = workers
        self.opened.append((self.name, app))

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        return ((self.name, _app(ticket)),)

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        app = _app(ticket)
        used = self._used.get(app, 0)
        if without is not None and _app(without) is app:
            used -= 1
        return None if used < self._limits.get(app, 0) else (self.name, app)

    def take(self, ticket: Ticket, now: float) -> None:
        app = _app(ticket)
        self._used[app] = self._used.get(app, 0) + 1

    def give(self, ticket: Ticket, now: float) -> None:
        app = _app(ticket)
        self._used[app] -= 1
        if not self._used[app]:
            del self._used[app]
        self.opened.append((self.name, app))

    def room(self) -> Mapping[Hashable, float]:
        free = sum(limit - self._used.get(app, 0) for app, limit in self._limits.items())
        return {self.name: max(0, free)}

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        return f"all {self._limits.get(_app(ticket), 0)} workers are in use"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        expected: dict[Hashable, int] = {}
        for ticket in holders:
            expected[_app(ticket)] = expected.get(_app(ticket), 0) + 1
        return None if expected == self._used else f"{self.name}: {self._used} beside {expected}"


def _app(ticket: Ticket) -> Hashable:
    found: Hashable = getattr(ticket, "scheduler", None)
    return found
