"""Scenarios and policies as documents: everything that is wrong is said with its place, and nothing runs."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import BadFile, ConfigError
from fairlead.sim import read_policy, read_scenario, simulate
from fairlead.sim.presets import PRESETS
from fairlead.sim.scenario import KINDS

WRONG_SCENARIO = """
secnds: 60s
seconds: 10 parsecs
arrivals:
  - kind: poison
    rate: 5
  - kind: poisson
    rate: -5
    service: {exponential: 0s}
    tenents: [a]
  - kind: closed
    clients: 1.5
    service: {gauss: 5}
  - 7
  - kind: burst
    size: 3
    service: 1s
    tenant: a
    tenants: [b]
  - {kind: trace}
  - kind: trace
    file: nowhere.csv
  - {kind: steady, rate: 5, service: {lognormal: {median: 5s}}, cost: lots}
"""
SAID_OF_SCENARIO = """
2:1 secnds: unknown key 'secnds'; did you mean seconds?
3:1 seconds: must be a duration above zero
5:5 arrivals[0].kind: kind must be one of poisson, steady, burst, closed, trace, dags; did you mean poisson?
8:5 arrivals[1].rate: must be greater than 0; got -5
9:15 arrivals[1].service.exponential: must be a duration above zero
10:5 arrivals[1].tenents: unknown key 'tenents'; did you mean tenants?
12:5 arrivals[2].clients: must be a valid integer; got 1.5
13:15 arrivals[2].service.gauss: unknown key 'gauss'
14:5 arrivals[3]: must be a mapping with a kind
19:5 arrivals[4].tenants: needs tenant or tenants, and not both
20:5 arrivals[5].file: is required
22:5 arrivals[6].file: nowhere.csv cannot be read
23:39 arrivals[7].service.lognormal: needs p95 or sigma, and not both
23:65 arrivals[7].cost: must be a valid number
"""
WRONG_POLICY = """
name: 5
policy:
  classes:
    low: {starvaton: 5s, fair: {by: tennant, then: {aging: {rate: fast}}}}
    high: {fifo: {}, aging: {}}
capacity:
  reserved: {slots: 0, floors: {low: -1}}
  bucket: {rate: 5}
