"""Asking planners that users wrote: they may raise, hang, drop, invent or repeat jobs, and nobody else shall suffer.

A planner runs on a thread of its own, with a time limit.  One that fails is named in the log, and for that round the
order is by SLA priority and age.  A thread that hangs cannot be ended: after `MOST_HANGS` the planner is not asked
again until it is set anew.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.errors import ConfigError
from fairlead.jobs.planners import (
    NONE,
    ExecutionPlanner,
    GlobalPriorityExecutionPlanner,
    kind_of,
    made,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from fairlead.jobs.frontier import Frontier
    from fairlead.jobs.planners import FlatJob

PLAN_LIMIT = 2.0  # seconds
MOST_HANGS = 3

log = logging.getLogger("fairlead.jobs")


def planner_of(value: Any, planners: Mapping[str, Any] = NONE) -> ExecutionPlanner:
    """Read a planner: an object with `plan`, a class of them, or the name of one; None is the default one."""
    if value is None:
        return GlobalPriorityExecutionPlanner()
    if isinstance(value, str):
        return made(kind_of(value, planners), f"planner {value}")  # type: ignore[no-any-return]
    return made(value)  # type: ignore[no-any-return]


class Elsewhere(NamedTuple):
    """A planner of an app that is not loaded here, so how it orders is not known."""

    name: str


def name_of(planner: object, planners: Mapping[str, Any] = NONE) -> str:
    """Name a planner, for people and for the table; one that the app gave no name goes by its class."""
    if isinstance(planner, Elsewhere):
        return planner.name
    kind = type(planner)
    for name, one in planners.items():
        if one is planner or one is kind:
            return name
    if kind.__module__.startswith("fairlead."):
        return kind.__name__
    return f"{kind.__module__}:{kind.__qualname__}"


class Planning:
    """One planner of one user, asked again and again."""

    def __init__(
        self, planner: Any, executor: str, *, name: str | None = None, limit: float = PLAN_LIMIT
    ) -> None:
        self.planner = planner
        self.executor = executor
        self.name = name_of(planner) if name is None else name
        self.limit = limit
        self.hangs = 0
        self.failures = 0
        self.told: str | None = None  # the complaint told last, not to be repeated each round

    async def plan(
        self,
        jobs: Sequence[FlatJob],
        slots: dict[str, int],
        active: set[str],
        recent: set[str],
    ) -> list[Hashable] | None:
        """Ask for an order of these jobs; None if there is none to be had."""
        if self.hangs >= MOST_HANGS:
            return None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        # Its own copies: what it does to them is its own affair.
        arguments = (list(jobs), dict(slots), set(active), set(recent))
        thread = threading.Thread(
            target=_ask, args=(self.planner, arguments, loop, answer), name="planner", daemon=True
        )
        thread.start()
        try:
            planned = await asyncio.wait_for(answer, self.limit)
            return self._checked(planned, jobs)
        except TimeoutError:
            self.hangs += 1
            last = self.hangs >= MOST_HANGS
            self._complain(
                f"gave no answer within {self.limit:g} s"
                + ("; it is not asked again until it is set anew" if last else "")
            )
        except Exception as error:
            self._complain(f"failed: {error!r}")
        return None

    def _checked(self, planned: Any, jobs: Sequence[FlatJob]) -> list[Hashable]:
        known = {job.id: job for job in jobs}
        order: dict[Hashable, None] = {}
        strangers = 0
        for job in planned:
            name = getattr(job, "id", None)
            if name not in known or name in order:
                strangers += 1
            else:
                order[name] = None
        if strangers:
            self._complain(f"planned {strangers} jobs that it was not given, or gave before")
        else:
            self.told = None
        return list(order)

    def _complain(self, what: str) -> None:
        self.failures += 1
        if what != self.told:
            self.told = what
            log.error("planner %s of executor %r %s", self.name, self.executor, what)

    def blame(self, late: int, limit: float) -> None:
        """Tell that it left out jobs for so long that they run all the same."""
        log.warning(
            "planner %s of executor %r left out %d jobs for more than %g s; they run all the same",
            self.name,
            self.executor,
            late,
            limit,
        )


class Planners:
    """Which planner each executor has, and the asking of those that users wrote.

    They are asked in the background: one that takes its time holds up its own executor only.
    """

    def __init__(
        self,
        default: Any,
        now: Callable[[], float],
        max_withheld: float,
        answered: Callable[[], None],
        planners: Mapping[str, Any] = NONE,
    ) -> None:
        self._default = default
        self._named = planners
        self._now = now
        self._max_withheld = max_withheld
        self._answered = answered
        self._set: dict[str, tuple[str, Any]] = {}  # by executor ("": all others), with its name
        self._plannings: dict[str, Planning] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def of(self, executor: str) -> Any:
        """Tell the planner of an executor."""
        found = self._set.get(executor) or self._set.get("")
        return self._default if found is None else found[1]

    def follow(self, settings: Mapping[str, str]) -> None:
        """Follow what was set at run time; a name that is not known here leaves the planner before in place."""
        kept: dict[str, tuple[str, Any]] = {}
        for setting, name in settings.items():
            kind, _, executor = setting.partition(".")
            if kind != "planner":
                continue
            old = self._set.get(executor)
            try:
                if old is None or old[0] != name:
                    old = name, planner_of(name, self._named)
                kept[executor] = old
            except ConfigError as error:
                log.error(
                    "the planner of %s stays as it is: %s", executor or "all executors", error
                )
                if old is not None:
                    kept[executor] = old
        self._set = kept

    def ask(self, frontier: Frontier) -> None:
        """Have those asked that should be, and name those that left jobs out for too long."""
        for executor, planning in self._plannings.items():
            if late := frontier.overdue_withheld(executor):
                planning.blame(late, self._max_withheld)
        for executor in frontier.needs_plan(self._now()):
            if executor not in self._asking:
                task = asyncio.create_task(self._ask(frontier, executor))
                self._asking[executor] = task

    async def _ask(self, frontier: Frontier, executor: str) -> None:
        try:
            planner = self.of(executor)
            planning = self._plannings.get(executor)
            if planning is None or planning.planner is not planner:
                name = name_of(planner, self._named)
                planning = self._plannings[executor] = Planning(planner, executor, name=name)
            now = self._now()
            order = await planning.plan(
                frontier.candidates(executor, now),
                frontier.slots(),
                frontier.active_dags_text(),
                frontier.recent_dags_text(now),
            )
            if planner is self.of(executor):
                frontier.planned(executor, order, self._now())
        finally:
            del self._asking[executor]
            self._answered()

    def close(self) -> None:
        """Wait for no answer any more."""
        for task in list(self._asking.values()):
            task.cancel()


def _ask(
    planner: Any,
    arguments: tuple[Any, ...],
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[Any],
) -> None:
    error: BaseException | None = None
    planned: Any = None
    try:
        planned = list(planner.plan(*arguments))
    except BaseException as raised:
        error = raised if isinstance(raised, Exception) else RuntimeError(repr(raised))

    def tell() -> None:
        if answer.done():
            return  # too late: nobody waits
        if error is None:
            answer.set_result(planned)
        else:
            answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        pass  # the loop has ended
