"""What a control point counts; names that a client can make up are bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.flows.flow import Flow

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MOST_WORKLOADS = 100
OTHER = "other"
ROUNDING = 1e-6  # tokens; sums of fractional costs do not cancel exactly


class Workload:
    """The counters of one workload; what came in is what was accepted, was rejected, or waits."""

    __slots__ = ("accepted_flows", "accepted_tokens", "name", "rejected_flows", "rejected_tokens")

    def __init__(self, name: str) -> None:
        self.name = name
        self.accepted_tokens = self.rejected_tokens = 0.0
        self.accepted_flows = self.rejected_flows = 0


class Counts:
    """Plain counters."""

    def __init__(self) -> None:
        self.workloads: dict[Hashable, Workload] = {}  # by name and priority, at most so many
        self.reasons: Counter[str] = Counter()  # why flows were rejected
        self.failed_flows = 0
        self.ended_flows = 0
        self.late_ends = 0
        self.waits = [0] * (len(BOUNDS) + 1)  # of accepted flows that waited
        self.wait_total = 0.0
        self.preempted_tokens = 0.0  # overtaken, against the order of arrival
        self.delayed_tokens = 0.0
        self.on_time = 0
        self.forgotten = 0

    def of(self, key: Hashable) -> Workload:
        """Find the counters of a workload, or begin them."""
        found = self.workloads.get(key)
        if found is None:
            if len(self.workloads) >= MOST_WORKLOADS:
                key = OTHER
            name = key if isinstance(key, str) else key[0]  # type: ignore[index]
            found = self.workloads.setdefault(key, Workload(name))
        return found

    def waited(self, flow: Flow, bump: float) -> None:
        """An accepted flow had waited; it was admitted `bump` tokens earlier than in order of arrival."""
        wait = flow.started_at - flow.arrived_at
        self.waits[bisect_left(BOUNDS, wait)] += 1
        self.wait_total += wait
        if bump > ROUNDING:
            self.preempted_tokens += bump
        elif bump < -ROUNDING:
            self.delayed_tokens -= bump
        else:
            self.on_time += 1

    def rejected(self, flow: Flow) -> None:
        """A flow was refused, or left."""
        self.reasons[flow.reject_reason or "cancelled"] += 1
        workload = self.of(flow.workload)
        workload.rejected_flows += 1
        workload.rejected_tokens += flow.cost

    def fairness_index(self) -> float:
        """Jain's index of tokens per weight over the workloads that were refused some: 1 is fair, 1/n all for one."""
        served = [
            workload.accepted_tokens / (key[1] or 1.0)
            for key, workload in self.workloads.items()
            if isinstance(key, tuple) and workload.rejected_flows
        ]
        squares = sum(share * share for share in served)
        return sum(served) ** 2 / (len(served) * squares) if squares else 1.0
