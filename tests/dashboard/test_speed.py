"""Views over a large database come; how long they take is printed, and judged by `make bench ARGS="dashboard"`."""

import os

import pytest

from benchmarks.dashboard import VIEWS, Visitor, cases, chromium
from benchmarks.jobs_engine import installed

RUNS = 1_000_000 if os.environ.get("FAIRLEAD_MILLION") else 20_000


ENGINES = [
    "SQLite",
    pytest.param(
        "PostgreSQL",
        marks=pytest.mark.skipif(not installed(), reason="no PostgreSQL is installed here"),
    ),
]


@pytest.mark.slow
@pytest.mark.skipif(
    chromium() is None, reason="no chromium here: apt-get install chromium brings it"
)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_view_comes_over_a_large_database(engine: str):
    visitor = Visitor(RUNS, visits=2, postgresql=engine == "PostgreSQL")
    try:
        taken = {name: case() for name, case in cases(visitor).items()}
    finally:
        visitor.close()
    for name, milliseconds in taken.items():
        print(f"{name}: {milliseconds:.0f} ms with {RUNS:,} jobs in {engine}")
    assert all(one > 0 for one in taken.values())


def test_no_view_is_taken_to_be_complete_when_it_is_empty():
    assert not [name for name, (_, wanted) in VIEWS.items() if ".empty" in wanted]
