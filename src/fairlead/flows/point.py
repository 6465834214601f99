"""One control point: a gate over its limits, fair among workloads and users, and what is counted there.

It knows neither loop nor thread: `runtime` is whichever of the two twins carries verdicts out.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.capacities import Both, InFlight, TokenBucket, Unlimited
from fairlead.core import Gate
from fairlead.core.capacity import NEVER
from fairlead.core.ticket import EXPIRED, REFUSED, RUNNING, Outcome
from fairlead.flows.counts import Counts
from fairlead.flows.workloads import Resolver, canonical
from fairlead.policies import FIFO, Classes, FairQueue, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fairlead.core.capacity import Capacity
    from fairlead.core.policy import Policy
    from fairlead.core.ticket import Ticket
    from fairlead.flows.flow import Flow
    from fairlead.flows.settings import ControlPoint, Scheduler

QUOTA, CONCURRENCY, LOAD = "quota", "concurrency", "load"
LONGEST_UNENDED = (
    3600.0  # seconds after which a flow that nobody ended is forgotten, where nothing else says so
)


def policy_of(settings: Scheduler) -> Policy:
    """Share by priority among workloads, equally among users of one; priority 0 goes only when nobody else would.

    Where tenants are known they come first, so that nobody gains by making up workloads or priorities: a tenant's
    workloads divide what the tenant gets.
    """
    users = _nested(lambda: FairQueue("user")) if settings.fairness_label_key else FIFO

    def workloads() -> Policy:
        return FairQueue("workload", weights=_priority, inside=users)

    def tenants() -> Policy:
        ceilings: dict[Hashable, float] = {
            name: one.max_priority for name, one in settings.tenants.items()
        }
        least = settings.default_max_priority or 1.0
        return FairQueue(
            "tenant", weights=ceilings, default_weight=least, inside=_nested(workloads)
        )

    inside = tenants if settings.tenant_label_key else workloads
    zero = settings.priority_label_key is not None or any(
        one.priority == 0 for one in (*settings.workloads, settings.default_workload)
    )
    policy = Classes(Level("idle", inside), Level("weighted", inside)) if zero else inside()
    policy.limit = settings.max_queue
    return policy


def _nested(make: Callable[[], Policy]) -> Callable[[Hashable], Policy]:
    def inside(key: Hashable) -> Policy:
        return make()

    inside.withholds = False  # type: ignore[attr-defined]
    return inside


def _priority(key: Any) -> float:
    return float(key[1]) or 1.0  # of those with priority 0 none is more important


def keyed(label: str) -> Callable[[Ticket], Hashable]:
    """Tell a limit's key by a label; a flow without the label is not limited."""

    def key(ticket: Ticket) -> Hashable:
        value = ticket.labels.get(label) if ticket.labels else None
        return None if value is None else canonical(value)

    return key


