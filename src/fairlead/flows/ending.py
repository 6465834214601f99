"""What the end of a flow does at its control point, and what was counted there when it began and ended."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from fairlead.core import Change, Gate
from fairlead.core.ticket import DONE, EXPIRED, Outcome
from fairlead.errors import PolicyError
from fairlead.flows.counts import MOST_WORKLOADS, Counts
from fairlead.flows.drawn import Drawn
from fairlead.flows.parts import CONCURRENCY, QUOTA, keyed
from fairlead.flows.window import WindowMean

if TYPE_CHECKING:
    from fairlead.capacities.learned import LearnedLimit
    from fairlead.core.capacity import Capacity
    from fairlead.flows.flow import Flow
    from fairlead.flows.load import LoadControl
    from fairlead.flows.parts import Parts
    from fairlead.flows.settings import ControlPoint

# Seconds after which a flow that nobody ended is forgotten, where nothing lets it hold its tokens longer.
LONGEST_UNENDED = 3600.0
COSTS_MOVE = 5.0  # seconds between two moves of what the flows of a workload are taken to cost
RECENT = 60.0  # seconds that an end counts for how fast things go
FAILED, IGNORED = Outcome.FAILED, Outcome.IGNORED


class Ending:
    """The part of a control point that flows come to when their work is done."""

    settings: ControlPoint
    parts: Parts
    capacity: Capacity
    gate: Gate
    runtime: Any
    load: LoadControl | None
    learner: LearnedLimit | None
    drawing: Drawn | None  # where flows are that hold nothing; None: all are in the gate's books
    _learns: bool
    _costs: dict[str, WindowMean] | None  # how long the work of each workload takes

    def __init__(self) -> None:
        self._counts = Counts()
        self.drawn = Drawn()
        self.heir: Ending | None = None  # the point that has taken its place
        self._costs = None
        self._finished: deque[tuple[float, float]] = deque(maxlen=64)  # when, and how many tokens
        self._paced = 0  # of the flows that were drawn, those among them

    def continue_from(self, former: Ending) -> None:
        """Go on counting where the point before this one has stopped."""
        former.heir = self
        self._counts, self.drawn, self._paced = former.counts, former.drawn, former._paced
        if self.drawing is not None:
            self.drawing = self.drawn

    @property
    def in_flight(self) -> int:
        """How many flows run."""
        return self.gate.active + len(self.drawn.flows)

    @property
    def counts(self) -> Counts:
        """What was counted, up to now."""
        self.drawn.tell(self._counts)
        return self._counts

    def rate(self, now: float) -> float | None:
        """Tell how many tokens a second were done with of late; None if that is not known."""
        finished = self._finished
        while finished and now - finished[0][0] > RECENT:
            finished.popleft()
        if len(finished) < 2:
            return None
        return sum(tokens for _, tokens in finished) / max(now - finished[0][0], 1e-3)

    def end(self, flow: Flow, outcome: Outcome, tokens: float | None) -> bool:
        """Give back what lasts as long as the work, and settle what was charged; False if that was done before."""
        if flow.ended:
            return False
        if flow.drawn is not None:
            return self._end_drawn(flow, outcome, tokens)
        flow.ended = True
        busy = 0.0 if self.learner is None else self.parts.busy(flow)  # its own tokens among them
        gate, runtime = self.gate, self.runtime
        try:  # what `runtime.finish` does, for benchmarks/flows.py
            changed = gate.finish(flow, runtime.clock(), outcome, tokens)
        except PolicyError as error:  # it failed for those who wait
            runtime.report(error)
            changed = ()
        if changed or gate.due < runtime.timer_at:
            runtime.after(changed)
        now = gate.now  # its end
        self._finished.append((now, flow.cost))
        counts = self._counts
        counts.ended_flows += 1
        if outcome is FAILED:
            counts.failed_flows += 1
        if self._learns and outcome is not IGNORED:  # nobody knows how long that took
            self._learn(flow, outcome, now, busy)
        if flow.state is DONE:
            return True
        counts.late_ends += 1  # its room had been given to others; what a quota charged had not
        if tokens is not None:
            self._settle(flow, tokens, now)
        return False

    def _end_drawn(self, flow: Flow, outcome: Outcome, tokens: float | None) -> bool:
        in_time = flow.end_drawn()
        if not in_time:
            if flow.state is not EXPIRED:  # another thread has just ended it
                return False
            flow.ended = True
            self._counts.ended_flows += 1
            self._counts.late_ends += 1
        if outcome is FAILED:
            self._counts.failed_flows += 1
        if tokens is not None and tokens != flow.cost:
            self._settle(flow, tokens, self.runtime.now())
        return in_time

    def _settle(self, flow: Flow, tokens: float, now: float) -> None:
        """Correct what a quota charged a flow that no gate knows any more; a reload may have moved the quota."""
        with self.runtime.lock:
            if self.heir is not None:
                self.heir._settle(flow, tokens, now)
                return
            said = self.settings.quota
            if said is not None and not self.parts.shared:
                by = keyed(said.limit_by_label_key)
                key = None if by is None else by(flow)
                self.runtime.adjust(Change(QUOTA, "correct", (flow.cost - tokens, key, now)))

    def _learn(self, flow: Flow, outcome: Outcome, now: float, busy: float) -> None:
        latency = now - flow.started_at
        if self.load is not None:
            self.load.ended(latency, now)
        if self._costs is not None:
            name = flow.workload[0]
            if name not in self._costs and len(self._costs) < MOST_WORKLOADS:
                self._costs[name] = WindowMean(refresh=COSTS_MOVE)
            if name in self._costs:
                self._costs[name].add(latency, now)
        if self.learner is not None:
            before = self.learner.limit
            limit = self.learner.sample(latency, busy, now, dropped=outcome is FAILED)
            if limit != before:
                self.runtime.adjust(Change(CONCURRENCY, "resize", (limit,)))

    def pace(self, now: float) -> None:
        """Note how many flows were drawn since this was last done, for how fast things go."""
        started = self.drawn.started
        if started > self._paced:
            self._finished.append((now, started - self._paced))
        self._paced = started

    def forget_unended(self, now: float) -> None:
        """End flows that nobody ended, so that they are not remembered for ever."""
        said = self.settings.concurrency
        oldest = now - max(LONGEST_UNENDED, said.max_inflight_duration if said is not None else 0.0)
        self._counts.forgotten += self.drawn.forget(oldest)
        while True:
            flow = next(iter(self.gate.holders), None)  # the first to start
            if flow is None or flow.started_at >= oldest:
                return
            self.runtime.finish(flow, IGNORED)
            flow.state = EXPIRED  # an end that comes after all is late
            self._counts.forgotten += 1
