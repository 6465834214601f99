"""What PostgreSQL answers to the verbs that every job goes through, turned into records.

A million of these are made at start-up, and several for each job; so each is made in one step, without a loop of ours
around it where there is a way.
"""

from __future__ import annotations

from itertools import islice, repeat
from sys import intern
from typing import TYPE_CHECKING, Any

from fairlead.jobs.records import Claimed, Finished, ReadyJob, RunEnd

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlead.jobs.records import Id


def storable(text: str | None) -> str | None:
    """Make of text what PostgreSQL takes as such: it knows neither NUL nor halves of characters."""
    return text and text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def columns(records: Sequence[tuple[Any, ...]], many: int) -> list[list[Any]]:
    """Turn records into their first columns."""
    if not records:
        return [[] for _ in range(many)]
    return list(map(list, islice(zip(*records, strict=True), many)))


def numbers(column: Iterable[int] | None) -> str | None:
    """Write integers as PostgreSQL reads them from text: making an array takes the driver far longer."""
    return None if column is None else f"{{{str([*column])[1:-1]}}}".replace("None", "NULL")


def ready_page(row: Any) -> list[ReadyJob]:
    """Read the answer of the function `ready_page`: a row of columns."""
    dags, nodes, names, tasks, executors, tenants, *rest = row
    if dags is None:
        return []
    # A million jobs share the few names of tasks, executors and tenants there are.
    texts = map(_shared, (tasks, executors, tenants))
    numbers = (repeat(None) if column is None else column for column in rest)
    return list(map(ReadyJob._make, zip(dags, nodes, names, *texts, *numbers, strict=False)))


def _shared(column: list[str]) -> Iterable[str]:
    """Tell the texts of a column, equal ones as one object; a single one stands for all."""
    return repeat(intern(column[0])) if len(column) == 1 else map(intern, column)


def claimed_of(rows: Sequence[Any]) -> list[Claimed]:
    """Read the answers of the functions `claim` and `acknowledge`."""
    make = tuple.__new__  # what `_make` does, without its checks
    claimed: list[Claimed] = []
    for row in rows:
        uses = row[7]
        inputs = dict(zip(uses, row[8], strict=True)) if uses else {}
        claimed.append(make(Claimed, (*row[:7], inputs, *row[9:])))
    return claimed


def finished_of(rows: Sequence[Any], ids: list[Id]) -> Finished:
    """Read the answer of the function `finish`, of endings of these jobs."""
    finished = Finished([], [], [], [])
    refused = set()
    for row in map(tuple, rows):
        kind = row[0]
        if kind == "ready":
            finished.ready.append(ReadyJob._make(row[1:]))
        elif kind == "runs":
            finished.ended.extend(map(RunEnd, map(int, row[3].split()), row[4].split()))
        else:
            refused.add((row[1], row[2]))
    finished.ready.sort()
    if not refused and len(set(ids)) == len(ids):
        finished.applied.extend(ids)
        return finished
    for one in ids:
        if one in refused:
            finished.refused.append(one)
        else:
            finished.applied.append(one)
            refused.add(one)  # the same job once more in one batch
    return finished