class Point:
    """A control point at work."""

    def __init__(
        self, name: str, settings: ControlPoint, runtime_of: Callable[[Gate], Any], parts: Parts
    ) -> None:
        self.name = name
        self.settings = settings
        self.resolver = Resolver(settings.scheduler)
        self.parts = parts
        self.capacity = parts.capacity()
        self.policy = policy_of(settings.scheduler)
        self.gate = Gate(self.policy, self.capacity)
        self.runtime = runtime_of(self.gate)
        self.counts = Counts()
        self.queued = 0.0  # tokens that wait
        self.admitted = 0.0  # tokens ever admitted
        self.finished: deque[tuple[float, float]] = deque(maxlen=64)  # when, and how many tokens
        self._margin = settings.scheduler.decision_deadline_margin
        self._zero = isinstance(self.policy, Classes)

    # Asking

    def prepare(self, flow: Flow, now: float) -> None:
        """Read what a flow asks with."""
        said = self.resolver.parameters(flow.labels)
        flow.point = self
        flow.cost = said.tokens
        flow.workload = (said.workload, said.priority)
        flow.user = said.user
        flow.tenant = said.tenant
        if said.ignored:
            flow.ignored = said.ignored
        if self._zero and said.priority == 0:
            flow.rank = 0
        timeout = flow.timeout
        if timeout is not None:
            timeout = max(0.0, timeout - self._margin)
        if said.queue_timeout is not None:
            timeout = said.queue_timeout if timeout is None else min(timeout, said.queue_timeout)
        if timeout is not None:
            flow.wait_until = now + timeout
        self.counts.incoming(said.workload, said.tokens)
        if self.parts.load is not None:
            self.parts.load.arrived(said.tokens, now)

    def waits(self, flow: Flow) -> None:
        """Note that a flow has to wait."""
        flow.queued_ahead, flow.admitted_before = self.queued, self.admitted
        self.queued += flow.cost

    def answered(self, flow: Flow, now: float) -> None:
        """Note how the wait of a flow ended, or that it was refused without any."""
        if flow.queued_ahead >= 0:
            self.queued -= flow.cost
        if flow.state is RUNNING:
            flow.accepted = True
            self.admitted += flow.cost
            self.counts.accepted(flow)
            if flow.queued_ahead >= 0:
                bump = flow.queued_ahead - (self.admitted - flow.cost - flow.admitted_before)
                self.counts.ordered(flow, bump)
            return
        self.counts.rejected(flow)
        if self.parts.load is not None:
            self.parts.load.refused(flow.cost, now)
        if flow.state is EXPIRED or flow.state is REFUSED:
            flow.retry_after = self.retry_after(flow, now)

    def left(self, flow: Flow) -> None:
        """Note that a flow's caller stopped waiting."""
        self.queued -= flow.cost
        self.counts.rejected(flow)

    def retry_after(self, flow: Flow, now: float) -> float | None:
        """Tell when it may be worth asking again: never, if it can never fit."""
        refusal = self.capacity.refusal(flow, now)
        if refusal is NEVER:
            return None
        at = now if refusal is None else self.capacity.ready_at(flow, now, refusal)
        wait = at - now if at < inf else 0.0
        if len(self.finished) > 1:
            spent = sum(tokens for _, tokens in self.finished)
            rate = spent / max(now - self.finished[0][0], 1e-3)
            wait = max(wait, min(60.0, (self.queued + flow.cost) / max(rate, 1e-9)))
        return max(wait, 0.001)

    # Ending

    def end(self, flow: Flow, outcome: Outcome, tokens: float | None) -> bool:
        """Give back what lasts as long as the work, and settle what was charged for it."""
        now = self.runtime.now()
        late = self.gate.late
        self.runtime.finish(flow, outcome, tokens)
        self.finished.append((now, flow.cost))
        self.counts.ended(flow, outcome, now)
        if self.parts.load is not None:
            self.parts.load.ended(flow, now)
        return self.gate.late == late

    def forget_unended(self, now: float) -> None:
        """End flows that nobody ended, so that they are not remembered for ever."""
        oldest = now - LONGEST_UNENDED
        for flow in [flow for flow in self.gate.holders if flow.started_at < oldest]:
            self.runtime.finish(flow, Outcome.IGNORED, None)
            self.counts.forgotten += 1


class Parts:
    """The limits of a control point, each of them optional: all must have room."""

    def __init__(self, settings: ControlPoint) -> None:
        self.quota: Capacity | None = None
        self.concurrency: Capacity | None = None
        self.load: Any = None
        if settings.quota is not None:
            said = settings.quota
            self.quota = TokenBucket(
                said.fill_amount / said.interval,
                said.bucket_capacity,
                by=keyed(said.limit_by_label_key) if said.limit_by_label_key else None,
                interval=None if said.continuous_fill else said.interval,
                name=QUOTA,
            )
        if settings.concurrency is not None:
            limit = settings.concurrency
            most = limit.max_concurrency
            self.concurrency = InFlight(
                20.0 if isinstance(most, str) else most,
                by=keyed(limit.limit_by_label_key) if limit.limit_by_label_key else None,
                expire_after=limit.max_inflight_duration,
                name=CONCURRENCY,
            )

    def capacity(self) -> Capacity:
        """Join them."""
        parts = [part for part in (self.concurrency, self.quota) if part is not None]
        if self.load is not None:
            parts.append(self.load.bucket)
        if not parts:
            return Unlimited()
        return parts[0] if len(parts) == 1 else Both(*parts)