"""
SAID_OF_POLICY = """
2:1 name: must be text; got 5
5:11 policy.classes.low.starvaton: unknown key 'starvaton'; did you mean starvation?
5:33 policy.classes.low.fair.by: must be tenant, workload, pool, key or class; got 'tennant'
5:61 policy.classes.low.fair.then.aging.rate: must be a valid number
6:5 policy.classes.high: needs one of fifo, aging, fair, classes, order; got fifo and aging
8:14 capacity.reserved.slots: must be greater than or equal to 1; got 0
8:33 capacity.reserved.floors.low: must be greater than or equal to 0; got -1
9:3 capacity.bucket.burst: is required
"""


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (read_scenario, WRONG_SCENARIO, SAID_OF_SCENARIO),
        (read_policy, WRONG_POLICY, SAID_OF_POLICY),
    ],
    ids=["scenario", "policy"],
)
def test_everything_that_is_wrong_is_said_at_once(read, text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wrong.yaml").write_text(text)
    with pytest.raises(BadFile) as raised:
        read("wrong.yaml")
    expected = [f"wrong.yaml:{line}" for line in said.strip().splitlines()]
    assert len(raised.value.lines) == len(expected), raised.value.lines
    for line, beginning in zip(raised.value.lines, expected, strict=True):
        assert line.startswith(beginning), line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("[1, 2]\n", "must be a mapping"),
        ("a: [", "cannot be read as YAML"),
        ("a: 1\na: 2\n", "given twice"),
        ("/no/such/file.yaml", "cannot be read (No such file"),
        ("/", "is not a regular file"),
        (7, "must be a path, YAML text or a mapping"),
        ("arrivals: []\n", "at least 1 item"),
        ("seconds: 5s\narrivals:\n- {kind: [poisson]}\n", "3:4 arrivals[0].kind: kind must be"),
        ("arrivals:\n- {kind: poisson, rate: 1, service: 1s}\n", "goes on for ever"),
        ("arrivals:\n- {kind: closed, clients: 1, service: 1s}\n", "goes on for ever"),
        (
            "seconds: 9d\narrivals:\n- {kind: poisson, rate: 1e6, service: 1s}\n",
            "2,000,000 at most",
        ),
        ("count: 5\narrivals:\n- {kind: dags, files: /no.json}\n", "arrivals[0].files: /no.json"),
        (
            "count: 5\narrivals:\n- {kind: steady, rate: 1, service: 1s, start: 5s, end: 2s}\n",
            "end must be later than start",
        ),
        (
            "count: 5\narrivals:\n- {kind: steady, rate: 1, service: {uniform: [5, 2]}}\n",
            "must be [lowest, highest]",
        ),
    ],
)
def test_scenarios_that_cannot_be(text, said):
    with pytest.raises(BadFile, match=re.escape(said)):
        read_scenario(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy: fofo\ncapacity: {slots: 2}\n", "1:1 policy: must be one of fifo"),
        ("policy: fifo\ncapacity: {}\n", "2:1 capacity: needs one of slots"),
        ("policy: fifo\ncapacity: {slots: 1, unlimited: true}\n", "unlimited cannot be together"),
        ("policy: fifo\ncapacity: {slots: 1, reserved: {slots: 1}}\n", "slots or reserved"),
        (
            "preset: taks\n",
            "1:1 preset: preset must be one of flows, gateway, jobs, pool, streams, tasks",
        ),
        ("preset: tasks\nmax_concurency: 5\n", "did you mean max_concurrency?"),
        (
            "preset: gateway\ncapacity: 5\nreservations_exceed: fallback\n",
            "reservations need 11 slots but the capacity is 5",
        ),
        ("preset: gateway\nclasses:\n  interactiv: {}\n", "3:3 classes.interactiv: unknown class"),
        ("priority_scheduler: {classes: {bulk: {queue_size: x}}}\n", "bulk.queue_size: must be"),
        ("upstreams: [{url: 'http://a'}]\n", "need a capacity in numbers"),
        ("preset: flows\nquota: {bucket_capacity: 5}\n", "quota.fill_amount: is required"),
        ("preset: flows\nload: {signal: cpu}\n", "2:8 load.signal: a simulation has no cpu"),
        ("control_points: {a: {}, b: {}}\n", "point must be one of a, b"),
        (
            "preset: jobs\nplanner: SJFS\n",
            "2:1 planner: planner 'SJFS' is not known here; there are EarliestDeadlineExecutionPlanner",
        ),
        ("preset: jobs\nexecutors: {}\n", "executors: "),
        ("preset: pool\ncapacity: {slots: 0}\n", "capacity.slots: must be"),
        (
            "preset: pool\ncapacity: {slots: 1}\npolicy: {fair: {weights: {a: 1}}}\ndoors: {b: {}}\n",
            "4:9 doors.b: has no weight",
        ),
        (
            "preset: pool\ncapacity: {slots: 1}\npolicy: {fair: {weights: {a: 1}}}\n"
            "doors: {a: {preset: flows}}\n",
            "doors.a.preset: must be one of jobs, streams",
        ),
        (
            "preset: pool\ncapacity: {slots: 1}\npolicy: {fair: {weights: {a: 1}}}\n"
            "doors: {a: {preset: jobs, executors: {x: 0}}}\n",
            "doors.a.executors.x: must be",
        ),
        ("preset: streams\n", "topics: is required"),
        ("preset: streams\ntopics: {a: {priority: 101}}\n", "2:14 topics.a.priority: must be"),
        ("preset: streams\ntopics: {a: {weights: 2}}\n", "did you mean weight?"),
        (
            "policy: {classes: {a: {}}}\ncapacity:\n  reserved: {slots: 4, floors: {c: 1}}\n",
            "3:33 capacity.reserved.floors.c: is no class; the classes are a",
        ),
        (
            "policy: {classes: {a: {}, b: {}}}\ncapacity: {reserved: {slots: 4, floors: {a: 3, b: 3}}}\n",
            "reservations need 6 slots but the capacity is 4",
        ),
        ("policy: {fair: {then: {classes: {a: {}}}}}\ncapacity: {slots: 1}\n", "at the top only"),
    ],
)
def test_policies_that_cannot_be(text, said):
    with pytest.raises(BadFile, match=re.escape(said)):
        read_policy(text)


GATEWAY = {"preset": "gateway", "capacity": 400}


def test_a_setting_is_changed_by_its_path():
    policy = read_policy(GATEWAY | {"name": "now"})
    changed = policy.with_settings({"classes.interactive.reserved_per_slot": 0.4}, name="then")
    assert (policy.name, changed.name) == ("now", "then")
    assert changed.document["classes"] == {"interactive": {"reserved_per_slot": 0.4}}
    assert "classes" not in policy.document
    assert changed.with_settings({"capacity": 500}).build().slots == 500


def test_what_is_short_in_a_policy_is_long_in_a_file_of_the_gateway():
    policy = read_policy({"priority_scheduler": {"enabled": True}, "capacity": 400})
    changed = policy.with_settings({"classes.bulk.queue_size": 5})
    assert changed.document["priority_scheduler"]["classes"]["bulk"]["queue_size"] == 5


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("classes.interactive.reserved_per_slt", 0.2, "did you mean reserved_per_slot?"),
        ("capacity", "many", "capacity='many': policy capacity: must be a valid integer"),
        ("capacity.x", 1, "capacity is a single value"),
        ("classes..x", 1, "is no path"),
        ("", 1, "is no path"),
        ("classes.interactive.reserved_floor", 1000, "reservations need"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(path, value, said):
    policy = read_policy(GATEWAY | {"reservations_exceed": "fallback"})
    before = str(policy.document)
    with pytest.raises(ConfigError, match=re.escape(said)):
        policy.with_settings({path: value})
    assert str(policy.document) == before


def test_an_item_of_a_list_is_changed_by_its_number():
    workloads = [{"name": "a", "priority": 1}, {"name": "b", "priority": 2}]
    policy = read_policy({"preset": "flows", "scheduler": {"workloads": workloads}})
    changed = policy.with_settings({"scheduler.workloads.1.priority": 9})
    assert changed.document["scheduler"]["workloads"][1]["priority"] == 9
    with pytest.raises(ConfigError, match="no item 7"):
        policy.with_settings({"scheduler.workloads.7.priority": 9})


def test_a_policy_is_made_anew_for_each_simulation():
    policy = read_policy({"policy": {"classes": {"default": {}}}, "capacity": {"slots": 1}})
    scenario = read_scenario(
        {"count": 50, "arrivals": [{"kind": "steady", "rate": 9, "service": "300ms"}]}
    )
    assert simulate(scenario, policy, 1).dump() == simulate(scenario, policy, 1).dump()


LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5)
WORDS = st.sampled_from(
    "kind rate service class tenants count seconds arrivals policy capacity slots fifo fair then "
    "aging classes preset reserved floors by 1s constant exponential clients size file files".split()
    + list(KINDS)
    + list(PRESETS)
)
JUNK = st.recursive(
    LEAVES | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(WORDS, JUNK, max_size=6))
def test_no_document_raises_anything_but_what_is_wrong_with_it(junk: dict[str, Any]):
    for read in (read_scenario, read_policy):
        with suppress(ConfigError):
            read(junk)


def test_the_package_itself_is_light():
    import subprocess
    import sys

    seen = "import sys, fairlead.sim; print([n for n in ('pydantic', 'ruamel', 'asyncio') if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", seen], capture_output=True, text=True, timeout=60, check=True
    )
    assert "pydantic" not in done.stdout
    assert "ruamel" not in done.stdout


@pytest.mark.parametrize(
    ("arrivals", "says"),
    [
        (
            [{"kind": "steady", "rate": 19, "service": 0}] * 3,
            "would come 5,700,000 times together",
        ),
        (
            [{"kind": "closed", "clients": 60_000, "service": 1}] * 2,
            "are 120,000 clients together; 100,000 are the most",
        ),
    ],
)
def test_sources_that_are_too_many_together_are_refused(arrivals, says):
    with pytest.raises(BadFile, match=says):
        read_scenario({"seconds": 100_000, "arrivals": arrivals})


def test_the_heaviest_tail_is_cut_at_the_longest_duration():
    heavy = {"kind": "steady", "rate": 1, "service": {"pareto": {"least": "1d", "shape": 0.1}}}
    found = read_scenario({"count": 500, "arrivals": [heavy]}).arrivals(1)
    assert max(one.service for one in found) == 366 * 86_400


ONE = [{"kind": "steady", "rate": 1, "service": 1}]


def test_a_scenario_names_or_holds_the_policy_it_runs_under(tmp_path):
    (tmp_path / "mine.yaml").write_text("policy: fifo\ncapacity: {slots: 3}\n")
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps({"seconds": 1, "policy": "mine.yaml", "arrivals": ONE}))
    named = read_scenario(path).policy
    held = read_scenario({"seconds": 1, "policy": {"preset": "tasks"}, "arrivals": ONE}).policy
    assert named is not None
    assert held is not None
    assert (named.name, named.build().slots, held.build().slots) == ("mine", 3, 16)
    assert read_scenario({"seconds": 1, "arrivals": ONE}).policy is None


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (7, "policy: must be a policy, or the path of one; got 7"),
        ("", "policy: must be a policy, or the path of one; got ''"),
        ("nowhere.yaml", "policy: nowhere.yaml: cannot be read"),
        ({"preset": "gateway", "capaciti": 4}, "policy: capaciti: unknown key"),
    ],
)
def test_a_policy_of_a_scenario_that_cannot_be_read_is_explained(policy, says):
    with pytest.raises(BadFile, match=re.escape(says)):
        read_scenario({"seconds": 1, "policy": policy, "arrivals": ONE})


def test_the_configuration_of_a_server_is_a_policy_too(tmp_path):
    path = tmp_path / "fairlead.yaml"
    path.write_text(SERVED)
    gateway = read_policy(path)
    assert (gateway.name, gateway.build().slots) == ("fairlead", 12)
    more = gateway.with_settings({"classes.interactive.reserved_floor": 3})
    assert more.document["priority_scheduler"]["classes"]["interactive"]["reserved_floor"] == 3
    path.write_text(SERVED[SERVED.index("flows:") :])
    assert read_policy(path).build().slots == 7
    path.write_text(SERVED.replace("reserved_floor", "reservd_floor"))
    with pytest.raises(BadFile, match=r"fairlead.yaml:7:\d+ .*reservd_floor: unknown key"):
        read_policy(path)


SERVED = """\
server: {listen: "127.0.0.1:8080"}
gateway:
  upstreams:
    - {url: "http://127.0.0.1:9001", capacity: 12}
  priority_scheduler:
    enabled: true
    classes: {interactive: {reserved_floor: 2}, system: {reserved_floor: 0}}
flows:
  control_points:
    checkout: {concurrency: {max_concurrency: 7}}
"""
