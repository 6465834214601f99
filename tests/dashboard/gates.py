"""Made-up gates that keep what real ones promise: nobody waits while a slot is free, and all counts add up."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from fairlead.server.fairness import WINDOWS, fair_shares

CLASSES = ("system", "interactive", "default", "bulk")
TENANTS = ("acme", "globex", "initech", "umbrella", "hooli")
HELD = {"system": 2, "interactive": 5}
UNBOUNDED = 12  # how many run at most where no number of slots is told


def wave(at: float, period: float, low: float, high: float, shift: float = 0.0) -> float:
    """A load that goes up and down, not too smoothly, and is the same at the same instant."""
    turn = 2 * math.pi * (at / period + shift)
    grain = math.sin(at * 12.9898 + shift * 78.233) * 43758.5453 % 1 - 0.5
    part = 0.48 + 0.3 * math.sin(turn) + 0.12 * math.sin(2.7 * turn) + 0.1 * grain
    return low + (high - low) * min(1.0, max(0.0, part))


def whole(parts: Sequence[float], total: int) -> list[int]:
    """Divide whole tickets in proportion; the parts add up."""
    rising = [sum(parts[: index + 1]) / sum(parts) * total for index in range(len(parts))]
    edges = [0, *(round(edge + 1e-9) for edge in rising)]
    return [after - before for before, after in pairwise(edges)]


def gate(
    name: str,
    door: str,
    t: float,
    total: int | None,
    *,
    shift: float,
    seq: int,
    weights: dict[str, float],
    classes: Sequence[str] = CLASSES,
    least: float = 0.5,  # of the room, that is asked for at any time
    most: float = 1.8,
) -> dict[str, Any]:
    room = UNBOUNDED if total is None else total
    asked = round(room * wave(t, 240, least, most, shift))
    wanted = whole([3 + rank for rank in range(len(classes))], asked)
    running, left = [], room
    for one in wanted:  # a higher class goes first
        running.append(min(one, left))
        left -= running[-1]
    waiting = [one - own for one, own in zip(wanted, running, strict=True)]
    used = sum(running)
    return {
        "id": name,
        "door": door,
        "slots": {
            "total": total,
            "used": used,
            "free": None if total is None else total - used,
            "ceiling": None,
            "over": None,
            "idle": None,
        },
        "reserved": [
            {
                "class": one,
                "held": HELD[one],
                "used": min(HELD[one], running[rank]),
                "kept": max(0, HELD[one] - running[rank]),
                "lent_in": None,
            }
            for rank, one in enumerate(classes)
            if door == "gateway" and one in HELD
        ],
        "classes": [
            {
                "name": one,
                "rank": len(classes) - 1 - rank,
                "waiting": waiting[rank],
                "running": running[rank],
                "waits": {
                    "p50": wave(t, 120, 0.004, 0.05 * (rank + 1), shift),
                    "p95": wave(t, 150, 0.05 * (rank + 1), 0.30 * (rank + 1), shift),
                    "p99": wave(t, 180, 0.30 * (rank + 1), 0.60 * (rank + 1), shift),
                },
                "admitted_per_s": wave(t, 60, 3, 40 / (rank + 1), shift),
                "refused_per_s": 0.4 if waiting[rank] > 10 else 0.0,
                "oldest_wait": wave(t, 90, 0.3, 0.7 * (rank + 1), shift) if waiting[rank] else None,
            }
            for rank, one in enumerate(classes)
        ],
        "tenants": tenants(t, used, sum(waiting), weights) if door in ("gateway", "flows") else [],
        "overrides": [],
        "adjustable": ["slots.resize", *(f"{one}.set_weight" for one in classes)]
        if door == "gateway"
        else [],
        "totals": {
            "admitted": 412_004 + seq * 31,
            "refused": 912,
            "expired": 41,
            "evicted": 7,
            "promoted": 188,
            "withdrawn": 66,
            "moved": 0,
            "failed": 0,
            "disconnected": 0,
            "lost": 0,
            "completed": 412_004 + seq * 31 - 7 - used,
        },
    }


def tenants(t: float, used: int, waiting: int, weights: dict[str, float]) -> list[dict[str, Any]]:
    """Who asks, who runs; what runs is divided as a fair gate does."""
    asks = whole([wave(t, 300, 1, 3, n / 5) for n in range(len(TENANTS))], used + waiting)
    weight = [weights[one] for one in TENANTS]
    fair = fair_shares(asks, weight, used)
    running = whole([part or 1e-9 for part in fair], used)
    return [
        {
            "name": one,
            "waiting": max(0, asks[index] - running[index]),
            "running": running[index],
            "share": running[index] / used if used else 0.0,
            "fair_share": fair[index] / used if used else 0.0,
            "verdict": "fair",
            "windows": [
                {
                    "seconds": seconds,
                    "share": running[index] / used if used else 0.0,
                    "fair_share": fair[index] / used if used else 0.0,
                }
                for seconds in WINDOWS
            ],
            "weight": weight[index],
        }
        for index, one in enumerate(TENANTS)
    ]


def waiting(found: dict[str, Any], limit: int) -> dict[str, Any]:
    """Who waits at such a gate, and why."""
    items: list[dict[str, Any]] = []
    higher = 0
    for one in found["classes"]:
        for number in range(one["waiting"]):
            tenant = TENANTS[number % 5]
            first = f"all {found['slots']['used']} slots are in use"
            behind = f"number {3800 + len(items) - 5} of {tenant!r} ranks earlier"
            items.append(
                {
                    "key": str(3800 + len(items)),
                    "class": one["name"],
                    "tenant": tenant,
                    "workload": ("chat", "embed", "summarise")[number % 3],
                    "priority": 50,
                    "cost": 1,
                    "waited": one["oldest_wait"] / (1 + 0.1 * number),
                    "why": f"waits: {first if number < 5 else behind}; "
                    f"class {one['name']!r} stands behind {higher} of higher classes",
                    "explain": {"state": "waiting", "blocked_by": "FULL", "ready_in": None},
                }
            )
        higher += one["waiting"]
    return {"items": items[:limit], "total": len(items)}


def decisions(t: float, seq: int) -> list[dict[str, Any]]:
    """Three in each snapshot, in the words of a real gate."""
    found = []
    for index in range(3):
        number = seq * 3 + index
        rank = number % 4
        what = ("started", "done", "started")[index]
        if index == 2 and seq % 9 == 0:
            what, rank = "refused", 3
        elif index == 0 and seq % 31 == 0:
            what, rank = "promoted", 3
        waited = 0.0 if what == "refused" else (0.0, 0.0, 0.026, 0.139)[rank]
        found.append(
            {
                "number": number,
                "t": t + index / 10,
                "gate": "gateway/default",
                "key": str(number),
                "class": CLASSES[rank],
                "tenant": TENANTS[number % 5],
                "workload": "chat",
                "what": what,
                "waited": waited,
                "held": 0.42 if what == "done" else None,
                "why": {
                    "started": f"waited {waited:.3f} s" if waited else "there was room at once",
                    "promoted": f"its class had starved: promoted after {waited:.3f} s",
                    "done": "its work ended",
                    "refused": "queue for 'bulk' is full (200 of 200)",
                }[what],
            }
        )
    return found
