"""What a change of configuration would lose, against a brute-force reading of the same two documents."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.documents.losses import EACH, Keep, losses, path_text, strange_paths
from fairlead.flows import settings as flows
from fairlead.flows.loading import load as load_flows
from fairlead.gateway import settings as gateway
from fairlead.gateway.loading import load as load_gateway

QUOTA = {"bucket_capacity": 1, "fill_amount": 1, "interval": "1s"}
LIMITS: dict[str, list[Any]] = {
    "quota": [None, None, QUOTA, {**QUOTA, "bucket_capacity": 2}, {**QUOTA, "pass_through": True}],
    "concurrency": [
        None,
        None,
        {"max_concurrency": 1},
        {"max_concurrency": 1, "pass_through": True},
        {"max_concurrency": "vegas"},
    ],
    "load": [None, None, {}, {"dry_run": True}],
}
NAMES = ["a", "check out", 'a"b', "x" * 90, "x" * 91, "ü", "a.b"]


def some_point(rng: random.Random) -> dict[str, Any]:
    chosen = {kind: rng.choice(limits) for kind, limits in LIMITS.items()}
    return {kind: limit for kind, limit in chosen.items() if limit is not None}


def some_flows(rng: random.Random) -> dict[str, Any]:
    names = [name for name in NAMES if rng.random() < 0.6]
    return {"control_points": {name: some_point(rng) for name in names}}


def some_gateway(rng: random.Random) -> dict[str, Any]:
    said: dict[str, Any] = {"capacity": rng.randint(1, 9)}
    if rng.random() < 0.5:
        said["admin"] = {"token": rng.choice(["s", "t"])} if rng.random() < 0.7 else {}
    if rng.random() < 0.7:
        ports = rng.sample(range(1, 5), rng.randint(0, 3))
        said["upstreams"] = [{"url": f"http://127.0.0.1:{port}"} for port in ports]
    return said


def in_force(limit: Any) -> bool:
    return limit is not None and not limit.get("pass_through") and not limit.get("dry_run")


def lost_flows(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    found = set()
    for name, point in before["control_points"].items():
        path = path_text(("control_points", name))
        left = after["control_points"].get(name)
        if left is None:
            found.add(path)
        elif not any(map(in_force, left.values())):
            found |= {f"{path}.{kind}" for kind, limit in point.items() if in_force(limit)}
    return found


def lost_gateway(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    token = "admin.token" if before.get("admin", {}).get("token") else None
    backends = "upstreams" if before.get("upstreams") else None
    kept = {
        "admin.token" if after.get("admin", {}).get("token") else None,
        "upstreams" if after.get("upstreams") else None,
    }
    return {path for path in (token, backends) if path is not None} - kept


@given(st.integers(0, 2**32))
def test_losses_are_those_that_two_documents_show(seed: int):
    rng = random.Random(seed)
    for some, load, keeps, expected in (
        (some_flows, load_flows, flows.KEEPS, lost_flows),
        (some_gateway, load_gateway, gateway.KEEPS, lost_gateway),
    ):
        before, after = some(rng), some(rng)
        first, second = load(before), load(after)
        assert not [*first.problems, *second.problems]
        found = losses(first.settings, second.settings, keeps)
        assert {loss.path for loss in found} == expected(before, after), (before, after)
        assert len({loss.path for loss in found}) == len(found)
        assert strange_paths([loss.path for loss in found], keeps) == []


@pytest.mark.parametrize(
    "path",
    [
        "",
        "flows",
        "control_points",
        "control_points.a.b",
        "control_points.a.quotas",
        "upstream",
        "*",
    ],
)
def test_a_path_that_no_loss_can_have_is_strange(path: str):
    assert strange_paths([path], (*flows.KEEPS, *gateway.KEEPS)) == [path]


def test_a_mutant_that_forgets_the_parts_is_caught():
    mutant = (Keep(("control_points", EACH), "the control point"),)
    before, after = ({"control_points": {"a": point}} for point in ({"quota": QUOTA}, {}))
    settings = [load_flows(one).settings for one in (before, after)]
    assert losses(settings[0], settings[1], mutant) == ()
    (found,) = losses(settings[0], settings[1], flows.KEEPS)
    assert found.path == "control_points.a.quota"
