"""SVG as text: a canvas with axes, for the plots of a report.

Nothing here names a colour: elements carry classes (`s0`, `s1`, … for the series), and the page's style gives each its
colour in light and in dark.  Coordinates are written to a tenth of a unit, so that a drawing is the same everywhere.
"""

from __future__ import annotations

from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SERIES = 8  # colours there are; the ninth looks like the first


def number(value: float) -> str:
    """Write a coordinate.

    >>> number(12.04), number(-0.04), number(3.0)
    ('12', '0', '3')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text in {"-0", "-0.0"} else text


class Tick(NamedTuple):
    """A mark on an axis: where, as a value, and what is written there."""

    value: float
    label: str


class Scale(NamedTuple):
    """From values to coordinates, through a curve (the identity, a logarithm, …)."""

    low: float
    high: float
    start: float
    end: float
    curve: Callable[[float], float] = float

    def __call__(self, value: float) -> float:
        low, high = self.curve(self.low), self.curve(self.high)
        inside = min(max(value, self.low), self.high)
        part = (self.curve(inside) - low) / (high - low) if high > low else 0.0
        return self.start + part * (self.end - self.start)


class Canvas:
    """One drawing with a title and a description for those who do not see it."""

    def __init__(
        self, name: str, width: float, height: float, title: str, description: str
    ) -> None:
        self.width, self.height = width, height
        self._parts = [
            f'<svg class="plot" viewBox="0 0 {number(width)} {number(height)}" role="img" '
            f'aria-labelledby="{name}-t {name}-d">',
            f'<title id="{name}-t">{escape(title)}</title>',
            f'<desc id="{name}-d">{escape(description)}</desc>',
        ]

    def add(self, element: str) -> None:
        """Add an element as it is."""
        self._parts.append(element)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a straight line."""
        ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
        self.add(f'<line class="{kind}" {ends}/>')

    def text(
        self, x: float, y: float, said: str, kind: str = "tick", anchor: str = "start"
    ) -> None:
        """Write something."""
        self.add(
            f'<text class="{kind}" x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">{escape(said)}</text>'
        )

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str, tip: str = ""
    ) -> None:
        """Draw a box; the tip shows when it is pointed at."""
        hint = f"<title>{escape(tip)}</title>" if tip else ""
        self.add(
            f'<rect class="{kind}" x="{number(x)}" y="{number(y)}" width="{number(width)}" '
            f'height="{number(height)}">{hint}</rect>'
        )

    def dot(self, x: float, y: float, kind: str, tip: str = "", radius: float = 4) -> None:
        """Draw a dot; the tip shows when it is pointed at."""
        hint = f"<title>{escape(tip)}</title>" if tip else ""
        self.add(
            f'<circle class="{kind}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}">{hint}</circle>'
        )

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line through points."""
        if points:
            self.add(f'<path class="{kind}" d="M{_joined(points)}"/>')

    def area(
        self,
        above: Sequence[tuple[float, float]],
        below: Sequence[tuple[float, float]],
        kind: str,
        tip: str,
    ) -> None:
        """Fill what lies between two lines."""
        self.add(
            f'<path class="{kind}" d="M{_joined(above)}L{_joined(below[::-1])}Z"><title>{escape(tip)}</title></path>'
        )

    def x_axis(
        self, scale: Scale, ticks: Sequence[Tick], top: float, bottom: float, *, grid: bool = False
    ) -> None:
        """Draw the axis beneath a plot."""
        self.line(scale.start, bottom, scale.end, bottom, "axis")
        for tick in ticks:
            x = scale(tick.value)
            self.line(
                x,
                top if grid else bottom,
                x,
                bottom if grid else bottom + 4,
                "grid" if grid else "axis",
            )
            self.text(x, bottom + 16, tick.label, anchor="middle")

    def y_axis(self, scale: Scale, ticks: Sequence[Tick], left: float, right: float) -> None:
        """Draw the lines across a plot, with their values on the left."""
        for tick in ticks:
            y = scale(tick.value)
            self.line(left, y, right, y, "grid")
            self.text(left - 6, y + 4, tick.label, anchor="end")

    def __str__(self) -> str:
        return "".join([*self._parts, "</svg>"])


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{number(x)},{number(y)}" for x, y in points)


def even_ticks(high: float, written: Callable[[float], str], most: int = 5) -> list[Tick]:
    """Mark an axis from 0 at round values, 1, 2 or 5 times a power of ten apart.

    >>> [tick.label for tick in even_ticks(10, "{:g}".format)]
    ['0', '2', '4', '6', '8', '10']
    """
    if high <= 0:
        return [Tick(0.0, written(0.0))]
    power = 10.0 ** floor(log10(high / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if high / (factor * power) <= most)
    return [
        Tick(index * step, written(index * step)) for index in range(floor(high / step + 1e-9) + 1)
    ]


def time_ticks(seconds: float) -> list[Tick]:
    """Mark a time axis from 0, all in one unit.

    >>> [tick.label for tick in time_ticks(600)]
    ['0', '2', '4', '6', '8', '10 min']
    """
    size, unit = (1, "s") if seconds < 180 else (60, "min") if seconds < 10_800 else (3600, "h")
    ticks = even_ticks(seconds / size, "{:g}".format, 8)
    named = [Tick(tick.value * size, tick.label) for tick in ticks]
    return [*named[:-1], Tick(named[-1].value, f"{named[-1].label} {unit}")]


def decades(low: float, high: float, written: Callable[[float], str]) -> list[Tick]:
    """Mark a logarithmic axis at the powers of ten."""
    first, last = round(log10(low)), round(log10(high))
    every = max(1, ceil((last - first) / 5))
    return [Tick(10.0**power, written(10.0**power)) for power in range(first, last + 1, every)]


def around(low: float, high: float) -> tuple[float, float]:
    """Widen a range to whole decades."""
    bottom = 10.0 ** floor(log10(low) + 1e-9)
    top = 10.0 ** ceil(log10(high) - 1e-9)
    return bottom, top if top > bottom else bottom * 10
