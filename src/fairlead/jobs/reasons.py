"""Why a job does not run, in one sentence, by the gate's own predicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.capacity import FULL
from fairlead.core.ticket import RUNNING

if TYPE_CHECKING:
    from fairlead.core.ticket import Ticket
    from fairlead.jobs.frontier import Frontier
    from fairlead.jobs.records import ReadyJob

LONGEST = 400
MOST = 1000  # looked through for a job's position


def reason(frontier: Frontier, ticket: Ticket | None, delayed: ReadyJob | None, now: float) -> str:
    """Say it."""
    if delayed is not None:
        left = max(0.0, delayed.start_at - now)
        text = f"it is due in {left:.3g} s: a retry waits, or it was to start later"
    elif ticket is None:
        text = "it is not ready: nothing of it waits or runs here"
    elif ticket.state is RUNNING:
        text = f"it has a slot of executor {ticket.pool!r}"
    else:
        text = _waits(frontier, ticket, now)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _waits(frontier: Frontier, ticket: Ticket, now: float) -> str:
    now = max(now, frontier.gate.now)
    queue = ticket.place.section.queue
    order = frontier.orders.order_of(ticket)
    said = order.explain(ticket, now)
    refusals = ((part, part.refusal(ticket, now)) for part in frontier.room.parts)
    causes = [part.describe(ticket, now, why) for part, why in refusals if why is not None]
    if not causes:
        told = frontier.gate.explain(ticket, now)
        if told.blocked_by is FULL:  # room of their own is never full for all jobs
            return f"it {told.text}"
        text = f"executor {ticket.pool!r} has room, but {said or 'others go first'}"
        return f"it waits: {text}"
    text = f"it waits: {', and '.join(causes)}"
    if said:
        return f"{text}; {said}"
    before = queue.before(ticket, now, MOST)
    if before is None:
        return f"{text}; more than {MOST} jobs go first"
    return f"{text}; {before} jobs go first" if before else f"{text}; it is the next"
