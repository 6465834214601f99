"""The limits of a control point, each of them optional: all must have room."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from fairlead.capacities import Both, InFlight, TokenBucket, Unlimited
from fairlead.core import Change
from fairlead.flows.load import LEARNERS, LoadControl
from fairlead.flows.workloads import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from fairlead.capacities.learned import LearnedLimit
    from fairlead.core.capacity import Capacity
    from fairlead.core.ticket import Ticket
    from fairlead.flows.settings import Concurrency, ControlPoint, Quota
    from fairlead.flows.signals import PostedSignals

QUOTA, CONCURRENCY = "quota", "concurrency"


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
        max_idle_time=said.max_idle_time or inf,
        name=QUOTA,
    )


def inflight_of(said: Concurrency, limit: float) -> InFlight:
    """Make the count of what is in flight in this process alone."""
    by, expiry = keyed(said.limit_by_label_key), said.max_inflight_duration
    return InFlight(limit, by=by, expire_after=expiry, name=CONCURRENCY)


class Parts:
    """Quota, concurrency and load of one point."""

    def __init__(
        self, settings: ControlPoint, posted: PostedSignals, queue_length: Callable[[], float]
    ) -> None:
        self.settings = settings
        self.quota: Capacity | None = None
        self.concurrency: Capacity | None = None
        self.load: LoadControl | None = None
        self.learner: LearnedLimit | None = None
        if settings.quota is not None:
            self.quota = bucket_of(settings.quota)
        if settings.concurrency is not None:
            limit = settings.concurrency.max_concurrency
            if isinstance(limit, str):
                self.learner = LEARNERS[limit]()
                limit = self.learner.limit
            self.concurrency = inflight_of(settings.concurrency, limit)
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

    def retuned(self, settings: ControlPoint, now: float) -> Iterator[Change] | None:
        """Tell the changes that make these limits what the settings say; None if they are of another shape."""
        if _shape(settings) != _shape(self.settings):
            return None
        self.settings = settings
        return self._changes(settings, now)

    def _changes(self, settings: ControlPoint, now: float) -> Iterator[Change]:
        quota, concurrency = settings.quota, settings.concurrency
        if quota is not None:
            interval = None if quota.continuous_fill else quota.interval
            rate = quota.fill_amount / quota.interval
            yield Change(QUOTA, "retune", (rate, quota.bucket_capacity, interval, now))
        if concurrency is not None:
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
