"""DAG files: the same rules as in Python, and each mistake with its line and column."""

import json
import os
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import BadFile, ConfigError, FairleadError
from fairlead.jobs.files import DagFile, run_of_content, run_of_file
from fairlead.jobs.graph import Dag
from fairlead.jobs.payload import decode_call
from fairlead.jobs.registry import task_of

NOW = 1_760_000_000.0


def extract(doc): ...


def merge(pages): ...


TASKS = {"extract": task_of(extract, executor="ocr", estimate="20s"), "merge": task_of(merge)}

YAML = """\
name: invoice
soft_sla: 15m
hard_sla: 2026-03-01T12:00:00+01:00
tenant: acme
key: invoice-4711
jobs:
  - {name: a, task: extract, args: [a.pdf], kwargs: {pages: 3}}
  - name: all
    task: merge
    args: [[{$result: a}, {$result: b}], {$$result: mine}]
    after: [first]
    soft_sla: 10m
  - {name: b, task: extract, args: [b.pdf]}
  - {name: first, task: extract}
"""


def run_of(content, **more):
    return run_of_content(content.encode() if isinstance(content, str) else content, TASKS, now=NOW)


def complaints(content, name="DAG"):
    with pytest.raises(BadFile) as caught:
        run_of_content(content.encode(), TASKS, now=NOW, name=name)
    return list(caught.value.lines)


def test_a_file_is_the_dag_it_describes(tmp_path):
    file = tmp_path / "invoice.yaml"
    file.write_text(YAML)
    run = run_of_file(file, TASKS, now=NOW)
    assert run == run_of_file(str(file), TASKS, now=NOW) == run_of(YAML)
    dag = Dag("invoice", soft_sla="15m", hard_sla=1772362800.0, tenant="acme", key="invoice-4711")
    a = dag.add(extract, "a.pdf", pages=3).options(name="a")
    last = dag.add(merge).options(name="all", after=["first"], soft_sla="10m")
    b = dag.add(extract, "b.pdf").options(name="b")
    dag.add(extract).options(name="first")
    last.give([[a, b], {"$result": "mine"}], {})
    assert run == dag.plan(TASKS, now=NOW)
    assert set(run.jobs[1].needs) == {0, 2, 3}
    called = decode_call(run.jobs[1].payload, {0: "1", 2: "2"})
    assert called == ([[1, 2], {"$result": "mine"}], {})


def test_json_yaml_and_mappings_are_the_same(tmp_path):
    written = {
        "name": "a",
        "jobs": [
            {"name": "x", "task": "extract", "args": [1, None, {"k": [True, 1.5]}]},
            {"name": "y", "task": "merge", "kwargs": {"pages": {"$result": "x"}}},
        ],
    }
    run = run_of_file(written, TASKS, now=NOW)
    assert run == run_of(json.dumps(written)) == run_of(json.dumps(written, indent=2))
    assert run == run_of("\ufeff" + json.dumps(written))
    flow = "{name: a, jobs: [{name: x, task: extract, args: [1, null, {k: [true, 1.5]}]}, "
    flow += "{name: y, task: merge, kwargs: {pages: {$result: x}}}]}"
    assert run == run_of(flow)


def test_start_and_learned_estimates_are_passed_on():
    written = {"name": "a", "soft_sla": "1m", "jobs": [{"name": "x", "task": "merge"}]}
    run = run_of_file(written, TASKS, now=NOW, start_at=NOW + 60, estimates={"merge": 4.0})
    assert (run.start_at, run.soft, run.jobs[0].estimate) == (NOW + 60, NOW + 120, 4.0)


def test_every_mistake_is_told_at_once_with_its_place():
    assert complaints(
        "name: x\nsoft_slaa: 15m\njobs:\n  - {name: a, task: extract}\n  - {name: b, afte: [a]}\n",
        "x.yaml",
    ) == [
        "x.yaml:2:1 soft_slaa: unknown key 'soft_slaa'; did you mean soft_sla?",
        "x.yaml:5:5 jobs[1].task: is required",
        "x.yaml:5:15 jobs[1].afte: unknown key 'afte'; did you mean after?",
    ]


