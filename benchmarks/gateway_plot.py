"""The overload as a picture: latency over time on a logarithmic axis, in SVG written by hand.

Colours follow the reader's light or dark scheme; every line is named in the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log10
from typing import Protocol

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 64, 44
LOWEST, HIGHEST = 1.0, 10_000.0  # ms
WINDOW = 0.25  # seconds that a point of a line stands for

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .small { fill: #59636e; font-size: 12px; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  .phase { fill: #bf8700; fill-opacity: 0.12; }
  path, .key { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .thin { stroke-width: 1.5; stroke-dasharray: 4 3; }
  .interactive { stroke: #0969da; } .bulk { stroke: #bc4c00; } .refused { stroke: #6e7781; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } .grid { stroke: #30363d; }
    .phase { fill: #d29922; fill-opacity: 0.18; }
    .interactive { stroke: #58a6ff; } .bulk { stroke: #f0883e; } .refused { stroke: #9198a1; }
  }
"""


class Seen(Protocol):
    """An answer."""

    @property
    def kind(self) -> str: ...
    @property
    def due(self) -> float: ...
    @property
    def latency(self) -> float: ...
    @property
    def status(self) -> int: ...


class Times(Protocol):
    """When the overload begins and ends, and when the watching does."""

    @property
    def storm(self) -> float: ...
    @property
    def calm_again(self) -> float: ...
    @property
    def end(self) -> float: ...


class Axes:
    """Seconds and milliseconds to places in the picture."""

    def __init__(self, end: float) -> None:
        self.end = end

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.end

    def y(self, ms: float) -> float:
        ms = min(max(ms, LOWEST), HIGHEST)
        part = log10(ms / LOWEST) / log10(HIGHEST / LOWEST)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part


def draw(answers: Sequence[Seen], phases: Times, label: str) -> str:
    """Draw latencies by the time requests were sent: interactive, bulk that was served, and refusals."""
    axes = Axes(phases.end)
    served = [one for one in answers if one.status == 200]
    interactive = [one for one in served if one.kind == "interactive"]
    bulk = [one for one in served if one.kind == "bulk"]
    refused = [one for one in answers if one.status == 429]
    lines = [
        ("interactive, p99", "interactive", points(interactive, 0.99)),
        ("interactive, median", "interactive thin", points(interactive, 0.5)),
        ("bulk served, median", "bulk", points(bulk, 0.5)),
        ("refusals (429), p99", "refused", points(refused, 0.99)),
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Latency of interactive, bulk and refused requests before, during and after overload</title>",
        f"<style>{STYLE}</style>",
        *frame(axes, phases, label),
    ]
    for name, look, line in lines:
        shown = " ".join(f"{axes.x(at):.1f},{axes.y(ms):.1f}" for at, ms in line)
        parts.append(
            f'<path class="{look}" d="M{shown}"><title>{escape(name)}</title></path>'
            if line
            else ""
        )
    parts += legend([(name, look) for name, look, _ in lines])
    return "\n".join(part for part in parts if part) + "\n</svg>\n"


def points(answers: Sequence[Seen], part: float) -> list[tuple[float, float]]:
    """One point per window: its middle, and the percentile of the latencies there in ms."""
    windows: dict[int, list[float]] = {}
    for one in answers:
        windows.setdefault(int(one.due / WINDOW), []).append(one.latency * 1e3)
    found = []
    for number, latencies in sorted(windows.items()):
        ordered = sorted(latencies)
        at = ordered[min(len(ordered) - 1, int(part * len(ordered)))]
        found.append(((number + 0.5) * WINDOW, at))
    return found


def frame(axes: Axes, phases: Times, label: str) -> Iterator[str]:
    """The shaded phase, the grid, the axes' figures."""
    left, right = axes.x(phases.storm), axes.x(phases.calm_again)
    top, bottom = TOP, HEIGHT - BOTTOM
    yield (
        f'<rect class="phase" x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{bottom - top}"/>'
    )
    for ms, text in ((1, "1 ms"), (10, "10 ms"), (100, "100 ms"), (1_000, "1 s"), (10_000, "10 s")):
        y = axes.y(ms)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="small" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    for second in range(int(axes.end) + 1):
        x = axes.x(second)
        yield (
            f'<text class="small" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{second}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield (
        f'<text class="small" x="{middle:.1f}" y="{HEIGHT - 8}" text-anchor="middle">'
        "seconds; each request at the moment it was sent</text>"
    )
    spans = (
        (0.0, phases.storm, "calm"),
        (phases.storm, phases.calm_again, label),
        (phases.calm_again, phases.end, "calm again"),
    )
    for begin, end, text in spans:
        x = axes.x((begin + end) / 2)
        yield f'<text class="small" x="{x:.1f}" y="{top - 8}" text-anchor="middle">{escape(text)}</text>'


def legend(names: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The names of the lines, in a row at the top."""
    x = float(LEFT)
    for name, look in names:
        yield f'<line class="key {look}" x1="{x:.0f}" x2="{x + 22:.0f}" y1="24" y2="24"/>'
        yield f'<text x="{x + 28:.0f}" y="28">{escape(name)}</text>'
        x += 28 + 7 * len(name) + 14
