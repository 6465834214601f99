"""The simulator: recorded or drawn arrivals through the very gates of the doors, on virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.sim.result import Arrival, Result, Row

if TYPE_CHECKING:
    from fairlead.sim.building import PolicySpec, read_policy
    from fairlead.sim.figures import Summary, summarise
    from fairlead.sim.report import Contender, make_report
    from fairlead.sim.report_page import report_html
    from fairlead.sim.run import simulate
    from fairlead.sim.scenario import Scenario, read_scenario

__all__ = [
    "Arrival",
    "Contender",
    "PolicySpec",
    "Result",
    "Row",
    "Scenario",
    "Summary",
    "make_report",
    "read_policy",
    "read_scenario",
    "report_html",
    "simulate",
    "summarise",
]

_HOMES = {
    "Contender": "report",
    "PolicySpec": "building",
    "Scenario": "scenario",
    "Summary": "figures",
    "make_report": "report",
    "read_policy": "building",
    "read_scenario": "scenario",
    "report_html": "report_page",
    "simulate": "run",
    "summarise": "figures",
}


def __getattr__(name: str) -> Any:
    """Import what reads documents when it is asked for: it needs pydantic, which takes its time."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'fairlead.sim' has no attribute {name!r}")
    return getattr(import_module(f"fairlead.sim.{_HOMES[name]}"), name)
