"""What may be stored as JSON, and that nothing a job returns or raises can be in the way."""

import collections
import enum
import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import PayloadError
from fairlead.jobs.payload import (
    DEEPEST,
    LONGEST_MESSAGE,
    MOST_BYTES,
    Placeholder,
    decode_call,
    encode_call,
    encode_result,
    error_json,
    error_of,
)


class Stand(Placeholder):
    def __init__(self, index):
        self.index = index


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    | st.sampled_from(["$result", "$$result", 'a"$result"', "\\u0000", "0" * 25])
)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5) | (
    st.sampled_from(["$result", "$$result", "$$$result", "$result2", "args", "kwargs"])
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(values, max_size=4), st.dictionaries(keys, values, max_size=4))
def test_a_call_comes_back_as_it_was(args, kwargs):
    text, placed = encode_call(args, kwargs)
    assert list(placed) == []
    assert set(json.loads(text)) == {"args", "kwargs"}
    assert decode_call(text, {}) == (args, kwargs)


@given(values)
def test_a_result_comes_back_as_it_was(value):
    assert json.loads(encode_result(value)) == value


placeable = st.recursive(
    leaves | st.builds(Stand, st.integers(0, 3)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


def filled(value, results):
    """The plain way to put results in their places."""
    if isinstance(value, Placeholder):
        return results[value.index]
    if isinstance(value, list):
        return [filled(each, results) for each in value]
    if isinstance(value, dict):
        return {key: filled(each, results) for key, each in value.items()}
    return value


@given(
    st.lists(placeable, max_size=4),
    st.dictionaries(keys, placeable, max_size=4),
    st.lists(values, min_size=4, max_size=4),
)
def test_results_stand_where_placeholders_stood_and_nowhere_else(args, kwargs, results):
    text, placed = encode_call(args, kwargs)
    inputs = {place.index: encode_result(results[place.index]) for place in placed}
    assert decode_call(text, inputs) == (filled(args, results), filled(kwargs, results))


def test_a_key_of_the_users_own_is_not_taken_for_a_placeholder():
    mine = {"$result": 0, "deep": [{"$result": 1}, {"$$result": {"$result": 2}}]}
    text, placed = encode_call([mine, Stand(0)], {"$result": 3})
    assert len(placed) == 1
    assert decode_call(text, {0: '"hers"'}) == ([mine, "hers"], {"$result": 3})


def test_a_result_that_looks_like_a_placeholder_is_left_alone():
    text, _ = encode_call([Stand(1)], {})
    assert decode_call(text, {1: '{"$result":0}', 0: '"wrong"'}) == ([{"$result": 0}], {})


def test_each_use_of_a_result_is_its_own():
    text, placed = encode_call([Stand(0), [Stand(0)]], {"again": Stand(0)})
    assert len(placed) == 3
    (first, (second,)), third = decode_call(text, {0: "[1]"})
    first.append(2)
    assert second == third["again"] == [1]


def test_a_result_that_is_not_there_is_named():
    text, _ = encode_call([Stand(4)], {})
    with pytest.raises(PayloadError, match="result of node 4"):
        decode_call(text, {})


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


Point = collections.namedtuple("Point", "x y")


def test_what_is_nearly_json_becomes_json():
    args = [(1, 2), Colour.RED, Level.HIGH, Point(1, 2), collections.OrderedDict(a=1), True]
    text, _ = encode_call(args, {})
    assert decode_call(text, {}) == ([[1, 2], "red", 3, [1, 2], {"a": 1}, True], {})


def ring():
    outer: dict[str, list[Any]] = {"items": [1]}
    outer["items"].append(outer)
    return outer


def nested(depth):
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def bomb():
    value: list[Any] = [0] * 10
    for _ in range(60):
        value = [value, value]
    return value


class Rude(dict[str, Any]):
    def items(self):
        raise RuntimeError("no items for you")


REFUSED = {
    "nan": (float("nan"), "nan is no number"),
    "infinity": (float("inf"), "inf is no number"),
    "minus infinity": ([-float("inf")], "inf is no number"),
    "lone surrogate": ("a\ud800", "surrogate"),
    "lone surrogate as key": ({"\udfff": 1}, "surrogate"),
    "NUL": ("a\0b", "NUL"),
    "NUL as key": ({"\0": 1}, "NUL"),
    "2**63": (2**63, "64 bits"),
    "-2**63-1": (-(2**63) - 1, "64 bits"),
    "5,000 digits": (10**5000, "64 bits"),
    "bytes": (b"a", "base64"),
    "bytearray": (bytearray(b"a"), "base64"),
    "set": ({1}, "sorted list"),
    "datetime": (datetime(2026, 1, 1, tzinfo=UTC), "isoformat"),
    "decimal": (Decimal(1), "Decimal"),
    "complex": (1j, "complex"),
    "a function": (print, "builtin_function_or_method"),
    "an object": (object(), "object"),
    "a number as key": ({1: "a"}, "key 1 must be text"),
    "None as key": ({None: "a"}, "key None must be text"),
    "a tuple as key": ({(1, 2): "a"}, "must be text"),
    "a ring": (ring(), "contains itself"),
    "nested 101 deep": (nested(DEEPEST), "100 levels"),
    "nested 10,000 deep": (nested(10_000), "100 levels"),
    "1 MiB and 1": ("x" * MOST_BYTES, "bytes of JSON, more than 1,048,576"),
    "a bomb": (bomb(), "values"),
    "a rude mapping": (Rude(a=1), "cannot be written"),
}


@pytest.mark.parametrize(("value", "said"), REFUSED.values(), ids=REFUSED)
def test_arguments_that_are_refused(value, said):
    with pytest.raises(PayloadError, match=said):
        encode_call(["fine", value], {})
    with pytest.raises(PayloadError, match=said):
        encode_call([], {"doc": value})
    with pytest.raises(PayloadError, match=said):
        encode_call([Stand(0), {"$result": 1, "deep": value}], {})


@pytest.mark.parametrize(("value", "said"), REFUSED.values(), ids=REFUSED)
def test_results_that_are_refused(value, said):
    if said == "100 levels" and value == nested(DEEPEST):
        value = [value]  # without the list of arguments around it, there is room for one more
    with pytest.raises(PayloadError, match=said):
        encode_result(value)


def test_a_placeholder_is_no_result():
    for value in (Stand(0), [Stand(0)], {"a": [Stand(0)]}):
        with pytest.raises(PayloadError, match="Stand is not JSON"):
            encode_result(value)


@pytest.mark.parametrize(
    ("args", "kwargs", "where"),
    [
        ([1, float("nan")], {}, "args[1]"),
        ([{"items": [1, 2, 3, b""]}], {}, "args[0].items[3]"),
        ([], {"doc": {"a b": [{1}]}}, "kwargs.doc['a b'][0]"),
        ([[[{"x": {2: 3}}]]], {}, "args[0][0][0].x"),
    ],
)
def test_the_error_names_the_place(args, kwargs, where):
    with pytest.raises(PayloadError) as caught:
        encode_call(args, kwargs)
    assert caught.value.where == where
    assert str(caught.value).startswith(f"{where}: ")


def test_the_limits_themselves_are_allowed():
    encode_call([nested(DEEPEST - 1)], {})
    encode_result(nested(DEEPEST))
    encode_result([2**63 - 1, -(2**63)])
    room = MOST_BYTES - len('{"args":[""],"kwargs":{}}')
    encode_call(["x" * room], {})
    with pytest.raises(PayloadError):
        encode_call(["x" * (room + 1)], {})
    assert len(encode_result("é" * (MOST_BYTES // 2 - 1)).encode()) == MOST_BYTES
    with pytest.raises(PayloadError):
        encode_result("é" * (MOST_BYTES // 2))


def test_what_looks_suspicious_is_cleared():
    innocent = ["\\u0000", "1" * 40, 10**18, "$result", {"a": '$result"'}, "😀", "[" * 500]
    assert decode_call(encode_call(innocent, {})[0], {}) == (innocent, {})


def test_a_refusal_is_quick():
    start = time.process_time()
    for value, _ in REFUSED.values():
        with pytest.raises(PayloadError):
            encode_result([value] if value == nested(DEEPEST) else value)
    assert time.process_time() - start < 10


@given(
    st.recursive(
        leaves | st.floats() | st.binary() | st.text() | st.integers() | st.complex_numbers(),
        lambda inner: (
            st.lists(inner)
            | st.tuples(inner)
            | st.dictionaries(st.text() | st.integers() | st.none(), inner)
            | st.frozensets(st.integers())
        ),
        max_leaves=20,
    )
)
def test_no_value_crashes_the_encoder(value):
    for encode in (encode_result, lambda each: encode_call([each], {"a": each})[0]):
        try:
            text = encode(value)
        except PayloadError:
            continue
        json.loads(text)
        assert "\0" not in text
        text.encode()


# Errors of jobs


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Deadly(Exception):
    def __str__(self):
        raise SystemExit(3)

    def __repr__(self):
        raise KeyboardInterrupt


class Numbered(Exception):
    def __str__(self):
        return 42  # noqa: PLE0307


class Noted(Exception):
    __notes__: Any = 7


class Sly(str):
    __slots__ = ()

    def replace(self, *_):
        raise RuntimeError

    def __len__(self):
        return -1  # noqa: PLE0303

    def __str__(self):
        return self


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def chained():
    try:
        try:
            raise Mute
        except Mute as first:
            raise Deadly from first
    except Deadly as second:
        return second


def deep():
    def fall():
        fall()

    try:
        fall()
    except RecursionError as error:
        return error


ERRORS = {
    "plain": ValueError("no"),
    "raised": raised(ValueError("no")),
    "mute": raised(Mute()),
    "deadly": raised(Deadly()),
    "numbered": raised(Numbered()),
    "noted": raised(Noted()),
    "chained": chained(),
    "recursion": deep(),
    "surrogates": raised(ValueError("\ud800\udfff")),
    "NUL": raised(ValueError("a\0b")),
    "10 MB": raised(ValueError("x" * 10_000_000)),
    "sly": raised(ValueError(Sly("x"))),
    "group": raised(ExceptionGroup("many", [ValueError(str(n)) for n in range(1000)])),
    "exit": raised(SystemExit(1)),
    "interrupt": raised(KeyboardInterrupt()),
    "payload": raised(PayloadError("args[0]: no", where="args[0]")),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_every_error_can_be_stored(error):
    text = error_of(error)
    told = json.loads(text)
    assert told["type"] == type(error).__name__
    assert all(isinstance(part, str) for part in told.values())
    assert len(text.encode()) < 100_000
    assert "\0" not in text
    assert "\\u0000" not in text


def test_an_error_says_what_and_where():
    told = json.loads(error_of(ERRORS["raised"]))
    assert told["message"] == "no"
    assert 'test_payload.py", line' in told["traceback"]
    assert "raise error" in told["traceback"]
    assert told["traceback"].endswith("ValueError: no\n")


def test_both_ends_of_a_long_message_are_kept():
    told = json.loads(error_of(ValueError("begin" + "x" * 10_000_000 + "end")))
    assert told["message"].startswith("begin")
    assert told["message"].endswith("end")
    assert len(told["message"]) < LONGEST_MESSAGE + 100


@given(st.text(), st.text(), st.text())
def test_every_text_of_an_error_can_be_stored(kind, message, traceback):
    text = error_json(kind, message, traceback)
    json.loads(text)
    text.encode()
    assert "\\u0000" not in text.replace("\\\\", "")
