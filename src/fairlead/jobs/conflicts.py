"""The same key with another DAG: what makes it another, and the error that names the difference.

A DAG is its name, its jobs (name, task, what they need) and their arguments, as canonical JSON.  SLAs, start times,
estimates, retries and executors are not: they may change with a deploy, or by the hour.  So may the order in which jobs
were added: jobs are compared by their names.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import shown
from fairlead.errors import ConfigError, KeyConflict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlead.jobs.records import NewRun, Submitted

ERROR, EXISTING = "error", "existing"
LONGEST = 80  # characters of a value in an error


class KeptJob(NamedTuple):
    """A job of a run, as far as it is compared."""

    name: str
    task: str
    needs: Sequence[int] | None
    payload: str | None  # None: no longer kept


class KeptRun(NamedTuple):
    """A run, as far as it is compared."""

    name: str
    jobs: Sequence[KeptJob]


def refuses(on_conflict: Any) -> bool:
    """Read `on_conflict`: whether a key of another DAG is an error."""
    if on_conflict not in (ERROR, EXISTING):
        raise ConfigError(
            f'on_conflict must be "{ERROR}" or "{EXISTING}"; got {shown(on_conflict)}'
        )
    return bool(on_conflict == ERROR)


def check_call(runs: Iterable[NewRun]) -> None:
    """Refuse a call that gives one key to two DAGs."""
    first: dict[tuple[str, str], NewRun] = {}
    for run in runs:
        if run.key is None:
            continue
        other = first.setdefault((run.tenant, run.key), run)
        if other is run:
            continue
        found = difference(kept(other), run, ("in the first", "in the second"))
        if found:
            raise KeyConflict(
                f"key {shown(run.key)} is given to two DAGs of this call, and they differ: {found}; "
                f'nothing was stored: give each a key of its own, or pass on_conflict="{EXISTING}"',
                run.key,
            )


def check_stored(
    runs: Sequence[NewRun], answers: Sequence[Submitted], stored: Mapping[int, KeptRun]
) -> None:
    """Refuse runs whose key belongs to another DAG; a run of which nothing is kept is not compared."""
    for run, (dag, new) in zip(runs, answers, strict=True):
        other = None if new else stored.get(dag)
        found = None if other is None else difference(other, run)
        if found:
            raise KeyConflict(
                f"key {shown(run.key)} belongs to run {dag}, whose DAG differs: {found}; "
                f'nothing was stored: use another key, or pass on_conflict="{EXISTING}"',
                run.key or "",
                str(dag),
            )


def kept(run: NewRun) -> KeptRun:
    """Reduce a new run to what is compared."""
    return KeptRun(
        run.name, [KeptJob(job.name, job.task, job.needs, job.payload) for job in run.jobs]
    )


def difference(
    stored: KeptRun, run: NewRun, places: tuple[str, str] = ("there", "here")
) -> str | None:
    """Name the first difference between two DAGs; None if they are the same."""
    there, here = places
    if stored.name != run.name:
        return f"it is called {shown(stored.name)} {there} and {shown(run.name)} {here}"
    old = {job.name: job for job in stored.jobs}
    new = {job.name: job for job in kept(run).jobs}
    for name in old:
        if name not in new:
            return f"it has a job {shown(name)} {there}, and none {here}"
    for name in new:
        if name not in old:
            return f"it has a job {shown(name)} {here}, and none {there}"
    old_names, new_names = [job.name for job in stored.jobs], [job.name for job in run.jobs]
    for name, before in old.items():
        after = new[name]
        job = f"job {shown(name)}"
        if before.task != after.task:
            return f"{job} calls task {shown(before.task)} {there} and {shown(after.task)} {here}"
        needs = _needed(before, old_names), _needed(after, new_names)
        if needs[0] != needs[1]:
            return f"{job} needs {_listed(needs[0])} {there} and {_listed(needs[1])} {here}"
        if before.payload is None or (
            before.payload == after.payload
            and ('$result"' not in before.payload or old_names == new_names)
        ):
            continue
        calls = _call(before.payload, old_names), _call(after.payload or "", new_names)
        for part in ("args", "kwargs"):
            values = _canonical(calls[0][part]), _canonical(calls[1][part])
            if values[0] != values[1]:
                one, other = _around(*values)
                return f"{job} has {part} {one} {there} and {other} {here}"
    return None


def _needed(job: KeptJob, names: Sequence[str]) -> list[str]:
    return sorted(names[node] for node in job.needs or ())


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no other job"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(shown, names[:5])) + more


def _call(payload: str, names: Sequence[str]) -> dict[str, Any]:
    """Read a call with the names of jobs where their results go."""

    def name(given: dict[str, Any]) -> dict[str, Any]:
        # A key of the user's own that reads so has one more `$` (see `payload`).
        return {"$result": names[given["$result"]]} if "$result" in given else given

    read: dict[str, Any] = json.loads(payload, object_hook=name)
    return read


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _around(one: str, other: str) -> tuple[str, str]:
    """Cut two long texts to where they differ."""
    if max(len(one), len(other)) <= LONGEST:
        return one, other
    at = next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    start = max(0, at - LONGEST // 4)
    return _cut(one, start), _cut(other, start)


def _cut(text: str, start: int) -> str:
    head = "…" if start else ""
    tail = "…" if len(text) > start + LONGEST else ""
    return f"{head}{text[start : start + LONGEST]}{tail}"
