"""SLAs: the documented tiers to the number, SQL and Python alike, and what may be written."""

import math
import sqlite3
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.errors import ConfigError, FairleadError
from fairlead.jobs.sla import (
    LATEST,
    SQL_SCORE,
    next_change,
    read_sla,
    read_time,
    score,
    sla_of,
    sla_priority,
)

NOW = 1_760_000_000.0
MINUTE, HOUR, DAY = 60, 3600, 86_400

# Spec B10, with the hard-only tier of the issue: soft and hard in seconds from now, the score.
TIERS = [
    (None, None, 0),
    (None, 10 * MINUTE, 499),
    (None, 200 * DAY, 1),
    (None, 0, 500),
    (10 * MINUTE, None, 499),
    (15 * MINUTE, None, 499),
    (15 * MINUTE + 1, None, 498),
    (200 * DAY, None, 1),
    (0, None, 500),
    (-1 * MINUTE, MINUTE, 500),
    (-15 * MINUTE, None, 501),
    (-200 * DAY, None, 999),
    (-200 * DAY, 200 * DAY, 999),
    (None, -1 * MINUTE, 1000),
    (None, -200 * DAY, 1999),
    (-2 * MINUTE, -1 * MINUTE, 1000),
    (MINUTE, -1 * MINUTE, 1000),
    (10 * MINUTE, 5 * DAY, 499),
    # Where the tiers are full: 124.5 h ahead, 124.75 h late, 249.75 h late.
    (498 * 900, None, 2),
    (498 * 900 + 1, None, 1),
    (-499 * 900, None, 999),
    (-499 * 900 + 1, None, 998),
    (None, -999 * 900, 1999),
    (None, -999 * 900 + 1, 1998),
]


def at(offset):
    return None if offset is None else NOW + offset


@pytest.mark.parametrize(("soft", "hard", "expected"), TIERS)
def test_the_tiers_of_the_seed(soft, hard, expected):
    assert sla_priority(NOW, at(soft), at(hard)) == expected
    assert sla_priority(NOW, soft_sla=at(soft), hard_sla=at(hard)) == expected


@pytest.mark.parametrize(("soft", "hard", "expected"), TIERS)
def test_datetimes_score_as_seconds_do(soft, hard, expected):
    def moment(offset, zone):
        return None if offset is None else datetime.fromtimestamp(NOW + offset, zone)

    east = timezone(timedelta(hours=9))
    now = datetime.fromtimestamp(NOW, UTC)
    assert sla_priority(now, moment(soft, east), moment(hard, UTC)) == expected


offsets = (
    st.none() | st.floats(-300 * DAY, 300 * DAY) | st.integers(-1100, 1100).map(lambda n: n * 900)
)


@given(offsets, offsets)
def test_every_score_is_in_its_tier(soft, hard):
    soft, hard = at(soft), at(hard)
    found = score(NOW, soft, hard)
    if hard is not None and hard < NOW:
        assert 1000 <= found <= 1999
    elif soft is not None and soft < NOW:
        assert 500 <= found <= 999
    elif soft is None and hard is None:
        assert found == 0
    else:
        assert 1 <= found <= 500


@pytest.fixture(scope="module")
def database():
    connection = sqlite3.connect(":memory:")
    connection.create_function(
        "FLOOR", 1, lambda value: value if value is None else math.floor(value)
    )
    connection.create_function(
        "CEIL", 1, lambda value: value if value is None else math.ceil(value)
    )
    yield connection
    connection.close()


@given(offsets, offsets)
@example(0, None)
@example(None, 0)
@example(-900, 900)
def test_the_score_in_sql_is_the_score_in_python(database, soft, hard):
    names = {"now": ":now", "soft": ":soft", "hard": ":hard", "least": "min", "greatest": "max"}
    values = {"now": NOW, "soft": at(soft), "hard": at(hard)}
    (found,) = database.execute(f"SELECT {SQL_SCORE.format(**names)}", values).fetchone()
    assert int(found) == found == score(NOW, at(soft), at(hard))


@given(offsets, offsets, st.floats(0, 1), st.sampled_from([NOW, 0.0]))
@example(0.1, None, 0.5, 0.0)
@example(None, -0.3, 0.5, 0.0)
def test_the_score_stays_until_it_changes_next(soft, hard, part, now):
    """Near 0 sums of SLAs and buckets are rounded, as they are not in this century."""
    soft = None if soft is None else now + soft
    hard = None if hard is None else now + hard
    for _ in range(5):
        known = score(now, soft, hard)
        then = next_change(now, soft, hard)
        assert then > now
        if then == math.inf:
            assert score(now + 1000 * DAY, soft, hard) == known
            return
        assert score(then, soft, hard) != known
        between = now + part * (then - now)
        if between < then - 1e-6:
            assert score(between, soft, hard) == known
        now = then


