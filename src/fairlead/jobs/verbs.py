"""The verbs of a client: submit runs and change them.  `Jobs` and `jobs.sync` share these, over their own stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.jobs.conflicts import refuses
from fairlead.jobs.executors.base import check_declared
from fairlead.jobs.files import runs_of
from fairlead.jobs.outcome import Run, find_run, run_number
from fairlead.jobs.sla import read_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlead.jobs.registry import Task
    from fairlead.jobs.stores.base import Store


async def submit_all(
    store: Store,
    tasks: Mapping[str, Task],
    executors: Iterable[str],
    dags: Iterable[Any],
    *,
    start_at: Any,
    connection: Any,
    on_conflict: Any,
    estimates: Mapping[str, float] | None = None,
) -> list[Run]:
    """Store DAGs as runs, all of them or none."""
    compare = refuses(on_conflict)
    now = store.now()
    at = None if start_at is None else read_time(start_at, "start_at", now)
    runs = runs_of(dags, tasks, now=now, start_at=at, estimates=estimates)
    await check_declared(store, executors, runs)
    submitted = await store.submit(runs, connection, compare=compare)
    make = tuple.__new__  # as for rows: a thousand of them for each batch of a queue
    return [make(Run, (str(dag), new)) for dag, new in submitted]


async def change(store: Store, run: Any, verb: str, *args: Any) -> bool:
    """Change a run by a verb of the store; False if that changed nothing, an error if there is no such run."""
    dag = run_number(run)
    changed: bool = await getattr(store, verb)(dag, *args)
    if not changed:
        await find_run(store, dag)
    return changed
