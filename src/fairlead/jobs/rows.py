"""From a DAG to the rows that are stored, or to everything that is wrong with it.

`Plan` finds who needs whom, in which order, how deep each job lies and how long the way from it to the end is.  Every
walk is a loop, so depth has no limit but the number of jobs.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from fairlead.config import shown
from fairlead.errors import (
    ConfigError,
    CycleFound,
    DuplicateNode,
    FairleadError,
    GraphError,
    PayloadError,
    UnknownNode,
)
from fairlead.jobs.cycles import order_of, shortest_cycle
from fairlead.jobs.records import NewJob, NewRun
from fairlead.jobs.registry import Task
from fairlead.jobs.sla import due_times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fairlead.jobs.graph import Dag
    from fairlead.jobs.nodes import Node

MOST_NODES = 100_000
UNKNOWN_ESTIMATE = 1.0  # so that without any estimate the longest way is the one of most jobs


class Fault(NamedTuple):
    """Something that keeps a DAG from running: of which job (None: of the DAG), which key of it, and the error."""

    node: int | None
    key: str
    error: FairleadError


class Plan:
    """One look at a DAG: first `faults`, all of them; then, without any, the rows.

    Whoever plans many DAGs gives the tasks as `Registered`, to find each of them once.
    """

    __slots__ = (
        "_begin",
        "_dag",
        "_estimates",
        "_hard",
        "_needs",
        "_nodes",
        "_order",
        "_own",
        "_registered",
        "_soft",
        "_tasks",
        "_uses",
    )

    def __init__(
        self,
        dag: Dag,
        tasks: Mapping[str, Task] | Registered,
        begin: float,
        estimates: Mapping[str, float],
    ) -> None:
        self._dag = dag
        self._nodes = list(dag.nodes)
        self._begin = begin
        self._estimates = estimates
        self._registered = tasks if isinstance(tasks, Registered) else Registered(tasks)
        self._tasks: list[Task] = []
        self._needs: list[tuple[int, ...]] = []
        self._uses: list[tuple[int, ...]] = []
        self._soft: float | None = None
        self._hard: float | None = None
        self._own: dict[int, tuple[float | None, float | None]] = {}
        self._order: Sequence[int] = ()

    def faults(self) -> Iterator[Fault]:
        """Tell everything that is wrong; rings only if all else is right."""
        dag, nodes = self._dag, self._nodes
        if not 1 <= len(nodes) <= MOST_NODES:
            yield Fault(None, "jobs", _wrong_size(dag.name, len(nodes)))
            return
        right = True
        if dag.soft or dag.hard:
            whose = f"DAG {dag.name!r}"
            try:
                self._soft, self._hard = due_times(dag.soft, dag.hard, self._begin, whose)
            except ConfigError as error:
                right = False
                yield Fault(None, "soft_sla", error)
        names = {node.name: node.index for node in reversed(nodes)}  # of two, the first has it
        find = self._registered.find
        for node in nodes:
            try:
                self._tasks.append(find(node.call))
            except FairleadError as error:
                right = False
                yield Fault(node.index, "task", error)
            if node.fault is not None or names[node.name] != node.index or node.soft or node.hard:
                for fault in self._rare_faults(node, names):
                    right = False
                    yield fault
            if not node.uses and not node.after:
                self._uses.append(())
                self._needs.append(())
                continue
            try:
                self._connect(node, names)
            except GraphError as error:
                right = False
                yield Fault(node.index, "after", error)
        if right:
            self._order = order_of(self._needs)
            if len(self._order) < len(nodes):
                ring = shortest_cycle(self._needs)
                yield Fault(ring[0], "after", CycleFound([nodes[each].name for each in ring]))

    def _rare_faults(self, node: Node, names: dict[str, int]) -> Iterator[Fault]:
        """Tell what is wrong with the arguments, the name and the SLAs of a job."""
        if node.fault is not None:
            given = "kwargs" if node.fault.where.startswith("kwargs") else "args"
            yield Fault(node.index, given, _named(node.fault, node.name))
        if names[node.name] != node.index:
            message = f"DAG {self._dag.name!r} has two jobs called {node.name!r}; rename one"
            yield Fault(node.index, "name", DuplicateNode(message))
        if node.soft or node.hard:
            try:
                self._own[node.index] = self._due_times(node)
            except ConfigError as error:
                yield Fault(node.index, "soft_sla", error)

    def _due_times(self, node: Node) -> tuple[float | None, float | None]:
        """Tell a job's SLAs; what it does not say is its run's, but never a soft one after its own hard one."""
        soft, hard = due_times(node.soft, node.hard, self._begin, f"job {node.name!r}")
        if soft is None:
            soft = self._soft if hard is None or self._soft is None else min(self._soft, hard)
        elif hard is None and self._hard is not None:
            hard = self._hard
            if soft > hard:
                raise ConfigError(
                    f"soft_sla of job {node.name!r} is after the hard_sla of its DAG; "
                    "make it earlier, or give the job a hard_sla too"
                )
        return soft, hard

    def _connect(self, node: Node, names: dict[str, int]) -> None:
        dag = self._dag
        needs: dict[int, None] = {}
        for use in node.uses:
            if use.dag is not dag:
                raise _of_another(node, use)
            needs[use.index] = None
        self._uses.append(tuple(needs))
        for each in node.after:
            if isinstance(each, str):
                index = names.get(each)
                if index is None:
                    raise _unknown(node, each, names)
                needs[index] = None
            elif each.dag is not dag:
                raise _of_another(node, each)
            else:
                needs[each.index] = None
        self._needs.append(tuple(needs))

    def run(self, start_at: float | None) -> NewRun:
        """Make the rows; only after `faults` found none."""
        learned = self._estimates
        estimates = [
            learned.get(task.name) if task.estimate is None else task.estimate
            for task in self._tasks
        ]
        make = tuple.__new__  # what the records' own makers do, in a third of the time
        levels, heights = self._measured(estimates)
        soft, hard, own = self._soft, self._hard, self._own
        jobs = []
        for node, task, needs, uses, level, height, estimate in zip(
            self._nodes,
            self._tasks,
            self._needs,
            self._uses,
            levels,
            heights,
            estimates,
            strict=True,
        ):
            due = own.get(node.index)
            called, _, executor, _, retries, retry_delay, timeout, _ = task
            row = (
                node.name,
                called,
                executor,
                node.payload,
                needs,
                uses,
                level,
                height,
                estimate,
                soft if due is None else due[0],
                hard if due is None else due[1],
                due is not None,
                retries,
                retry_delay,
                timeout,
            )
            jobs.append(make(NewJob, row))
        dag = self._dag
        run = (dag.name, tuple(jobs), dag.tenant, dag.key, soft, hard, start_at)
        return make(NewRun, run)

    def _measured(self, estimates: Sequence[float | None]) -> tuple[list[int], list[float]]:
        """Tell how deep each job lies, and how long the way from its start to the end of what follows is."""
        needs = self._needs
        levels = [0] * len(needs)
        lengths = [UNKNOWN_ESTIMATE if each is None else each for each in estimates]
        if not any(needs):
            return levels, lengths
        for index in self._order:
            for each in needs[index]:
                if levels[each] >= levels[index]:
                    levels[index] = levels[each] + 1
        heights = [0.0] * len(needs)
        for index in reversed(self._order):
            heights[index] += lengths[index]
            for each in needs[index]:
                if heights[index] > heights[each]:
                    heights[each] = heights[index]
        return levels, heights


def only_job(dag: Dag) -> Node | None:
    """Find the job of a DAG of one that has nothing but arguments; None of any other.

    Of such a one only the task can be wrong, and a queue of jobs is full of them.
    """
    nodes = dag.nodes
    if len(nodes) != 1 or dag.soft or dag.hard:
        return None
    node = nodes[0]
    plain = not (node.fault or node.uses or node.after or node.soft or node.hard)
    return node if plain else None


def run_of_one(
    dag: Dag, node: Node, found: Task, estimates: Mapping[str, float], start_at: float | None
) -> NewRun:
    """Make the rows of a DAG that has but this job, of this task."""
    task, _, executor, estimate, retries, retry_delay, timeout, _ = found
    if estimate is None:
        estimate = estimates.get(task)
    make = tuple.__new__  # as in `Plan.run`
    row = (
        node.name,
        task,
        executor,
        node.payload,
        (),
        (),
        0,
        UNKNOWN_ESTIMATE if estimate is None else estimate,
        estimate,
        None,
        None,
        False,
        retries,
        retry_delay,
        timeout,
    )
    job = make(NewJob, row)
    return make(NewRun, (dag.name, (job,), dag.tenant, dag.key, None, None, start_at))


class Registered:
    """Finds the task that a call means."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._tasks = tasks
        # By id, for what is called need not be hashable; and kept, or another might get its id.
        self._found: dict[int, tuple[Any, Task]] = {}

    def find(self, call: Any) -> Task:
        """Find the task of a function, a name or a task."""
        found = self._found.get(id(call))
        if found is None:
            found = self._found[id(call)] = (call, self._search(call))
        return found[1]

    def _search(self, call: Any) -> Task:
        if isinstance(call, Task):
            known = self._tasks.get(call.name)
            return known if known is not None else _no_task(call.name, self._tasks)
        if isinstance(call, str):
            return self._tasks.get(call) or _no_task(call, self._tasks)
        for task in self._tasks.values():
            if task.fn is call:
                return task
        name = getattr(call, "__name__", None)
        named = self._tasks.get(name) if isinstance(name, str) else None
        if named is None:
            return _no_task(name if isinstance(name, str) else shown(call), self._tasks)
        # A script that is also imported has each of its functions twice.
        modules = {getattr(fn, "__module__", None) for fn in (call, named.fn)}
        names = {getattr(fn, "__qualname__", None) for fn in (call, named.fn)}
        if len(names) == 1 and (len(modules) == 1 or "__main__" in modules):
            return named
        raise ConfigError(
            f"the function {name!r} of module {getattr(call, '__module__', None)!r} is not a task, "
            "though another task has its name; decorate it with @jobs.task(...), or rename it"
        )


def _no_task(name: str, tasks: Mapping[str, Task]) -> NoReturn:
    near = get_close_matches(name[:100], tasks, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else "; decorate a function with @jobs.task(...)"
    raise ConfigError(f"no task is called {shown(name)}{meant}")


def _wrong_size(name: str, size: int) -> GraphError:
    if not size:
        return GraphError(f"DAG {name!r} has no job; add one")
    return GraphError(f"DAG {name!r} has {size:,} jobs; the most is {MOST_NODES:,}, so split it")


def _named(fault: PayloadError, name: str) -> PayloadError:
    return PayloadError(f"job {name!r}: {fault}", where=fault.where)


def _of_another(node: Node, other: Node) -> UnknownNode:
    return UnknownNode(
        f"job {node.name!r} waits for {other!r}; a job waits for jobs of its own DAG only"
    )


def _unknown(node: Node, name: str, names: Mapping[str, int]) -> UnknownNode:
    near = get_close_matches(name[:100], names, n=1) if len(names) <= 10_000 else []
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return UnknownNode(f"job {node.name!r} waits for {shown(name)}, which is not in the DAG{meant}")
