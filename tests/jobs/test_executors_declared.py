"""How executors are declared, and what is said of mistakes."""

import pytest

from fairlead.errors import ConfigError
from fairlead.jobs.executors.base import spec_of, specs_of
from fairlead.jobs.executors.kinds import runner_of


@pytest.mark.parametrize(
    ("value", "kind", "slots", "here"),
    [
        (4, "local", 4, True),
        ({"kind": "local", "slots": 2}, "local", 2, True),
        ({"slots": 2, "num_gpus": 1}, "ray", 2, True),
        ({}, "ray", None, True),
        ({"kind": "threads", "slots": 2}, "threads", 2, True),
        ({"kind": "processes", "slots": 10_000}, "processes", 10_000, True),
        ("worker", "worker", None, False),
        ({"kind": "worker"}, "worker", None, False),
        ("ray", "ray", None, True),
        ({"kind": "ray", "slots": 3, "address": "auto", "num_gpus": 0.5}, "ray", 3, True),
        ({"kind": "ray", "resources": {"tpu": 1}, "max_calls": 5}, "ray", None, True),
    ],
)
def test_ways_to_declare_one(value, kind, slots, here):
    spec = spec_of("ocr", value)
    assert (spec.name, spec.kind, spec.slots, spec.here) == ("ocr", kind, slots, here)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "slots of executor 'ocr' must be a whole number"),
        (-1, "slots of executor 'ocr'"),
        (10_001, "slots of executor 'ocr'"),
        (True, "executor 'ocr' must be a number of slots"),
        (2.5, "executor 'ocr' must be"),
        (None, "executor 'ocr' must be"),
        ("4", "executor 'ocr' must be"),
        ("Ray", "executor 'ocr' must be"),
        ([4], "executor 'ocr' must be"),
        ({"kind": "local"}, "executor 'ocr' of kind local needs"),
        ({"kind": "process", "slots": 1}, "kind of executor 'ocr' must be one of"),
        ({"kind": ["ray"], "slots": 1}, "kind of executor 'ocr' must be one of"),
        ({"kind": "threads"}, "of kind threads needs"),
        ({"kind": "threads", "slots": "4"}, "slots of executor 'ocr'"),
        ({"kind": "threads", "slots": 4, "address": "auto"}, "has no option 'address'"),
        ({"kind": "worker", "slots": 4}, "leave slots out"),
        ({"kind": "ray", "slots": 0}, "slots of executor 'ocr'"),
        ({"kind": "ray", "slot": 1}, "has no option 'slot'"),
        ({"kind": "ray", "address": ""}, "address of executor 'ocr'"),
        ({"kind": "ray", "address": 6379}, "address of executor 'ocr'"),
        ({"kind": "ray", "num_cpus": -1}, "num_cpus of executor 'ocr'"),
        ({"kind": "ray", "num_cpus": float("nan")}, "num_cpus of executor 'ocr'"),
        ({"kind": "ray", "resources": 3}, "resources of executor 'ocr'"),
        ({"kind": "ray", "resources": {"tpu": "many"}}, "resource 'tpu' of executor 'ocr'"),
        ({"kind": "ray", "resources": {3: 1}}, "resources of executor 'ocr'"),
        ({"kind": "ray", "max_calls": 0}, "max_calls of executor 'ocr'"),
    ],
)
def test_mistakes_name_the_executor(value, said):
    with pytest.raises(ConfigError, match="ocr") as caught:
        spec_of("ocr", value)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "ü", 3, None, "x" * 65])
def test_names_are_checked(name):
    with pytest.raises(ConfigError, match="name of an executor"):
        specs_of({name: 1})


@pytest.mark.parametrize("value", [3, "ocr", ["ocr"]])
def test_executors_are_a_mapping(value):
    with pytest.raises(ConfigError, match="executors must map names to slots"):
        specs_of(value)


def test_none_are_none():
    assert specs_of(None) == specs_of({}) == {}


def test_what_is_served_elsewhere_has_no_runner():
    with pytest.raises(ConfigError, match="'gpu' is served elsewhere"):
        runner_of(spec_of("gpu", "worker"))
