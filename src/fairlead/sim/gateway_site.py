"""The gateway's gate, for the simulator: `Tuning` and `Pool` are the door's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fairlead.documents.advice import Adviser
from fairlead.documents.values import Flag
from fairlead.gateway.loading import ADVISER, SCHEDULER
from fairlead.gateway.pool import Pool, Tuning
from fairlead.gateway.reservations import pools, refusals
from fairlead.gateway.settings import (
    CLASSES,
    INTERACTIVE,
    SMG_NAMES,
    ClassName,
    ClassSettings,
    PrioritySettings,
    Settings,
)
from fairlead.gateway.values import Slots
from fairlead.sim.site import SimTicket, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlead.core.ticket import Ticket
    from fairlead.sim.reading import Draft
    from fairlead.sim.result import Arrival


class Short(PrioritySettings):
    """A scheduler and its slots, without the rest of a gateway."""

    enabled: Flag = True
    default_max_class: ClassName = "interactive"
    capacity: Slots = Field(256)


SHORT = Adviser(Short, keys=CLASSES, called="class", spellings={ClassSettings: SMG_NAMES})


class GatewaySite(Site):
    """One pool of a gateway."""

    classes = tuple(CLASSES)

    def __init__(self, settings: Settings, slots: int) -> None:
        self._pool = Pool("sim", Tuning.of(settings, plain=not settings.priority_scheduler.enabled))
        self._pool.resize(slots, declared=slots)
        super().__init__(self._pool.gate)
        self.slots = slots
        self._ranks: dict[str, int] = {name: rank for rank, name in enumerate(CLASSES)}
        self._tuning = self._pool.tuning
        scheduler = settings.priority_scheduler
        self._own = {
            name: CLASSES.index(policy.max_class)
            for name, policy in scheduler.tenant_policies.items()
            if policy.max_class is not None
        }
        # A policy names tenants with how they are known (auth:acme); a scenario need not.
        self._keys: dict[str, str] = {}
        for known in ("auth:", "header:", "ip:"):
            for key in scheduler.tenant_policies:
                if key.startswith(known):
                    self._keys.setdefault(key.removeprefix(known), key)
        self._ceiling = min(CLASSES.index(scheduler.default_max_class), INTERACTIVE)

    def ticket(self, number: int, arrival: Arrival, now: float) -> Ticket:
        ticket = SimTicket(number, arrival, now)
        if self._keys:
            ticket.tenant = tenant = self._keys.get(arrival.tenant, arrival.tenant)
            ceiling = self._own.get(tenant, self._ceiling)
        else:
            ceiling = self._ceiling
        ticket.rank = rank = min(self._ranks[arrival.cls], ceiling)
        ticket.can_preempt, _, ticket.evictable = self._tuning.treated[rank]
        return ticket


def read(draft: Draft, own: Iterable[str]) -> Callable[[], Site] | None:
    """Read either form; reservations that do not fit the slots are scaled or refused, as a gateway would."""
    if SCHEDULER in draft.plain or "upstreams" in draft.plain:
        settings = draft.read(Settings, without=own, adviser=ADVISER)
        if settings is None:
            return None
        path: tuple[str, ...] = (SCHEDULER, "classes")
        found = pools(settings)
        slots = settings.fallback.max_concurrent_requests
        if found:
            if found[0].capacity is None:
                draft.wrong(("upstreams",), "need a capacity in numbers; or set capacity")
                return None
            slots = found[0].capacity
        if len(found) > 1:
            draft.wrong(("pool_by",), "a simulation has one pool; leave pool_by out")
    else:
        short = draft.read(Short, without=own, adviser=SHORT)
        if short is None:
            return None
        path, slots = ("classes",), short.capacity
        said = short.model_dump(exclude={"capacity"})
        settings = Settings.model_validate({"capacity": slots, SCHEDULER: said})
    for message in refusals(settings):
        draft.wrong(path, message)
    made = settings
    return lambda: GatewaySite(made, slots)
