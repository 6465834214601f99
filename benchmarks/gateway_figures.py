"""Put the figures of a run of the gateway suite into the docs.

make bench ARGS="gateway --json results.json" > results.txt
.venv/bin/python -m benchmarks.gateway_figures results.json results.txt

What the command printed becomes the section Gateway of docs/benchmarks.md; the short table of docs/gateway.md
and of the README follows from the values.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import gateway_overload as overload
from benchmarks.gateway import GATEWAY, NGINX, PLAIN
from benchmarks.gateway_processes import ROOT
from benchmarks.harness import figure

INTRODUCTION = """
## Gateway

Servers and load generator are processes of their own on loopback; the CPU time is the server's.
[What was measured, in short](gateway.md#what-it-costs); the overload as a [drawing](gateway-overload.svg).

"""


class Figures:
    """The medians of a run."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.tables = document["tables"]

    def of(self, title: str, case: str) -> float:
        """The median of a case in the table whose title begins so."""
        table = next(table for table in self.tables if table["title"].startswith(title))
        return float(median(table["values"][case]))

    def ratio(self, title: str, case: str, other: str) -> float:
        return self.of(title, case) / self.of(title, other)

    def rows(self) -> list[tuple[str, str, str]]:
        """What was measured, in words: the figure and its target."""
        adds, proxy, storm = "Middleware: what it adds", "Proxy: time", "Overload: 10"
        waiting = next(
            case for case in self.tables[1]["values"] if case.endswith("waiting it adds")
        )
        found = [
            (
                "the middleware adds to a request, nobody waits",
                f"{figure(self.of(adds, 'PriorityMiddleware adds'))} µs of CPU",
                "≤ 12",
            ),
            ("the same with 1,000 waiting", f"{figure(self.of(adds, waiting))} µs of CPU", "≤ 25"),
            (
                "the proxy's throughput, of that without admission",
                f"{figure(self.ratio(proxy, PLAIN, GATEWAY))}×",
                "≥ 0.9×",
            ),
            (
                "interactive p99 at ten times what fits, of its calm p99",
                f"{figure(self.ratio(storm, overload.STORM_P99, overload.CALM_P99))}×",
                "≤ 2×",
            ),
            (
                "a refusal is answered in, p99",
                f"{figure(self.of(storm, overload.REFUSED_P99))} ms",
                "≤ 20",
            ),
            (
                "after the overload all is well in",
                f"{figure(self.of(storm, overload.RECOVERY) / 1e3)} s",
                "≤ 5",
            ),
            (
                "memory grows during the overload by",
                f"{figure(self.of('Overload: memory', overload.GROWTH))} MiB",
                "≤ 32",
            ),
        ]
        if "slowapi adds to Starlette" in self.tables[1]["values"]:
            value = figure(self.of(adds, "slowapi adds to Starlette"))
            found.append(("beside it: slowapi adds to a Starlette request", f"{value} µs", ""))
        if NGINX in self.tables[2]["values"]:
            value = figure(self.ratio(proxy, GATEWAY, NGINX))
            found.append(("beside it: nginx `proxy_pass`, of the proxy's", f"{value}×", ""))
        return found


def short_table(rows: list[tuple[str, str, str]]) -> str:
    lines = ["| | measured | target |", "|---|---:|---:|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def between(page: str, text: str) -> str:
    """Put text between a page's two marks."""
    pattern = re.compile(r"(<!-- gateway figures -->\n).*?(<!-- end -->)", re.DOTALL)
    changed, count = pattern.subn(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)
    if count != 1:
        raise ValueError("the page needs one pair of <!-- gateway figures --> and <!-- end -->")
    return changed


def section(page: str, printed: str) -> str:
    """Make what was printed a page's section of that name: in its place, or as the last."""
    body = INTRODUCTION + printed.replace("## Benchmarks\n", "").strip() + "\n"
    before, found, old = page.partition("\n## Gateway\n")
    after = old[old.index("\n## ") :] if found and "\n## " in old else ""
    return before.rstrip() + "\n" + body + after


def main(values: str, printed: str) -> None:
    rows = Figures(json.loads(Path(values).read_text())).rows()
    for name in ("docs/gateway.md", "README.md"):
        page = ROOT / name
        page.write_text(between(page.read_text(), short_table(rows)))
    page = ROOT / "docs/benchmarks.md"
    page.write_text(section(page.read_text(), Path(printed).read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
