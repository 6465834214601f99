"""The configuration of flows: the names of the issue, the defaults of spec §2, and everything wrong said at once."""

import random
from math import inf, nan
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead import ConfigError
from fairlead.flows.blocking import SyncFlowScheduler
from fairlead.flows.loading import Loaded, load, load_content
from fairlead.flows.scheduler import FlowScheduler
from fairlead.flows.settings import Settings
from fairlead.ledger.link import Link

ISSUE = """\
redis: redis://127.0.0.1:6379/0
control_points:
  checkout:
    quota:       {bucket_capacity: 30, fill_amount: 10, interval: 1s, limit_by_label_key: api_key, on_redis_loss: local}
    concurrency: {max_concurrency: 10, max_inflight_duration: 60s}
    load:        {controller: aimd, signal: latency_p95, setpoint: 250ms}
    scheduler:
      workloads:
        - {name: paid, match_labels: {tier: paid}, priority: 3, tokens: 1, queue_timeout: 2s}
        - {name: free, match_labels: {tier: free}, priority: 1}
      default_workload: {priority: 1, tokens: 1}
      fairness_label_key: user_id
      tokens_label_key: tokens
      max_queue: 1000
      denied_response_status_code: 503
"""


def read(text: str) -> Loaded:
    return load_content(text.encode(), "flows.yaml")


def in_point(text: str) -> Loaded:
    return read(f"control_points:\n  a:\n    {text}\n")


def test_the_configuration_of_the_issue(tmp_path: Path):
    file = tmp_path / "flows.yaml"
    file.write_text(ISSUE, encoding="utf-8")
    for config in (file, str(file)):
        loaded = load(config)
        assert (loaded.problems, loaded.lines, loaded.source) == ((), (), str(file))
        assert loaded.digest
        point = loaded.settings.control_points["checkout"]
        assert point.quota is not None
        assert (point.quota.bucket_capacity, point.quota.interval) == (30, 1.0)
        assert point.quota.limit_by_label_key == "api_key"
        assert point.load is not None
        assert point.load.setpoint == 0.25
        paid, free = point.scheduler.workloads
        assert (paid.name, paid.priority, paid.queue_timeout) == ("paid", 3, 2.0)
        assert (free.priority, free.tokens, free.queue_timeout) == (1, 1, None)
        assert point.scheduler.max_queue == 1000
    assert load(None).settings == load({}).settings == load(Settings()).settings == Settings()


def test_the_defaults_of_the_specification():
    point = in_point(
        "{quota: {bucket_capacity: 1, fill_amount: 1, interval: 1s},"
        " concurrency: {max_concurrency: 1}, load: {}}"
    ).settings.control_points["a"]
    scheduler, quota, concurrency, control = (
        point.scheduler,
        point.quota,
        point.concurrency,
        point.load,
    )
    assert scheduler.workloads == []
    assert (scheduler.default_workload.priority, scheduler.default_workload.tokens) == (1, 1)
    assert scheduler.default_workload.queue_timeout is None
    assert scheduler.decision_deadline_margin == 0.01
    assert scheduler.denied_response_status_code == 503
    assert scheduler.workload_latency_based_tokens is False
    keys = ("workload", "priority", "tokens", "fairness", "tenant")
    assert [getattr(scheduler, f"{key}_label_key") for key in keys] == [None] * 5
    assert quota is not None
    assert (quota.continuous_fill, quota.delay_initial_fill) == (True, False)
    assert (quota.limit_by_label_key, quota.max_idle_time) == (None, 7200)
    assert concurrency is not None
    assert (concurrency.limit_by_label_key, concurrency.max_idle_time) == (None, 7200)
    assert quota.on_redis_loss == concurrency.on_redis_loss == "local"
    assert quota.pass_through is concurrency.pass_through is False
    assert control is not None
    assert (control.period, control.dry_run) == (10, False)
    assert (control.alerter.severity, control.alerter.resolve_timeout) == ("info", 5)
    assert (control.gradient.slope, control.gradient.min_gradient) == (-1, 0.1)
    assert control.gradient.max_gradient == 1.0
    assert (control.max_load_multiplier, control.min_load_multiplier) == (2.0, 0.0)
    assert control.load_multiplier_linear_increment == 0.025
    assert control.load_multiplier_linear_decrement == 0.05
    assert control.overload_condition == "gt"


def test_a_limit_in_pass_through_is_checked_all_the_same():
    loaded = in_point("{quota: {pass_through: true, bucket_capacity: 1, fill_amount: 1}}")
    (problem,) = loaded.lines
    assert "control_points.a.quota.interval: is required" in problem


