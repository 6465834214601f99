"""Which ticks of a schedule are fired: every policy, every change of daylight time, however long nobody looked."""

import shutil
import zoneinfo
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.jobs.cron import LATE, MOST_AT_ONCE, checked, due, upcoming, zone_of
from fairlead.jobs.records import Schedule
from fairlead.jobs.showing import schedule_document

MINUTE = 60.0
START = datetime(2026, 3, 28, 12, 0, tzinfo=UTC).timestamp()


def schedule(cron="* * * * *", timezone="UTC", misfire="one", cursor=START, **more):
    return Schedule("nightly", cron, timezone, {}, misfire, cursor, **more)


class TestReading:
    @pytest.mark.parametrize(
        "cron",
        [
            "60 * * * *",
            "* * 31 2 *",
            "*/0 * * * *",
            "@reboot",
            "* * * * * *",
            "* * * *",
            "L#W * * * *",
        ],
    )
    def test_what_cannot_fire_is_refused_and_named(self, cron):
        with pytest.raises(ConfigError, match="cron"):
            checked(schedule(cron))

    @pytest.mark.parametrize("cron", ["", " ", "x" * 10_000, "٣ * * * *", None, 5])
    def test_nonsense_is_refused(self, cron):
        with pytest.raises(ConfigError):
            checked(schedule(cron))

    @pytest.mark.parametrize(
        "zone",
        [
            *("Mars/Olympus", "../etc/passwd", "", "a" * 100, "/etc", None, 5),
            *(
                "/etc/localtime",
                "Europe",
                "Europe/",
                "Europe/../localtime",
                "./UTC",
                "UTC\0",
                " UTC",
            ),
        ],
    )
    def test_unknown_zones_are_refused(self, zone):
        with pytest.raises(ConfigError, match="time zone"):
            zone_of(zone)

    @pytest.mark.parametrize(
        "zone",
        [
            *(
                "localtime",
                "posixrules",
                "Factory",
                "posix/UTC",
                "right/UTC",
                "right/Europe/Berlin",
            ),
            *("LOCALTIME", "leapseconds", "tzdata.zi", "Local/Zone"),
        ],
    )
    def test_zones_that_depend_on_the_machine_are_refused(self, zone, tmp_path):
        """Also where the machine has a file of that name."""
        (tmp_path / zone).parent.mkdir(parents=True, exist_ok=True)
        before = zoneinfo.TZPATH
        files = [Path(folder) / "UTC" for folder in before]
        shutil.copy(next(file for file in files if file.exists()), tmp_path / zone)
        zoneinfo.reset_tzpath([str(tmp_path), *before])
        try:
            zoneinfo.ZoneInfo.no_cache(zone)  # there is one
            with pytest.raises(ConfigError, match="time zone"):
                zone_of(zone)
            with pytest.raises(ConfigError, match="time zone"):
                checked(schedule(timezone=zone))
        finally:
            zoneinfo.reset_tzpath(before)

    def test_every_zone_of_the_database_is_known(self):
        names = zoneinfo.available_timezones() - {"localtime", "posixrules", "Factory"}
        assert len(names) > 400
        for name in names:
            zone_of(name)

    def test_a_schedule_of_an_earlier_version_can_still_be_shown(self):
        assert schedule_document(schedule(timezone="localtime"), START)["next"] == []

    def test_a_leap_day_is_no_impossible_day(self):
        assert checked(schedule("0 0 29 2 *"))
        tick = datetime.fromtimestamp(upcoming("0 0 29 2 *", "UTC", START, 1)[0], UTC)
        assert (tick.year, tick.month, tick.day) == (2028, 2, 29)

    def test_misfire_is_one_of_three(self):
        with pytest.raises(ConfigError, match="skip, one, all"):
            checked(schedule(misfire="never"))

    @given(st.text(max_size=40))
    def test_no_text_crashes_it(self, text):
        try:
            upcoming(text, "UTC", START, 1)
        except ConfigError:
            pass