@pytest.mark.parametrize(
    ("due", "now"),
    [(634.172695477539, 634.17 + 35.5 * 900), (-620.3005417679473, -620.3 - 291.5 * 900)],
)
def test_a_step_that_rounding_would_miss_is_not_missed(due, now):
    """The bucket's end, as a float, still lies within the bucket: whoever woke up then would do so for ever."""
    for soft, hard in ((due, None), (None, due)):
        then = next_change(now, soft, hard)
        assert then - now < 901
        assert score(then, soft, hard) == score(now, soft, hard) + 1


def test_a_score_is_never_woken_for_in_vain_over_a_whole_life():
    soft, hard = NOW + 600 * 900.5, NOW + 600 * 900.5 + 0.1
    now, seen = NOW, []
    while (now := next_change(now, soft, hard)) < math.inf:
        seen.append(score(now, soft, hard))
    assert seen == [*range(2, 501), *range(1000, 2000)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("15m", (900.0, True)),
        ("1h30m", (5400.0, True)),
        (timedelta(minutes=1), (60.0, True)),
        (90, (90.0, True)),
        (0.5, (0.5, True)),
        (0, (0.0, True)),
        ("0s", (0.0, True)),
        (datetime(2026, 3, 1, 12, tzinfo=UTC), (1772366400.0, False)),
        ("2026-03-01T12:00:00Z", (1772366400.0, False)),
        (" 2026-03-01 12:00+00:00 ", (1772366400.0, False)),
        (1772366400, (1772366400.0, False)),
        ("1969-07-20T20:17:40Z", (-14182940.0, False)),
    ],
)
def test_what_may_be_written(value, expected):
    assert sla_of(value, "soft_sla") == expected


def test_nothing_is_no_sla():
    assert sla_of(None, "soft_sla") is None
    assert read_sla(None, None, NOW) == (None, None)


BAD = [
    "15",
    "1.5",
    "",
    "-5m",
    "soon",
    "15 parsecs",
    "٣٠s",
    "2026-03-01",
    "2026-03-01T12:00:00",
    "2026-13-01T12:00:00Z",
    "2026-03-01T12:00:00+99:00",
    "9999-12-31T23:59:59Z",
    "2026-03-01T12:00:00Z" + "0" * 10_000,
    -1,
    -0.001,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e300,
    10**400,
    True,
    False,
    timedelta(seconds=-1),
    timedelta.max,
    datetime(2026, 3, 1),  # noqa: DTZ001
    datetime(9999, 12, 31, tzinfo=UTC),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
    b"15m",
    [],
    {},
    object(),
]


@pytest.mark.parametrize("value", BAD, ids=lambda value: repr(value)[:30])
def test_what_may_not_be_written_is_refused_by_name(value):
    with pytest.raises(ConfigError, match="the_sla"):
        read_time(value, "the_sla", NOW)


def test_a_naive_time_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"has no time zone.*tzinfo="):
        sla_of(datetime(2026, 3, 1), "soft_sla")  # noqa: DTZ001
    with pytest.raises(ConfigError, match=r"has no time zone.*\+01:00"):
        sla_of("2026-03-01T12:00:00", "soft_sla")
    with pytest.raises(ConfigError, match="needs a unit"):
        sla_of("15", "soft_sla")
    with pytest.raises(ConfigError, match="has no time zone"):
        sla_priority(datetime(2026, 3, 1))  # noqa: DTZ001


@pytest.mark.parametrize("value", ["now", True, float("nan"), float("inf"), 10**30, None, b""])
def test_a_score_asks_for_real_times(value):
    with pytest.raises(ConfigError):
        sla_priority(value)
    if value is not None:
        with pytest.raises(ConfigError):
            sla_priority(NOW, value)
        with pytest.raises(ConfigError):
            sla_priority(NOW, hard_sla=value)


def test_durations_count_from_when_the_run_may_start():
    assert read_sla("15m", "1h", NOW) == (NOW + 900, NOW + 3600)
    assert read_sla(timedelta(minutes=1), None, NOW) == (NOW + 60, None)


def test_an_sla_may_be_born_overdue():
    past = datetime(2020, 1, 1, tzinfo=UTC)
    soft, hard = read_sla(past, past, NOW)
    assert soft == hard == past.timestamp()
    assert score(NOW, soft, hard) == 1999


def test_a_soft_sla_after_the_hard_one_is_refused():
    with pytest.raises(ConfigError, match="soft_sla of run 7 is 60 s after its hard_sla"):
        read_sla("2m", "1m", NOW, "run 7")
    with pytest.raises(ConfigError, match="after its hard_sla"):
        read_sla("1d", NOW + 60, NOW)
    assert read_sla("1m", "1m", NOW) == (NOW + 60, NOW + 60)


def test_a_duration_beyond_the_calendar_is_refused():
    with pytest.raises(ConfigError, match="year 9999"):
        read_sla("100000d", None, LATEST - 1)


@given(st.text() | st.floats() | st.integers() | st.datetimes() | st.timedeltas() | st.binary())
def test_no_value_crashes_the_reader(value):
    try:
        found = read_time(value, "it", NOW)
    except FairleadError:
        return
    assert math.isfinite(found)
    assert found < LATEST