def test_every_fault_at_once_with_line_and_field():
    loaded = read(
        "redis: http://x\n"
        "control_point: {}\n"
        "control_points:\n"
        "  a:\n"
        "    quota: {bucket_capacity: -1, fill_amount: 0, interval: 5 parsecs}\n"
        "    concurrency: {max_concurrency: none, max_inflight_duration: 0}\n"
        "    scheduler:\n"
        "      workloads:\n"
        "        - {name: x, priority: -1, match_label: {}}\n"
        "        - {regex: {path: '('}}\n"
        "      max_queue: 1.5\n"
        "      denied_response_status_code: 200\n"
        "  b:\n"
        "    load: {controller: range}\n"
        "    quota: {}\n"
    )
    where = "control_points.a."
    found = dict.fromkeys((problem.line, problem.path) for problem in loaded.problems)
    assert list(found) == [
        (1, "redis"),
        (2, "control_point"),
        (5, where + "quota.bucket_capacity"),
        (5, where + "quota.fill_amount"),
        (5, where + "quota.interval"),
        (6, where + "concurrency.max_concurrency"),
        (6, where + "concurrency.max_inflight_duration"),
        (9, where + "scheduler.workloads[0].priority"),
        (9, where + "scheduler.workloads[0].match_label"),
        (10, where + "scheduler.workloads[1].regex.path"),
        (11, where + "scheduler.max_queue"),
        (12, where + "scheduler.denied_response_status_code"),
        (14, "control_points.b.load"),
        (15, "control_points.b.quota.bucket_capacity"),
        (15, "control_points.b.quota.fill_amount"),
        (15, "control_points.b.quota.interval"),
    ]
    assert all(line.startswith("flows.yaml:") for line in loaded.lines)
    assert loaded.settings == Settings()


@pytest.mark.parametrize("make", [FlowScheduler, SyncFlowScheduler])
def test_a_scheduler_is_not_made_of_them_and_says_them_all(make):
    with pytest.raises(ConfigError) as caught:
        make.from_config({"control_points": {"a": {"quota": {}, "lod": {}}}})
    said = str(caught.value)
    assert said.count("\n") == 3
    assert "did you mean load?" in said
    assert said.count("is required") == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{qota: {}}", "did you mean quota?"),
        ("{scheduler: {workload: []}}", "did you mean workloads?"),
        ("{scheduler: {fairness_key: x}}", "did you mean fairness_label_key?"),
        ("{scheduler: {token_label_key: x}}", "did you mean tokens_label_key?"),
        ("{concurrency: {max_concurency: 1}}", "did you mean max_concurrency?"),
        (
            "{concurrency: {max_concurrency: 1, max_in_flight_duration: 1s}}",
            "max_inflight_duration",
        ),
        ("{quota: {fill_rate: 1}}", "did you mean fill_amount?"),
        ("{load: {controler: aimd}}", "did you mean controller?"),
        ("{load: {controller: aimed}}", "did you mean aimd?"),
        ("{load: {gradient: {slop: 1}}}", "did you mean slope?"),
        ("{max_queue: 3}", "max_queue belongs in"),
        ("{scheduler: {workloads: [{nme: x}]}}", "did you mean name?"),
        ("{scheduler: {workloads: [{notin: {}}]}}", "did you mean not_in?"),
    ],
)
def test_unknown_keys_name_the_nearest(text, says):
    assert any(says in line for line in in_point(text).lines), in_point(text).lines


QUOTA = {"bucket_capacity": 1, "fill_amount": 1, "interval": "1s"}
NO_NUMBERS: list[Any] = [0, -1, nan, inf, -inf, 1e300, "many", None, [], {}]
BAD: list[tuple[str, dict[str, Any]]] = [
    (f"quota.{key}", {"quota": QUOTA | {key: value}})
    for key in ("bucket_capacity", "fill_amount")
    for value in NO_NUMBERS
]
BAD += [
    (f"quota.{key}", {"quota": QUOTA | {key: value}})
    for key, value in [
        ("interval", 0),
        ("interval", "1"),
        ("interval", "-1s"),
        ("interval", "367d"),
        ("max_idle_time", "-1s"),
        ("continuous_fill", "perhaps"),
        ("on_redis_loss", "panic"),
        ("limit_by_label_key", ""),
        ("limit_by_label_key", "x" * 201),
    ]
]
BAD += [
    ("concurrency.max_concurrency", {"concurrency": {"max_concurrency": value}})
    for value in (0, -3, nan, inf, "newton", 1e300)
]
BAD += [
    (f"scheduler.{key}", {"scheduler": {key: value}})
    for key, value in [
        ("max_queue", -1),
        ("max_queue", 10**9),
        ("denied_response_status_code", 399),
        ("denied_response_status_code", 600),
        ("denied_response_status_code", "503"),
        ("decision_deadline_margin", "-1s"),
        ("default_max_priority", 0),
        ("tenants.x.max_priority", None),
        ("workloads", {}),
    ]
    if "." not in key
]
BAD += [
    (f"scheduler.default_workload.{key}", {"scheduler": {"default_workload": {key: value}}})
    for key, value in [
        ("priority", -1),
        ("priority", nan),
        ("priority", inf),
        ("tokens", -1),
        ("queue_timeout", "-1s"),
    ]
]
BAD += [
    ("scheduler.tenants.x.max_priority", {"scheduler": {"tenants": {"x": {"max_priority": 0}}}})
]

