"""SLAs: how they are written, and how urgent they make a job.

A soft SLA is when a job should be done, a hard one when it must be.  The score is a pure function of the time, so it is
never stale and nothing has to be rewritten as time passes:

    now > hard              1000 + min(999, ⌊(now − hard) / 900⌋)      hard overdue    1000–1999
    now > soft               500 + min(499, ⌊(now − soft) / 900⌋)      soft overdue     500–999
    soft given              max(1, 500 − ⌈(soft − now) / 900⌉)         upcoming           1–499, at `soft` itself 500
    only hard given         max(1, 500 − ⌈(hard − now) / 900⌉)         upcoming, by the hard one
    none                    0

Bounds are strict: at the very instant of an SLA it is not overdue yet.  `SQL_SCORE` says the same to a database.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from math import ceil, floor, inf, isfinite, nextafter
from typing import Any, NamedTuple

from fairlead.config import EXAMPLES, seconds, shown
from fairlead.errors import ConfigError

BUCKET = 900.0
# 0001-01-02 and 9999-01-01, UTC: what every calendar and every database here can show.
EARLIEST = -62_135_510_400.0
LATEST = 253_370_764_800.0
# A number is seconds from now on; from here on (in 2001, or for 31 years) it can only be meant as an instant.
FIRST_EPOCH = 1e9
KEEP: Any = object()  # of an SLA that may be changed: leave it as it is

SQL_SCORE = (
    "CASE"
    " WHEN {hard} < {now} THEN 1000 + {least}(999, FLOOR(({now} - {hard}) / 900.0))"
    " WHEN {soft} < {now} THEN 500 + {least}(499, FLOOR(({now} - {soft}) / 900.0))"
    " WHEN {soft} IS NOT NULL THEN {greatest}(1, 500 - CEIL(({soft} - {now}) / 900.0))"
    " WHEN {hard} IS NOT NULL THEN {greatest}(1, 500 - CEIL(({hard} - {now}) / 900.0))"
    " ELSE 0 END"
)

_DATE = re.compile(r"[0-9]{4}-[0-9]", re.ASCII)


def sla_priority(
    now: float | datetime,
    soft_sla: float | datetime | None = None,
    hard_sla: float | datetime | None = None,
) -> int:
    """Score the urgency of a job: 0 without an SLA, up to 1999; times are epoch seconds or aware datetimes.

    >>> now = 1_700_000_000.0
    >>> sla_priority(now), sla_priority(now, now + 600), sla_priority(now, now - 60, now + 60)
    (0, 499, 500)
    >>> sla_priority(now, hard_sla=now + 600), sla_priority(now, hard_sla=now - 60)
    (499, 1000)
    """
    return score(
        instant(now, "now"),
        None if soft_sla is None else instant(soft_sla, "soft_sla"),
        None if hard_sla is None else instant(hard_sla, "hard_sla"),
    )


def score(now: float, soft: float | None, hard: float | None) -> int:
    """Score without looking at what is given: finite epoch seconds."""
    if hard is not None and now > hard:
        return 1000 + min(999, floor((now - hard) / BUCKET))
    if soft is not None:
        if now > soft:
            return 500 + min(499, floor((now - soft) / BUCKET))
        return max(1, 500 - ceil((soft - now) / BUCKET))
    if hard is not None:
        return max(1, 500 - ceil((hard - now) / BUCKET))
    return 0


def next_change(now: float, soft: float | None, hard: float | None) -> float:
    """Tell when the score changes next; inf if never.

    >>> next_change(1000.0, 2000.0, None), next_change(2000.0, 2000.0, None), next_change(0.0, None, None)
    (1100.0, 2900.0, inf)
    """
    if hard is not None and now > hard:
        return _stepped(now, soft, hard, hard, 999)
    # The instant after `hard` is the first that is overdue.
    fatal = inf if hard is None else nextafter(hard, inf)
    if soft is not None and now >= soft:
        return min(_stepped(now, soft, hard, soft, 499), fatal)
    due = hard if soft is None else soft
    if due is None:
        return inf
    if now == due:
        return fatal
    # ⌈left / 900⌉ falls when `left` reaches a whole number of buckets; above 499 the floor of 1 hides it.
    buckets = min(ceil((due - now) / BUCKET), 499) - 1
    return min(_after(now, soft, hard, due - buckets * BUCKET), fatal)


def _stepped(now: float, soft: float | None, hard: float | None, due: float, most: int) -> float:
    """Tell the next full bucket after an SLA; `most` is where its tier ends."""
    late = floor((now - due) / BUCKET)
    return inf if late >= most else _after(now, soft, hard, due + (late + 1) * BUCKET)


def _after(now: float, soft: float | None, hard: float | None, at: float) -> float:
    """Move past what rounding took, lest somebody wakes up a moment early for ever."""
    known = score(now, soft, hard)
    while at <= now or score(at, soft, hard) == known:
        at = nextafter(at, inf)
    return at


def instant(value: Any, name: str) -> float:
    """Read an instant: epoch seconds, or a datetime that knows its zone."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ConfigError(
                f"{name} has no time zone: {shown(value)}; "
                "give one, such as datetime(..., tzinfo=timezone.utc)"
            )
        at = value.timestamp()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        at = float(value) if abs(value) < 1e15 else inf
    else:
        raise ConfigError(
            f"{name} must be epoch seconds or a datetime with a time zone; got {shown(value)}"
        )
    if not isfinite(at) or not EARLIEST <= at < LATEST:
        raise ConfigError(f"{name} must lie between the years 1 and 9998; got {shown(value)}")
    return at


