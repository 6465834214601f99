"""Cron schedules: which ticks are due, and what is done about those that were missed.

Ticks are those of cronsim (Debian's rules at changes of daylight time) in the schedule's own zone.  A tick is dealt
with once: the store moves the schedule's cursor and submits the run in one transaction, under a key made of both.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from fairlead.config import shown
from fairlead.errors import ConfigError
from fairlead.jobs.registry import named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlead.jobs.records import Schedule

MISFIRES = ("skip", "one", "all")
LATE = 60.0  # seconds after which a tick counts as missed
MOST_AT_ONCE = 100  # ticks of one schedule dealt with in one go


# The areas of the time zone database, and its zones that have none.  A machine has more, such as `localtime`,
# `posixrules` and `right/UTC`: they mean something else, or nothing, on another.
AREAS = frozenset(
    "Africa America Antarctica Arctic Asia Atlantic Australia Brazil Canada Chile Etc Europe Indian Mexico Pacific "
    "US".split()
)
ZONES = frozenset(
    "CET CST6CDT Cuba EET EST EST5EDT Egypt Eire GB GB-Eire GMT GMT+0 GMT-0 GMT0 Greenwich HST Hongkong Iceland Iran "
    "Israel Jamaica Japan Kwajalein Libya MET MST MST7MDT NZ NZ-CHAT Navajo PRC PST8PDT Poland Portugal ROC ROK "
    "Singapore Turkey UCT UTC Universal W-SU WET Zulu".split()
)


def zone_of(name: Any) -> ZoneInfo:
    """Return a time zone that is the same on every machine."""
    try:
        if not isinstance(name, str) or not name.isascii() or len(name) > 64:
            raise ValueError(name)
        area, slash, _ = name.partition("/")
        if area not in (AREAS if slash else ZONES):
            raise ValueError(name)
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise ConfigError(
            f"there is no time zone {shown(name)}; names are such as UTC or Europe/Berlin"
        ) from None


def checked(schedule: Schedule) -> Schedule:
    """Refuse a schedule that can never fire, or not be read."""
    named(schedule.name, "the name of a schedule")
    if schedule.misfire not in MISFIRES:
        raise ConfigError(
            f"misfire must be one of {', '.join(MISFIRES)}; got {shown(schedule.misfire)}"
        )
    if len(upcoming(schedule.cron, schedule.timezone, 0.0, 1)) == 0:
        raise ConfigError(f"cron {shown(schedule.cron)} never fires; see its day and month")
    return schedule


def upcoming(cron: Any, timezone: Any, after: float, count: int) -> list[float]:
    """Tell the next ticks after a time."""
    found = []
    for tick in _ticks(cron, timezone, after):
        found.append(tick)
        if len(found) == count:
            break
    return found


def due(schedule: Schedule, now: float) -> tuple[list[float], float | None]:
    """Tell the ticks to fire now, oldest first, and the last one to pass over in silence (None: no such)."""
    if schedule.paused:
        return [], None
    if schedule.misfire == "all":
        return _all_due(schedule, now), None
    fresh: list[float] = []
    late: list[float] = []  # of them only the newest two matter, however long nobody looked
    for tick in _ticks(schedule.cron, schedule.timezone, now + 1, back=True):
        if tick <= schedule.cursor or len(late) == 2:
            break
        if tick <= now:
            (late if now - tick > LATE else fresh).insert(0, tick)
    if schedule.misfire == "one" and late and not fresh:
        return late[-1:], late[0] if len(late) > 1 else None
    return fresh, late[-1] if late else None


def _all_due(schedule: Schedule, now: float) -> list[float]:
    ticks: list[float] = []
    for tick in _ticks(schedule.cron, schedule.timezone, schedule.cursor):
        if tick > now or len(ticks) == MOST_AT_ONCE:
            break
        ticks.append(tick)
    return ticks


def _ticks(cron: Any, timezone: Any, start: float, *, back: bool = False) -> Iterator[float]:
    zone = zone_of(timezone)
    if not isinstance(cron, str) or len(cron) > 200 or len(cron.split()) != 5:
        raise ConfigError(
            f'a cron has five fields: minute hour day month weekday, such as "*/5 * * * *"; got {shown(cron)}'
        )
    try:
        simulated = CronSim(cron, datetime.fromtimestamp(start, UTC).astimezone(zone), reverse=back)
    except (CronSimError, ValueError) as error:
        raise ConfigError(f"cron {shown(cron)} cannot be read: {error}") from None
    return (tick.timestamp() for tick in simulated)