ENDS = ({"signal_value": 1, "load_multiplier": 1}, {"signal_value": 1, "load_multiplier": 0.2})
BAD_LOADS: list[tuple[str, dict[str, Any]]] = [
    ("gradient.slope", {"gradient": {"slope": 0}}),
    ("gradient.max_gradient", {"gradient": {"min_gradient": 0.5, "max_gradient": 0.4}}),
    ("gradient", {"gradient": {"min_gradient": 2}}),  # the largest is not given
    (
        "high_throttle_threshold",
        {
            "controller": "range",
            "low_throttle_threshold": ENDS[0],
            "high_throttle_threshold": ENDS[1],
        },
    ),
    ("period", {"period": "50ms"}),
    ("period", {"period": "99ms"}),
    ("setpoint", {"controller": "pid", "setpoint": 0}),
    ("setpoint", {"setpoint": 10**400}),
    ("min_load_multiplier", {"controller": "aiad", "min_load_multiplier": 2}),
    ("min_load_multiplier", {"controller": "pid", "min_load_multiplier": 1}),
    (
        "min_load_multiplier",
        {"controller": "pid", "min_load_multiplier": 0.5, "max_load_multiplier": 0.5},
    ),
    ("signal", {"signal": "latency_p0"}),
    ("signal", {"signal": "latency_p100.1"}),
    ("signal", {"signal": "latency_p101"}),
    ("confirmation", {"confirmation": "latency_p0.0"}),
]
BAD += [
    (f"load.{field}", {"load": {"signal": "posted", "setpoint": 1} | said})
    for field, said in BAD_LOADS
]


@pytest.mark.parametrize(("field", "point"), BAD, ids=lambda given: str(given)[:200])
def test_a_value_that_cannot_be_used(field, point):
    problems = load({"control_points": {"a": point}}).problems
    assert problems
    assert {problem.path for problem in problems} == {f"control_points.a.{field}"}


def test_faults_of_load_have_their_line_and_field():
    loaded = read(
        "control_points:\n"
        "  a:\n"
        "    load: {signal: x, setpoint: 1, gradient: {slope: 0}}\n"
        "  b:\n"
        "    load:\n"
        "      signal: latency_p0\n"
        "      period: 50ms\n"
    )
    assert [(problem.line, problem.path) for problem in loaded.problems] == [
        (3, "control_points.a.load.gradient.slope"),
        (6, "control_points.b.load.signal"),
        (7, "control_points.b.load.period"),
    ]


NUMBERS = st.sampled_from([0, -1, 0.05, 0.1, 0.5, 1, 1.5, 2, 3, 1e300])
THRESHOLDS = st.fixed_dictionaries({"signal_value": NUMBERS, "load_multiplier": NUMBERS})
SIGNALS = st.from_regex(r"latency_p[0-9]{0,3}(\.[0-9]{1,2})?", fullmatch=True) | st.just("posted")
LOADS = st.fixed_dictionaries(
    {"controller": st.sampled_from(["aimd", "aiad", "range", "pid"])},
    optional={
        "signal": SIGNALS,
        "confirmation": SIGNALS,
        "setpoint": NUMBERS | st.just("learned"),
        "period": NUMBERS,
        "gradient": st.dictionaries(
            st.sampled_from(["slope", "min_gradient", "max_gradient"]), NUMBERS
        ),
        "min_load_multiplier": NUMBERS,
        "max_load_multiplier": NUMBERS,
        "low_throttle_threshold": THRESHOLDS,
        "high_throttle_threshold": THRESHOLDS,
        "degree": NUMBERS,
        "pid": st.dictionaries(st.sampled_from(["kp", "ki", "kd"]), NUMBERS),
    },
)


@given(LOADS)
def test_what_is_found_valid_can_be_used(said):
    loaded = load({"control_points": {"a": {"load": said}}})
    if not loaded.problems:
        FlowScheduler(loaded.settings)


@pytest.mark.parametrize(("said", "most"), [({}, 1.0), ({"max_load_multiplier": 0.5}, 0.5)])
def test_a_pid_goes_up_to_its_largest_multiplier_which_is_1_unless_given(said, most):
    point = {"load": {"controller": "pid", "signal": "posted", "setpoint": 100} | said}
    control = FlowScheduler.from_config({"control_points": {"a": point}}).points["a"].load
    assert control is not None
    told = control.controller.strategy.step(150.0, None, now=0.0)
    assert told.load_multiplier == pytest.approx(most - 0.2 * 0.5)