class Sla(NamedTuple):
    """A time as written: an instant, or so many seconds from when something begins."""

    value: float
    relative: bool

    def at(self, begin: float, name: str) -> float:
        """Tell the instant, for what begins at `begin`."""
        at = begin + self.value if self.relative else self.value
        if not at < LATEST:
            raise ConfigError(f"{name} must lie before the year 9999; {self.value:g} s is too long")
        return at


def sla_of(value: Any, name: str) -> Sla | None:
    """Read an SLA: a duration ("15m", a timedelta, seconds) or an instant (a datetime, ISO 8601, epoch seconds).

    >>> sla_of("15m", "soft_sla"), sla_of("2026-03-01T12:00:00+01:00", "soft_sla")
    (Sla(value=900.0, relative=True), Sla(value=1772362800.0, relative=False))
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        return Sla(instant(value, name), False)
    if isinstance(value, str) and _DATE.match(value.strip()):
        return Sla(instant(_read_date(value, name), name), False)
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= FIRST_EPOCH:
        return Sla(instant(value, name), False)
    if isinstance(value, str | timedelta | int | float):
        return Sla(seconds(value, name, zero=True), True)
    raise ConfigError(
        f"{name} must be a duration, such as {EXAMPLES}, or a datetime with a time zone; "
        f"got {shown(value)}"
    )


def _read_date(text: str, name: str) -> datetime:
    try:
        read = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"{name} must be a date and time such as 2026-03-01T12:00:00Z; got {shown(text)}"
        ) from None
    if read.utcoffset() is None:
        raise ConfigError(f"{name} has no time zone: {shown(text)}; add one, such as Z or +01:00")
    return read


def read_time(value: Any, name: str, now: float) -> float:
    """Read a time as SLAs are written, durations from now on.

    >>> read_time("15m", "start_at", 100.0)
    1000.0
    """
    read = sla_of(value, name)
    if read is None:
        raise ConfigError(f"{name} must be a time; got nothing")
    return read.at(now, name)


def read_sla(
    soft: Any, hard: Any, now: float, whose: str = ""
) -> tuple[float | None, float | None]:
    """Read a pair of SLAs, durations from now on."""
    of = f" of {whose}" if whose else ""
    return due_times(sla_of(soft, f"soft_sla{of}"), sla_of(hard, f"hard_sla{of}"), now, whose)


def due_times(
    soft: Sla | None, hard: Sla | None, begin: float, whose: str = ""
) -> tuple[float | None, float | None]:
    """Tell the instants of a pair of SLAs; a soft one after the hard one is a mistake."""
    of = f" of {whose}" if whose else ""
    soft_at = None if soft is None else soft.at(begin, f"soft_sla{of}")
    hard_at = None if hard is None else hard.at(begin, f"hard_sla{of}")
    if soft_at is not None and hard_at is not None and soft_at > hard_at:
        raise ConfigError(
            f"soft_sla{of} is {soft_at - hard_at:g} s after its hard_sla; the soft one comes first"
        )
    return soft_at, hard_at


def changed_sla(
    old: tuple[float | None, float | None], soft: Any, hard: Any, now: float
) -> tuple[float | None, float | None]:
    """Tell a pair of SLAs after a change: KEEP leaves one as it is, None removes it, durations count from now on.

    >>> changed_sla((100.0, 200.0), KEEP, "5m", 0.0), changed_sla((100.0, 200.0), None, KEEP, 0.0)
    ((100.0, 300.0), (None, 200.0))
    """
    if soft is KEEP and hard is KEEP:
        raise ConfigError("say which SLA to change: soft, hard or both")
    given = read_sla(None if soft is KEEP else soft, None if hard is KEEP else hard, now)
    soft_at = old[0] if soft is KEEP else given[0]
    hard_at = old[1] if hard is KEEP else given[1]
    if soft_at is not None and hard_at is not None and soft_at > hard_at:
        raise ConfigError(
            f"soft_sla would be {soft_at - hard_at:.0f} s after hard_sla; the soft one comes first"
        )
    return soft_at, hard_at
