"""Why a job does not run, by the gate's own predicates: what to say of it, and what that means for its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlead.core.capacity import FULL
from fairlead.core.ticket import RUNNING

if TYPE_CHECKING:
    from fairlead.core.ticket import Ticket
    from fairlead.jobs.frontier import Frontier
    from fairlead.jobs.records import ReadyJob

EXECUTOR_FULL = "executor_full"
MOST = 1000  # looked through for a job's position


class Why(NamedTuple):
    """Why a job does not run: the rest of a sentence that says it waits."""

    said: str
    before: int | None = None  # how many jobs go first; None if that is not known, or not all
    capped: bool = False  # by more than the slots of its executor
    reason: str = EXECUTOR_FULL


def why(
    frontier: Frontier,
    ticket: Ticket | None,
    delayed: ReadyJob | None,
    now: float,
    whole: bool = True,
) -> Why:
    """Find it; of a frontier that is not `whole` the place in line is a lower bound."""
    if delayed is not None:
        left = max(0.0, delayed.start_at - now)
        said = f"it is due in {left:.3g} s: a retry waits, or it was to start later"
        return Why(said, reason="delayed")
    if ticket is None:  # the news of it is on its way
        return Why("it is not ready: nothing of it waits or runs here", reason="unheard")
    if ticket.state is RUNNING:
        return Why(f"it has a slot of executor {ticket.pool!r}", reason="starting")
    return _waits(frontier, ticket, max(now, frontier.gate.now), whole)


def _waits(frontier: Frontier, ticket: Ticket, now: float, whole: bool) -> Why:
    order = frontier.orders.order_of(ticket).explain(ticket, now)
    found = ((part, part.refusal(ticket, now)) for part in frontier.room.parts)
    refusals = [(part, refusal) for part, refusal in found if refusal is not None]
    if not refusals:
        told = frontier.gate.explain(ticket, now)
        if told.blocked_by is FULL:  # room of their own is never full for all jobs
            return Why(told.text.removeprefix("waits: "))
        return Why(f"executor {ticket.pool!r} has room, but {order or 'others go first'}")
    capped = any(part is not frontier.room.executors for part, _ in refusals)
    causes = ", and ".join(part.describe(ticket, now, refusal) for part, refusal in refusals)
    before = None if order else ticket.place.section.queue.before(ticket, now, MOST)
    if order or whole:
        return Why(f"{causes}; {order or _first(before)}", before, capped)
    return Why(f"{causes}; {_at_least(before or 0)}", None, capped)


def _at_least(before: int) -> str:
    if not before:
        return "others may go first"
    return f"at least {before} job{'s go' if before > 1 else ' goes'} first"


def _first(before: int | None) -> str:
    if before is None:
        return f"more than {MOST} jobs go first"
    if before == 1:
        return "1 job goes first"
    return f"{before} jobs go first" if before else "it is the next"
