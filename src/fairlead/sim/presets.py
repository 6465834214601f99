"""The presets of the doors, for the simulator: settings as the door reads them, a gate as the door makes it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fairlead.core import Gate
from fairlead.documents.values import Duration, Model
from fairlead.policies import Aging
from fairlead.policies.aging import STEP
from fairlead.sim.grammar import GateSettings
from fairlead.sim.site import SimTicket, Site

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.core.ticket import Ticket
    from fairlead.sim.reading import Draft
    from fairlead.sim.result import Arrival

    Build = Callable[[], Site]

# The doors of which a server's configuration holds the whole document.
SERVED = ("gateway", "flows")
OWN = ("preset", "name")  # the keys of a policy document that are not its preset's


def preset_of(document: dict[str, Any]) -> Any:
    """Tell which preset a document is of; one that is a door's own file need not say."""
    if "preset" in document:
        return document["preset"]
    if "priority_scheduler" in document or "upstreams" in document:
        return "gateway"
    if "control_points" in document:
        return "flows"
    return ""


def door_of(document: dict[str, Any]) -> str | None:
    """Tell which door's section of a server's configuration is meant: the gateway's, or else that of flows."""
    if "preset" in document or "policy" in document:
        return None
    return next((door for door in SERVED if isinstance(document.get(door), dict)), None)


# A gate put together from parts


class ClassSite(Site):
    """A gate whose classes may preempt."""

    def __init__(self, gate: Gate, classes: tuple[str, ...], can_preempt: tuple[bool, ...]) -> None:
        super().__init__(gate)
        self.classes = classes
        self._ranks = {name: rank for rank, name in enumerate(classes)}
        self._can_preempt = can_preempt
        self._evictable = tuple(any(can_preempt[rank + 1 :]) for rank in range(len(can_preempt)))

    def ticket(self, number: int, arrival: Arrival, now: float) -> Ticket:
        ticket = SimTicket(number, arrival, now, arrival.cost)
        ticket.rank = rank = self._ranks[arrival.cls]
        ticket.can_preempt = self._can_preempt[rank]
        ticket.evictable = self._evictable[rank]
        return ticket


def generic(draft: Draft) -> Build | None:
    """Read a policy put together from parts."""
    said = draft.read(GateSettings, without=OWN)
    if said is None:
        return None
    levels = said.policy.classes or {}
    ranks = tuple(levels)
    for where, name in said.capacity.strangers(ranks):
        classes = f"the classes are {', '.join(ranks)}" if ranks else "the policy has no classes"
        draft.wrong(("capacity", "reserved", where, name), f"is no class; {classes}")

    def build() -> Site:
        policy, capacity = said.policy.made(ranks), said.capacity.made(ranks)
        gate = Gate(policy, capacity)
        site = (
            ClassSite(gate, ranks, tuple(level.can_preempt for level in levels.values()))
            if ranks
            else Site(gate)
        )
        site.slots = said.capacity.total
        site.weighs = said.capacity.inflight is not None and said.capacity.slots is None
        site.pools = tuple(said.capacity.pools or ())
        if isinstance(policy, Aging) and policy.rate:
            site.first_step = STEP / policy.rate
        return site

    return build


# tasks


class TasksSettings(Model):
    """What `Scheduler.bounded` takes, and the priority of each class that has one."""

    max_concurrency: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 16
    max_queue_size: Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)] = 0
    starvation_timeout: Duration = 30.0
    priorities: dict[str, Annotated[int, Field(strict=True, ge=0, le=100)]] = Field(
        default_factory=dict
    )


class TasksSite(Site):
    """The gate of a scheduler of tasks."""

    priorities: dict[str, int]

    def ticket(self, number: int, arrival: Arrival, now: float) -> Ticket:
        ticket = SimTicket(number, arrival, now)
        if self.priorities:
            ticket.priority = self.priorities.get(arrival.cls, ticket.priority)
        return ticket


def tasks(draft: Draft) -> Build | None:
    """Read a scheduler of tasks."""
    from fairlead.tasks.door import DEFAULT_SLOTS, aging_or, slots_or

    said = draft.read(TasksSettings, without=OWN)
    if said is None:
        return None

    def build() -> Site:
        policy = aging_or(None, said.max_queue_size, said.starvation_timeout)
        site = TasksSite(Gate(policy, slots_or(None, said.max_concurrency or DEFAULT_SLOTS)))
        site.priorities = dict(said.priorities)
        site.slots = said.max_concurrency
        site.first_step = STEP / policy.rate if isinstance(policy, Aging) and policy.rate else inf
        return site

    return build


# gateway


def gateway(draft: Draft) -> Build | None:
    """Read a gateway: its own file, or the keys of its scheduler at the top."""
    from fairlead.sim.gateway_site import read

    return read(draft, OWN)


def flows(draft: Draft) -> Build | None:
    """Read a control point of flows."""
    from fairlead.sim.flows_site import read

    return read(draft, OWN)


def jobs(draft: Draft) -> Build | None:
    """Read a planner and its executors."""
    from fairlead.sim.jobs_site import read

    return read(draft, OWN)


def streams(draft: Draft) -> Build | None:
    """Read the workers and the topics of a stream app."""
    from fairlead.sim.streams_site import read

    return read(draft, OWN)


def pool(draft: Draft) -> Build | None:
    """Read a pool that several doors share."""
    from fairlead.sim.pool_site import read

    return read(draft, OWN)


PRESETS: dict[str, Callable[[Draft], Build | None]] = {
    "": generic,
    "flows": flows,
    "gateway": gateway,
    "jobs": jobs,
    "pool": pool,
    "streams": streams,
    "tasks": tasks,
}
