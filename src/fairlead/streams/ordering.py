"""The order of the built-in scheduler: priorities that age, and among equal ones shares by weight.

A topic has a priority and a weight.  Batches of one priority share by weight between their topics, by start-time
fair queueing over the number of messages.  Between priorities the highest goes first, and a priority rises while
its next batch waits, as in `fairlead.policies.Aging`, so that no topic waits for ever.  Priorities are few: they
are looked through at each pick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.policies import FIFO, FairQueue
from fairlead.policies.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from fairlead.core.policy import Admit, Policy
    from fairlead.core.ticket import Ticket
    from fairlead.policies.lines import Line

RATE = 2.0  # points per second
CEILING = 100


class TopicOrder(Lines):
    """Serve the highest effective priority; among equal ones share by the weights of topics.

    >>> order = TopicOrder({"orders": 3.0})
    """

    def __init__(self, weights: Mapping[str, float], *, rate: float = RATE) -> None:
        super().__init__("priority", self._shares, name="topics")
        self.weights: dict[Hashable, float] = dict(weights.items())  # of topics; others have 1
        self.rate = rate

    def _shares(self, priority: Hashable) -> Policy:
        return FairQueue("workload", weights=self._weight_of, inside=FIFO)

    def _weight_of(self, topic: Hashable) -> float:
        return self.weights.get(topic, 1.0)

    def effective(self, ticket: Ticket, now: float) -> float:
        """Tell the priority a waiting batch has grown to."""
        grown = ticket.priority + self.rate * (now - ticket.arrived_at)
        return max(float(ticket.priority), min(float(CEILING), grown))

    def _rank(self, line: Line, now: float) -> tuple[float, int]:
        head = line.queue.head(now)
        return (1.0, 0) if head is None else (-self.effective(head, now), head.seq)

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        awake = self._awake
        if len(awake) > 1:
            # Put in order; the walk over them, and who sleeps until what, is the same as for lines in turn.
            for line in sorted(awake, key=lambda line: self._rank(line, now)):
                del awake[line]
                awake[line] = None
        return super().pick(admit, now)

    def head(self, now: float) -> Ticket | None:
        lines = [line for line in self._by_key.values() if line.queue]
        lines.sort(key=lambda line: self._rank(line, now))
        heads = (line.queue.head(now) for line in lines)
        return next((head for head in heads if head is not None), None)

    def explain(self, ticket: Ticket, now: float) -> str | None:
        aged = f"priority {ticket.priority} has aged to {self.effective(ticket, now):g}"
        inner = super().explain(ticket, now)
        return f"{aged}; {inner}" if inner else aged
