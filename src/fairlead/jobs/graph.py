"""DAGs of jobs, as people build them.

Arguments are kept as they are when a job is added; everything else is judged at once, by `Dag.plan`, before anything is
stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.jobs.nodes import Node, text_of
from fairlead.jobs.registry import Task
from fairlead.jobs.rows import Plan, Registered
from fairlead.jobs.sla import due_times, instant, sla_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlead.jobs.records import NewRun


class Dag:
    """Jobs and what they wait for; a node given as an argument is a dependency and becomes its result.

    SLAs are instants (datetimes with a zone) or durations from when the run may start.  `key` makes the submission
    idempotent: the same key of the same tenant always gives the same run.

    >>> def extract(doc): ...
    >>> def merge(pages): ...
    >>> dag = Dag("invoice", soft_sla="15m", hard_sla="1h", tenant="acme", key="invoice-4711")
    >>> pages = [dag.add(extract, doc) for doc in ("a", "b")]
    >>> merged = dag.add(merge, pages)
    >>> [node.name for node in dag.nodes]
    ['extract', 'extract-2', 'merge']
    """

    def __init__(
        self,
        name: str,
        *,
        soft_sla: Any = None,
        hard_sla: Any = None,
        tenant: str | None = None,
        key: str | None = None,
    ) -> None:
        self.name = text_of(name, "the name of a DAG")
        self.tenant = "" if tenant is None else text_of(tenant, f"tenant of DAG {name!r}")
        self.key = None if key is None else text_of(key, f"key of DAG {name!r}")
        self.soft = sla_of(soft_sla, f"soft_sla of DAG {name!r}")
        self.hard = sla_of(hard_sla, f"hard_sla of DAG {name!r}")
        if self.soft and self.hard and self.soft.relative == self.hard.relative:
            due_times(self.soft, self.hard, 0.0, f"DAG {name!r}")
        self.nodes: list[Node] = []
        self.given: set[str] = set()  # names that people chose
        self._made: dict[str, int] = {}  # how many names were made of a function's

    def add(self, fn: Callable[..., Any] | Task | str, /, *args: Any, **kwargs: Any) -> Node:
        """Add a call of a task (the function, or its name); its arguments are kept as they are now.

        What cannot be stored is refused when the DAG is submitted.
        """
        called = fn if isinstance(fn, str) else getattr(fn, "__name__", None)
        if type(called) is not str:
            called = fn.name if isinstance(fn, Task) else "job"
        nodes = self.nodes
        name = called
        number = self._made.get(called, 0) + 1
        if number > 1:
            name = f"{called}-{number}"
        while name in self.given:
            number += 1
            name = f"{called}-{number}"
        self._made[called] = number
        node = Node(self, len(nodes), name, fn)
        if args or kwargs:
            node.give(args, kwargs)
        nodes.append(node)
        return node

    def plan(
        self,
        tasks: Mapping[str, Task] | Registered,
        *,
        now: float,
        start_at: Any = None,
        estimates: Mapping[str, float] | None = None,
    ) -> NewRun:
        """Check everything and make the rows to store; `estimates` were learned, by task.

        `start_at` is an instant like `now`, epoch seconds or a datetime with a zone.
        """
        begin = None if start_at is None else instant(start_at, "start_at")
        begun = now if begin is None or begin < now else begin
        registered = tasks if isinstance(tasks, Registered) else Registered(tasks)
        plan = Plan(self, registered, begun, estimates or {})
        for fault in plan.faults():
            raise fault.error
        return plan.run(begin)
