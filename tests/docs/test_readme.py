"""The README and other pages repeat figures of the doors' pages; they have to be the same."""

import re

import pytest

from tests.docs.reader import ROOT


def rows(text: str) -> set[str]:
    return {
        line
        for line in text.splitlines()
        if re.match(r"\| [^|]+ \| [^|]*\d[^|]* \| [^|]* \|$", line)
    }


@pytest.mark.parametrize("door", ["flows", "gateway", "jobs", "streams"])
def test_figures_are_those_of_the_page(door: str):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.search(rf"^\| {door}: `make bench.*?\n\n", readme, re.MULTILINE | re.DOTALL)
    assert table is not None, f"the README has no table of {door}"
    page = (ROOT / "docs" / f"{door}.md").read_text(encoding="utf-8")
    copied = rows(table[0])
    assert len(copied) >= 4
    assert copied <= rows(page), f"run again? copy the rows of docs/{door}.md into the README"


QUOTED = [
    ("docs/migrating/celery.md", "52,666", "docs/jobs.md"),
    ("docs/migrating/procrastinate.md", "45.3", "docs/jobs.md"),
    ("docs/migrating/semaphore.md", "1.0 µs", "README.md"),
    ("docs/migrating/slowapi.md", "4.79 µs", "docs/gateway.md"),
    ("docs/migrating/slowapi.md", "28.3", "docs/gateway.md"),
    ("docs/running/redis.md", "512,458", "docs/flows.md"),
    ("docs/running/redis.md", "24.1", "docs/flows.md"),
    ("docs/running/redis.md", "0.32 %", "docs/flows.md"),
]


@pytest.mark.parametrize(("page", "figure", "source"), QUOTED)
def test_quoted_figures_are_those_of_their_source(page: str, figure: str, source: str):
    for path in (page, source):
        assert figure in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {figure}"
