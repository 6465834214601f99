"""What a control point counts; labels that a client can make up are bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from fairlead.core.ticket import Outcome

if TYPE_CHECKING:
    from fairlead.flows.flow import Flow

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MOST_WORKLOADS = 100


class Counts:
    """Plain counters, by workload."""

    def __init__(self) -> None:
        self.incoming_tokens: Counter[str] = Counter()
        self.accepted_tokens: Counter[str] = Counter()
        self.rejected_tokens: Counter[str] = Counter()
        self.rejected_flows: Counter[str] = Counter()  # by reason
        self.accepted_flows = 0
        self.failed_flows = 0
        self.ended_flows = 0
        self.waits = [0] * (len(BOUNDS) + 1)
        self.wait_total = 0.0
        self.preempted_tokens = 0.0  # overtaken, against the order of arrival
        self.delayed_tokens = 0.0
        self.on_time = 0
        self.forgotten = 0
        self.work_total = 0.0

    def incoming(self, workload: str, tokens: float) -> None:
        """A flow asks."""
        counter = self.incoming_tokens
        if workload not in counter and len(counter) >= MOST_WORKLOADS:
            workload = "other"
        counter[workload] += tokens  # type: ignore[assignment]

    def accepted(self, flow: Flow) -> None:
        """A flow may run."""
        self.accepted_flows += 1
        self.accepted_tokens[self._label(flow)] += flow.cost  # type: ignore[assignment]
        wait = flow.started_at - flow.arrived_at
        self.waits[bisect_left(BOUNDS, wait)] += 1
        self.wait_total += wait

    def rejected(self, flow: Flow) -> None:
        """A flow was refused, or left."""
        self.rejected_flows[flow.reject_reason or "cancelled"] += 1
        self.rejected_tokens[self._label(flow)] += flow.cost  # type: ignore[assignment]

    def ordered(self, flow: Flow, bump: float) -> None:
        """A flow that waited was admitted that many tokens earlier than in order of arrival."""
        if bump > 0:
            self.preempted_tokens += bump
        elif bump < 0:
            self.delayed_tokens -= bump
        else:
            self.on_time += 1

    def ended(self, flow: Flow, outcome: Outcome, now: float) -> None:
        """A flow's work is done."""
        self.ended_flows += 1
        self.failed_flows += outcome is Outcome.FAILED
        self.work_total += now - flow.started_at

    def _label(self, flow: Flow) -> str:
        name = flow.workload[0]  # type: ignore[index]
        return name if name in self.incoming_tokens else "other"

    def fairness_index(self) -> float:
        """Jain's index over workloads that were refused something: 1 is equal service, 1/n one for all."""
        served = [self.accepted_tokens[name] for name in self.rejected_tokens]
        squares = sum(tokens * tokens for tokens in served)
        return sum(served) ** 2 / (len(served) * squares) if squares else 1.0
