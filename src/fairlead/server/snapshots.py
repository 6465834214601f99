"""What the server shows of this moment, and of what was just decided: plain documents, read from the watched gates."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.observe.passed import Decision, Share
    from fairlead.observe.watched import Feed
    from fairlead.server.hosting import Hosted, View

log = logging.getLogger("fairlead.server")

LATELY = 10.0  # seconds over which waits and rates are told
MOST_TENANTS = 20
MOST_BACKENDS = 50
# Decisions in one batch: 1,000 a second, twice the demonstration's crest and more than anybody can read.  A full
# batch is some 100 kB for each reader, and 2 ms of the server's time.
MOST_TOLD = 500


def snapshot_of(doors: Sequence[Hosted], seq: int) -> dict[str, Any]:
    """Show every gate, the jobs and the streams."""
    jobs = next((door.summary() for door in doors if door.kind == "jobs"), None)
    streams = [door.summary() for door in doors if door.kind == "streams"]
    return {
        "seq": seq,
        "t": time.time(),
        "doors": [
            {"name": door.name, "state": door.standing, "reason": door.degraded()} for door in doors
        ],
        "gates": [gate_document(view) for door in doors for view in door.views()],
        "jobs": jobs,
        "streams": [one for one in streams if one is not None] or None,
    }


def gate_document(view: View) -> dict[str, Any]:
    """Show one gate: its room, its classes, its tenants, what it has counted."""
    channel, now = view.channel, time.time()
    rates = channel.rates(LATELY)
    standing = channel.standing()
    totals = channel.totals()
    used = sum(one.running for one in standing)
    total = view.total()
    return {
        "id": view.id,
        "door": view.door,
        "slots": {
            "total": total,
            "used": used,
            "free": None if total is None else max(0, total - used),
            "ceiling": view.ceiling(),
        },
        "reserved": [
            {"class": one.cls, "held": one.held, "used": one.used} for one in view.reserved()
        ],
        "classes": [
            {
                "name": one.name,
                "rank": one.rank,
                "waiting": one.waiting,
                "running": one.running,
                "waits": {
                    name: getattr(rates[one.name], name) if one.name in rates else None
                    for name in ("p50", "p95", "p99")
                },
                "admitted_per_s": rates[one.name].admitted_per_s if one.name in rates else 0.0,
                "refused_per_s": rates[one.name].refused_per_s if one.name in rates else 0.0,
                "oldest_wait": None if one.oldest is None else max(0.0, now - one.oldest),
            }
            for one in standing
        ],
        "tenants": tenants_document(view, channel.tenants(MOST_TENANTS)),
        "totals": totals,
        "degraded": view.degraded(),
        "backends": view.backends()[:MOST_BACKENDS],
        "adjustable": sorted(f"{part}.{verb}" for part, verb in view.adjustable),
    }


def tenants_document(view: View, shares: Sequence[Share]) -> list[dict[str, Any]]:
    """Show who has how much of what runs, against what would be max-min fair by weight."""
    shares = [one for one in shares if one.name not in (None, "")]
    used = sum(one.running for one in shares)
    weights = [view.weight_of(one.name) for one in shares]
    fair = fair_shares([one.waiting + one.running for one in shares], weights, used)
    return [
        {
            "name": name_of(one.name),
            "waiting": one.waiting,
            "running": one.running,
            "share": one.running / used if used else 0.0,
            "fair_share": part / used if used else 0.0,
            "weight": weight,
        }
        for one, weight, part in zip(shares, weights, fair, strict=True)
    ]


def fair_shares(demands: Sequence[float], weights: Sequence[float], room: float) -> list[float]:
    """Divide room by weight so that nobody gets more than asked for, and what is left over goes to the others.

    >>> fair_shares([1, 10, 10], [1, 1, 2], 10)
    [1.0, 3.0, 6.0]
    """
    given = [0.0] * len(demands)
    hungry = [index for index, demand in enumerate(demands) if demand > 0]
    left = float(room)
    while hungry and left > 1e-9:
        each = left / sum(weights[index] for index in hungry)
        full = [one for one in hungry if demands[one] - given[one] <= each * weights[one]]
        for index in full or hungry:
            part = demands[index] - given[index] if full else each * weights[index]
            given[index] += part
            left -= part
        if not full:
            break
        hungry = [index for index in hungry if index not in full]
    return given


def decision_document(decision: Decision) -> dict[str, Any]:
    """Show one decision; numbers rise while the server runs."""
    return {
        "number": decision.number,
        "t": decision.t,
        "gate": decision.gate,
        "key": name_of(decision.key),
        "class": decision.cls,
        "tenant": None if decision.tenant is None else name_of(decision.tenant),
        "workload": workload_of(decision.workload),
        "what": decision.what,
        "waited": decision.waited,
        "held": decision.held,
        "why": decision.why,
    }


def name_of(value: Any) -> str:
    """Write a key, a tenant or a workload for people; whatever it is, it is text, and short."""
    if isinstance(value, tuple):
        return " ".join(name_of(part) for part in value)[:200]
    return str("" if value is None else value)[:200]


def workload_of(value: Any) -> str | None:
    """Name a workload for people; of the flows' pairs of a name and a priority, the name."""
    name = value[0] if isinstance(value, tuple) and value else value
    return None if name is None else name_of(name)


class Decisions:
    """What was decided since the last look, in batches that a page can follow."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._seen = 0

    def take(self) -> dict[str, Any] | None:
        """Tell the latest, and how many more there were; None if there were none."""
        found = self._feed.decisions(after=self._seen, most=MOST_TOLD)
        if not found:
            return None
        before, self._seen = self._seen, found[-1].number
        dropped = max(0, found[-1].number - before - len(found))
        return {"items": [decision_document(one) for one in found], "dropped": dropped}


def waiting_document(view: View, limit: int) -> dict[str, Any]:
    """Show who waits at a gate, those who came first, and why each of them does."""
    gate = view.channel.gate
    if gate is None:
        return {"items": [], "total": 0}
    with view.lock():
        now = view.now()
        tickets = view.channel.first_waiting(limit)
        items = []
        for ticket in tickets:
            told = gate.explain(ticket, now)
            tenant = view.channel.tenant_of(ticket)
            ready_in = told.ready_at - now
            items.append(
                {
                    "key": name_of(ticket.key if ticket.key is not None else ticket.seq),
                    "class": view.channel.class_of(ticket),
                    "tenant": None if tenant is None else name_of(tenant),
                    "workload": workload_of(ticket.workload),
                    "priority": ticket.priority,
                    "cost": ticket.cost,
                    "waited": max(0.0, now - ticket.arrived_at),
                    "why": told.text,
                    "explain": {
                        "state": told.state.value,
                        "blocked_by": None if told.blocked_by is None else name_of(told.blocked_by),
                        "ready_in": ready_in if 0 <= ready_in < 1e9 else None,
                    },
                }
            )
        return {"items": items, "total": gate.waiting}
