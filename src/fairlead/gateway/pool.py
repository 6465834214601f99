"""One pool of slots: its classes, its gate, and how fast it drains."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter, deque
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from fairlead.capacities import Reserved
from fairlead.core import Change, Gate
from fairlead.gateway.reservations import by_class, gate_name
from fairlead.gateway.room import Bounds, Room
from fairlead.gateway.settings import CLASSES, DEFAULT
from fairlead.gateway.tenants import highest_ceiling
from fairlead.policies import Classes, FairQueue, Level
from fairlead.runtime import LoopGate

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from fairlead.core import Ticket
    from fairlead.core.ticket import QueueLimit
    from fairlead.gateway.fleet import Fleet
    from fairlead.gateway.settings import Settings
    from fairlead.gateway.sharing import Sharing
    from fairlead.runtime import MakeGate

log = logging.getLogger("fairlead.gateway")

LONGEST_RETRY = 60  # seconds a client is asked to stay away, at most


class Treatment(NamedTuple):
    """What a class may do to others, and others to it."""

    can_preempt: bool
    keeps_head: bool  # until the first byte, so that a failure may take its place
    evictable: bool


@dataclass(frozen=True, slots=True)
class Tuning:
    """What settings mean to a gate; lists go by rank.

    The plain limiter is a tuning like any other: one class in use, nothing reserved, nobody preempts.  So whatever a
    reload changes, even to or from the plain limiter, the gate stays, and with it everybody who waits.
    """

    plain: bool
    levels: tuple[Level, ...]
    floors: tuple[int, ...]
    shares: tuple[float, ...]
    linger: tuple[float, ...]
    treated: tuple[Treatment, ...]
    weights: Mapping[Hashable, float]
    lend: bool
    budget: int
    bounds: Bounds

    @classmethod
    def of(cls, settings: Settings, *, plain: bool) -> Tuning:
        """Read settings."""
        said = settings.priority_scheduler
        classes = [said.classes[name] for name in CLASSES]
        can_preempt = [one.can_preempt and not plain for one in classes]
        highest = highest_ceiling(said)
        weights: dict[Hashable, float] = {
            key: policy.weight for key, policy in said.tenant_policies.items()
        }
        levels = [
            _level(name, one.queue_size, one.queue_timeout, one.starvation_threshold)
            for name, one in zip(CLASSES, classes, strict=True)
        ]
        if plain:
            limiter = settings.fallback
            timeout = limiter.queue_timeout
            levels[DEFAULT] = _level(CLASSES[DEFAULT], limiter.queue_size, timeout, timeout)
        return cls(
            plain=plain,
            levels=tuple(levels),
            floors=tuple(0 if plain else one.reserved_floor for one in classes),
            shares=tuple(0.0 if plain else one.reserved_per_slot for one in classes),
            linger=tuple(one.starvation_threshold for one in classes),
            treated=tuple(
                Treatment(
                    can_preempt=can_preempt[rank],
                    keeps_head=any(can_preempt[rank + 1 :]),
                    # A class that no tenant may have preempts nobody: the gate need not watch for it.
                    evictable=any(can_preempt[rank + 1 : highest + 1]),
                )
                for rank in range(len(CLASSES))
            ),
            weights={} if plain else weights,
            lend=said.lend_reservations,
            budget=said.promotion_budget,
            bounds=Bounds({}, None) if plain else Bounds.said_in(said),
        )


def _level(name: str, queue_size: int, wait_limit: float, starvation: float) -> Level:
    return Level(name, _by_tenant, queue_size, wait_limit, starvation)


def _by_tenant() -> FairQueue:
    return FairQueue("tenant")


class Lines(Classes):
    """The lines of the classes; one who has waited elsewhere already is not turned away from them."""

    def overflow(self, ticket: Ticket) -> QueueLimit | None:
        moved = getattr(ticket, "moved", False)  # of the simulator's tickets none ever does
        return None if moved else super().overflow(ticket)


class Reading(NamedTuple):
    """How one class of a pool stands."""

    inflight: int
    queue_depth: int
    queue_limit: int
    reserved: int
    reserved_asked: int
    class_pressure: float


class Shortage(NamedTuple):
    """How many slots reservations ask for, how many they have, and of how many in all."""

    asked: int
    reserved: int
    slots: int


class Pool:
    """A gate on the loop, and what is known of its speed."""

    def __init__(
        self,
        name: str,
        tuning: Tuning,
        gate: MakeGate = Gate,
        sharing: Sharing | None = None,
    ) -> None:
        self.name = name
        self._sharing = sharing
        self.tuning = tuning
        self.policy = Lines(*tuning.levels, budget=tuning.budget, name="classes")
        self.capacity = Reserved(
            0, tuning.floors, tuning.shares, linger=tuning.linger, lend=tuning.lend
        )
        lent = None if sharing is None else sharing.slots()
        self.room = Room(self.capacity, *(() if lent is None else (lent,)))
        self._bounds = Bounds({}, None).of(0)  # in force
        self.gate = gate(self.policy, self.room)
        self.runtime = LoopGate(self.gate)
        if sharing is not None and lent is not None:
            sharing.join(name, lent, self.runtime)
        self.finished: deque[float] = deque(maxlen=64)
        self.short = False  # reservations ask for more than backends report
        self.slots = 0  # whether or not they are free to be used here yet
        self.on_end: Callable[[], None] | None = None  # for whoever waits until it has drained
        self._weigh()

    def _weigh(self) -> None:
        for level in self.tuning.levels:
            self.runtime.adjust(Change(level.name, "set_weights", (self.tuning.weights,)))

    def resize(
        self, total: int, ceiling: int | None = None, taken: int = 0, declared: int = 0
    ) -> None:
        """Follow the fleet, up to an operator's ceiling and less what others run there; what may start now starts.

        Reservations are scaled into what is `declared`; where nothing is, 0, they are cut to what there is.
        """
        self.slots = total if ceiling is None else min(total, ceiling)
        self._bound()
        free = max(0, self.slots - taken)
        if (free, declared) != (self.capacity.total, self.capacity.declared):
            self.runtime.adjust(Change("slots", "resize", (free, declared)))
        self._warn_if_short(declared)
        if self._sharing is not None:
            self._sharing.resize(self.name, total)

    def follow(self, fleet: Fleet) -> None:
        """Follow which backends of a fleet have room for what."""
        if self.room.places.fleet is None:
            self.room.places.on_move = self._look
            self.room.follow(fleet)
        self._look()

    def _look(self) -> None:
        """Ask for the places of backends anew: one may have come free."""
        if self.gate.waiting:
            self.runtime.adjust(Change("backends", "look"))

    def _bound(self) -> None:
        """Bound the slots of each tenant as it is now; first of all changes, for the others may start requests."""
        bounds = self.tuning.bounds.of(self.slots)
        if bounds != self._bounds:
            self._bounds = bounds
            running = Counter(ticket.tenant for ticket in self.gate.holders)
            self.runtime.adjust(Change("room", "bound", (*bounds, dict(running))))

    def _warn_if_short(self, declared: int) -> None:
        """Warn once when backends that tell their capacity themselves tell too little; what is declared was checked."""
        if declared or not self.slots:
            return
        shortage = self.shortage()
        if shortage is not None and not self.short:
            log.warning(
                "reservations of pool %s need %d slots but its upstreams report %d; %d are in force: %s",
                gate_name(self.name),
                shortage.asked,
                shortage.slots,
                shortage.reserved,
                by_class(self.capacity.reserved),
            )
        self.short = shortage is not None

    def retune(self, tuning: Tuning) -> None:
        """Apply other settings to the gate as it stands; whoever waits goes on waiting.

        Who runs already keeps what it came with: where nobody could preempt it then, nobody can now.
        """
        self.tuning = tuning
        for waiter in self.gate.waiters():
            _, keeps_head, waiter.evictable = tuning.treated[waiter.rank]
            waiter.keeps_head = keeps_head  # type: ignore[attr-defined]
        self._bound()
        self.runtime.adjust(Change("classes", "retune", (tuning.levels, tuning.budget)))
        self._weigh()
        kept = (tuning.floors, tuning.shares, tuning.linger, tuning.lend)
        self.runtime.adjust(Change("slots", "reserve", kept))

    def retry_after(self, rank: int, now: float) -> int:
        """Tell when a place in this class's line may come free: what is served before it, at the measured rate."""
        finished = self.finished
        if len(finished) < 2:
            return 1
        first = 0
        if finished[0] <= now - LONGEST_RETRY:  # a quiet hour before says nothing of the rate now
            recent = bisect_right(finished, now - LONGEST_RETRY)
            first = recent if len(finished) - recent >= 2 else 0
        rate = (len(finished) - first) / max(now - finished[first], 1e-3)
        ahead = sum(self.capacity.waiting[rank:]) + 1
        return min(LONGEST_RETRY, max(1, ceil(ahead / rate)))

    def reading(self, rank: int) -> Reading:
        """Look at one class."""
        capacity = self.capacity
        inflight, depth = capacity.inflight[rank], capacity.waiting[rank]
        limit = self.tuning.levels[rank].queue_limit or 0
        reserved, asked = capacity.reserved[rank], capacity.asked[rank]
        shared = max(1, capacity.total - sum(capacity.reserved[rank + 1 :]))
        pressure = max(depth / limit if limit else 0.0, (inflight - reserved) / shared, 0.0)
        return Reading(inflight, depth, limit, reserved, asked, min(1.0, pressure))

    def shortage(self) -> Shortage | None:
        """Return what reservations ask for and what is in force, where that is less."""
        capacity = self.capacity
        asked, reserved = sum(capacity.asked), sum(capacity.reserved)
        return Shortage(asked, reserved, capacity.total) if reserved < asked else None

    def utilization(self) -> float:
        """Tell the part of the slots that is in use; above 1 after a shrink."""
        return self.capacity.used / self.capacity.total if self.capacity.total else 0.0
