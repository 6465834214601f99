"""What follows a try."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.jobs import endings
from fairlead.jobs.crashes import Limits, judge
from fairlead.jobs.payload import error_json, error_of
from fairlead.jobs.records import Claimed, Death, Ending, RunningJob
from fairlead.jobs.states import ACTIVE, TERMINAL, TRANSITIONS

ERROR = error_json("ValueError", "no")


def claimed(*, attempts=0, crashes=0, retries=2, retry_delay=1.0, timeout=None):
    return Claimed(
        7, 3, 1, 99, "a", "extract", "{}", {}, attempts, crashes, retries, retry_delay, timeout
    )


def running(*, attempts=0, crashes=0, retries=2, retry_delay=1.0):
    return RunningJob(
        7,
        3,
        "extract",
        "ocr",
        "",
        1,
        99,
        True,
        0.0,
        attempts,
        crashes,
        retries,
        retry_delay,
        False,
    )


def error_in(ending):
    return json.loads(ending.error)


@pytest.fixture(params=[claimed, running], ids=["claimed", "running"])
def held(request):
    return request.param


def test_completed(held):
    ending = endings.completed(held(attempts=1, crashes=1), "[1]", ran=2.5)
    # As many attempts and crashes as before: None.
    assert ending == Ending(7, 3, 99, "completed", "[1]", None, 0.0, None, None, 2.5, "extract")


def test_attempts_are_retries_and_one(held):
    states = []
    for attempts in range(3):
        ending = endings.failed(held(attempts=attempts, retries=2), ERROR, 0.0)
        assert ending.attempts == attempts + 1
        states.append((ending.state, ending.delay, ending.error))
    assert states == [("retry", 1.0, ERROR), ("retry", 2.0, ERROR), ("failed", 0.0, ERROR)]


def test_without_retries_the_first_failure_is_the_last(held):
    assert endings.failed(held(retries=0), ERROR, 0.9).state == "failed"
    assert endings.timed_out(held(retries=0), 0.9).state == "expired"


def test_a_timeout_is_tried_again_then_expires(held):
    ending = endings.timed_out(held(attempts=0, retries=1), 0.5, timeout=5.0, ran=5.0)
    assert (ending.state, ending.delay, ending.attempts, ending.ran) == ("retry", 1.5, 1, 5.0)
    assert "its timeout of 5 s" in error_in(ending)["message"]
    ending = endings.timed_out(held(attempts=1, retries=1), 0.5)
    assert (ending.state, ending.attempts) == ("expired", 2)


def test_cancelled_burns_nothing(held):
    ending = endings.cancelled(held(attempts=1, crashes=2), ran=1.0)
    assert (ending.state, ending.attempts, ending.crashes, ending.ran) == ("cancelled", 1, 2, 1.0)


def test_handed_back_burns_nothing_and_waits_for_nothing(held):
    ending = endings.handed_back(held(attempts=1, crashes=2))
    assert ending[3:10] == ("retry", None, None, 0.0, 1, 2, None)


def test_a_death_is_noted_and_judged_later(held):
    ending = endings.died(held(attempts=1, crashes=2), Death(True, "killed"))
    assert (ending.state, ending.attempts, ending.crashes) == ("retry", 1, None)
    assert ending.death == (True, "killed")


@given(
    st.floats(0, 1e15),
    st.integers(0, 10**9),
    st.floats(0, 1, exclude_max=True),
)
def test_a_delay_is_what_the_formula_says_and_at_most_an_hour(base, retry, draw):
    delay = endings.retry_delay(base, retry, draw)
    assert 0 <= delay <= 3600
    if retry < 60:
        assert delay == min(3600.0, base * 2**retry * (1 + draw))
    elif base > 1e-9:
        assert delay == 3600
    assert not math.isnan(delay)


def test_the_delays_of_the_issue():
    assert [endings.retry_delay(2.0, n, 0.0) for n in range(4)] == [2, 4, 8, 16]
    assert endings.retry_delay(2.0, 1, 0.5) == 6.0
    assert endings.retry_delay(0.0, 10**9, 0.5) == 0.0


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(1, 5))
def test_every_ending_is_a_legal_step(attempts, crashes, retries, most):
    for job in (
        claimed(attempts=attempts, crashes=crashes, retries=retries),
        running(attempts=attempts, crashes=crashes, retries=retries),
    ):
        for ending in (
            endings.completed(job, "null"),
            endings.failed(job, error_of(ValueError("no")), 0.5),
            endings.timed_out(job, 0.5),
            endings.cancelled(job),
            endings.handed_back(job),
            judge(endings.died(job, Death(True, "killed")), crashes, 0, Limits(most)),
            judge(endings.died(job, Death(False, "1.0 a")), crashes, 9, Limits(most)),
        ):
            assert ending.state in TRANSITIONS[ACTIVE]
            assert (ending.dag, ending.node, ending.fence, ending.task) == (7, 3, 99, "extract")
            assert (ending.result is not None) == (ending.state == "completed")
            assert ending.delay == 0 or ending.state not in TERMINAL
            if ending.state == "completed":  # None: as many as before
                assert (ending.attempts, ending.crashes) == (None, None)
                continue
            assert ending.attempts in {attempts, attempts + 1}
            assert ending.crashes in {crashes, crashes + 1}
