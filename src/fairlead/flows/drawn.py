"""Flows that were drawn: they hold nothing, so the gate does not know them; somebody has to, until they end."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from fairlead.core.ticket import EXPIRED

if TYPE_CHECKING:
    from fairlead.flows.counts import Counts
    from fairlead.flows.flow import Flow


class Drawn:
    """The flows that run of those drawn at a control point, in the order they started, and how many there were.

    Who takes a flow out of `flows` has ended it: that is one step, in which no other thread can come between.
    """

    __slots__ = ("_telling", "cost", "flows", "forgotten", "started", "told", "workload")

    def __init__(self) -> None:
        self.flows: dict[Flow, None] = {}
        self.started = self.forgotten = 0
        self.told = 0, 0  # how many had started and ended when the counts were last told
        self.workload = ("", 1.0)  # of each that starts now
        self.cost = 1.0
        self._telling = Lock()

    def tell(self, counts: Counts) -> None:
        """Add what has happened since this was last done; any thread may do it."""
        with self._telling:
            started, told = self.started, self.told  # first: who starts from here on has not ended
            ended = max(started - self.forgotten - len(self.flows), told[1])
            if started > told[0]:
                workload = counts.of(self.workload)
                workload.accepted_flows += started - told[0]
                workload.accepted_tokens += (started - told[0]) * self.cost
            counts.ended_flows += ended - told[1]
            self.told = started, ended

    def forget(self, oldest: float) -> int:
        """Forget flows that started earlier than that; tell how many.  An end that comes after all is late."""
        before = self.forgotten
        with suppress(RuntimeError):  # another thread ends one this very moment: at the next tick
            while (flow := next(iter(self.flows), None)) is not None and flow.started_at < oldest:
                if self.flows.pop(flow, flow) is None:  # else it has just ended
                    flow.state = EXPIRED
                    self.forgotten += 1
        return self.forgotten - before
