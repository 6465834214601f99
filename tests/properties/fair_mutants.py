"""Fair queues that are not fair enough: each breaks one rule of `FairQueue`, and one test must catch it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.policies import FIFO, FairQueue
from fairlead.policies.flow import Flow

if TYPE_CHECKING:
    from fairlead.core import Ticket
    from fairlead.core.policy import Admit


class StartTagClock(FairQueue):
    """SFQ: join at the start tag in service.  Time stands still while newcomers keep coming."""

    def _join(self, flow: Flow, cost: float) -> None:
        flow.start = max(flow.start, self._served)
        super()._join(flow, 0)


class Unclamped(FairQueue):
    """Join at the fluid clock, however far it is ahead of those who wait."""

    def _join(self, flow: Flow, cost: float) -> None:
        flow.start = max(flow.start, self._clock)
        super()._join(flow, cost)


class SmallestFinish(Unclamped):
    """Serve the smallest finish tag; subclasses say among whom, and where a flow joins."""

    def _eligible(self, flows: list[Flow]) -> list[Flow]:
        return flows

    def _first(self) -> Flow | None:
        flows = [flow for flow in self._flows.values() if flow.entry is not None]
        return min(self._eligible(flows), key=self._finish) if flows else None

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        flow = self._first()
        ticket = None if flow is None else flow.queue.pick(admit, now)
        if flow is not None and ticket is not None:
            self._size -= 1
            self._serve(flow, ticket.cost, now)
        return ticket

    def _finish(self, flow: Flow) -> tuple[float, int]:
        head = flow.queue.head(0.0)
        return flow.start + (head.cost if head else 0.0) / flow.weight, flow.number


class EligibleFinish(SmallestFinish):
    """WF²Q+: the smallest finish tag among those whose start the clock has reached."""

    def _eligible(self, flows: list[Flow]) -> list[Flow]:
        reached = max(self._clock, min(flow.start for flow in flows))
        return [flow for flow in flows if flow.start <= reached]


class SelfClocked(SmallestFinish):
    """SCFQ: join at the finish tag in service, which is far ahead when a light flow's big request runs."""

    finish = 0.0

    def _join(self, flow: Flow, cost: float) -> None:
        flow.start = max(flow.start, self.finish)
        super()._join(flow, cost)

    def _serve(self, flow: Flow, cost: float, now: float) -> None:
        self.finish = flow.start + cost / flow.weight
        super()._serve(flow, cost, now)

    def _start_afresh(self) -> None:
        self.finish = 0.0
        super()._start_afresh()


class BankedCredit(FairQueue):
    """A flow keeps its old tag while idle and spends the difference when it is back."""

    def _join(self, flow: Flow, cost: float) -> None:
        if not flow.counted:
            flow.counted = True
            self._weight += flow.weight
        self._enter(flow)


class Unrestrained(FIFO):
    """No fairness at all."""

    def __init__(self, by: str = "", *, weights: object = None, name: str = "") -> None:
        super().__init__(name=name)

    def set_weight(self, key: object, weight: float) -> None:
        """Weights mean nothing here."""