def test_an_unknown_key_hides_nothing_else():
    jobs = "  - {name: x, task: extrac, kwarg: 2}\n  - {name: x, task: merge, args: [{$result: zz}], after: [q]}\n"
    found = complaints(f"name: a\nhard: 1m\njobs:\n{jobs}", "x.yaml")
    assert found == [
        "x.yaml:2:1 hard: unknown key 'hard'; did you mean hard_sla?",
        "x.yaml:4:15 jobs[0].task: no task is called 'extrac'; did you mean 'extract'?",
        "x.yaml:4:29 jobs[0].kwarg: unknown key 'kwarg'; did you mean kwargs?",
        *complaints(f"name: a\n\njobs:\n{jobs.replace(', kwarg: 2', '')}", "x.yaml")[1:],
    ]
    assert len(found) == 6


def test_every_mistake_of_the_graph_is_told_at_once_with_its_place():
    content = """{"name": "x", "soft_sla": "2m", "hard_sla": "1m", "jobs": [
  {"name": "a", "task": "extract", "args": [{"$result": "b"}], "after": ["q"]},
  {"name": "b", "task": "extrakt", "args": [12345678901234567890]},
  {"name": "b", "task": "merge", "args": [[{"$result": 1}]], "kwargs": {"x": {"$result": "a", "b": 1}}},
  {"name": "c", "task": "merge", "args": [{"$result": "zz"}], "soft_sla": "2h", "hard_sla": "1h"}
]}"""
    assert complaints(content, "x.json") == [
        "x.json:1:15 soft_sla: soft_sla of DAG 'x' is 60 s after its hard_sla; the soft one comes first",
        "x.json:2:64 jobs[0].after: job 'a' waits for 'q', which is not in the DAG",
        "x.json:3:17 jobs[1].task: no task is called 'extrakt'; did you mean 'extract'?",
        "x.json:3:36 jobs[1].args: job 'b': args[0]: the integer 12345678901234567890 needs more "
        "than 64 bits; give it as text",
        "x.json:4:4 jobs[2].name: DAG 'x' has two jobs called 'b'; rename one",
        'x.json:4:45 jobs[2].args[0][0]["$result"]: $result takes the name of a job; got 1',
        'x.json:4:79 jobs[2].kwargs.x["$result"]: $result stands alone in its mapping; '
        "write $$result for a key of that name",
        "x.json:5:44 jobs[3].args[0][\"$result\"]: no job is called 'zz'",
        "x.json:5:63 jobs[3].soft_sla: soft_sla of job 'c' is 3600 s after its hard_sla; "
        "the soft one comes first",
    ]


def test_a_cycle_is_told_with_a_place():
    content = "name: x\njobs:\n- {name: a, task: merge, after: [b]}\n"
    content += "- {name: b, task: merge, args: [{$result: a}]}\n"
    (said,) = complaints(content)
    assert said.startswith("DAG:3:26 jobs[0].after: the DAG has a cycle: a → b → a")


def test_many_mistakes_are_cut():
    jobs = [{"name": str(number), "task": "nope"} for number in range(5000)]
    start = time.process_time()
    lines = complaints(json.dumps({"name": "x", "jobs": jobs}))
    assert len(lines) == 20
    assert time.process_time() - start < 5
    error = BadFile([f"line {number}" for number in range(30)])
    assert str(error).endswith("line 19\n... and 10 more")


def filled(text, one='"jobs": [{"name": "a", "task": "merge"}]'):
    return text.replace("ONE", one)


def called(args):
    return filled('{"name": "x", "jobs": [{"name": "a", "task": "merge", "args": ONE}]}', args)


