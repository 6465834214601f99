"""A value that may stand in a list once is told where it stands for the second time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.documents.reading import tree_of_yaml
from fairlead.documents.repeats import Repeated, refuse_repeats
from fairlead.flows.loading import load_tree as flows_of
from fairlead.gateway.loading import load_tree as gateway_of
from fairlead.jobs.tokens import load_content as tokens_of
from fairlead.server.loading import load_content as server_of

A, B = "a" * 64, "b" * 64


def door(load_tree: Callable[..., Any]) -> Callable[[bytes], Any]:
    return lambda content: load_tree(*tree_of_yaml(content), "it.yaml")


GATEWAY, FLOWS = door(gateway_of), door(flows_of)
CASES = [
    (
        GATEWAY,
        "upstreams:\n  - url: http://a:1\n  - url: http://b:1\n  - {capacity: 2, url: 'http://a:1'}\n",
        "it.yaml:4:19 upstreams[2].url: is given twice, first in entry 1; keep one",
    ),
    (
        GATEWAY,
        f"tenants:\n  api_keys:\n    - {{sha256: {A}, tenant: x}}\n    - {{sha256: {A}, tenant: y}}\n",
        "it.yaml:4:8 tenants.api_keys[1].sha256: is given twice, first in entry 1; keep one",
    ),
    (
        lambda content: server_of(content, "it.yaml"),
        f"server:\n  tokens:\n    - {{name: a, sha256: {A}}}\n    - {{name: a, sha256: {B}}}\n",
        "it.yaml:4:8 server.tokens[1].name: is given twice, first in entry 1; keep one",
    ),
    (
        lambda content: server_of(content, "it.yaml"),
        f"server:\n  tokens:\n    - {{name: a, sha256: {A}}}\n    - {{name: b, sha256: {A.upper()}}}\n",
        "it.yaml:4:17 server.tokens[1].sha256: is given twice, first in entry 1; keep one",
    ),
    (
        lambda content: server_of(content, "it.yaml"),
        "gateway:\n  upstreams:\n    - url: http://a:1\n    - url: http://a:1\n",
        "it.yaml:4:7 gateway.upstreams[1].url: is given twice, first in entry 1; keep one",
    ),
    (
        lambda content: tokens_of(content, "it.yaml"),
        f"- {{name: a, sha256: {A}}}\n- {{name: a, sha256: {B}}}\n",
        "it.yaml:2:4 tokens[1].name: is given twice, first in entry 1; keep one",
    ),
    (
        FLOWS,
        "control_points:\n  a:\n    scheduler:\n      workloads:\n"
        "        - {name: x, match_labels: {t: a}}\n        - {name: x, match_labels: {t: b}}\n",
        "it.yaml:6:12 control_points.a.scheduler.workloads[1].name: ",
    ),
    (
        FLOWS,
        "control_points:\n  a: {}\n  b: {}\n  a: {}\n",
        "it.yaml:4:3 control_points.a: is given twice, first on line 2; keep one",
    ),
    (
        GATEWAY,
        "priority_scheduler:\n  tenant_policies:\n    auth:x: {}\n    auth:x: {}\n",
        'it.yaml:4:5 priority_scheduler.tenant_policies["auth:x"]: is given twice, first on line 3',
    ),
]


@pytest.mark.parametrize(("load", "text", "said"), CASES)
def test_it_is_told_where_it_stands_again(load: Callable[[bytes], Any], text: str, said: str):
    lines = load(text.encode()).lines
    assert any(line.startswith(said) for line in lines), lines
    assert not any(A in line or B in line for line in lines)


def test_every_one_is_told():
    text = "upstreams:\n" + "".join(f"  - url: http://{name}:1\n" for name in "abcbab")
    lines = GATEWAY(text.encode()).lines
    assert [line.split()[0] for line in lines] == ["it.yaml:5:5", "it.yaml:6:5", "it.yaml:7:5"]


def test_one_key_of_one_tenant_may_stand_there_twice():
    text = f"tenants: {{api_keys: [{{sha256: {A}, tenant: x}}, {{sha256: {A}, tenant: x}}]}}\n"
    assert GATEWAY(text.encode()).lines == ()


class Entry(NamedTuple):
    name: int
    key: int


@given(st.lists(st.builds(Entry, st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_each_value_that_came_before_and_nothing_else(entries: list[Entry]):
    expected = [
        (index, field)
        for index, one in enumerate(entries)
        for field in ("key", "name")
        if getattr(one, field) in [getattr(other, field) for other in entries[:index]]
    ]
    found: list[Any] = []
    try:
        refuse_repeats(entries, "name", "key")
    except Repeated as error:
        found = [path for path, _ in error.places]
    assert found == expected