def test_the_largest_latency_is_a_percentile():
    flows = FlowScheduler.from_config(
        {"control_points": {"a": {"load": {"signal": "latency_p100"}}}}
    )
    control = flows.points["a"].load
    assert control is not None
    assert len(control.latencies) == 1
    assert flows.signals.names() == []


@pytest.mark.parametrize(
    ("names", "second"),
    [(["x", "x"], 1), (["default"], 0), (["1", None], 1), ([None, "0"], 1), (["0", "0"], 1)],
    ids=str,
)
def test_scenario_29_duplicate_names_of_workloads(names, second):
    workloads = [{} if name is None else {"name": name} for name in names]
    (problem,) = load({"control_points": {"a": {"scheduler": {"workloads": workloads}}}}).problems
    assert problem.path.startswith(f"control_points.a.scheduler.workloads[{second}]")
    assert "each workload needs a name of its own" in problem.message


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(", r"(a{1000}){1000}", "a" * 1001])
def test_a_pattern_that_cannot_be_matched_in_linear_time_is_refused(pattern):
    workloads = [{"regex": {"path": pattern}}]
    (problem,) = load({"control_points": {"a": {"scheduler": {"workloads": workloads}}}}).problems
    assert problem.path == "control_points.a.scheduler.workloads[0].regex.path"
    assert "must be" in problem.message
    assert "\n" not in problem.message


def test_a_password_is_never_shown():
    loaded = read("redis: mysql://user:s3cret@x/0\n")
    assert loaded.problems
    assert "s3cret" not in str(loaded.lines)
    with pytest.raises(ConfigError) as caught:
        FlowScheduler.from_config({"redis": "mysql://user:s3cret@x/0"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["redis://:s3cret/x@h/0", "redis://:s3cret#x@h/0", "redis://:s3cret@h:x", "redis://:s3cret@[h"],
)
def test_the_url_of_a_redis_must_be_readable_and_is_not_shown(url):
    loaded = load({"redis": url})
    assert "percent" in loaded.lines[0]
    assert "s3cret" not in str(loaded.lines)
    with pytest.raises(ConfigError) as told:
        Link(url, monotonic)
    assert "s3cret" not in str(told.value)


def test_the_password_of_a_redis_is_not_in_the_repr_of_its_settings():
    loaded = load({"redis": " redis://:s3cret@h/0\n"})
    assert loaded.settings.redis == "redis://:s3cret@h/0"
    assert "s3cret" not in repr(loaded.settings)


@pytest.mark.parametrize(
    "config", [b"bytes", 7, [], 3.5, object(), "/nowhere/flows.yaml", "", "\0", "."]
)
def test_what_is_no_configuration(config):
    loaded = load(config)
    assert len(loaded.lines) == 1
    with pytest.raises(ConfigError):
        FlowScheduler.from_config(config)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.sampled_from(["1s", "250ms", "vegas", "aimd", "range", "learned", "(", "", "x"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = st.sampled_from(
    """redis control_points a quota concurrency load scheduler workloads name match_labels in not_in exists regex all
    any not priority tokens queue_timeout default_workload max_queue tenants max_priority bucket_capacity fill_amount
    interval max_concurrency controller setpoint gradient slope pid low_throttle_threshold degree""".split()
)
TREES = st.recursive(
    VALUES,
    lambda inner: st.dictionaries(KEYS, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, TREES, max_size=3))
@example({"control_points": {"a": {"load": {"controller": "range", "setpoint": "x"}}}})
@example({"control_points": {"a": {"scheduler": {"workloads": [{"regex": {"x": "(?P<a"}}]}}}})
@settings(max_examples=300)
def test_no_mapping_raises(tree):
    loaded = load(tree)
    assert all(isinstance(line, str) for line in loaded.lines)
    if loaded.problems:
        assert loaded.settings == Settings()
    else:
        FlowScheduler.from_config(tree)


def test_no_damaged_file_raises():
    rng = random.Random(4)
    for _ in range(1_000):
        content = bytearray(ISSUE.encode())
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(content))
            kind = rng.randrange(3)
            if kind == 0:
                content[at] = rng.randrange(256)
            elif kind == 1:
                del content[at : at + rng.randrange(20)]
            else:
                content[at:at] = rng.choice(
                    [b"\t", b"\n", b"{", b"}", b": ", b"&a ", b"*a ", b"\0"]
                )
        loaded = load_content(bytes(content), "flows.yaml")
        assert loaded.problems or loaded.settings is not None
