"""What the docs tell of the gateway suite; `make bench ARGS="gateway --docs"` puts it there."""

from __future__ import annotations

from benchmarks import gateway_overload as overload
from benchmarks.figures import Chapter, Figures, Row
from benchmarks.gateway import GATEWAY, NGINX, PLAIN
from benchmarks.harness import figure

INTRODUCTION = """
Servers and load generator are processes of their own on loopback; the CPU time is the server's.
[What was measured, in short](gateway.md#what-it-costs); the overload as a [drawing](gateway-overload.svg).
"""


def rows(figures: Figures) -> list[Row]:
    """What was measured, in words: the figure and its target."""
    adds, proxy, storm = "Middleware: what it adds", "Proxy: time", "Overload: 10"
    waiting = next(case for case in figures.table(adds)["values"] if "waiting it adds" in case)
    found = [
        (
            "the middleware adds to a request, nobody waits",
            f"{figure(figures.of(adds, 'PriorityMiddleware adds'))} µs of CPU",
            "≤ 12",
        ),
        ("the same with 1,000 waiting", f"{figure(figures.of(adds, waiting))} µs of CPU", "≤ 25"),
        (
            "the proxy's throughput, of that without admission",
            f"{figure(figures.ratio(proxy, PLAIN, GATEWAY))}×",
            "≥ 0.9×",
        ),
        (
            "interactive p99 at ten times what fits, of its calm p99",
            f"{figure(figures.ratio(storm, overload.STORM_P99, overload.CALM_P99))}×",
            "≤ 2×",
        ),
        (
            "a refusal is answered in, p99",
            f"{figure(figures.of(storm, overload.REFUSED_P99))} ms",
            "≤ 20",
        ),
        (
            "after the overload all is well in",
            f"{figure(figures.of(storm, overload.RECOVERY) / 1e3)} s",
            "≤ 5",
        ),
        (
            "memory grows during the overload by",
            f"{figure(figures.of('Overload: memory', overload.GROWTH))} MiB",
            "≤ 32",
        ),
    ]
    if figures.has(adds, "slowapi adds to Starlette"):
        value = figure(figures.of(adds, "slowapi adds to Starlette"))
        found.append(("beside it: slowapi adds to a Starlette request", f"{value} µs", ""))
    if figures.has(proxy, NGINX):
        value = figure(figures.ratio(proxy, GATEWAY, NGINX))
        found.append(("beside it: nginx `proxy_pass`, of the proxy's", f"{value}×", ""))
    return found


CHAPTER = Chapter("gateway", "Gateway", INTRODUCTION, ("docs/gateway.md",), rows)