BAD = {
    "empty": ("", "is empty"),
    "blank": ("  \n\n", "is empty"),
    "a comment": ("# nothing\n", "is empty"),
    "a list": ("- a\n- b\n", "must be a mapping"),
    "a JSON list": ("[1, 2]", "must be a mapping"),
    "a word": ("hello", "must be a mapping"),
    "a number": ("7", "must be a mapping"),
    "no name": (filled("{ONE}"), "name: is required"),
    "no jobs": ('{"name": "x"}', "jobs: is required"),
    "0 nodes": ('{"name": "x", "jobs": []}', "jobs: .*at least 1"),
    "jobs is a mapping": ('{"name": "x", "jobs": {"a": 1}}', "jobs: must be a list"),
    "a job is text": ('{"name": "x", "jobs": ["a"]}', r"jobs\[0\]: must be a mapping"),
    "name is a number": (filled('{"name": 7, ONE}'), "name: must be text"),
    "name is empty": (filled('{"name": "", ONE}'), "name: must be text that is not empty"),
    "NUL in the name": (filled('{"name": "a\\u0000", ONE}'), "may not contain"),
    "surrogate in the name": (filled('{"name": "a\\ud800", ONE}'), "may not contain"),
    "long name": (filled('{"name": "NAME", ONE}').replace("NAME", "a" * 256), "255 characters"),
    "key is a list": (filled('{"name": "x", "key": [1], ONE}'), "key: must be text"),
    "tenant is empty": (filled('{"name": "x", "tenant": " ", ONE}'), "tenant: must be text"),
    "sla without unit": (filled('{"name": "x", "soft_sla": "15", ONE}'), "soft_sla: needs a unit"),
    "negative sla": (filled('{"name": "x", "hard_sla": -1, ONE}'), "hard_sla: must be a duration"),
    "naive sla": (filled('{"name": "x", "soft_sla": "2026-01-01T00:00:00", ONE}'), "no time zone"),
    "sla of year 9999": (filled('{"name": "x", "soft_sla": "9999-12-31T00:00:00Z", ONE}'), "9998"),
    "offset +99:00": (
        filled('{"name": "x", "soft_sla": "2026-01-01T00:00:00+99:00", ONE}'),
        "date",
    ),
    "sla is a list": (filled('{"name": "x", "soft_sla": [], ONE}'), "soft_sla: must be a duration"),
    "args is a mapping": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "args": {}}]}',
        "args: must be a list",
    ),
    "kwargs is a list": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "kwargs": []}]}',
        "kwargs: must be a mapping",
    ),
    "after is text": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "after": "a"}]}',
        "after: must be a list",
    ),
    "self-edge": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "after": ["a"]}]}',
        "a → a",
    ),
    "a result of itself": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "args": [{"$result": "a"}]}]}',
        "a → a",
    ),
    "unknown task": (
        '{"name": "x", "jobs": [{"name": "a", "task": "os.system"}]}',
        "no task is called 'os.system'",
    ),
    "duplicate keys": (filled('{"name": "x", "name": "y", ONE}'), "name: is given twice"),
    "duplicate keys within": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "kwargs": {"a": 1, "a": 2}}]}',
        r":1:66 jobs\[0\].kwargs.a: is given twice",
    ),
    "duplicate keys in YAML": ("name: x\nname: y\njobs: []\n", "is given twice"),
    "NaN literal": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "args": [NaN]}]}',
        "NaN is no number",
    ),
    "Infinity literal": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "args": [-Infinity]}]}',
        "-Infinity is no number",
    ),
    "NaN in YAML": (
        "name: x\njobs: [{name: a, task: merge, args: [.nan]}]\n",
        r"args\[0\]: nan is no number",
    ),
    "1e999": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "args": [1e999]}]}',
        r"args\[0\]: inf is no number",
    ),
    "5,000 digits": (
        called("[" + "1" * 5000 + "]"),
        "cannot be read as JSON|64 bits",
    ),
    "NUL in an argument": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "args": ["\\u0000"]}]}',
        "NUL",
    ),
    "surrogate in an argument": (
        '{"name": "x", "jobs": [{"name": "a", "task": "merge", "kwargs": {"\\ud800": 1}}]}',
        "surrogate",
    ),
    "1 MiB and 1": (
        called('["' + "x" * 2**20 + '"]'),
        "bytes of JSON, more than",
    ),
    "nested 200 deep": (
        called("[" * 200 + "]" * 200),
        "100 levels deep",
    ),
    "nested 100,000 deep": (
        called("[" * 100_000 + "]" * 100_000),
        "nested too deep|levels deep",
    ),
    "a tag": ("name: !!python/object:os.system x\njobs: []\n", "tag"),
    "a tab": ("name: x\njobs:\n\t- {name: a, task: merge}\n", "tab"),
    "two documents": ("name: x\njobs: []\n---\nname: y\n", "second document"),
    "cut off": ('{"name": "x", "jobs": [', "cannot be read"),
    "something after it": (filled('{"name": "x", ONE} rest'), "cannot be read"),
    "a YAML bomb": (
        "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(
            f"{name}: &{name} [{','.join(['*' + chr(ord(name) - 1)] * 10)}]\n" for name in "bcdefgh"
        ),
        "more than 100,000 values",
    ),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
def test_bad_input_in_a_file(content, said):
    with pytest.raises(BadFile, match=said) as caught:
        run_of(content)
    assert "\0" not in str(caught.value)
    assert all(len(line) < 500 for line in caught.value.lines)


def test_a_comma_too_many_is_yaml_but_not_json():
    content = filled('{"name": "x", ONE,}')
    assert len(run_of(content).jobs) == 1
    (said,) = complaints(content, "x.json")
    assert said.startswith("x.json:1:56: cannot be read as JSON: ")


