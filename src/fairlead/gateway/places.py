"""Room at backends: a request of a fleet takes a place at one that serves its model, and none has more than it takes.

The slots of a pool bound the sum over its backends; which of them can run a request depends on its model, and changes
as backends fail.  So a request that has a slot also needs a place, and is given it in the same step: its backend is
chosen as it starts.  It keeps that place until it ends, unless another try takes it elsewhere.

Requests for one model are refused together: each model that a backend lists is a scope, so are all others together, and
so are the requests that name none.  A request that no gate has admitted (`exempt` paths) takes no place.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.core import Capacity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from fairlead.core import Ticket
    from fairlead.gateway.fleet import Fleet
    from fairlead.gateway.upstream import Upstream

NAME = "backends"
UNLISTED = ""  # stands for the models that no backend lists


class Place:
    """Where one request runs; `number` is that of the choice, `on_move` is called when it goes elsewhere."""

    __slots__ = ("number", "on_move", "untried", "upstream")

    def __init__(self, upstream: Upstream, on_move: Callable[[], object]) -> None:
        self.upstream = upstream
        self.on_move = on_move
        self.number = upstream.used
        self.untried = True
        upstream.held += 1

    def move(self, upstream: Upstream) -> None:
        """Go to another backend."""
        self.upstream.held -= 1
        self.upstream = upstream
        upstream.held += 1
        self.on_move()

    def leave(self) -> None:
        """Give the place back."""
        self.upstream.held -= 1


class Places(Capacity):
    """The places of a fleet, as the gate of one pool sees them; without a fleet there is nothing to refuse."""

    scoped = True
    watches = True
    name = NAME

    def __init__(self) -> None:
        self.fleet: Fleet | None = None
        self.on_move: Callable[[], object] = self.look  # the pool has its gate look at once
        self._taken: dict[Ticket, Place] = {}
        self._scope_of: dict[Ticket, tuple[Hashable, ...]] = {}  # of those who wait
        self._waiting: Counter[tuple[Hashable, ...]] = Counter()

    def place_of(self, ticket: Ticket) -> Place | None:
        """Return where a request runs."""
        return self._taken.get(ticket)

    def key_of(self, ticket: Any) -> str | None:
        """Name the requests that backends tell apart from others by the model; None for those that may go to any."""
        fleet, model = self.fleet, ticket.model if self.fleet is not None else None
        if fleet is None or model is None or not fleet.lists_models:
            return None
        return model if fleet.lists(model) else UNLISTED

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        return () if self.fleet is None else ((NAME, self.key_of(ticket)),)

    def refusal(self, ticket: Any, now: float, without: Any = None) -> Hashable | None:
        fleet = self.fleet
        if fleet is None:
            return None
        place = None if without is None else self._taken.get(without)
        freed = None if place is None else place.upstream
        if fleet.has_place(ticket.model, freed):
            return None
        return NAME, self.key_of(ticket)

    def take(self, ticket: Any, now: float) -> None:
        if self.fleet is None:
            return
        upstream = self.fleet.choose(ticket.model, bounded=True)
        if (
            upstream is not None
        ):  # else it is adopted, and the proxy will say what became of its backend
            self._taken[ticket] = Place(upstream, self.on_move)

    def give(self, ticket: Ticket, now: float) -> None:
        place = self._taken.pop(ticket, None)
        if place is None:
            return
        place.leave()
        if place.untried and self.fleet is not None:
            self.fleet.forgo(place)
        for scope in self._waiting:
            if _serves(place.upstream, scope[1]):
                self.opened.append(scope)

    def enter(self, ticket: Ticket, now: float) -> None:
        scope = self._scope_of[ticket] = (NAME, self.key_of(ticket))
        self._waiting[scope] += 1

    def leave(self, ticket: Ticket, now: float) -> None:
        scope = self._scope_of.pop(ticket)
        self._waiting[scope] -= 1
        if not self._waiting[scope]:
            del self._waiting[scope]

    def look(self) -> None:
        """Look again: the fleet has changed."""
        self.opened.extend(self._waiting)

    def describe(self, ticket: Any, now: float, refusal: Hashable) -> str:
        what = "a request" if ticket.model is None else f"model {shown(ticket.model)}"
        return f"every backend that can take {what} is full"

    def audit(self, holders: Collection[Ticket]) -> str | None:
        strangers = [ticket for ticket in self._taken if ticket not in holders]
        return f"{NAME}: {strangers} have ended and keep their places" if strangers else None


def _serves(upstream: Upstream, key: Hashable) -> bool:
    return key is None or upstream.models is None or key in upstream.models
