"""The calls of one worker: what runs, what waits for a slot, and the life of each call."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fairlead.jobs.context import CurrentJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.jobs.executors.base import Outcome, Runner
    from fairlead.jobs.executors.processes import Instead, ProcessRunner
    from fairlead.jobs.records import Claimed
    from fairlead.jobs.registry import Task

# Why a call is stopped
CANCEL = "cancel"
TIMEOUT = "timeout"
HAND_BACK = "hand back"
LOST = "lost"

log = logging.getLogger("fairlead.jobs")


class LiveCall:
    """One claim of a job in this process; it ends once, however many would end it."""

    __slots__ = (
        "began",
        "claimed",
        "ended",
        "job",
        "lane",
        "left",
        "runner",
        "seat",
        "severed",
        "stuck",
        "task",
        "timer",
        "why",
    )

    def __init__(self, lane: Lane, claimed: Claimed, task: Task) -> None:
        self.lane = lane
        self.runner: Runner = lane.runner
        self.claimed = claimed
        self.task = task
        self.job = CurrentJob(
            claimed.dag, claimed.node, claimed.name, claimed.attempts + 1, claimed.fence
        )
        self.ended = False
        self.why: str | None = None  # it is stopped, if it is
        self.stuck = False  # it was told to stop, and has not
        self.severed = False  # by the heartbeat's thread; the loop hears of it a little later
        self.began: float | None = None
        self.seat: Any = None
        self.timer: asyncio.TimerHandle | None = None
        self.left: float | None = None  # seconds of its timeout, while its clock is held

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self.why is not None

    @property
    def ran(self) -> float | None:
        """For how many seconds it has run; None if it has not begun."""
        return None if self.began is None else perf_counter() - self.began

    def arm(self) -> None:
        """Start the clock of its timeout, if it has one; after `hold`, with what was left."""
        if self.claimed.timeout is not None and not self.ended and self.timer is None:
            left = self.claimed.timeout if self.left is None else self.left
            self.timer = self.lane.clock(left, self)

    def hold(self) -> None:
        """Stop the clock of its timeout; `arm` starts it again with what was left."""
        if self.timer is not None and self.why is None:
            self.left = max(0.0, self.timer.when() - asyncio.get_running_loop().time())
            self.timer.cancel()
            self.timer = None

    def end(self, outcome: Outcome) -> None:
        """Say how it ended; of several the first counts."""
        if self.ended:
            return
        self.ended = True
        if self.timer is not None:
            self.timer.cancel()
        self.lane.ended(self, outcome)


class Lane:
    """A worker: it runs at most as many calls as it has slots; whoever gives it more finds them waiting."""

    __slots__ = (
        "_apart",
        "_make_apart",
        "_on_end",
        "_stuck_timer",
        "clock",
        "executor",
        "running",
        "runner",
        "stuck",
        "waiting",
        "worker",
    )

    def __init__(
        self,
        executor: str,
        runner: Runner,
        clock: Callable[[float, LiveCall], asyncio.TimerHandle],
        on_end: Callable[[LiveCall, Outcome], None],
        make_apart: Callable[[Instead], ProcessRunner] | None = None,
    ) -> None:
        self.executor = executor
        self.runner = runner
        self.worker: int | None = None  # its number while it is registered
        self.running = 0
        self.stuck: list[
            LiveCall
        ] = []  # that were told to stop, and keep their slots because they do not
        self._stuck_timer: asyncio.TimerHandle | None = None
        self.waiting: deque[LiveCall] = deque()
        self.clock = clock
        self._on_end = on_end
        self._make_apart = make_apart  # None: no call shares a process with another
        self._apart: ProcessRunner | None = None  # runs suspects; made for the first of them

    def offer(self, call: LiveCall) -> None:
        """Run a call as soon as there is a slot."""
        if self.running < self.runner.slots and not self.waiting:
            self._begin(call)
        else:
            self.waiting.append(call)

    def ended(self, call: LiveCall, outcome: Outcome) -> None:
        """Free its slot, and begin what waits for one."""
        if call.began is not None:
            self.running -= 1
        self.free_stuck(call)
        self._on_end(call, outcome)
        while self.waiting and self.running < self.runner.slots:
            following = self.waiting.popleft()
            if not following.ended:
                self._begin(following)

    def _begin(self, call: LiveCall) -> None:
        self.running += 1
        call.began = perf_counter()
        if call.claimed.suspect and self._make_apart is not None:
            if self._apart is None:
                self._apart = self._make_apart(self._run_here)
            if self._apart.finds(call.task):
                call.runner = self._apart
            else:
                warn_of_sharing(call, "another process cannot find its function")
        call.runner.run(call)

    def _run_here(self, call: LiveCall, error: str) -> None:
        """Run a suspect among the others after all: it raised in a process of its own, perhaps for being there."""
        told = json.loads(error)
        warn_of_sharing(call, f"it raised there ({told['type']}: {told['message']})")
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        call.runner = self.runner
        call.runner.run(call)

    def hold_stuck(self, call: LiveCall, after: float, then: Callable[[Lane], None]) -> None:
        """Note that a call does not stop; `then` follows if all slots are held so for `after` seconds."""
        call.stuck = True
        self.stuck.append(call)
        if len(self.stuck) >= self.runner.slots:
            self.stuck_again(after, then)

    def stuck_again(self, after: float, then: Callable[[Lane], None]) -> None:
        """Have `then` follow, unless a slot is free before."""
        self._stuck_timer = asyncio.get_running_loop().call_later(after, then, self)

    def free_stuck(self, call: LiveCall) -> None:
        """Note that a call has stopped after all, or was let go."""
        if call.stuck:
            self.stuck.remove(call)
            if self._stuck_timer is not None:
                self._stuck_timer.cancel()
                self._stuck_timer = None

    def sever(self) -> None:
        """Stop everything at once, from any thread."""
        for runner in self._runners():
            runner.sever()

    async def close(self) -> None:
        """Let go of everything that runs calls."""
        for runner in self._runners():
            await runner.close()

    def _runners(self) -> list[Runner]:
        return [self.runner] if self._apart is None else [self.runner, self._apart]


def warn_of_sharing(call: LiveCall, why: str) -> None:
    """Log that a suspect runs among other jobs."""
    log.warning(
        "job %s (%s) was in a process that died, and should run in a process of its own; but %s, "
        "so it runs beside other jobs",
        call.job.id,
        call.claimed.task,
        why,
    )
