"""YAML and mappings that nobody should trust: refused with a place, never raised, always in bounded time."""

import json
import os
import string
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.documents import reading
from fairlead.documents.loading import EMPTY
from fairlead.gateway import loading
from fairlead.gateway.loading import Loaded, load, load_content
from fairlead.gateway.settings import BUILT_IN, Settings, json_schema


def read(text: str | bytes) -> Loaded:
    return load_content(text.encode() if isinstance(text, str) else text, "gateway.yaml")


def only(text: str | bytes) -> reading.Problem:
    (problem,) = read(text).problems
    return problem


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "null", "\ufeff", "~"])
def test_an_empty_document_is_refused(text):
    assert only(text).message == EMPTY


def test_a_document_that_says_nothing_says_so():
    assert read("{}")[:2] == (Settings(), ())


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("a:\n\tb: 1", 2, 1, "a tab may not stand here"),
        ("listen:\t:80", 1, 8, "a tab may not stand here"),
        ("listen: !!python/object:os.system x", 1, 9, "a tag is not allowed"),
        ("listen: !!python/object/apply:os.system [x]", 1, 9, "is not allowed"),
        ("listen: !custom ':80'", 1, 9, "a tag is not allowed"),
        ("listen: !!str :80", 1, 9, "is not allowed"),
        ("listen: :80\nlisten: :81", 2, 1, "is given twice, first on line 1"),
        ("listen: :80\n---\nlisten: :81", 2, 1, "a second document"),
        ("listen: *a", 1, 9, "no anchor of this name"),
        ("a: &a [*a]", 1, 8, "stands inside"),
        ("fallback: &f {queue_size: 1}\nlimits: {<<: *f}", 2, 10, "merge keys"),
        ("1: x", 1, 1, "a key must be text"),
        ("true: x", 1, 1, "a key must be text"),
        ("? [a]\n: x", 1, 3, "a key must be text"),
        ("- a", 1, 1, "must be a mapping of settings; got a list"),
        ("text", 1, 1, "must be a mapping of settings; got a single value"),
        ("listen: 'x", 1, 11, "cannot be read as YAML"),
        ("a: b: c", 1, 5, "mapping values are not allowed here"),
        ("a: [1,", 1, 7, "cannot be read as YAML"),
        ("listen: a\0b", 1, 10, "the character '\\x00' is not allowed"),
        (b"a: 1\nb: \xff", 2, 4, "is not UTF-8"),
        ("listen: :80\n".encode("utf-16"), 1, 1, "is not UTF-8"),
        ('a: "\\U0011ffff"', 0, 0, "cannot be read as YAML"),
        ("[" * 1000, 1, 33, "nested more than 32"),
        ("a: " + "x" * 20_000, 1, 10_001, "longer than 10,000"),
    ],
)
def test_yaml_that_is_refused(text, line, column, says):
    found = [problem for problem in read(text).problems if says in problem.message]
    assert [(problem.line, problem.column) for problem in found] == [(line, column)]


def test_yaml_1_2_words_and_numbers():
    for word in ("yes", "no", "on", "off", "y", "1", '"true"'):
        assert "must be true or false" in only(f"strict: {word}").message
    for word in ("true", "True", "TRUE"):
        assert read(f"strict: {word}").settings.strict is True
    assert read("capacity: 0x10").settings.capacity == 16
    assert read("capacity: 0o10").settings.capacity == 8
    assert read("capacity: 010").settings.capacity == 10
    for word in ("1_000", "1:30", "1e400", ".inf", "-1", "65536", "9" * 5000, "2.0", "'2'", "0b1"):
        assert only(f"capacity: {word}").path == "capacity"


def test_an_alias_may_repeat_but_not_explode():
    loaded = read("fallback: &f {queue_size: 3}\nlimits: *f")
    assert loaded.settings.fallback.queue_size == 3
    assert loaded.problems[0].path == "limits.queue_size"
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20)]
    began = time.process_time()
    assert "100,000 values" in only("\n".join(levels)).message
    assert time.process_time() - began < 2
    deeper = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 2000)]
    assert "nested more than 32" in only("\n".join(deeper)).message


