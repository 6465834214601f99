"""Who goes first at a control point, as its settings say."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairlead.policies import FIFO, Classes, FairQueue, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from fairlead.core.policy import Policy
    from fairlead.flows.settings import Scheduler


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

    inside = tenants if settings.tenant_label_key else FIFO if one_line(settings) else workloads
    zero = _has_zero(settings)
    policy = Classes(Level("idle", inside), Level("weighted", inside)) if zero else inside()
    policy.limit = settings.max_queue
    return policy


def order_of(settings: Scheduler) -> object:
    """What cannot be changed in a policy while somebody waits in it."""
    fair, tenants = settings.fairness_label_key, settings.tenant_label_key
    ceilings = tenants and (settings.tenants, settings.default_max_priority)
    return bool(fair), bool(tenants), ceilings, _has_zero(settings), one_line(settings)


def one_line(settings: Scheduler) -> bool:
    """Tell whether nothing is said that would set one flow before another."""
    keys = (settings.workload_label_key, settings.priority_label_key)
    more = (settings.fairness_label_key, settings.tenant_label_key)
    return not (settings.workloads or any(keys) or any(more))


@contextmanager
def beyond_limit(policy: Policy) -> Iterator[None]:
    """Let join meanwhile who takes no place of the line, or has one already, however many wait."""
    limit, policy.limit = policy.limit, None
    try:
        yield
    finally:
        policy.limit = limit


def _has_zero(settings: Scheduler) -> bool:
    priorities = [one.priority for one in settings.workloads]
    return settings.priority_label_key is not None or 0 in (
        *priorities,
        settings.default_workload.priority,
    )


def _nested(make: Callable[[], Policy]) -> Callable[[Hashable], Policy]:
    def inside(key: Hashable) -> Policy:
        return make()

    inside.withholds = False  # type: ignore[attr-defined]
    inside.steady = True  # type: ignore[attr-defined]
    inside.limited = False  # type: ignore[attr-defined]
    inside.alike = True  # type: ignore[attr-defined]
    return inside


def _priority(key: Any) -> float:
    return float(key[1]) or 1.0  # of those with priority 0 none is more important
