"""A store that knows workers and endings only, for the tests of workers; kept in memory, safe between threads."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from fairlead.errors import StoreUnavailable
from fairlead.jobs.executors.base import ExecutorSpec, specs_of
from fairlead.jobs.records import Beat, Claimed, Ending, Finished
from fairlead.jobs.registry import Task, task_of
from fairlead.jobs.worker import Crew


class Desk:
    """What was registered, claimed and finished; `away` makes every call fail, `hang` makes it wait."""

    url = "desk:"

    def __init__(self) -> None:
        self._twins: list[Desk] = [self]
        self.lock = threading.Condition()
        self.numbers = itertools.count(1)
        self.fences = itertools.count(1000)
        self.workers: dict[int, tuple[str, int, float]] = {}  # executor, lease ends at, beats
        self.beats: list[float] = []
        self.waiting: list[Claimed] = []
        self.active: dict[tuple[int, int], int] = {}  # job -> fence
        self.cancelling: list[tuple[int, int, int]] = []
        self.dead: dict[tuple[int, int], int] = {}  # deaths alone, by job
        self.endings: list[Ending] = []
        self.refused: list[Ending] = []
        self.ends: dict[tuple[int, int, int], list[Ending]] = {}
        self.batches: list[int] = []
        self.drained: list[int] = []
        self.retired: list[int] = []
        self.ended_before_retiring = 0
        self.away = False
        self.on_finish: Callable[[list[Ending]], Any] | None = None
        self.hints: asyncio.Event | None = None

    def twin(self) -> "Desk":
        return self

    def now(self) -> float:
        return monotonic()

    async def open(self) -> None:
        self._check()

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailable("the desk is away")

    async def wait_for_news(self, timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False

    async def register(
        self,
        name: str,
        process: str,
        executors: dict[str, int],
        lease: float,
        tasks: list[str] | None = None,
    ) -> dict[str, int]:
        self._check()
        await asyncio.sleep(0)
        with self.lock:
            numbers = {executor: next(self.numbers) for executor in executors}
            for executor, number in numbers.items():
                self.workers[number] = (executor, executors[executor], monotonic() + lease)
            return numbers

    async def beat(self, workers: list[int], lease: float) -> Beat:
        self._check()
        await asyncio.sleep(0)
        with self.lock:
            self.beats.append(monotonic())
            for worker in workers:
                if worker in self.workers:
                    executor, slots, _ = self.workers[worker]
                    self.workers[worker] = (executor, slots, monotonic() + lease)
            self.lock.notify_all()
            return Beat([one for one in workers if one in self.workers], list(self.cancelling))

    async def fetch(self, workers: list[int]) -> list[Claimed]:
        self._check()
        await asyncio.sleep(0)
        with self.lock:
            mine = [one for one in self.waiting if one.worker in workers]
            self.waiting = [one for one in self.waiting if one.worker not in workers]
            return mine

    async def drain(self, workers: list[int]) -> None:
        self._check()
        await asyncio.sleep(0)
        self.drained += workers

    async def retire(self, workers: list[int]) -> None:
        self._check()
        await asyncio.sleep(0)
        with self.lock:
            self.ended_before_retiring = len(self.ends)
            for worker in workers:
                self.workers.pop(worker, None)
                self.retired.append(worker)

    async def deaths(
        self, jobs: list[tuple[int, int]], window: float
    ) -> dict[tuple[int, int], tuple[int, int]]:
        self._check()
        await asyncio.sleep(0)
        return {job: (self.dead[job], 0) for job in jobs if job in self.dead}

    async def finish(self, process: str, endings: list[Ending]) -> Finished:
        self._check()
        await asyncio.sleep(0)
        if self.on_finish is not None:
            self.on_finish(endings)
        with self.lock:
            self.batches.append(len(endings))
            for ending in endings:
                self.ends.setdefault((ending.dag, ending.node, ending.fence), []).append(ending)
                if self.active.get((ending.dag, ending.node)) == ending.fence:
                    del self.active[ending.dag, ending.node]
                    self.endings.append(ending)
                    if ending.death is not None and ending.death.alone:
                        job = (ending.dag, ending.node)
                        self.dead[job] = self.dead.get(job, 0) + 1
                else:
                    self.refused.append(ending)
            self.cancelling = [one for one in self.cancelling if self.active.get(one[:2]) == one[2]]
            self.lock.notify_all()
        return Finished([], [], [], [])

    # For the tests

    def bury(self, worker: int) -> None:
        """Forget a worker, as the scheduler does with silent ones."""
        with self.lock:
            self.workers.pop(worker, None)

    def claim(self, worker: int, task: str, *args: Any, node: int = 0, **fields: Any) -> Claimed:
        """Make a claim; the fence is new."""
        from fairlead.jobs.payload import encode_call

        fence = next(self.fences)
        dag = fields.pop("dag", fence)
        claimed = Claimed(
            dag=dag,
            node=node,
            worker=worker,
            fence=fence,
            name=fields.pop("name", task),
            task=task,
            payload=fields.pop("payload", None) or encode_call(args, {})[0],
            inputs=fields.pop("inputs", {}),
            attempts=fields.pop("attempts", 0),
            crashes=fields.pop("crashes", 0),
            retries=fields.pop("retries", 0),
            retry_delay=fields.pop("retry_delay", 0.0),
            timeout=fields.pop("timeout", None),
            suspect=fields.pop("suspect", False),
        )
        if claimed.crashes:
            self.dead[dag, node] = claimed.crashes
        assert not fields
        with self.lock:
            self.active[dag, node] = fence
        return claimed

    def cancel(self, claimed: Claimed) -> None:
        """Ask for a job to be stopped; its worker hears of it with the next beat."""
        with self.lock:
            self.cancelling.append((claimed.dag, claimed.node, claimed.fence))

    def ending_of(self, claimed: Claimed) -> Ending | None:
        """How a claim ended, if it has; it can have ended only once."""
        with self.lock:
            found = self.ends.get((claimed.dag, claimed.node, claimed.fence), [])
            assert len(found) <= 1, found
            return found[0] if found else None

    async def ended(self, *claims: Claimed, timeout: float = 20.0) -> list[Ending]:
        """Wait until every claim has ended."""
        async with asyncio.timeout(timeout):
            while True:
                found = [self.ending_of(claimed) for claimed in claims]
                if None not in found:
                    return found  # type: ignore[return-value]
                await asyncio.sleep(0.002)


def tasks_of(*functions: Any) -> dict[str, Task]:
    """The registry of some functions."""
    return {task.name: task for task in map(task_of, functions)}


def crew_of(desk: Any, tasks: dict[str, Task], value: Any = 4, **options: Any) -> Crew:
    """A crew of one executor, "x"."""
    executors: dict[str, ExecutorSpec] = specs_of({"x": value})
    settings: dict[str, Any] = {"name": "here", "process": "p1", "lease": 1.0, "poll": 0.05}
    return Crew(desk, tasks, executors, **(settings | options))
