"""The same seed gives the same bytes: in this process, in another, whatever the hashes of strings are."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fairlead.sim import read_policy, read_scenario, simulate

WORKFLOW = {
    "name": "diamond",
    "workflow": {
        "specification": {
            "tasks": [
                {"id": "a", "name": "a", "parents": [], "children": ["b", "c"]},
                {"id": "b", "name": "b", "parents": ["a"], "children": ["d"]},
                {"id": "c", "name": "c", "parents": ["a"], "children": ["d"]},
                {"id": "d", "name": "d", "parents": ["b", "c"], "children": []},
            ]
        },
        "execution": {
            "tasks": [
                {"id": name, "runtimeInSeconds": seconds}
                for name, seconds in {"a": 1.0, "b": 2.5, "c": 0.5, "d": 1.25}.items()
            ]
        },
    },
}
SCENARIO: dict[str, Any] = {
    "seconds": "40s",
    "arrivals": [
        {
            "kind": "poisson",
            "rate": 8,
            "class": "interactive",
            "tenants": {"a": 3, "b": 1, "c": 1},
            "workloads": ["chat", "search"],
            "service": {"lognormal": {"median": "200ms", "p95": "1s"}},
            "patience": "2s",
        },
        {
            "kind": "burst",
            "size": 20,
            "every": "10s",
            "over": "1s",
            "class": "bulk",
            "tenants": ["x", "y", "z"],
            "service": {"pareto": {"least": "100ms", "shape": 1.5, "most": "20s"}},
            "cost": {"uniform": [1, 5]},
            "retries": 2,
            "pause": "1s",
        },
        {
            "kind": "closed",
            "clients": 7,
            "class": "default",
            "tenants": ["p", "q"],
            "think": {"exponential": "1s"},
            "service": {"one_of": ["100ms", "1s"]},
        },
    ],
}
GRAPHS: dict[str, Any] = {
    "arrivals": [{"kind": "dags", "files": "d.json", "rate": 0.5, "runs": 30}]
}
RECORDS: dict[str, Any] = {
    "seconds": "20s",
    "arrivals": [
        {
            "kind": "poisson",
            "rate": 20,
            "workloads": ["chat", "search"],
            "tenants": ["a", "b", "c", "d"],
            "service": {"exponential": "100ms"},
        },
        {"kind": "burst", "size": 50, "every": "5s", "workload": "logs", "service": "20ms"},
    ],
}
POLICIES: dict[str, dict[str, Any]] = {
    "gateway": {
        "preset": "gateway",
        "capacity": 5,
        "classes": {
            "interactive": {"reserved_floor": 1},
            "system": {"reserved_floor": 0},
            "bulk": {"starvation_threshold": "3s"},
        },
        "tenant_policies": {"auth:a": {"weight": 2.0}},
    },
    "flows": {
        "preset": "flows",
        "concurrency": {"max_concurrency": 9},
        "scheduler": {"tokens_label_key": "tokens", "fairness_label_key": "tenant"},
    },
    "tasks": {"preset": "tasks", "max_concurrency": 5, "priorities": {"interactive": 80}},
    "fair": {
        "policy": {"fair": {"by": "workload", "then": {"fair": {"by": "tenant"}}}},
        "capacity": {"slots": 5},
    },
    "jobs": {"preset": "jobs", "executors": {"default": 3}, "tenants": {"d": {"weight": 2.0}}},
    "streams": {
        "preset": "streams",
        "concurrency": 3,
        "topics": {
            "chat": {"priority": 80, "partitions": 3, "batch_size": 5},
            "search": {"weight": 2.0, "partitions": 2},
            "logs": {},
        },
    },
}

CHILD = """
import json, sys
from hashlib import sha256
from fairlead.sim import read_policy, read_scenario, simulate
for scenario, policy, seed in json.loads(sys.stdin.read()):
    result = simulate(read_scenario(scenario), read_policy(policy), seed)
    print(sha256(result.dump()).hexdigest())
"""


def scenario_for(name: str, folder: Path) -> dict[str, Any]:
    if name != "jobs":
        return RECORDS if name == "streams" else SCENARIO
    path = folder / "d.json"
    path.write_text(json.dumps(WORKFLOW))
    return {"arrivals": [GRAPHS["arrivals"][0] | {"files": str(path)}]}


def alike(some: list[Any], others: list[Any]) -> bool:
    """Compare without a picture of the difference, which takes minutes to draw where CI wants it whole."""
    return len(some) > 0 and some == others


def digest(scenario: dict[str, Any], policy: dict[str, Any], seed: int) -> str:
    return sha256(simulate(read_scenario(scenario), read_policy(policy), seed).dump()).hexdigest()


def see_other_processes_agree(folder: Path, names: Sequence[str]) -> None:
    asked = [(scenario_for(name, folder), POLICIES[name], 5) for name in names]
    own = [digest(*one) for one in asked]
    for hashes in ("0", "1234"):
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps(asked),
            env=os.environ | {"PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert dict(zip(names, done.stdout.split(), strict=True)) == dict(
            zip(names, own, strict=True)
        )


def test_another_process_with_other_hashes_gives_the_same_bytes(tmp_path):
    see_other_processes_agree(tmp_path, list(POLICIES))


@pytest.mark.parametrize("name", POLICIES)
def test_it_is_the_seed_that_decides(name, tmp_path):
    scenario, policy = scenario_for(name, tmp_path), POLICIES[name]
    assert digest(scenario, policy, 1) == digest(scenario, policy, 1)
    assert digest(scenario, policy, 1) != digest(scenario, policy, 2)


def test_every_policy_meets_the_same_arrivals():
    """Also those of clients: what one draws depends on nobody else, and on no verdict but when it comes."""
    scenario = read_scenario(SCENARIO)
    drawn = []
    for name in ("gateway", "tasks", "fair"):
        result = simulate(scenario, read_policy(POLICIES[name]), 9)
        drawn.append([row.service for row in result.tickets if row.cls != "default"])
    assert alike(drawn[0], drawn[1])
    assert alike(drawn[0], drawn[2])


def test_one_source_more_changes_nothing_for_the_others():
    alone = read_scenario(SCENARIO | {"arrivals": SCENARIO["arrivals"][:1]}).arrivals(4)
    together = read_scenario(SCENARIO).arrivals(4)
    assert alike([one for one in together if one.cls == "interactive"], alone)


def test_more_seconds_or_a_count_draw_the_same_beginning():
    source = SCENARIO["arrivals"][:2]
    long = read_scenario({"seconds": "80s", "arrivals": source}).arrivals(4)
    short = read_scenario({"seconds": "40s", "arrivals": source}).arrivals(4)
    counted = read_scenario({"count": 200, "arrivals": source}).arrivals(4)
    assert alike(long[: len(short)], short)
    assert alike(counted, long[:200])


def test_the_result_holds_no_wall_clock(monkeypatch):
    import time

    def forbidden() -> float:
        raise AssertionError("a simulation asked what time it is")

    before = digest(SCENARIO, POLICIES["gateway"], 3)
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, forbidden)
    assert digest(SCENARIO, POLICIES["gateway"], 3) == before