def test_without_counting_aliases_would_explode(monkeypatch):
    """The mutant: the limit is what stops a bomb, not something else on the way."""
    text = "\n".join(
        ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 13)]
    )
    monkeypatch.setattr(reading, "MOST_VALUES", 5000)
    assert "values" in only(text).message
    monkeypatch.setattr(reading, "_grow", lambda parent, node, at: None)
    assert not any("values" in problem.message for problem in read(text).problems)


@pytest.mark.parametrize(
    "unit",
    [
        "[",
        "{",
        "- ",
        "? ",
        "a,",
        "!",
        "&a",
        "a ",
        "a\n",
        "\n",
        "#\n",
        "'",
        "%A b\n",
        "- *a\n",
        "?\n",
    ],
)
def test_a_megabyte_of_anything_ends(unit):
    began = time.process_time()
    loaded = read((unit * (reading.MOST_BYTES // len(unit)))[: reading.MOST_BYTES])
    assert time.process_time() - began < 10
    assert len(loaded.problems) <= loading.MOST_PROBLEMS


def test_files_that_cannot_be_read(tmp_path):
    def message(path: Any) -> str:
        (problem,) = load(path).problems
        assert load(path).fatal
        return problem.message

    assert "No such file" in message(tmp_path / "nope.yaml")
    assert "not a regular file" in message(tmp_path)
    assert "null" in message("a\0b")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (reading.MOST_BYTES + 1))
    assert "larger than 1,048,576 bytes" in message(large)
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in message(tmp_path / "fifo")
    assert "not a regular file" in message("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read" in message(tmp_path / "loop")
    assert "must be a path, a mapping or Settings" in message(5)


def test_what_became_a_fifo_since_it_was_looked_at_does_not_hold_up(tmp_path, monkeypatch):
    fifo, plain = tmp_path / "fifo", tmp_path / "plain.yaml"
    os.mkfifo(fifo)
    plain.write_text("listen: :80")
    look = plain.stat()
    monkeypatch.setattr(Path, "stat", lambda path: look)
    (problem,) = load(fifo).problems
    assert "not a regular file" in problem.message


def test_what_a_kernel_makes_up_while_it_is_read_is_not_read():
    """/proc/kmsg would hold a reader until there is something to tell."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc")
    assert reading.content_of("/proc/self/environ") == b""


@pytest.mark.parametrize(
    "text", ["token: !hunter2", "token: *hunter2", "token: &hunter2 [*hunter2]"]
)
def test_no_sentence_tells_a_secret_that_looks_like_a_part_of_yaml(text):
    _, problems = reading.tree_of_yaml(text.encode())
    assert problems
    assert "hunter2" not in str(problems)


def test_a_strange_file_name_cannot_write_to_the_terminal():
    (line,) = load("\x1b[31m\n.yaml").lines
    assert line.isprintable()


class Broken(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(f"no {key}")

    def __iter__(self):
        return iter(["listen"])

    def __len__(self) -> int:
        return 1


class Endless(Broken):
    def __getitem__(self, key: str) -> Any:
        return 1

    def __iter__(self):
        return (f"key{n}" for n in iter(int, 1))


def cyclic() -> dict[str, Any]:
    ring: dict[str, Any] = {}
    ring["admin"] = ring
    return ring


def bomb() -> dict[str, Any]:
    inner: list[Any] = ["x"] * 10
    for _ in range(20):
        inner = [inner] * 10
    return {"exempt": inner}


@pytest.mark.parametrize(
    "config",
    [
        Broken(),
        Endless(),
        cyclic(),
        bomb(),
        {1: 2},
        {"listen": b"x"},
        {"exempt": iter(["/a"])},
        {"exempt": {"/a"}},
        {"listen": object()},
        {"listen": "\ud800"},
        {"\ud800": 1},
        {"capacity": 10**5000},
        {"priority_scheduler": {"classes": {"bulk": {"reserved_per_slot": 10**5000}}}},
        {"priority_scheduler": {"tenant_policies": {"auth:x": {"weight": 10**5000}}}},
        {"fallback": {"queue_timeout": 10**5000}},
        {"fallback": {"queue_timeout": "9" * 90 + "d"}},
        {"fallback": {"queue_timeout": "30"}},
        {"admin": Settings()},
    ],
    ids=lambda config: type(config).__name__,
)
def test_strange_mappings_are_problems(config):
    loaded = load(config)
    assert loaded.problems
    assert all(line.isprintable() for line in loaded.lines)


def names(value: Any) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value.get("properties", {})).union(*(names(inner) for inner in value.values()))


NAMES = sorted({*names(json_schema()), *BUILT_IN, "nonsense", "<<", "auth:x", "[key]", ""})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["30s", "reported", "interactive", ":80", "http://a", "model", "/x", "*", "&"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), VALUES, max_size=5))
def test_any_mapping_gives_settings_that_hold(config):
    loaded = load(config)
    assert isinstance(loaded.settings, Settings)
    assert all(line.isprintable() for line in loaded.lines)
    if loaded.problems:
        assert not loaded.settings.priority_scheduler.enabled or loaded.fatal
    # YAML contains JSON: the same text, the same answer, now with places.
    try:
        text = json.dumps(config, allow_nan=False, ensure_ascii=True)
    except ValueError:
        return
    read_back = load_content(text.encode(), "x")
    assert bool(read_back.problems) == bool(loaded.problems)
    assert all(problem.line > 0 for problem in read_back.problems)


WORDS = """a listen 1 ~ [ ] { } , &a *a !!str !x ' " # | > --- ... ? << \\ - : \x85 \u2028 \ufeff é priority_scheduler:
    classes: enabled: true false %YAML 1.1 2001-01-01 0x1F .nan capacity: upstreams:"""
TOKENS = st.sampled_from(
    [*WORDS.split(), "\n", "\n  ", "\n    ", " ", "\t", "\r", "\x85", "\u2028"]
)


@given(st.lists(TOKENS, max_size=30).map("".join) | st.text(string.printable, max_size=60))
def test_any_text_is_read_or_refused(text):
    loaded = read(text)
    assert isinstance(loaded.settings, Settings)
    assert all(line.isprintable() for line in loaded.lines)
    assert all((problem.line > 0) == (problem.column > 0) for problem in loaded.problems)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content):
    assert isinstance(read(content).settings, Settings)


WHOLE: dict[str, Any] = {
    "listen": ":80",
    "admin": {"listen": "127.0.0.1:81", "token": "t"},
    "upstreams": [{"url": "http://a", "capacity": 256, "health": "/h", "models": ["m"]}],
    "tenants": {"api_keys": [{"sha256": "a" * 64, "tenant": "acme"}], "trusted_header": "x"},
    "priority_scheduler": {
        "enabled": True,
        "classes": {"bulk": {"queue_timeout_secs": 3, "reserved_per_slot": 0.1}, "system": {}},
        "tenant_policies": {"auth:acme": {"max_class": "system", "weight": 2}},
    },
    "limits": {"header_timeout": "3s"},
    "pool_by": "model",
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path] * bool(path) + [
        found for key, below in inner for found in places(below, (*path, key))
    ]


@given(st.sampled_from(places(WHOLE)), VALUES)
def test_one_spoiled_value_spoils_its_section_only(path, value):
    spoiled = json.loads(json.dumps(WHOLE))
    inner = spoiled
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    loaded = load(spoiled)
    # Fewer slots upstream may be too few for the classes.
    assert {problem.section for problem in loaded.problems} <= {path[0], "priority_scheduler"}
    if path[0] != "upstreams" and loaded.problems:
        assert {problem.section for problem in loaded.problems} == {path[0]}
        rest = {key: value for key, value in WHOLE.items() if key != path[0]}
        assert loaded.settings == load(rest).settings


def test_the_fuzz_would_notice_what_raises(monkeypatch):
    """The mutant: a loader that lets the parser's own exceptions through."""
    monkeypatch.setattr(reading, "MarkedYAMLError", ZeroDivisionError)
    monkeypatch.setattr(reading, "Exception", ZeroDivisionError, raising=False)
    with pytest.raises(Exception, match="expected the node content"):
        read("a: [1,")
