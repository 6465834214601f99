"""The calls of one worker: what runs, what waits for a slot, and the life of each call."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fairlead.jobs.context import CurrentJob

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fairlead.jobs.executors.base import Outcome, Runner
    from fairlead.jobs.records import Claimed
    from fairlead.jobs.registry import Task

# Why a call is stopped
CANCEL = "cancel"
TIMEOUT = "timeout"
HAND_BACK = "hand back"
LOST = "lost"


class LiveCall:
    """One claim of a job in this process; it ends once, however many would end it."""

    __slots__ = (
        "began",
        "claimed",
        "ended",
        "job",
        "lane",
        "seat",
        "severed",
        "task",
        "timer",
        "why",
    )

    def __init__(self, lane: Lane, claimed: Claimed, task: Task) -> None:
        self.lane = lane
        self.claimed = claimed
        self.task = task
        self.job = CurrentJob(
            claimed.dag, claimed.node, claimed.name, claimed.attempts + 1, claimed.fence
        )
        self.ended = False
        self.why: str | None = None  # it is stopped, if it is
        self.severed = False  # by the heartbeat's thread; the loop hears of it a little later
        self.began: float | None = None
        self.seat: Any = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self.why is not None

    @property
    def ran(self) -> float | None:
        """For how many seconds it has run; None if it has not begun."""
        return None if self.began is None else perf_counter() - self.began

    def arm(self) -> None:
        """Start the clock of its timeout, if it has one."""
        if self.claimed.timeout is not None and not self.ended and self.timer is None:
            self.timer = self.lane.clock(self.claimed.timeout, self)

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

    __slots__ = ("_on_end", "clock", "executor", "running", "runner", "waiting", "worker")

    def __init__(
        self,
        executor: str,
        runner: Runner,
        clock: Callable[[float, LiveCall], asyncio.TimerHandle],
        on_end: Callable[[LiveCall, Outcome], None],
    ) -> None:
        self.executor = executor
        self.runner = runner
        self.worker: int | None = None  # its number while it is registered
        self.running = 0
        self.waiting: deque[LiveCall] = deque()
        self.clock = clock
        self._on_end = on_end

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
        self._on_end(call, outcome)
        while self.waiting and self.running < self.runner.slots:
            following = self.waiting.popleft()
            if not following.ended:
                self._begin(following)

    def _begin(self, call: LiveCall) -> None:
        self.running += 1
        call.began = perf_counter()
        self.runner.run(call)
