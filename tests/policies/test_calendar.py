"""The calendar of cohorts tells who rises, once and in time, and does not keep those that were taken off it."""

import random
from math import inf
from typing import Any

import pytest

from fairlead.policies.cohorts import Calendar, Cohort


def cohort() -> Cohort:
    section: Any = None
    return Cohort(section)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_noted_rises_once_at_the_time_noted_last(seed: int) -> None:
    rng = random.Random(seed)
    calendar, now = Calendar(), 0.0
    expected: dict[Cohort, float] = {}
    everyone = [cohort() for _ in range(30)]
    for _ in range(400):
        one = rng.choice(everyone)
        if rng.random() < 0.6:
            if one in expected:
                calendar.remove(one)
            expected[one] = now + rng.choice((0.1, 0.7, 1.0, 3.5, 40.0, inf))
            calendar.add(expected[one], one)
        elif one in expected:
            calendar.remove(one)
            del expected[one]
        now += rng.choice((0.0, 0.0, 0.3, 2.0))
        told = list(calendar.due(now))
        due = {one for one, at in expected.items() if at <= now}
        assert len(told) == len(due)
        assert set(told) == due
        # Those of one second are told in the order of their times, whatever became of others.
        assert [expected[one] for one in told] == sorted(expected[one] for one in told)
        for one in told:
            del expected[one]
        assert calendar.soonest() <= min(expected.values(), default=inf)


def test_those_taken_off_a_page_do_not_stay_on_it() -> None:
    calendar = Calendar()
    kept = cohort()
    calendar.add(100.0, kept)
    for _ in range(1_000):
        passing = cohort()
        calendar.add(100.5, passing)
        calendar.remove(passing)
    (page,) = calendar._pages.values()
    assert len(page.cohorts) == len(page.times) < 50
    calendar.remove(kept)
    assert not calendar._pages
    assert calendar.soonest() == inf
