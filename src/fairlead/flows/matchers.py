"""Which labels a workload is for; compiled once into one function.

A matcher is the AND of its parts.  A missing label makes positive tests false, hence `not_in` and `not` true.  `all` of
nothing is true, `any` of nothing is false, and a matcher without parts matches everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pydantic_core import SchemaValidator, core_schema

if TYPE_CHECKING:
    from fairlead.flows.settings import Matcher

    Labels = Mapping[str, str]
    Test = Callable[[Labels], bool]


def compiled(matcher: Matcher) -> Test:
    """Make the test of a matcher."""
    tests = list(_parts(matcher))
    if not tests:
        return lambda labels: True
    if len(tests) == 1:
        return tests[0]
    return lambda labels: all(test(labels) for test in tests)


def _parts(matcher: Matcher) -> list[Test]:
    tests = [_equals(label, value) for label, value in matcher.match_labels.items()]
    tests += [_within(label, frozenset(values)) for label, values in matcher.in_.items()]
    tests += [_without(label, frozenset(values)) for label, values in matcher.not_in.items()]
    tests += [_exists(label) for label in matcher.exists]
    tests += [_matches(label, pattern) for label, pattern in matcher.regex.items()]
    if matcher.all is not None:
        tests += [compiled(part) for part in matcher.all]
    if matcher.any is not None:
        tests.append(_either([compiled(part) for part in matcher.any]))
    if matcher.not_ is not None:
        tests.append(_neither(compiled(matcher.not_)))
    return tests


def labels_read(matcher: Matcher) -> set[str]:
    """Tell which labels a matcher looks at."""
    parts = [*(matcher.all or ()), *(matcher.any or ())]
    if matcher.not_ is not None:
        parts.append(matcher.not_)
    own = (matcher.match_labels, matcher.in_, matcher.not_in, matcher.exists, matcher.regex)
    return set().union(*own, *map(labels_read, parts))


def _equals(label: str, value: str) -> Test:
    return lambda labels: labels.get(label) == value


def _within(label: str, values: frozenset[str]) -> Test:
    return lambda labels: labels.get(label) in values


def _without(label: str, values: frozenset[str]) -> Test:
    return lambda labels: labels.get(label) not in values


def _exists(label: str) -> Test:
    return lambda labels: label in labels


def searching(pattern: str) -> Callable[[str], bool]:
    """Make a search, anywhere in a text; raise SchemaError if the pattern cannot be searched for in linear time.

    Labels are what strangers send, and the engine of the standard library can be made to take years of one.

    >>> searching("b+")("abbc"), searching("^b+$")("abbc")
    (True, False)
    """
    schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
    return SchemaValidator(schema).isinstance_python


def _matches(label: str, pattern: str) -> Test:
    found = searching(pattern)
    return lambda labels: label in labels and found(str(labels[label]))


def _either(tests: list[Test]) -> Test:
    return lambda labels: any(test(labels) for test in tests)


def _neither(test: Test) -> Test:
    return lambda labels: not test(labels)
