"""The limits of a control point, each of them optional: all must have room."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, cast

from fairlead.capacities import (
    Both,
    InFlight,
    LeasedSlots,
    LeasedTokens,
    TokenBucket,
    Unlimited,
)
from fairlead.core import Change
from fairlead.core.capacity import NEVER
from fairlead.flows.load import LEARNERS, LoadControl
from fairlead.flows.workloads import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from contextlib import AbstractContextManager

    from fairlead.capacities.learned import LearnedLimit
    from fairlead.core.capacity import Capacity
    from fairlead.core.ticket import Ticket
    from fairlead.flows.flow import Flow
    from fairlead.flows.settings import Concurrency, ControlPoint, Quota, Scheduler
    from fairlead.flows.signals import PostedSignals
    from fairlead.ledger.leases import Lease
    from fairlead.ledger.ledger import Ledger
    from fairlead.ledger.quota_lease import QuotaLease
    from fairlead.ledger.slots_lease import SlotsLease

    Claim = Callable[[Ticket], tuple[Hashable, float, Hashable]]

QUOTA, CONCURRENCY = "quota", "concurrency"
# Among processes nothing goes only when all are idle; priority 0 comes as near to that as a weight can.
LEAST_WEIGHT = 1e-6
RETRY = 0.5  # seconds after which a lost ledger may be back


def keyed(label: str | None) -> Callable[[Ticket], Hashable] | None:
    """Tell a limit's key by a label; a flow without the label is not limited."""
    if label is None:
        return None

    def key(ticket: Ticket) -> Hashable:
        value = ticket.labels.get(label) if ticket.labels else None
        return None if value is None else canonical(value)

    return key


def bucket_of(said: Quota) -> TokenBucket:
    """Make the bucket of a quota that this process has to itself."""
    return TokenBucket(
        said.fill_amount / said.interval,
        said.bucket_capacity,
        by=keyed(said.limit_by_label_key),
        interval=None if said.continuous_fill else said.interval,
        delay_initial_fill=said.delay_initial_fill,
        max_idle_time=_idle_time(said),
        name=QUOTA,
    )


def _idle_time(said: Quota) -> float:
    """A bucket that is forgotten is full again: by default not before it would be anyway."""
    if "max_idle_time" in said.model_fields_set:
        return said.max_idle_time or inf
    return max(said.max_idle_time, said.bucket_capacity / said.fill_amount * said.interval)


def inflight_of(said: Concurrency, limit: float, claim: Claim | None) -> InFlight:
    """Make the count of what is in flight, in this process alone or, with a claim, of what it was lent."""
    by, expiry = keyed(said.limit_by_label_key), said.max_inflight_duration
    if claim is not None:
        return LeasedSlots(limit, by=by, flow=claim, expire_after=expiry, name=CONCURRENCY)
    return InFlight(limit, by=by, expire_after=expiry, name=CONCURRENCY)


def claim_of(ticket: Ticket) -> tuple[Hashable, float, Hashable]:
    """Tell the workload that a flow counts for among processes, its weight, and the user."""
    workload: Any = ticket.workload
    return workload, workload[1] or LEAST_WEIGHT, ticket.user  # type: ignore[attr-defined]


def claims_by(settings: Scheduler) -> Claim:
    """Tell what a flow counts for among processes: its tenant, where tenants are known, as inside each of them."""
    if settings.tenant_label_key is None:
        return claim_of
    ceilings = {name: one.max_priority for name, one in settings.tenants.items()}
    otherwise = settings.default_max_priority or 1.0

    def claim(ticket: Ticket) -> tuple[Hashable, float, Hashable]:
        flow: Any = ticket
        idle = flow.workload[1] == 0
        weight = LEAST_WEIGHT if idle else ceilings.get(flow.tenant, otherwise)
        return (flow.tenant, idle), weight, flow.user

    return claim


