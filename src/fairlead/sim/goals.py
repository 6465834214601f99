"""Goals and ranges as they are written on a command line, and whether figures meet them.

interactive.p99 < 500ms          a class's wait; `wait.p99`, `completion.p99` in full
bulk.lost <= 5%                  parts are written in percent, or as numbers
tenant:acme.missed < 1%          another dimension than the class
all.utilisation > 0.8            everybody together
minimise default.p95             no limit: the less the better (maximise: the more)

classes.interactive.reserved_per_slot=0..0.5         a range; 1..64 tries whole numbers only, 10ms..5s durations
policy.kind=fair,fifo                                 a list of values
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import UNITS, seconds, shown
from fairlead.errors import ConfigError
from fairlead.sim.figures import EVERYBODY, MEASURES
from fairlead.sim.words import amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Groups = Mapping[str, Mapping[str, Mapping[str, float | None]]]

OPERATORS = ("<=", ">=", "<", ">")
WISHES = {
    "minimise": "less", "minimize": "less", "min": "less",
    "maximise": "more", "maximize": "more", "max": "more",
}  # fmt: skip
EXAMPLE = '"interactive.p99 < 500ms", "bulk.lost <= 5%" or "minimise default.p95"'
_SUBJECT = re.compile(
    r"(?:(?P<dimension>class|tenant|workload):)?(?P<group>.+?)\.(?P<measure>"
    r"(?:wait\.|completion\.|dag\.)?(?:mean|max|p[0-9]+(?:\.[0-9]+)?)|[a-z_]+)"
)
_GOAL = re.compile(r"(?P<subject>[^<>=]+?)\s*(?P<operator><=|>=|<|>|==|=)\s*(?P<limit>[^<>=]+)")


class Goal(NamedTuple):
    """One thing that is wanted; without a limit, as little (or as much) as can be had."""

    text: str
    dimension: str
    group: str
    measure: str
    operator: str  # one of OPERATORS; for a wish "less" or "more"
    limit: float | None

    @property
    def less(self) -> bool:
        """Whether less of it is better."""
        return self.operator in {"<", "<=", "less"}

    def value(self, groups: Groups) -> float | None:
        """Find what it is about among the figures of a run."""
        return groups.get(self.dimension, {}).get(self.group, {}).get(self.measure)

    def met(self, value: float | None) -> bool:
        """Tell whether a figure is good enough; nothing to measure is not."""
        if self.limit is None:
            return True
        if value is None:
            return False
        return {
            "<": value < self.limit,
            "<=": value <= self.limit,
            ">": value > self.limit,
            ">=": value >= self.limit,
        }[self.operator]

    def violation(self, value: float | None) -> float:
        """Tell how far a figure is from its limit: 0 if it is met, 1 if it is twice (or none of) what it may be."""
        if self.met(value) or self.limit is None:
            return 0.0
        if value is None:
            return 1e6
        scale = abs(self.limit) or (1.0 if MEASURES[self.measure].unit == "part" else 0.001)
        # A strict limit that is just reached is missed by next to nothing, and yet missed.
        return max(1e-9, abs(value - self.limit) / scale)

    def told(self, value: float | None) -> str:
        """Write a figure of it."""
        return amount(self.measure, value)


def read_goal(text: str) -> Goal:
    """Read a goal."""
    bare = text.strip()
    first, _, rest = bare.partition(" ")
    if first.lower() in WISHES and rest and not any(sign in rest for sign in "<>="):
        return Goal(bare, *_subject(rest.strip(), text), WISHES[first.lower()], None)
    match = _GOAL.fullmatch(bare)
    if match is None:
        raise ConfigError(f"a goal looks like {EXAMPLE}; got {shown(text)}")
    if match["operator"] not in OPERATORS:
        raise ConfigError(
            f"a goal compares with <, <=, > or >=, not with {match['operator']}; got {shown(text)}"
        )
    dimension, group, measure = _subject(match["subject"].strip(), text)
    limit = _limit(match["limit"].strip(), measure, text)
    return Goal(bare, dimension, group, measure, match["operator"], limit)


def _subject(subject: str, text: str) -> tuple[str, str, str]:
    match = _SUBJECT.fullmatch(subject)
    if match is None:
        raise ConfigError(
            f"a goal names a class and a measure, such as interactive.p99; got {shown(text)}"
        )
    measure = match["measure"]
    if measure not in MEASURES and f"wait.{measure}" in MEASURES:
        measure = f"wait.{measure}"
    if measure not in MEASURES:
        near = get_close_matches(measure, [*MEASURES, "p50", "p90", "p95", "p99"], n=1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(MEASURES)}"
        raise ConfigError(f"unknown measure {shown(measure)} in the goal {shown(text)}; {meant}")
    group = match["group"].strip("\"' ")
    if group == EVERYBODY and not match["dimension"]:
        return EVERYBODY, EVERYBODY, measure
    if measure in {"utilisation", "misplaced"}:
        raise ConfigError(
            f"{measure} is of everybody together: write all.{measure}; got {shown(text)}"
        )
    return match["dimension"] or "class", group, measure


def _limit(given: str, measure: str, text: str) -> float:
    unit = MEASURES[measure].unit
    if unit == "seconds":
        return seconds(given, f"the limit of {measure} in the goal {shown(text)}", zero=True)
    percent = given.endswith("%")
    try:
        limit = float(given.rstrip("% /s") if unit == "rate" else given.rstrip("% "))
    except ValueError:
        limit = float("nan")
    if not isfinite(limit) or (percent and unit != "part"):
        wanted = "a percentage such as 5%" if unit == "part" else "a number such as 100"
        raise ConfigError(f"the limit of {measure} must be {wanted}; got {shown(text)}")
    return limit / 100 if percent else limit


def check_goals(goals: Sequence[Goal], groups: Groups) -> None:
    """See that what each goal is about exists in the scenario."""
    for goal in goals:
        known = groups.get(goal.dimension, {})
        if goal.group not in known:
            near = get_close_matches(goal.group, list(known), n=1)
            names = ", ".join(list(known)[:20]) or "none"
            meant = f"did you mean {near[0]}?" if near else f"those in the scenario are {names}"
            raise ConfigError(
                f"no {goal.dimension} {shown(goal.group)} arrives, which the goal {shown(goal.text)} is about; {meant}"
            )


class Range(NamedTuple):
    """A setting and what may be tried for it: `choices`, or everything from `low` to `high`."""

    path: str
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    unit: str = ""  # of durations: values are written in milliseconds

    def at(self, place: float) -> Any:
        """Give the value at a place from 0 to 1; of a wide range of durations or counts, evenly by factors."""
        if self.choices:
            return self.choices[min(len(self.choices) - 1, int(place * len(self.choices)))]
        if self.low > 0 and self.high / self.low >= 50:
            value = self.low * (self.high / self.low) ** place
        else:
            value = self.low + (self.high - self.low) * place
        value = min(max(float(f"{value:.4g}"), self.low), self.high)
        if self.unit:
            return f"{value * 1000:.6g}ms"
        return round(value) if self.whole else value


def read_range(text: str) -> Range:
    """Read a setting's range."""
    path, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not path or not values:
        raise ConfigError(
            "a range looks like classes.interactive.reserved_per_slot=0..0.5 or policy=fair,fifo; "
            f"got {shown(text)}"
        )
    if ".." not in values:
        choices = tuple(dict.fromkeys(_scalar(part.strip()) for part in values.split(",")))
        if "" in choices:
            raise ConfigError(f"the list of values for {path} has an empty one; got {shown(text)}")
        return Range(path, choices)
    low, _, high = (part.strip() for part in values.partition(".."))
    units = {_unit(low), _unit(high)} - {""}
    if units and low != "0":
        limits = [seconds(part, f"the range of {path}", zero=True) for part in (low, high)]
    elif units:
        limits = [0.0, seconds(high, f"the range of {path}")]
    else:
        limits = [_number(part, path, text) for part in (low, high)]
    if not limits[0] < limits[1]:
        raise ConfigError(f"the range of {path} must go from less to more; got {shown(text)}")
    whole = not units and all(re.fullmatch(r"-?[0-9]+", part) for part in (low, high))
    # 0..1 is rather a part of something than a switch; 0,1 is a list.
    whole = whole and limits != [0.0, 1.0]
    return Range(path, (), limits[0], limits[1], whole, "s" if units else "")


def _unit(text: str) -> str:
    found = re.search(r"[a-zA-Z]+$", text)
    return found.group() if found and found.group().lower() in UNITS else ""


def _number(part: str, path: str, text: str) -> float:
    try:
        value = float(part)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise ConfigError(
            f"the range of {path} must go from a number to a number; got {shown(text)}"
        )
    return value


def _scalar(text: str) -> Any:
    """Read a value of a list as YAML would: a number, true, false, null, or text."""
    constants = {"true": True, "false": False, "null": None}
    if text in constants:
        return constants[text]
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        return text.strip("\"'") if len(text) > 1 else text
    return value if isfinite(value) else text
