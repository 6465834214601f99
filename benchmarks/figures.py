"""Put the figures of a run into the docs: `make bench ARGS="flows --docs"`, and the same for the gateway.

What a suite printed becomes its section of docs/benchmarks.md; a short table of what was promised goes between the
marks `<!-- flows figures -->` and `<!-- end -->` of the pages that have them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]

Row = tuple[str, str, str]  # what was measured, in words; the figure; its target


class Figures:
    """The medians of a run."""

    def __init__(self, tables: Sequence[dict[str, Any]]) -> None:
        self.tables = tables

    def table(self, title: str) -> dict[str, Any]:
        """The table whose title begins so."""
        return next(table for table in self.tables if table["title"].startswith(title))

    def has(self, title: str, case: str = "") -> bool:
        """Tell whether it was measured."""
        return any(
            table["title"].startswith(title) and (not case or case in table["values"])
            for table in self.tables
        )

    def of(self, title: str, case: str) -> float:
        """The median of a case in the table whose title begins so."""
        return float(median(self.table(title)["values"][case]))

    def ratio(self, title: str, case: str, other: str) -> float:
        return self.of(title, case) / self.of(title, other)


class Chapter(NamedTuple):
    """What the docs tell of one suite."""

    suite: str
    title: str
    introduction: str
    pages: tuple[str, ...]
    rows: Callable[[Figures], list[Row]]

    def publish(self, tables: Sequence[dict[str, Any]], printed: str, root: Path = ROOT) -> None:
        """Write the figures of a run into the pages."""
        table = short_table(self.rows(Figures(tables)))
        for name in self.pages:
            page = root / name
            page.write_text(between(page.read_text(), self.suite, table))
        page = root / "docs/benchmarks.md"
        page.write_text(section(page.read_text(), self.title, self.introduction, printed))


def short_table(rows: Sequence[Row]) -> str:
    lines = ["| | measured | target |", "|---|---:|---:|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def between(page: str, suite: str, text: str) -> str:
    """Put text between a suite's two marks on a page."""
    pattern = re.compile(rf"(<!-- {suite} figures -->\n).*?(<!-- end -->)", re.DOTALL)
    changed, count = pattern.subn(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)
    if count != 1:
        raise ValueError(f"the page needs one pair of <!-- {suite} figures --> and <!-- end -->")
    return changed


def section(page: str, title: str, introduction: str, printed: str) -> str:
    """Make what was printed a page's section of that title: in its place, or as the last."""
    body = f"\n## {title}\n\n{introduction.strip()}\n\n{printed.strip()}\n"
    before, found, old = page.partition(f"\n## {title}\n")
    after = old[old.index("\n## ") :] if found and "\n## " in old else ""
    return before.rstrip() + "\n" + body + after