class Parts:
    """Quota, concurrency and load of one point; `shared`: the first two are kept in common with other processes."""

    def __init__(
        self,
        settings: ControlPoint,
        posted: PostedSignals,
        queue_length: Callable[[], float],
        *,
        shared: bool = False,
    ) -> None:
        self.settings = settings
        self.shared = shared
        self.leases: list[Lease] = []
        self.quota: Capacity | None = None
        self.concurrency: Capacity | None = None
        self.load: LoadControl | None = None
        self.learner: LearnedLimit | None = None
        claim = claims_by(settings.scheduler)
        if settings.quota is not None:
            said = settings.quota
            by = keyed(said.limit_by_label_key)
            self.quota = (
                LeasedTokens(said.bucket_capacity, by=by, flow=claim, name=QUOTA)
                if shared
                else bucket_of(said)
            )
        if settings.concurrency is not None:
            limit = settings.concurrency.max_concurrency
            if isinstance(limit, str):
                self.learner = LEARNERS[limit]()
                limit = self.learner.limit
            # A limit that learns from this process's latencies is this process's own.
            self.concurrency = inflight_of(
                settings.concurrency, limit, claim if shared and self.learner is None else None
            )
        if settings.load is not None:
            self.load = LoadControl(settings.load, posted, queue_length)

    def capacity(self) -> Capacity:
        """Join them."""
        parts = [part for part in (self.concurrency, self.quota) if part is not None]
        if self.load is not None:
            parts.append(self.load.bucket)
        if not parts:
            return Unlimited()
        return parts[0] if len(parts) == 1 else Both(*parts)

    def join(
        self,
        ledger: Ledger,
        name: str,
        adjust: Callable[[Change], None],
        lock: AbstractContextManager[Any] | None,
        former: Parts | None,
        now: float,
    ) -> None:
        """Keep these limits in common with other processes; the gate stands, and holds what the former one held."""
        if former is not None:
            for part in (self.quota, self.concurrency):
                if isinstance(part, LeasedTokens | LeasedSlots):
                    lease = former._hand_over(part.name, self.settings)
                    if lease is not None:
                        lease.move(part, adjust, lock)
                        self.leases.append(lease)
            self._retune_leases(now)
        moved = [lease.kind for lease in self.leases]
        quota, concurrency = self.settings.quota, self.settings.concurrency
        if quota is not None and isinstance(self.quota, LeasedTokens) and QUOTA not in moved:
            lease = ledger.quota(
                f"{name}.{QUOTA}",
                self.quota,
                quota.bucket_capacity,
                quota.fill_amount,
                quota.interval,
                quota.continuous_fill,
                quota.delay_initial_fill,
                quota.on_redis_loss,
                max_idle_time=_idle_time(quota),
                adjust=adjust,
                lock=lock,
            )
            self.leases.append(lease)
        slots = self.concurrency
        if concurrency is not None and isinstance(slots, LeasedSlots) and CONCURRENCY not in moved:
            lease = ledger.concurrency(
                f"{name}.{CONCURRENCY}",
                slots,
                slots.limit,
                concurrency.max_inflight_duration,
                concurrency.on_redis_loss,
                adjust=adjust,
                lock=lock,
            )
            self.leases.append(lease)

    def _hand_over(self, kind: str, settings: ControlPoint) -> Lease | None:
        """Give up a lease to limits that are to go on with it, if they have the same keys."""
        for lease in self.leases:
            if lease.kind == kind:
                keys = {getattr(one, kind).limit_by_label_key for one in (self.settings, settings)}
                if len(keys) == 1:
                    self.leases.remove(lease)
                    return lease
        return None

    def inherit(self, former: Parts, now: float) -> None:
        """Begin where the limits of a point left off whose place this one takes."""
        before, after = former.settings.quota, self.settings.quota
        if (
            before is not None
            and after is not None
            and before.limit_by_label_key == after.limit_by_label_key
            and isinstance(former.quota, TokenBucket)
            and isinstance(self.quota, TokenBucket)
        ):
            self.quota.inherit(former.quota, now)
        learner, load = former.learner, former.load
        if learner is not None and type(learner) is type(self.learner):
            self.learner = learner
            cast("InFlight", self.concurrency).resize(learner.limit)
        if (
            load is not None
            and self.load is not None
            and former.settings.load == self.settings.load
        ):
            load.take_over(self.load, now)
            self.load = load

    def expected_at(self, flow: Flow, now: float) -> float:
        """Tell when the ledger said that there would be more for a flow; now, if it has said nothing."""
        return self.quota.expected_at(flow, now) if isinstance(self.quota, LeasedTokens) else now

    def may_lend(self, flow: Flow, now: float) -> bool:
        """Tell whether the ledger may have more for a flow than this process has borrowed."""
        if all(lease.lost for lease in self.leases) or self.shut_out(flow, now) is not None:
            return False  # there is no asking it
        return self.expected_at(flow, now) <= now  # else it has said already that there is none

    def shut_out(self, flow: Flow, now: float) -> str | None:
        """Say which limit admits nothing because its ledger is lost, if a flow meets one."""
        for lease in self.leases:
            if lease.lost and lease.on_loss == "closed":
                refusal = lease.capacity.refusal(flow, now)
                if refusal is not None and refusal is not NEVER:
                    said: str = lease.capacity.describe(flow, now, refusal)
                    return said
        return None

    def retuned(self, settings: ControlPoint, now: float) -> Iterator[Change] | None:
        """Tell the changes that make these limits what the settings say; None if they are of another shape."""
        if _shape(settings) != _shape(self.settings):
            return None
        self.settings = settings
        self._retune_leases(now)
        return self._changes(settings, now)

    def _retune_leases(self, now: float) -> None:
        """Change what is kept in common: each process asks with its own settings, and the last to ask is right."""
        quota, concurrency = self.settings.quota, self.settings.concurrency
        for lease in self.leases:
            if lease.kind == QUOTA and quota is not None:
                tokens = cast("QuotaLease", lease)
                tokens.continuous_fill = quota.continuous_fill
                tokens.delay_initial_fill = quota.delay_initial_fill
                tokens.max_idle_time = _idle_time(quota)
                tokens.set_policy(quota.on_redis_loss, now)
                tokens.retune(quota.bucket_capacity, quota.fill_amount, quota.interval, now)
            elif lease.kind == CONCURRENCY and concurrency is not None:
                slots = cast("SlotsLease", lease)
                slots.set_policy(concurrency.on_redis_loss, now)
                slots.set_expiry(concurrency.max_inflight_duration)
                slots.resize(cast("float", concurrency.max_concurrency))  # it learns in no ledger

    def _changes(self, settings: ControlPoint, now: float) -> Iterator[Change]:
        quota, concurrency = settings.quota, settings.concurrency
        if quota is not None and isinstance(self.quota, TokenBucket):
            interval = None if quota.continuous_fill else quota.interval
            rate = quota.fill_amount / quota.interval
            yield Change(QUOTA, "retune", (rate, quota.bucket_capacity, interval, now))
        if concurrency is not None and not isinstance(self.concurrency, LeasedSlots):
            if not isinstance(concurrency.max_concurrency, str):
                yield Change(CONCURRENCY, "resize", (concurrency.max_concurrency,))
            yield Change(CONCURRENCY, "set_expiry", (concurrency.max_inflight_duration,))


def _shape(settings: ControlPoint) -> object:
    """What cannot be changed in a limit while it is in use."""
    quota, concurrency = settings.quota, settings.concurrency
    learned = concurrency and isinstance(concurrency.max_concurrency, str)
    return (
        quota and (quota.limit_by_label_key, quota.delay_initial_fill, quota.max_idle_time),
        concurrency and (concurrency.limit_by_label_key, learned and concurrency.max_concurrency),
        settings.load,
    )
