"""What judging a large document costs: in proportion to its size, counted in steps, which no other load changes."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fairlead.documents import json_reading
from fairlead.server.loading import load_content

LARGE: dict[str, Callable[[int], str]] = {
    "unknown keys": lambda n: "".join(f"server{i}: 1\n" for i in range(n)),
    "upstreams": lambda n: (
        "gateway:\n  upstreams:\n"
        + "".join(f"    - {{url: 'http://10.0.{i // 250}.{i % 250}:1'}}\n" for i in range(n))
    ),
    "upstreams by model": lambda n: (
        "gateway:\n  pool_by: model\n  priority_scheduler: {enabled: true}\n  upstreams:\n"
        + "".join(
            f"    - {{url: 'http://h{i}:1', models: [m{i}], capacity: 3}}\n" for i in range(n)
        )
    ),
    "points that are wrong": lambda n: (
        "flows:\n  control_points:\n"
        + "".join(f"    c{i}: {{load: {{controller: range, period: x}}}}\n" for i in range(n))
    ),
    "pools of strangers": lambda n: (
        "flows:\n  control_points:\n"
        + "".join(f"    c{i}: {{}}\n" for i in range(n))
        + "pools:\n  p:\n    slots: 1\n    doors:\n"
        + "".join(f"      flows/x{i}: 1\n" for i in range(n))
    ),
}


def steps(work: Callable[[], Any]) -> int:
    """Count the lines of Python that some work runs."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("kind", LARGE)
def test_a_document_four_times_as_large_costs_at_most_five_times_as_much(kind: str):
    load_content(LARGE[kind](2).encode(), "f")  # what is imported and made once
    texts = [LARGE[kind](size).encode() for size in (150, 600)]
    small, large = (steps(partial(load_content, text, "f")) for text in texts)
    assert large < 5 * small, (kind, small, large)


def test_a_key_given_twice_is_found_in_one_walk():
    """Beside 100,000 others: compared each with each they would take minutes."""
    keys = ",".join(f'"k{i}":1' for i in range(100_000))
    found = json_reading.read_json(f'{{{keys},"k99999":2}}'.encode())
    assert isinstance(found, list)
    assert [one.path for one in found] == ["k99999"]
