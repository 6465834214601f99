"""Views over a large database come; how long they take is printed, and judged by `make bench ARGS="dashboard"`."""

import os

import pytest

from benchmarks.dashboard import Visitor, cases, chromium

RUNS = 1_000_000 if os.environ.get("FAIRLEAD_MILLION") else 20_000


@pytest.mark.slow
@pytest.mark.skipif(
    chromium() is None, reason="no chromium here: apt-get install chromium brings it"
)
def test_every_view_comes_over_a_large_database():
    visitor = Visitor(RUNS, visits=2)
    try:
        taken = {name: case() for name, case in cases(visitor).items()}
    finally:
        visitor.close()
    for name, milliseconds in taken.items():
        print(f"{name}: {milliseconds:.0f} ms with {RUNS:,} jobs")
    assert all(one > 0 for one in taken.values())
