"""The limits of whoever leads, left in the database: who explains a job from elsewhere judges by the same ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.jobs.planners import BUILT_IN, GlobalPriorityExecutionPlanner
from fairlead.jobs.planning import Elsewhere, name_of, planner_of
from fairlead.jobs.settings import TenantLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlead.jobs.settings import Settings

SETTING = "limits"
_PLAIN = (
    "sweep",
    "ack",
    "max_concurrent_dags",
    "max_running_per_dag",
    "max_wait",
    "max_withheld",
    "burst",
)


def limits_of(settings: Settings) -> str:
    """Write what the leader goes by."""
    plain = {name: getattr(settings, name) for name in _PLAIN}
    tenants = {name: list(one) for name, one in settings.tenants.items()}
    planner: Any = settings.planner
    # Of a user's own planner whatever is called a level is its own affair.
    level = planner.level if type(planner) is GlobalPriorityExecutionPlanner else None
    told = {"planner": name_of(planner, settings.planners), "level": level}
    return json.dumps({**plain, "tenants": tenants, "pool": settings.pool, **told})


def limited(settings: Settings, stored: Mapping[str, str]) -> Settings:
    """Take over what the leader goes by, if it has said so."""
    if SETTING not in stored:
        return settings
    found = json.loads(stored[SETTING])
    tenants = {name: TenantLimits(*one) for name, one in found["tenants"].items()}
    plain = {name: found[name] for name in _PLAIN}
    # A leader of an older version says nothing of pools, or of its planner.
    if "planner" in found:
        plain["planner"] = _planner(found["planner"], found["level"], settings.planners)
    return settings._replace(**plain, tenants=tenants, pool=found.get("pool"))


def _planner(name: str, level: str | None, planners: Mapping[str, Any]) -> Any:
    """Make the leader's planner, if its name is known here."""
    if level and name in BUILT_IN:
        return GlobalPriorityExecutionPlanner(level)
    try:
        return planner_of(name, planners)
    except ConfigError:
        return Elsewhere(name)