def test_bad_input_non_utf_8():
    for content in (b'{"name": "\xff"}', b"name: \xff\n", b"\xff\xfe{", b"\x00"):
        with pytest.raises(BadFile):
            run_of(content)
    with pytest.raises(BadFile, match=r"DAG:1:11: is not UTF-8"):
        run_of(b'{"name": "\xff"}')


def test_bad_input_100_001_nodes():
    jobs = [{"name": str(number), "task": "merge"} for number in range(100_001)]
    with pytest.raises(BadFile, match="at most 100000 items"):
        run_of_file({"name": "x", "jobs": jobs}, TASKS, now=NOW)
    assert len(run_of_file({"name": "x", "jobs": jobs[:10_000]}, TASKS, now=NOW).jobs) == 10_000


def test_a_large_dag_on_one_line_is_fine():
    jobs = [
        {"name": str(number), "task": "merge", "args": [{"$result": str(number - 1)}]}
        for number in range(1, 5000)
    ]
    jobs.append({"name": "0", "task": "merge", "args": ["x" * 1_000_000]})
    run = run_of(json.dumps({"name": "x", "jobs": jobs}))
    assert max(job.level for job in run.jobs) == 4999


def test_files_that_cannot_be_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate((16 << 20) + 1)
    for path, said in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "not a regular file"),
        (pipe, "not a regular file"),
        (large, "larger than"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(BadFile, match=said):
            run_of_file(path, TASKS, now=NOW)
    for given_instead in (None, 7, b"name: x", ["name"]):
        with pytest.raises(ConfigError):
            run_of_file(given_instead, TASKS, now=NOW)


def test_large_yaml_is_refused_at_once():
    content = "name: x\njobs:\n" + "  - {name: a, task: merge}\n" * 50_000
    with pytest.raises(BadFile, match="write it as JSON"):
        run_of(content)


def test_mappings_are_anybodys_code():
    ring: dict[str, Any] = {"name": "a", "task": "merge"}
    ring["args"] = [ring, ring, ring]

    class Rude(dict[str, Any]):
        def __iter__(self):
            raise RuntimeError("no")

        keys = items = __iter__

    for jobs in ([ring], [{"name": "a", "task": "merge", "args": [object()]}], [Rude(a=1)], ring):
        with pytest.raises(BadFile):
            run_of_file({"name": "x", "jobs": jobs}, TASKS, now=NOW)
    with pytest.raises(BadFile):
        run_of_file(Rude(name="x"), TASKS, now=NOW)


def test_the_schema_can_be_shown():
    schema = DagFile.model_json_schema()
    assert set(schema["properties"]) == {"name", "soft_sla", "hard_sla", "tenant", "key", "jobs"}
    keys = {"name", "task", "args", "kwargs", "after", "soft_sla", "hard_sla"}
    assert set(schema["$defs"]["JobEntry"]["properties"]) == keys


# Fuzz


def attempt(content):
    start = time.process_time()
    with suppress(FairleadError):
        run_of(content)
    assert time.process_time() - start < 5


@given(st.binary() | st.text())
def test_no_content_crashes_the_reader(content):
    attempt(content)


words = ["name", "jobs", "task", "args", "kwargs", "after", "soft_sla", "$result", "$$result", "a"]
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([*words, "merge", "extract", "15m"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(words) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {"name": st.sampled_from("abc") | json_values, "task": st.just("merge") | json_values},
    optional={
        "args": st.lists(json_values, max_size=3),
        "kwargs": st.dictionaries(st.text(max_size=3), json_values, max_size=3),
        "after": st.lists(st.sampled_from("abcd") | json_values, max_size=2),
        "soft_sla": json_values,
        "hard_sla": json_values,
    },
)
documents = st.fixed_dictionaries(
    {"name": st.just("x") | json_values, "jobs": st.lists(entries, max_size=4) | json_values},
    optional=dict.fromkeys(("soft_sla", "hard_sla", "tenant", "key", "more"), json_values),
)


@given(documents)
def test_no_document_crashes_the_reader(document):
    attempt(json.dumps(document))
    attempt(json.dumps(document, indent=1, ensure_ascii=True)[: len(str(document)) * 2 // 3])
    with suppress(FairleadError):
        run_of_file(document, TASKS, now=NOW)


@given(st.data())
@settings(max_examples=200)
def test_a_damaged_file_does_not_crash_the_reader(data):
    content = bytearray(
        data.draw(st.sampled_from([YAML.encode(), json.dumps({"a": [1]}).encode()]))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=4))
        if not content:
            break
    attempt(bytes(content))
