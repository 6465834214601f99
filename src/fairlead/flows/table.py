"""Flows that clients elsewhere have been let in and will end: found again by ids that nobody can guess.

The gate ends what nobody ends; the table follows it.  Each new flow has an old one looked at, in turn, and a second if
that one is over, so what is over leaves the table without a timer.  What expired is put aside: an end that comes after
all is counted and settled.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from fairlead.core.ticket import RUNNING, Outcome
from fairlead.flows.ending import LONGEST_UNENDED
from fairlead.flows.flow import NO_LABELS
from fairlead.flows.workloads import LONGEST_KEY, canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlead.flows.flow import Flow
    from fairlead.flows.point import Point

IGNORED = Outcome.IGNORED  # its work was not done: no latency is learned from it
LOOKS = range(2)
ID_BYTES, IDS_AT_ONCE = 16, 64
MOST_FLOWS = 1_000_000
MOST_EXPIRED = MOST_UNLIMITED = 100_000  # of these there is nothing to give back


class FlowTable:
    """Flows by id.

    >>> from fairlead.flows.flow import Flow
    >>> table, flow = FlowTable(), Flow("anywhere")
    >>> table.take(table.add(flow)) is flow, table.take("no such id")
    (True, None)
    """

    def __init__(
        self,
        most: int = MOST_FLOWS,
        most_unlimited: int = MOST_UNLIMITED,
        most_expired: int = MOST_EXPIRED,
    ) -> None:
        self._most, self._most_unlimited, self._most_expired = most, most_unlimited, most_expired
        self._ids: list[str] = []  # to give away
        self._flows: dict[str, Flow] = {}
        self._turns: deque[str] = deque()  # every id of `_flows` once, and ids that have gone
        # Expired and not ended.  Its front is looked at each time: a plain dict would step over all that has gone.
        self._expired: OrderedDict[str, Flow] = OrderedDict()
        self._unlimited: dict[str, Flow] = {}  # at control points nothing is said of
        self.dropped = 0  # flows that will not be found though they may run

    def __len__(self) -> int:
        return len(self._flows) + len(self._expired) + len(self._unlimited)

    def add(self, flow: Flow) -> str:
        """Keep a flow that was accepted; give its id."""
        if not self._ids:
            self._ids = _ids()
        key = self._ids.pop()
        if flow.labels:
            flow.labels = _needed(flow.labels, flow.point)
        if flow.point is None:
            self._unlimited[key] = flow
            if len(self._unlimited) > self._most_unlimited:
                del self._unlimited[next(iter(self._unlimited))]
            return key
        self._sweep(flow.started_at)
        self._flows[key] = flow
        self._turns.append(key)
        if len(self._flows) > self._most:  # its tokens come back when the gate loses patience
            del self._flows[next(iter(self._flows))]
            self.dropped += 1
        return key

    def get(self, key: str) -> Flow | None:
        """Find a flow, and leave it where it is."""
        return self._flows.get(key) or self._expired.get(key) or self._unlimited.get(key)

    def take(self, key: str) -> Flow | None:
        """Find a flow, and forget it."""
        for flows in (self._flows, self._expired, self._unlimited):
            if key in flows:
                return flows.pop(key)
        return None

    def abandon(self, key: str) -> None:
        """End a flow whose client does not know its id, and will never end it."""
        flow = self.take(key)
        if flow is not None and flow.point is not None:
            flow.point.end(flow, IGNORED, None)

    def _sweep(self, now: float) -> None:
        flows, turns, expired = self._flows, self._turns, self._expired
        for _ in LOOKS:
            if expired:
                oldest = next(iter(expired))
                age = now - expired[oldest].started_at
                if age > LONGEST_UNENDED or len(expired) > self._most_expired:
                    del expired[oldest]
            if not turns:
                return
            flow = flows.get(turns[0])
            if flow is None:
                turns.popleft()
            elif flow.state is RUNNING:
                turns.rotate(-1)
                return  # most run: a second look would cost each check a fiftieth (benchmarks/flows.py)
            else:
                key = turns.popleft()
                del flows[key]  # the gate has ended it
                if not flow.ended:
                    expired[key] = flow


def _needed(labels: Mapping[str, str], point: Point | None) -> Mapping[str, str]:
    """Keep of labels what tells a limit to whom it gives back: clients may send much more, for as long as flows run."""
    if point is None:
        return NO_LABELS
    needed = NO_LABELS
    for limit in (point.settings.quota, point.settings.concurrency):
        name = None if limit is None else limit.limit_by_label_key
        if name is not None and name in labels:
            needed = {**needed, name: _short(labels[name])}
    return needed


def _short(value: str) -> str:
    # Of text this long the key is a hash, whose key is itself; no normal form is eight times shorter.
    return value if len(value) <= 8 * LONGEST_KEY else canonical(value)


def _ids() -> list[str]:
    """Make ids that nobody can guess; many at once, for each call of the system costs as much as a decision."""
    random = os.urandom(ID_BYTES * IDS_AT_ONCE).hex()
    return [random[at : at + 2 * ID_BYTES] for at in range(0, len(random), 2 * ID_BYTES)]
