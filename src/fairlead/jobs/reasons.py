"""Why a job does not run, in one sentence, by the gate's own predicates."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from fairlead.core.ticket import RUNNING

if TYPE_CHECKING:
    from fairlead.core.ticket import Ticket
    from fairlead.jobs.frontier import Frontier
    from fairlead.jobs.records import ReadyJob

LONGEST = 400


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
        explanation = frontier.gate.explain(ticket, now)
        text = explanation.text.removeprefix("waits: ")
        if explanation.blocked_by == "order":
            text = f"others go first on executor {ticket.pool!r}: {text}"
        if explanation.ready_at < inf:
            text += f"; likely in {explanation.ready_at - now:.3g} s"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
