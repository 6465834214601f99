"""Why does it wait?  Answered with the predicates the dispatcher uses, so that the answer cannot drift."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from fairlead.core.capacity import FULL, NEVER, STOP, Hold
from fairlead.core.ticket import WAITING, QueueLimit

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.core.gate import Gate
    from fairlead.core.ticket import State, Ticket


@dataclass(frozen=True, slots=True)
class Explanation:
    """What stands between a ticket and its start.

    `blocked_by` is the refusal: FULL, STOP or NEVER, a scope, "claim" (room is being freed for it), "order" (there is
    room, but not for it yet), or None when it does not wait.  `ready_at` is when that refusal ends by itself; it
    is the refusal of the one that ranks earlier, if the text names one.
    """

    state: State
    blocked_by: Hashable | None
    ready_at: float
    text: str


def explain(gate: Gate, ticket: Ticket, now: float) -> Explanation:
    """Explain one ticket; changes nothing."""
    if ticket.state is not WAITING:
        text = ticket.state.value
        if isinstance(ticket.reason, QueueLimit):
            text += f": the queue was full ({ticket.reason.waiting} of {ticket.reason.limit})"
        elif ticket.reason:
            text += f": {ticket.reason}"
        return Explanation(ticket.state, None, inf, text)
    if gate.claimed(ticket):
        text = "waits for the room of an evicted ticket, which is on its way"
        return Explanation(WAITING, "claim", inf, text)
    refusal, ready_at, text = _blocked(gate, ticket, now)
    order = gate.policy.explain(ticket, now)
    return Explanation(
        WAITING, refusal, ready_at, f"waits: {text}" + (f"; {order}" if order else "")
    )


def _blocked(gate: Gate, ticket: Ticket, now: float) -> tuple[Hashable, float, str]:
    capacity = gate.capacity
    refusal = capacity.refusal(ticket, now)
    scope = None if refusal in (FULL, NEVER) or ticket.promoted else gate.closed_to(ticket)
    closer = gate.closed_by(scope)
    if closer is not None:
        same = "is kept out by the same reservation" if isinstance(scope, Hold) else ""
        kept = capacity.refusal(closer, now) == scope
        ready_at = capacity.ready_at(closer, now, scope) if kept else inf
        return (
            scope,
            ready_at,
            _earlier(closer) + " and " + (same or f"waits for the same {scope!r}"),
        )
    if refusal is None or refusal is STOP:
        first = _asked_first(gate, now)
        because = None if first is None or first is ticket else capacity.refusal(first, now)
        if first is not None and because in (STOP, FULL):
            freed = "room is being freed for it" if gate.claimed(first) else ""
            text = freed or capacity.describe(first, now, because)
            ready_at = capacity.ready_at(first, now, because)
            return because, ready_at, f"{_earlier(first)}, and {text}"
        if refusal is None:
            if first is ticket:
                return "order", inf, "it is asked first, with the next decision"
            return "order", inf, _earlier(first) if first else "the policy withholds it"
    ready_at = inf if refusal is NEVER else capacity.ready_at(ticket, now, refusal)
    text = capacity.describe(ticket, now, refusal)
    if ready_at < inf:
        text += f" (for {ready_at - now:g} s more if nothing is given back)"
    return refusal, ready_at, text


def _asked_first(gate: Gate, now: float) -> Ticket | None:
    """Tell who keeps all others from being asked: a claim, or whom the policy offers, which is not always its head."""
    for claim in gate._claims:
        if gate.capacity.refusal(claim, now) in (STOP, FULL):
            return claim
    asked: list[Ticket] = []

    def refuse(candidate: Ticket) -> Hashable:
        asked.append(candidate)
        return STOP

    gate.policy.pick(refuse, now)
    return asked[0] if asked else None


def _earlier(ticket: Ticket | None) -> str:
    return f"{_named(ticket)} ranks earlier"


def _named(ticket: Ticket | None) -> str:
    """Name a ticket to a person: by its key, or by its number of arrival, and whose it is."""
    if ticket is None:
        return "another"
    name = f"number {ticket.seq}" if ticket.key is None else repr(ticket.key)
    return name if ticket.tenant in (None, "") else f"{name} of {ticket.tenant!r}"
