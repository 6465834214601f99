"""Which labels a workload is for; compiled once into one function.

A matcher is the AND of its parts.  A missing label makes positive tests false, hence `not_in` and `not` true.  `all` of
nothing is true, `any` of nothing is false, and a matcher without parts matches everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

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
    tests += [_matches(label, re.compile(pattern)) for label, pattern in matcher.regex.items()]
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


def _matches(label: str, pattern: re.Pattern[str]) -> Test:
    search = pattern.search
    return lambda labels: label in labels and search(str(labels[label])) is not None


def _either(tests: list[Test]) -> Test:
    return lambda labels: any(test(labels) for test in tests)


def _neither(test: Test) -> Test:
    return lambda labels: not test(labels)
