"""Figures for people: durations, parts, counts and differences, as short as they can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.sim.figures import MEASURES

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING = "–"


def amount(measure: str, value: float | None) -> str:
    """Write a figure with its unit."""
    if value is None:
        return NOTHING
    unit = MEASURES[measure].unit
    if unit == "seconds":
        return duration(value)
    if unit == "part":
        return part(value)
    if unit == "rate":
        return f"{_three(value)}/s"
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:,.1f}"


def duration(seconds: float) -> str:
    """Write a duration in the unit that fits it.

    >>> duration(0.0000123), duration(0.25), duration(90.5), duration(7300), duration(0)
    ('12.3 µs', '250 ms', '90.5 s', '2.03 h', '0 s')
    """
    size = abs(seconds)
    if size < 5e-7:
        return "0 s"
    for limit, factor, unit in (
        (0.0009995, 1e6, "µs"),
        (0.9995, 1e3, "ms"),
        (600, 1.0, "s"),
        (7200, 1 / 60, "min"),
    ):
        if size < limit:
            return f"{_three(seconds * factor)} {unit}"
    return f"{_three(seconds / 3600)} h"


def part(value: float) -> str:
    """Write a part of a whole in percent.

    >>> part(0.5), part(0.12345), part(0), part(0.00004)
    ('50 %', '12.3 %', '0 %', '0.004 %')
    """
    return f"{_three(value * 100)} %"


def relative(value: float) -> str:
    """Write a change against a base.

    >>> relative(-0.945), relative(0.031), relative(11.2), relative(0)
    ('−94.5 %', '+3.1 %', '×12.2', '±0 %')
    """
    if value >= 2:
        return f"×{_three(1 + value)}"
    return signed(f"{abs(value) * 100:.3g} %", value)


def signed(text: str, value: float) -> str:
    """Put a sign in front of an amount written without one."""
    bare = text.removeprefix("-").removeprefix("−")
    if not any(digit in bare for digit in "123456789"):
        return f"±{bare}"
    return f"+{bare}" if value > 0 else f"−{bare}"


def change(measure: str, value: float) -> str:
    """Write a difference of a measure; of parts, in points."""
    if MEASURES[measure].unit == "part":
        return signed(f"{_three(abs(value) * 100)} pp", value)
    return signed(amount(measure, abs(value)), value)


def margin(measure: str, found: Mapping[str, Any]) -> str:
    """Write half the width of an interval, or nothing if there is none."""
    if found.get("low") is None:
        return ""
    half = (found["high"] - found["low"]) / 2
    if half <= 0:
        return ""
    if MEASURES[measure].unit == "part":
        return f"± {_three(half * 100)} pp"
    return f"± {amount(measure, half)}"


def _three(value: float) -> str:
    """Write three figures, without an exponent and without zeros that say nothing."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    places = 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    text = f"{value:.{places}f}".rstrip("0").rstrip(".")
    return text if text not in {"0", "-0"} else f"{value:.1g}"
