"""How explanations put things: names that fit on a line, times, durations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fairlead.jobs.showing import visible
from fairlead.jobs.states import CANCELLED, EXPIRED
from fairlead.jobs.times import written

if TYPE_CHECKING:
    from fairlead.jobs.records import JobRow, WorkerRow

LONGEST = 400  # characters of a sentence


def job_name(row: JobRow) -> str:
    name = visible(row.name)
    return f"job {row.dag}.{row.node} ({name if len(name) <= 40 else name[:37] + '...'})"


def worker_of(worker: WorkerRow) -> str:
    return f"worker {worker.id} ({visible(worker.name)[:40]}) of executor {worker.executor!r}"


def ending_of(row: JobRow) -> str:
    return {CANCELLED: "was cancelled", EXPIRED: "timed out"}.get(row.state, row.state)


def error_of(row: JobRow) -> str:
    if row.error is None:
        return ""
    error = json.loads(row.error)
    said = f"{error.get('type', 'error')}: {error.get('message', '')}".rstrip(": ")
    said = visible(" ".join(said.split()))
    return f": {said if len(said) <= 120 else said[:117] + '...'}"


def moment(at: float | None) -> str:
    text = written(at) or ""
    return f"{text[:19]}Z"


def roughly(seconds: float) -> str:
    """Write a duration roughly.

    >>> roughly(0.25), roughly(12.3), roughly(150), roughly(7300), roughly(200_000)
    ('0.2 s', '12 s', '2 min', '2.0 h', '2.3 d')
    """
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} d"


def cut(sentence: str) -> str:
    return sentence if len(sentence) <= LONGEST else sentence[: LONGEST - 1] + "…"
