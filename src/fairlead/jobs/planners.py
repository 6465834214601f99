"""Execution planners: in which order the jobs that may run should run.

Each planner is a key, and `plan` sorts by it.  Whatever the key, jobs whose executor has room come before those whose
has none, and equals stay in the order in which they were given.  A key is a tuple of finite or infinite numbers, never
NaN, so the order is total whatever estimates say: what is no time at all (None, NaN, less than nothing) is *missing*.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from difflib import get_close_matches
from math import inf, isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import shown, told
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Key = tuple[float, ...]
NONE: Mapping[str, Any] = MappingProxyType({})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


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


def kind_of(name: Any, planners: Mapping[str, Any] = NONE) -> Any:
    """Find a planner, or the class of one, by its name: a built-in one, or one of the app's.  Nothing is imported.

    >>> kind_of("SJFSExecutionPlanner").__name__
    'SJFSExecutionPlanner'
    """
    if not isinstance(name, str):
        raise ConfigError(f"a planner must be given by its name; got {shown(name)}")
    found = BUILT_IN.get(name, planners.get(name))
    if found is not None:
        return found
    known = (*BUILT_IN, *planners)
    near = get_close_matches(name[:100], known, n=1)
    meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
    own = ""
    if not near:
        own = '; a planner of your own is known where its app is, by its name in Jobs(planners={"mine": Mine})'
    raise ConfigError(f"planner {shown(name)} is not known here{meant}{own}")


def table_of(given: Any) -> dict[str, Any]:
    """Read the planners of an app: each is an object or a class, and has a name that no other planner has."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f'planners must map names to planners, such as {{"mine": Mine}}; got {told(given)}'
        )
    for name, planner in given.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"the name of a planner has letters, digits, _, . and -, at most 100; got {shown(name)}"
            )
        if name in BUILT_IN:
            raise ConfigError(f"{name} is a built-in planner; give yours another name")
        made(planner, f"planner {name}")
    return dict(given)


def made(planner: Any, what: str = "the planner") -> Any:
    """Make a planner of a class, or check that an object is one."""
    if isinstance(planner, type):
        try:
            planner = planner()
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{what} could not be made without arguments: {shown(error)}"
            ) from error
    check_planner(planner, what)
    return planner


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
