"""The orders of all executors: a planner for each, over it fair shares of tenants, and over these care for the old."""

from __future__ import annotations

from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from fairlead.jobs.ordering import ByUrgency, order_of
from fairlead.policies.cohorts import Register
from fairlead.policies.elders import Elders
from fairlead.policies.fair import FairQueue
from fairlead.policies.lines import Lines
from fairlead.policies.planned import Guide, Planned

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from fairlead.core.policy import Policy
    from fairlead.core.ticket import Ticket
    from fairlead.jobs.room import Room
    from fairlead.jobs.settings import TenantLimits

ASK_AGAIN = 1.0  # seconds after which a planner that left jobs out is asked again


class Orders:
    """Which planner orders which executor, and the policies made of that."""

    def __init__(
        self,
        planners: Callable[[str], object],
        tenants: Mapping[str, TenantLimits],
        *,
        capped: bool,
        max_wait: float,
        max_withheld: float,
        burst: float,
    ) -> None:
        self.tenants: dict[str, TenantLimits] = dict(tenants)
        self.register = Register(burst)
        self.planners: dict[str, object] = {}
        self._planner_for = planners
        self._guides: dict[str, Guide] = {}
        self._elders: dict[str, Elders] = {}
        self._capped = capped
        self._max_wait = max_wait
        self._max_withheld = max_withheld
        self.lines = Lines("pool", self._line, settle=self.register.settle, name="lines")

    def _line(self, executor: Hashable) -> Policy:
        name = str(executor)
        if name not in self.planners:
            self.planners[name] = self._planner_for(name)
        return self._queue(name, self.planners[name])

    def _queue(self, executor: str, planner: object) -> Policy:
        guide = Guide(self._max_withheld, ASK_AGAIN)
        self._guides.pop(executor, None)
        if order_of(planner, self.register, self._capped) is None:
            self._guides[executor] = guide

        def inside(tenant: Hashable) -> Policy:
            order = order_of(planner, self.register, self._capped)
            if order is None:
                return Planned(guide, ByUrgency(self._capped), self.register)
            return order

        fair = FairQueue(
            "tenant", weights=self._weight, inside=inside, name=f"tenants of {executor}"
        )
        fair.limited = False  # nobody is turned away
        fair.timed = executor in self._guides
        elders = Elders(fair, self._max_wait, group=attrgetter("workload"))
        self._elders[executor] = elders
        return elders

    def tell(self, dag: Hashable, since: float | None) -> None:
        """A DAG is active since then, or (None) no longer."""
        self.register.tell(dag, since)
        if since is not None:
            for elders in self._elders.values():
                elders.began(dag)

    def _weight(self, tenant: Hashable) -> float:
        limits = self.tenants.get(str(tenant))
        return 1.0 if limits is None else limits.weight

    def change(self, executor: str, planner: object) -> Policy | None:
        """Note an executor's planner; make the queue that serves by it, unless it is the same."""
        if self.planners.get(executor) is planner:
            return None
        known = executor in self.lines.names()
        self.planners[executor] = planner
        return self._queue(executor, planner) if known else None

    # Planners of users

    def needs_plan(self, room: Room, now: float) -> list[str]:
        """Tell the executors that have room, and jobs that may be planned anew."""
        asked = []
        for executor, guide in self._guides.items():
            if guide.queues and room.executors.free(executor) > 0 and guide.wanted_at() <= now:
                guide.ask(now)
                asked.append(executor)
        return asked

    def due(self, room: Room) -> float:
        """Tell when a planner should be asked next."""
        return min(
            (
                guide.wanted_at()
                for executor, guide in self._guides.items()
                if guide.queues and room.executors.free(executor) > 0
            ),
            default=inf,
        )

    def candidates(self, executor: str, room: Room, now: float, limit: int) -> list[Ticket]:
        """Tell who would have room, by SLA priority and age."""
        guide = self._guides.get(executor)
        if guide is None:
            return []
        return guide.candidates(now, limit, lambda ticket: room.refusal(ticket, now) is None)

    def follow(self, executor: str, tickets: Sequence[Ticket] | None, now: float) -> bool:
        """Follow a planner's answer; False if it is not asked any more."""
        guide = self._guides.get(executor)
        if guide is not None:
            guide.follow(tickets, now)
        return guide is not None

    def void(self, executor: str) -> None:
        """Forget what is left of a plan that does not know everybody."""
        if executor in self._guides:
            self._guides[executor].void()

    def take_overdue(self, executor: str) -> int:
        """Tell how many went past the plan since this was last asked."""
        guide = self._guides.get(executor)
        if guide is None:
            return 0
        overdue, guide.overdue = guide.overdue, 0
        return overdue

    def order_of(self, ticket: Ticket) -> Policy:
        """Find the order in which a ticket waits."""
        queue = ticket.place.section.queue
        order: Policy = getattr(queue, "owner", queue)
        return order

    def waiting_on(self, executor: str) -> int:
        """Tell how many wait for an executor."""
        return len(self.lines.line(executor)) if executor in self.lines.names() else 0
