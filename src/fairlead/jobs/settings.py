"""The settings of a `Jobs`, read and validated once."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from fairlead.config import seconds, shown, told, whole
from fairlead.errors import ConfigError
from fairlead.jobs.crashes import Limits
from fairlead.jobs.planners import BUILT_IN, table_of
from fairlead.jobs.planning import name_of, planner_of

if TYPE_CHECKING:
    from fairlead.jobs.planners import ExecutionPlanner

MOST_RUNNING = 1_000_000


class TenantLimits(NamedTuple):
    """What a tenant gets: a weight against others, and a number of jobs at once."""

    weight: float = 1.0
    max_running: int | None = None


class Settings(NamedTuple):
    """How runs are planned, claimed and kept; durations are seconds."""

    planner: ExecutionPlanner
    planners: Mapping[str, Any]  # of the app, by name
    lease: float
    sweep: float
    poll: float
    ack: float
    max_concurrent_dags: int | None
    max_running_per_dag: int | None
    max_wait: float
    max_withheld: float
    max_crashes: int
    burst: float
    retention: float
    tenants: dict[str, TenantLimits]
    webhook: str | None
    crash_window: float = 3600.0
    stuck_after: float = 600.0
    pool: str | None = None  # whose slots the leader borrows for its jobs; said by who hosts it

    @property
    def crashes(self) -> Limits:
        """How many deaths alone condemn a job, and within which time."""
        return Limits(self.max_crashes, self.crash_window)


def settings_of(
    *,
    planner: Any = None,
    planners: Any = None,
    lease: Any = "15s",
    sweep: Any = "5s",
    poll: Any = "1s",
    ack: Any = "5s",
    max_concurrent_dags: Any = None,
    max_running_per_dag: Any = None,
    max_wait: Any = "1h",
    max_withheld: Any = "10s",
    max_crashes: Any = 3,
    crash_window: Any = "1h",
    stuck_after: Any = "10m",
    burst: Any = "60s",
    retention: Any = "14d",
    tenants: Any = None,
    webhook: Any = None,
) -> Settings:
    """Read what `Jobs` was given; the first thing that is wrong is an error that names it."""

    def most(value: Any, name: str) -> int | None:
        return None if value is None else whole(value, name, 1, MOST_RUNNING)

    read_lease = seconds(lease, "lease")
    if read_lease < 0.2:
        raise ConfigError(
            f"lease must be 200ms or more, for it is renewed three times in that; got {shown(lease)}"
        )
    if webhook is not None and not _is_web_address(webhook):
        raise ConfigError("webhook must be an http:// or https:// address")  # it may be a secret
    table = table_of(planners)
    first = planner_of(planner, table)
    name = name_of(first, table)
    if planner is not None and name not in BUILT_IN:
        table.setdefault(name, planner)  # so that it can be set again
    return Settings(
        first,
        table,
        read_lease,
        seconds(sweep, "sweep"),
        seconds(poll, "poll"),
        seconds(ack, "ack"),
        most(max_concurrent_dags, "max_concurrent_dags"),
        most(max_running_per_dag, "max_running_per_dag"),
        seconds(max_wait, "max_wait"),
        seconds(max_withheld, "max_withheld", zero=True),
        whole(max_crashes, "max_crashes", 1, 1000),
        seconds(burst, "burst", zero=True),
        seconds(retention, "retention"),
        _tenants(tenants),
        webhook,
        crash_window=seconds(crash_window, "crash_window"),
        stuck_after=seconds(stuck_after, "stuck_after"),
    )


def _tenants(value: Any) -> dict[str, TenantLimits]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f'tenants must map names to limits, such as {{"acme": {{"weight": 2, "max_running": 10}}}}; '
            f"got {told(value)}"
        )
    read = {}
    for name, limits in value.items():
        if not isinstance(name, str) or not isinstance(limits, Mapping):
            raise ConfigError(f"tenant {shown(name)} needs a mapping of limits; got {told(limits)}")
        if unknown := set(limits) - {"weight", "max_running"}:
            raise ConfigError(
                f"tenant {shown(name)} has no setting {shown(min(map(str, unknown)))}; "
                "there are weight and max_running"
            )
        weight = limits.get("weight", 1.0)
        if (
            isinstance(weight, bool)
            or not isinstance(weight, int | float)
            or not (isfinite(weight) and 0 < weight <= 1e9)
        ):
            raise ConfigError(
                f"weight of tenant {shown(name)} must be a number above 0; got {told(weight)}"
            )
        most = limits.get("max_running")
        read[name] = TenantLimits(
            float(weight),
            None if most is None else whole(most, f"max_running of tenant {shown(name)}", 1),
        )
    return read


def _is_web_address(value: Any) -> bool:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        return False
    try:
        return bool(urlsplit(value).hostname)
    except ValueError:
        return False
