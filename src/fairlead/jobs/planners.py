"""Execution planners: in which order the jobs that may run should run.

Each planner is a key, and `plan` sorts by it.  Whatever the key, jobs whose executor has room come before those whose
has none, and equals stay in the order in which they were given.  A key is a tuple of finite or infinite numbers, never
NaN, so the order is total whatever estimates say: what is no time at all (None, NaN, less than nothing) is *missing*.
"""

from __future__ import annotations

import importlib
import inspect
from difflib import get_close_matches
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import shown
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

Key = tuple[float, ...]


class FlatJob(NamedTuple):
    """A job as planners see it: one line, no graph."""

    id: Any
    dag_id: Any = ""
    executor: str = "default"
    level: int = 0  # depth in its DAG
    priority: int = 0  # by its SLA
    estimated_runtime: float | None = None  # seconds
    waited: float = 0.0  # seconds since it was ready
    height: float = 0.0  # seconds from its start to the end of all that follows it
    deadline: float | None = None  # epoch: its soft SLA, else its hard one
    tenant: str = ""


class Place(NamedTuple):
    """What a planner may weigh besides the job itself."""

    free: float  # slots of its executor
    is_new: bool  # no job of its DAG has started
    is_recent: bool  # its DAG became active a moment ago


class ExecutionPlanner:
    """The base of planners that are a key; any object with such a `plan` will do as well.

    Without a key of its own it keeps jobs in the order in which they were given.

    >>> class LastWord(ExecutionPlanner):
    ...     def key(self, job, place):
    ...         return (-job.level,)
    >>> [job.id for job in LastWord().plan([FlatJob("a"), FlatJob("b", level=2)], {"default": 1}, set())]
    ['b', 'a']
    """

    def plan(
        self,
        jobs: Sequence[FlatJob],
        slots: Mapping[str, int],
        active_dags: Collection[Any],
        recently_activated_dags: Collection[Any] = frozenset(),
    ) -> Sequence[FlatJob]:
        """Put jobs in order, best first; those whose executor is full or unknown stand last."""
        free = {name: number(count) for name, count in slots.items()}
        active = frozenset(active_dags)
        recent = frozenset(recently_activated_dags)
        key = self.key

        def placed(job: FlatJob) -> tuple[bool, Key]:
            room = free.get(job.executor, 0.0)
            place = Place(room, job.dag_id not in active, job.dag_id in recent)
            return room <= 0, key(job, place)

        return sorted(jobs, key=placed)

    def key(self, job: FlatJob, place: Place) -> Key:
        """Rank a job; less is sooner.  All keys of one planner are equally long."""
        return ()


class GlobalPriorityExecutionPlanner(ExecutionPlanner):
    """Finish what is begun, then what is urgent: depth, SLA priority, room, started DAGs, short jobs, fresh DAGs.

    `level="critical_path"` ranks by the time that must still pass after a job starts, instead of by its depth.

    >>> jobs = [FlatJob("late", priority=1000), FlatJob("deep", level=3)]
    >>> [job.id for job in GlobalPriorityExecutionPlanner().plan(jobs, {"default": 1}, set())]
    ['deep', 'late']
    """

    def __init__(self, level: str = "depth") -> None:
        if level not in {"depth", "critical_path"}:
            raise ConfigError(f'level must be "depth" or "critical_path"; got {shown(level)}')
        self.level = level

    def key(self, job: FlatJob, place: Place) -> Key:
        """Rank by these six, in that order."""
        level = job.level if self.level == "depth" else job.height
        return (
            -number(level),
            -number(job.priority),
            -place.free,
            place.is_new,
            *runtime(job),
            not place.is_recent,
        )


class HRRNExecutionPlanner(ExecutionPlanner):
    """Highest response ratio next: (waited + estimate) / estimate, so short jobs go first and long ones catch up.

    Without an estimate the ratio is 1, the least there is; among such jobs the one that waited longest is first.
    """

    def key(self, job: FlatJob, place: Place) -> Key:
        """Rank by the ratio, then as Global does, but not by the estimate again."""
        waited = max(0.0, number(job.waited))
        missing, estimate = runtime(job)
        if missing:
            return -1.0, -waited, *_rest(job, place)
        if estimate == 0:
            return -inf if waited else -1.0, 0.0, *_rest(job, place)
        # The limit is right where either is infinite; both at once would be NaN.
        ratio = 1.0 if estimate == inf else 1.0 + waited / estimate
        return -ratio, 0.0, *_rest(job, place)


