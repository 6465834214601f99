"""Random verbs at one control point, and beside it books kept by hand.

The books know nothing of how the order is found.  They hold what must be true whatever it is: tokens are conserved,
limits are ceilings, each line is first in, first out, nobody waits beyond its time or stays when all could go.
"""

import asyncio
from dataclasses import dataclass, field
from math import inf
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead.flows.scheduler import AsyncFlow, FlowScheduler
from fairlead.testing.clock import VirtualLoop
from tests.flows.door import balanced, loaded, point_of, quota, ticks

CHOICE = st.integers(0, 1000)
QUARTERS = st.integers(0, 12).map(lambda quarters: quarters / 4)
HELD = 5.0
NEAR = 1e-6


@dataclass(eq=False)
class Asked:
    """A flow as its caller knows it."""

    line: tuple[str, str]
    tokens: float
    until: float
    task: asyncio.Task[AsyncFlow] = field(repr=False)
    held_until: float = inf


class FlowMachine(RuleBasedStateMachine):
    """A door with a limit and a quota; `level` is what the bucket should hold at `at`."""

    @initialize(limit=st.integers(1, 6), capacity=st.integers(2, 8), fill=st.integers(1, 3))
    def begin(self, limit, capacity, fill):
        self.loop = VirtualLoop()
        self.limit, self.capacity, self.fill = float(limit), float(capacity), float(fill)
        self.level, self.at = self.capacity, 0.0
        self.asked: list[Asked] = []
        self.waiting: list[Asked] = []
        self.running: list[Asked] = []
        self.lost: list[Asked] = []  # held too long
        self.flows = FlowScheduler.from_config(self.settings().settings)
        self.granted = 0

    def settings(self) -> Any:
        return loaded(
            concurrency={"max_concurrency": self.limit, "max_inflight_duration": HELD},
            quota=quota(self.capacity, self.fill),
            scheduler={
                "workload_label_key": "workload",
                "fairness_label_key": "user",
                "tokens_label_key": "tokens",
                "decision_deadline_margin": 0,
            },
        )

    @property
    def now(self) -> float:
        return self.loop.time()

    def do(self, seconds: float = 0.0) -> None:
        """Let time pass and everything that is ready take its steps; then see what was answered."""

        async def main() -> None:
            if seconds:
                await asyncio.sleep(seconds)
            await ticks(40)

        self.loop.run_until_complete(main())
        started = []
        for asked in [one for one in self.waiting if one.task.done()]:
            self.waiting.remove(asked)
            if asked.task.cancelled():
                continue
            flow = asked.task.result()
            if flow.should_run():
                started.append((flow.started_at, flow.seq, asked))
                line = [one for one in self.waiting if one.line == asked.line]
                passed = [one for one in line if not one.task.done() and self.before(one, asked)]
                assert not passed, "a line is first in, first out"
            elif flow.reject_reason == "never_fits":
                assert asked.tokens > self.capacity
            else:
                assert flow.reject_reason == "timeout"
                assert abs(asked.until - self.now) < NEAR or asked.until < self.now
        for at, _, asked in sorted(started, key=lambda one: one[:2]):
            self.fill_until(at)
            self.level -= asked.tokens
            assert self.level > -NEAR, "granted more than there was"
            assert at <= asked.until + NEAR
            asked.held_until = at + HELD
            self.running.append(asked)
            self.granted += 1
        self.fill_until(self.now)
        for asked in [one for one in self.running if one.held_until <= self.now + NEAR]:
            self.running.remove(asked)
            self.lost.append(asked)
        in_flight = sum(one.tokens for one in self.running)
        assert not started or in_flight <= self.limit + NEAR or len(self.running) == 1

    def before(self, one: Asked, other: Asked) -> bool:
        return self.asked.index(one) < self.asked.index(other)

    def fill_until(self, at: float) -> None:
        self.level = min(self.capacity, self.level + max(0.0, at - self.at) * self.fill)
        self.at = max(self.at, at)

    # Verbs

    @rule(
        # Mostly of one line, and patient: so that there is an order to keep.
        workload=st.sampled_from("aaab"),
        user=st.sampled_from("xxxy"),
        tokens=st.sampled_from([0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 9.0]),
        timeout=st.one_of(st.none(), st.none(), QUARTERS),
    )
    def offer(self, workload, user, tokens, timeout):
        labels = {"workload": workload, "user": user, "tokens": repr(tokens)}
        task = self.loop.create_task(self.flows.start_flow("p", labels, timeout))
        until = inf if timeout is None else self.now + timeout
        asked = Asked((workload, user), tokens, until, task)
        self.asked.append(asked)
        self.waiting.append(asked)
        self.do()

    @precondition(lambda self: self.waiting)
    @rule(number=CHOICE)
    def cancel(self, number):
        self.waiting[number % len(self.waiting)].task.cancel()
        self.do()

    @precondition(lambda self: self.running and self.waiting)
    @rule(number=CHOICE, other=CHOICE)
    def end_and_cancel_at_once(self, number, other):
        """One may be granted what the other frees, and be gone before it knows."""
        self.finish(number, None)
        self.waiting[other % len(self.waiting)].task.cancel()
        self.do()

    @precondition(lambda self: self.running)
    @rule(number=CHOICE, spent=st.sampled_from([None, 0.0, 0.5, 2.0, 6.0]))
    def end(self, number, spent):
        self.finish(number, spent)
        self.do()

    def finish(self, number: int, spent: float | None) -> None:
        asked = self.running.pop(number % len(self.running))
        flow = asked.task.result()
        assert flow.end(tokens=spent)
        assert not flow.end(tokens=9.0)
        if spent is not None:
            self.level = min(self.capacity, self.level + asked.tokens - spent)

    @precondition(lambda self: self.lost)
    @rule(number=CHOICE, spent=st.sampled_from([None, 0.0, 6.0]))
    def end_late(self, number, spent):
        """Its room is gone, what it was charged is settled all the same."""
        late = point_of(self.flows).counts.late_ends
        asked = self.lost.pop(number % len(self.lost))
        assert not asked.task.result().end(tokens=spent)
        assert not asked.task.result().end(tokens=9.0)
        assert point_of(self.flows).counts.late_ends == late + 1
        if spent is not None:
            self.level = min(self.capacity, self.level + asked.tokens - spent)
        self.do()

    @rule(quarters=st.integers(1, 10))
    def advance(self, quarters):
        for _ in range(quarters):
            self.do(0.25)

    @rule(limit=st.integers(1, 6))
    def retune_limit(self, limit):
        self.limit = float(limit)
        self.retune()

    @rule(capacity=st.integers(2, 8), fill=st.integers(1, 3))
    def retune_quota(self, capacity, fill):
        full = self.level >= self.capacity
        self.capacity, self.fill = float(capacity), float(fill)
        self.level = self.capacity if full else min(self.capacity, self.level)
        self.retune()

    def retune(self) -> None:
        point = point_of(self.flows)

        async def main() -> None:
            self.flows.retune(self.settings())

        self.loop.run_until_complete(main())
        assert point_of(self.flows) is point
        self.do()

    # What is always so

    @invariant()
    def books_agree(self):
        point = point_of(self.flows)
        gate: Any = point.gate
        assert (gate.waiting, gate.active) == (len(self.waiting), len(self.running))
        assert abs(point.queued - sum(one.tokens for one in self.waiting)) < NEAR
        part: Any = point.parts.quota
        assert abs(part.level(self.now) - self.level) < NEAR
        inflight: Any = point.parts.concurrency
        assert abs(inflight.used() - sum(one.tokens for one in self.running)) < NEAR
        assert all(one.until > self.now - NEAR for one in self.waiting)

    @invariant()
    def somebody_must_wait(self):
        """No lost wake-up: of those at the head of their lines at least one has no room."""
        heads = {one.line: one for one in reversed(self.waiting)}.values()
        used = sum(one.tokens for one in self.running)
        fits = [
            self.level >= one.tokens + NEAR and (used + one.tokens <= self.limit or not used)
            for one in heads
        ]
        assert not heads or not all(fits)

    @invariant()
    def nothing_that_can_never_fit_waits(self):
        assert all(one.tokens <= self.capacity for one in self.waiting)

    def teardown(self):
        if not hasattr(self, "flows"):
            return
        for asked in self.waiting:
            asked.task.cancel()
        self.do(HELD + 1.0)
        for _ in range(3):
            self.do(HELD + 1.0)
        balanced(self.flows)
        self.loop.close()
