"""What the server shows of this moment, and of what was just decided: plain documents, read from the watched gates."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from fairlead.server.fairness import JUDGED, Fairness, Held, fair_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.observe.passed import Decision, Rates, Share, Standing
    from fairlead.observe.watched import Feed
    from fairlead.server.hosting import Hosted, View

log = logging.getLogger("fairlead.server")

LATELY = 10.0  # seconds over which waits and rates are told
MOST_TENANTS = 20
MOST_BACKENDS = 50
MOST_OVERRIDES = 50
# Decisions in one batch: 1,000 a second, twice the demonstration's crest and more than anybody can read.  A full
# batch is some 100 kB for each reader, and 2 ms of the server's time.
MOST_TOLD = 500


class Snapshots:
    """Shows every gate, the jobs and the streams; between two snapshots it remembers only how room was shared."""

    def __init__(self) -> None:
        self._shares: dict[str, Fairness] = {}

    def take(self, doors: Sequence[Hosted], seq: int) -> dict[str, Any]:
        """Return a snapshot of now."""
        views = [view for door in doors for view in door.views()]
        self._shares = {view.id: self._shares.get(view.id) or Fairness() for view in views}
        jobs = next((door.summary() for door in doors if door.kind == "jobs"), None)
        streams = [door.summary() for door in doors if door.kind == "streams"]
        return {
            "seq": seq,
            "t": time.time(),
            "doors": [
                {"name": door.name, "state": door.standing, "reason": door.degraded()}
                for door in doors
            ],
            "gates": [gate_document(view, self._shares[view.id]) for view in views],
            "jobs": jobs,
            "streams": [one for one in streams if one is not None] or None,
        }


def gate_document(view: View, shares: Fairness) -> dict[str, Any]:
    """Show one gate: its room, its classes, its tenants, its counters, all of one instant."""
    channel, now = view.channel, time.time()
    reading = channel.reading(LATELY)
    used = reading.running
    total = view.total()
    free = None if total is None else max(0, total - used)
    return {
        "id": view.id,
        "door": view.door,
        "slots": {
            "total": total,
            "used": used,
            "free": free,
            "ceiling": view.ceiling(),
            "over": view.over(used),
            "idle": view.why_idle(free or 0, sum(one.waiting for one in reading.standing)),
        },
        "reserved": [
            {
                "class": one.cls,
                "held": one.held,
                "used": one.used,
                "kept": one.kept,
                "lent_in": one.lent_in,
            }
            for one in view.reserved()
        ],
        "classes": [
            class_document(one, reading.rates.get(one.name), now) for one in reading.standing
        ],
        "tenants": tenants_document(view, reading.tenants, shares),
        "totals": reading.totals,
        "degraded": view.degraded(),
        "backends": view.backends()[:MOST_BACKENDS],
        "overrides": [one.document() for one in view.overrides()][:MOST_OVERRIDES],
        "adjustable": sorted(f"{part}.{verb}" for part, verb in view.adjustable),
    }


def class_document(one: Standing, rates: Rates | None, now: float) -> dict[str, Any]:
    """Show one class: its line, what runs, and how it fared lately."""
    return {
        "name": one.name,
        "rank": one.rank,
        "waiting": one.waiting,
        "running": one.running,
        "waits": {name: getattr(rates, name, None) for name in ("p50", "p95", "p99")},
        "admitted_per_s": rates.admitted_per_s if rates else 0.0,
        "refused_per_s": rates.refused_per_s if rates else 0.0,
        "oldest_wait": None if one.oldest is None else max(0.0, now - one.oldest),
    }


def tenants_document(
    view: View, tenants: Sequence[Share], shares: Fairness
) -> list[dict[str, Any]]:
    """Show how the room was shared lately, against what would have been max-min fair by weight."""
    found = [one for one in tenants if one.name not in (None, "")]
    used = sum(one.running for one in found)
    weights = [view.weight_of(one.name) for one in found]
    fair = fair_shares([one.waiting + one.running for one in found], weights, used)
    held = [Held(*one, part) for one, part in zip(found, fair, strict=True)]
    shares.sample(time.monotonic(), held)
    return [
        {
            "name": name_of(one.name),
            "waiting": one.waiting,
            "running": one.running,
            "share": one.parts[JUDGED].share,
            "fair_share": one.parts[JUDGED].fair,
            "verdict": one.verdict,
            "windows": [
                {"seconds": seconds, "share": part.share, "fair_share": part.fair}
                for seconds, part in one.parts.items()
            ],
            "weight": view.weight_of(one.name),
        }
        for one in shares.tenants(MOST_TENANTS)
    ]


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