class SJFSExecutionPlanner(ExecutionPlanner):
    """Shortest job first, by estimate; those without one last."""

    def key(self, job: FlatJob, place: Place) -> Key:
        """Rank by the estimate, then as Global does."""
        return *runtime(job), *_rest(job, place)


class EarliestDeadlineExecutionPlanner(ExecutionPlanner):
    """Earliest deadline first; those without one last, by SLA priority."""

    def key(self, job: FlatJob, place: Place) -> Key:
        """Rank by the deadline, then by SLA priority, then as Global does."""
        deadline = _moment(job.deadline)
        return *deadline, -number(job.priority), *_rest(job, place), *runtime(job)


class LeastSlackExecutionPlanner(ExecutionPlanner):
    """Least slack first: the time to the deadline less the time the job and all that follows it will take.

    What is common to all, the present, changes no order: a late deadline less much work ranks as a near one.
    """

    def key(self, job: FlatJob, place: Place) -> Key:
        """Rank by the slack, then by SLA priority, then as Global does."""
        missing, deadline = _moment(job.deadline)
        if not missing:
            work = number(job.height) or runtime(job)[1]
            deadline -= work if isfinite(work) else 0.0
        return missing, deadline, -number(job.priority), *_rest(job, place), *runtime(job)


def number(value: Any, default: float = 0.0) -> float:
    """Read a number for comparison; what is none, or NaN, is the default."""
    try:
        read = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return read if read == read else default


def runtime(job: FlatJob) -> tuple[float, float]:
    """Read an estimate for comparison: whether it is missing, and its length."""
    read = number(job.estimated_runtime, -1.0)
    return (1.0, 0.0) if read < 0 else (0.0, read)


def _moment(value: Any) -> tuple[float, float]:
    read = number(value, inf)
    return (0.0, read) if isfinite(read) else (1.0, 0.0)


def _rest(job: FlatJob, place: Place) -> Key:
    """Rank by all of Global's keys but the estimate."""
    return (
        -number(job.level),
        -number(job.priority),
        -place.free,
        place.is_new,
        not place.is_recent,
    )


BUILT_IN: dict[str, type[ExecutionPlanner]] = {
    planner.__name__: planner
    for planner in (
        EarliestDeadlineExecutionPlanner,
        GlobalPriorityExecutionPlanner,
        HRRNExecutionPlanner,
        LeastSlackExecutionPlanner,
        SJFSExecutionPlanner,
    )
}


def load_planner(path: Any) -> Any:
    """Load a planner by `module:Class` (or `module.Class`) and make one; a built-in one needs no module.

    >>> type(load_planner("fairlead.jobs.planners:SJFSExecutionPlanner")).__name__
    'SJFSExecutionPlanner'
    """
    if not isinstance(path, str):
        raise ConfigError(f"a planner must be given as module:Class; got {shown(path)}")
    if path in BUILT_IN:
        return BUILT_IN[path]()
    name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    if not all(part.isidentifier() for part in (*name.split("."), *attribute.split("."))):
        near = get_close_matches(path[:100], BUILT_IN, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"a planner must be given as module:Class, such as my.planners:Mine; got {shown(path)}{meant}"
        )
    found = _found(name, attribute, path)
    try:
        planner = found() if isinstance(found, type) else found
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"planner {path} could not be made without arguments: {shown(error)}"
        ) from error
    check_planner(planner, f"planner {path}")
    return planner


def _found(name: str, attribute: str, path: str) -> Any:
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"planner {path}: no module is called {error.name!r}; is its directory on the path?"
            ) from error
        raise ConfigError(f"planner {path} could not be imported: {shown(error)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"planner {path} could not be imported: {shown(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"planner {path}: {part!r} is not there{meant}")
        found = getattr(found, part)
    return found


def check_planner(planner: Any, what: str = "the planner") -> None:
    """See that something can be asked for a plan."""
    plan = getattr(planner, "plan", None)
    if not callable(plan):
        raise ConfigError(f"{what} has no method plan(jobs, slots, active_dags, ...)")
    if inspect.iscoroutinefunction(plan):
        raise ConfigError(f"{what}: plan must be a plain function, not async")
    try:
        inspect.signature(plan).bind((), {}, frozenset(), frozenset())
    except TypeError as error:
        raise ConfigError(
            f"{what}: plan must take (jobs, slots, active_dags, recently_activated_dags): {error}"
        ) from None
    except ValueError:  # written in C: it will be seen when it is asked
        pass
