"""What the door tests share: slots kept busy, books that balance, and coroutines driven step by step."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from fairlead import Scheduler, SharedPool
from fairlead.tasks import SchedulerStats

ROOMY = 1000  # more steps of the loop than anything here needs


class Busy:
    """Keep slots busy with spawned work until `release`."""

    def __init__(self, scheduler: Any, slots: int = 1) -> None:
        self.opened = asyncio.Event()
        self.futures = [scheduler.spawn(50, self.opened.wait) for _ in range(slots)]

    async def release(self) -> None:
        """Let the slots go and wait until they are."""
        self.opened.set()
        await asyncio.wait(self.futures)


class Journal(list[Any]):
    """What ran, in order."""

    async def note(self, what: Any) -> Any:
        """Run for a moment."""
        self.append(what)
        await asyncio.sleep(0)
        return what


async def ticks(count: int = 10) -> None:
    """Let everything that is ready take its steps."""
    for _ in range(count):
        await asyncio.sleep(0)


def balanced(stats: SchedulerStats) -> bool:
    """Tell whether nothing runs, nothing waits, and everything submitted has come to its end."""
    return (
        stats.active_count == 0
        and stats.queued_count == 0
        and stats.total_submitted == stats.total_completed + stats.total_cancelled
    )


async def usable(scheduler: Any, slots: int) -> bool:
    """Tell whether all the slots can still be held at once: a leaked one would be missing."""
    running = 0
    together = asyncio.Event()

    async def meet() -> None:
        nonlocal running
        running += 1
        if running == slots:
            together.set()
        await together.wait()

    meeting = [scheduler.spawn(50, meet) for _ in range(slots)]
    await ticks(slots + 10)
    met = together.is_set()
    together.set()
    await asyncio.wait(meeting)
    return met


def others() -> set[asyncio.Task[Any]]:
    """Tell which tasks there are besides the one that asks."""
    asking = asyncio.current_task()
    return {task for task in asyncio.all_tasks() if task is not asking}


def timers() -> int:
    """Count the timers of the running loop that are not cancelled."""
    loop: Any = asyncio.get_running_loop()
    return sum(1 for handle in loop._scheduled if not handle.cancelled())


class Injected(Exception):
    """The coroutine came to its end before the step at which it was to be cancelled."""


@types.coroutine
def cancelled_at(
    work: Coroutine[Any, Any, Any], step: int, resumed: bool
) -> Generator[Any, Any, None]:
    """Await `work` and throw CancelledError into it at one suspension: as it suspends, or as it is resumed."""
    value: Any = None
    proceed: Callable[[Any], Any] = work.send
    suspensions = 0
    while True:
        try:
            waits_for = proceed(value)
        except StopIteration:
            raise Injected from None
        here = suspensions == step
        suspensions += 1
        value, proceed = None, work.send
        if here and not resumed:
            # What it waits for is given up, as a task does when it is cancelled.
            value, proceed = asyncio.CancelledError(), work.throw
            continue
        try:
            yield waits_for
        except BaseException as error:
            value, proceed = error, work.throw
        if here:
            value, proceed = asyncio.CancelledError(), work.throw


async def at_every_step(scenario: Callable[[int, bool], Coroutine[Any, Any, bool]]) -> int:
    """Run a scenario once per suspension point, cancelled there; it tells whether it got that far."""
    injections = 0
    for resumed in (False, True):
        for step in range(ROOMY):
            if not await scenario(step, resumed):
                break
            injections += 1
    return injections


MAKERS: dict[str, Callable[[], Scheduler]] = {
    "bounded": lambda: Scheduler.bounded(max_concurrency=2),
    "unbounded": Scheduler.unbounded,
    "from_env": lambda: Scheduler.from_env({"FAIRLEAD_SCHEDULER_ENABLED": "yes"}),
    "member": lambda: SharedPool(max_concurrency=2).scheduler(),
}