class TestDue:
    def test_nothing_before_the_next_tick(self):
        assert due(schedule(), START + 59.9) == ([], None)

    def test_a_tick_when_it_has_come(self):
        assert due(schedule(), START + 60) == ([START + 60], None)

    def test_a_tick_dealt_with_is_not_due_again(self):
        assert due(schedule(cursor=START + 60), START + 61) == ([], None)

    def test_paused(self):
        assert due(schedule(paused=True), START + 600) == ([], None)

    @pytest.mark.parametrize(
        ("misfire", "fired"),
        [("skip", 2), ("one", 2), ("all", 11)],
    )
    def test_missed_while_nobody_looked_with_fresh_ones(self, misfire, fired):
        now = START + 10 * MINUTE + 30 + MINUTE  # 11 ticks, the last two within LATE
        ticks, passed = due(schedule(misfire=misfire), now)
        fresh = [tick for tick in ticks if now - tick <= LATE]
        assert len(ticks) == (fired if misfire == "all" else len(fresh))
        if misfire != "all":
            assert passed == max(
                START + n * MINUTE for n in range(1, 12) if now - (START + n * MINUTE) > LATE
            )

    @pytest.mark.parametrize(("misfire", "fired"), [("skip", 0), ("one", 1), ("all", 3)])
    def test_missed_with_no_fresh_one(self, misfire, fired):
        hourly = schedule("0 * * * *", misfire=misfire)
        ticks, passed = due(hourly, START + 3 * 3600 + 600)
        assert len(ticks) == fired
        if misfire == "one":
            assert ticks == [START + 3 * 3600]
            assert passed == START + 2 * 3600
        if misfire == "skip":
            assert passed == START + 3 * 3600

    def test_years_of_silence_cost_no_more_than_a_minute(self):
        ticks, passed = due(schedule(), START + 10 * 366 * 86_400.0 + 30)
        assert len(ticks) <= 2
        assert passed is not None

    def test_all_comes_in_bounded_portions(self):
        assert len(due(schedule(misfire="all"), START + 1000 * MINUTE)[0]) == MOST_AT_ONCE


# Each zone's spring and autumn change of 2026, by two schedules of everyday use.
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Santiago",
    "Asia/Kolkata",
    "UTC",
]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cron", ["30 2 * * *", "0 0 * * *", "*/15 * * * *"])
def test_a_year_of_ticks_fires_each_once_whatever_the_clock_change(zone, cron):
    """Walking on by `due` gives exactly the calendar that cronsim gives: none twice, none left out."""
    start = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    days = 40 if cron.startswith("*/15") else 366
    start += 60 * 86_400.0 if cron.startswith("*/15") else 0.0
    end = start + days * 86_400.0
    expected, cursor = [], start
    while cursor <= end:  # by small portions: nobody needs the ticks of the next century
        expected += upcoming(cron, zone, cursor, 50)
        cursor = expected[-1]
    expected = [tick for tick in expected if tick <= end]
    fired, cursor, now = [], start, start
    step = 7 * 3600.0 if not cron.startswith("*/15") else 1800.0
    while now < end:
        now = min(end, now + step)
        ticks, _ = due(schedule(cron, zone, "all", cursor), now)
        if ticks:
            fired += ticks
            cursor = ticks[-1]
    assert fired == expected
    assert len(set(fired)) == len(fired)


def test_a_time_that_does_not_exist_still_happens_that_day():
    """At the jump from 2:00 to 3:00 a job of 2:30 is not lost (Debian's rule)."""
    zone = ZoneInfo("Europe/Berlin")
    before = datetime(2026, 3, 28, 12, 0, tzinfo=zone).timestamp()
    ticks = [
        datetime.fromtimestamp(t, zone) for t in upcoming("30 2 * * *", "Europe/Berlin", before, 2)
    ]
    assert [tick.day for tick in ticks] == [29, 30]
