"""Flows that were drawn: they hold nothing, so the gate does not know them; somebody has to, until they end."""

from __future__ import annotations

from itertools import islice
from threading import RLock
from typing import TYPE_CHECKING

from fairlead.core.ticket import DONE, EXPIRED
from fairlead.flows.flow import DEFAULT

if TYPE_CHECKING:
    from fairlead.flows.counts import Counts
    from fairlead.flows.flow import Flow


class Drawn:
    """The flows that run of those drawn at a control point, in the order they started, and how many there were.

    All are of the default workload and cost one token, which is what a flow is made with.
    Who takes a flow out of `flows` may end, forget or move it: that is one step, and only one thread succeeds in it.
    """

    __slots__ = ("_lock", "_telling", "flows", "left", "started", "told")

    def __init__(self) -> None:
        self.flows: dict[Flow, None] = {}
        self.started = 0
        self.left = 0  # that neither run here nor have ended
        self.told = 0, 0  # how many had started and ended when the counts were last told
        self._lock = RLock()
        self._telling = False

    def tell(self, counts: Counts) -> None:
        """Add what has happened since this was last done; any thread may do it."""
        with self._lock:
            if self._telling:  # a signal's handler asks in the midst of it
                return
            self._telling = True
            try:
                started, told = (
                    self.started,
                    self.told,
                )  # first: who starts from here on has not ended
                ended = max(started - self.left - len(self.flows), told[1])
                if started > told[0]:
                    workload = counts.of(DEFAULT)
                    workload.accepted_flows += started - told[0]
                    workload.accepted_tokens += started - told[0]
                counts.ended_flows += ended - told[1]
                self.told = started, ended
            finally:
                self._telling = False

    def forget(self, oldest: float) -> int:
        """Forget flows that started earlier than that; tell how many.  An end that comes after all is late."""
        forgotten = 0
        while True:
            try:
                first = list(islice(self.flows, 1_000))
            except RuntimeError:  # another thread has ended one this very moment: at the next tick
                return forgotten
            for flow in first:
                if flow.started_at >= oldest:
                    return forgotten
                flow.state = EXPIRED  # first, for who ends it from here on looks why it is gone
                forgotten += self._take(flow)
            if not first:
                return forgotten

    def move(self) -> list[Flow]:
        """Hand over all that run, to be held by a gate."""
        return [flow for flow in list(self.flows) if self._take(flow)]

    def _take(self, flow: Flow) -> bool:
        with self._lock:
            try:
                del self.flows[flow]
            except KeyError:
                flow.state = DONE  # it has just ended
                return False
            self.left += 1
            return True
