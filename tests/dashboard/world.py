"""A made-up server's state, of which a test can change anything: documents of the control API, and no scheduler."""

import math
import time
from typing import Any

CLASSES = ("system", "interactive", "default", "bulk")
TENANTS = ("acme", "globex", "initech", "umbrella", "hooli")
SLOTS = 24


def wave(at: float, period: float, low: float, high: float, shift: float = 0.0) -> float:
    """A load that goes up and down, not too smoothly, and is the same at the same instant."""
    turn = 2 * math.pi * (at / period + shift)
    grain = math.sin(at * 12.9898 + shift * 78.233) * 43758.5453 % 1 - 0.5
    part = 0.48 + 0.3 * math.sin(turn) + 0.12 * math.sin(2.7 * turn) + 0.1 * grain
    return low + (high - low) * min(1.0, max(0.0, part))


class World:
    """What the fake server tells; `look(t)` makes the snapshot of a moment."""

    def __init__(self, now: float | None = None) -> None:
        self.started = (time.time() if now is None else now) - 3 * 3600
        self.role = "admin"
        self.tokens: dict[str, str] = {}  # token: role; empty: open
        self.seq = 0
        self.snapshots: list[dict[str, Any]] = []
        self.decisions: list[dict[str, Any]] = []
        self.slots = SLOTS
        self.weights = dict.fromkeys(TENANTS, 1.0) | {"acme": 2.0}
        self.runs = runs(time.time() if now is None else now)
        self.text = CONFIG
        self.notes: list[str] = []  # what of a new configuration waits for a start
        self.planner = "sla"
        self.path: str | None = "/etc/fairlead/fairlead.yaml"
        self.asked: list[tuple[str, str, Any]] = []  # what a page posted: method, path, body
        for step in range(90):
            self.look((time.time() if now is None else now) - 900 + 10 * step)

    def look(self, t: float) -> dict[str, Any]:
        self.seq += 1
        snapshot = {
            "seq": self.seq,
            "t": t,
            "gates": [
                self.gate("gateway/default", "gateway", t, float(self.slots), 0.0),
                self.gate("flows/checkout", "flows", t, None, 0.3),
                self.gate("jobs/leader", "jobs", t, 8.0, 0.6, ("local", "gpu")),
                self.gate("streams/workers", "streams", t, 8.0, 0.8, ("orders", "emails")),
            ],
            "jobs": {
                "ready": 3,
                "running": 5,
                "waiting": 14,
                "failed": 2,
                "done": 1240 + self.seq // 7,
                "sla_soft_missed": 4,
                "sla_hard_missed": 1,
                "workers": 2,
            },
            "streams": [stream(t, self.seq)],
        }
        self.snapshots = [*self.snapshots[-1799:], snapshot]
        self.decisions = [*self.decisions[-999:], *decisions(t, self.seq)]
        return snapshot

    def gate(
        self,
        name: str,
        door: str,
        t: float,
        total: float | None,
        shift: float,
        classes: tuple[str, ...] = CLASSES,
    ) -> dict[str, Any]:
        load = wave(t, 240, 0.45, 1.0, shift)
        # Whole tickets each, as a real gate has them.
        running = [max(1, int(load * (total or 12) / len(classes))) for _ in classes]
        waiting = [int(wave(t, 90, 0, 4 + 9 * rank, shift)) for rank in range(len(classes))]
        shares = [wave(t, 300, 0.08, 0.34, index / 5) for index in range(len(TENANTS))]
        weight = sum(self.weights.values())
        return {
            "id": name,
            "door": door,
            "slots": {
                "total": total,
                "used": float(sum(running)),
                "free": None if total is None else max(0.0, total - sum(running)),
                "ceiling": None,
            },
            "reserved": [
                {"class": "system", "held": 2.0, "used": 1.0},
                {"class": "interactive", "held": 5.0, "used": 3.0},
            ]
            if door == "gateway"
            else [],
            "classes": [
                {
                    "name": one,
                    "rank": len(classes) - rank,
                    "waiting": waiting[rank],
                    "running": running[rank],
                    "waits": {
                        "p50": wave(t, 120, 0.004, 0.05 * (rank + 1), shift),
                        "p95": wave(t, 150, 0.02, 0.30 * (rank + 1), shift),
                        "p99": wave(t, 180, 0.05, 0.60 * (rank + 1), shift),
                    },
                    "admitted_per_s": wave(t, 60, 3, 40 / (rank + 1), shift),
                    "refused_per_s": 0.4 if rank == 3 and load > 0.95 else 0.0,
                    "oldest_wait": wave(t, 90, 0.05, 1.2 * (rank + 1), shift),
                }
                for rank, one in enumerate(classes)
            ],
            "tenants": [
                {
                    "name": one,
                    "waiting": int(wave(t, 70, 0, 9, index / 5)),
                    "running": 1 + index,
                    "share": shares[index] / sum(shares),
                    "fair_share": self.weights[one] / weight,
                    "weight": self.weights[one],
                }
                for index, one in enumerate(TENANTS)
            ]
            if door in ("gateway", "flows")
            else [],
            "adjustable": ["slots.resize", *(f"{one}.set_weight" for one in classes)]
            if door == "gateway"
            else [],
            "totals": {
                "admitted": 412_004 + self.seq * 31,
                "refused": 912,
                "expired": 41,
                "evicted": 7,
                "promoted": 188,
                "withdrawn": 66,
                "completed": 411_900 + self.seq * 31,
            },
        }

    def waiting(self, gate: str, limit: int) -> dict[str, Any]:
        found = next(one for one in self.snapshots[-1]["gates"] if one["id"] == gate)
        reasons = (
            "waits: all 24 slots are in use; 3 earlier in 'interactive'",
            "waits: 2 free slots are kept for 'system'; it may borrow none of them",
            "waits: tenant 'umbrella' is above its fair share; 'acme' goes first",
            "waits: 'gpu' ranks earlier and waits for the same pool (for 1.2 s more if nothing is given back)",
        )
        items = [
            {
                "key": f"req-{3800 + number}",
                "class": one["name"],
                "tenant": TENANTS[number % 5],
                "workload": ("chat", "embed", "summarise")[number % 3],
                "priority": 0,
                "cost": 1 + number % 3,
                "waited": one["oldest_wait"] / (1 + number),
                "why": reasons[number % 4],
                "explain": {"state": "waiting", "blocked_by": "FULL", "ready_in": None},
            }
            for one in found["classes"]
            for number in range(one["waiting"])
        ]
        return {"items": items[:limit], "total": len(items)}


def decisions(t: float, seq: int) -> list[dict[str, Any]]:
    found = []
    for index, what in enumerate(("started", "done", "refused" if seq % 9 == 0 else "started")):
        number = seq * 3 + index
        rank = number % 4
        found.append(
            {
                "number": number,
                "t": t + index / 10,
                "gate": "gateway/default",
                "key": f"req-{number}",
                "class": CLASSES[rank],
                "tenant": TENANTS[number % 5],
                "workload": "chat",
                "what": "promoted" if seq % 31 == 0 and index == 0 else what,
                "waited": 0.013 * (rank + 1),
                "held": 0.42 if what == "done" else None,
                "why": {
                    "started": f"room in {CLASSES[rank]!r}; next by weight among 5 tenants",
                    "done": "",
                    "refused": "queue for 'bulk' is full (200 of 200); retry later or raise queue_limit",
                }[what],
            }
        )
    return found


def stream(t: float, seq: int) -> dict[str, Any]:
    def lag(index: int) -> int:
        return int(wave(t, 200, 0, 4000 / (index + 1), index / 6))

    partitions = [
        {
            "topic": topic,
            "partition": number,
            "subscription_group": "default",
            "generation": 3,
            "position": 120_000 + seq * 7,
            "committed": 119_950 + seq * 7,
            "end": 120_000 + seq * 7 + lag(number),
            "lag": lag(number),
            "buffered": 20,
            "running": 1 + number % 2,
            "paused": number == 2 and topic == "emails",
        }
        for topic in ("emails", "orders")
        for number in range(3)
    ]
    topics = {
        name: {
            "consumer": consumer,
            "subscription_group": "default",
            "priority": priority,
            "weight": weight,
            "long_running": False,
            "dead_letter": None,
            "partitions": 3,
            "lag": sum(lag(number) for number in range(3)),
            "buffered": 60,
            "in_flight": 4,
            "records": 90_000 + seq,
            "consumed": 89_900 + seq,
            "calls": 4000,
            "seconds": 512.3,
            "failures": 3,
            "retries": 3,
            "dead_letters": 0,
        }
        for name, consumer, priority, weight in (
            ("orders", "Orders", 80, 3),
            ("emails", "Emails", 20, 1),
        )
    }
    return {
        "state": "running",
        "group": "billing",
        "concurrency": 8,
        "uptime": 812.0,
        "workers": {"busy": 6, "enqueued": 2, "waiting": 11, "handed_back": 0},
        "scheduler": {
            "name": "GateScheduler",
            "calls": 9000,
            "seconds": 1.2,
            "slowest": 0.004,
            "slow": 0,
            "raised": 0,
        },
        "groups": {
            "default": {
                "blocked": False,
                "connected": True,
                "polled_ago": 0.05,
                "partitions": 6,
                "records": 1,
                "failures": 0,
                "retries": 3,
                "dead_letters": 0,
                "commits": 812,
                "refused_commits": 0,
                "rebalances": 1,
                "resets": 0,
            }
        },
        "topics": topics,
        "partitions": partitions,
        "withheld": [
            {
                "topic": "emails",
                "partition": number,
                "subscription_group": "default",
                "kind": "batch",
                "state": "waiting",
                "messages": 20,
                "age": 4.2 - number,
                "explain": "waits: all 8 workers are busy, and 'orders' (priority 80) ranks earlier",
            }
            for number in range(2)
        ],
        "withheld_count": 2,
        "withheld_oldest": 4.2,
    }


def runs(now: float) -> dict[str, dict[str, Any]]:
    """Two hundred runs, newest first; the first one is at work."""
    found = {"r-0001": run("r-0001", "nightly-report", now, "active", 20, now + 95, now + 400)}
    states = ("completed", "completed", "failed", "completed", "cancelled", "active", "created")
    for number in range(2, 201):
        state = states[number % 7]
        name = f"r-{number:04d}"
        begun = now - number * 40
        found[name] = run(
            name, ("ingest", "train", "etl")[number % 3], begun, state, 9, begun + 60, begun + 900
        )
    return found


def run(
    name: str, title: str, now: float, state: str, size: int, soft: float, hard: float
) -> dict[str, Any]:
    jobs = []
    for node in range(size):
        level = 0 if node == 0 else 1 + (node - 1) % 4 if node < size - 1 else 5
        deps = [] if node == 0 else [0] if level == 1 else [max(0, node - 1)]
        if node == size - 1:
            deps = [max(1, size - 2 - number) for number in range(min(4, size - 2))]
        own = {
            "active": "completed"
            if node < size // 2
            else "active"
            if node < size // 2 + 3
            else "created"
        }.get(state, state)
        if state == "failed":
            own = "failed" if node == 4 else "skipped" if node > 4 else "completed"
        begun = None if own in ("created", "skipped", "cancelled") else now - 60 + node * 5
        jobs.append(
            {
                "node": node,
                "name": ("extract", "clean", "join", "score", "publish")[node % 5] + f"-{node}",
                "executor": "local",
                "state": own,
                "deps": sorted(set(deps)),
                "attempts": 1 if begun else 0,
                "submitted": now - 65,
                "started": begun,
                "ended": begun + 4.5 if begun and own in ("completed", "failed") else None,
                "worker": "worker-1" if begun else None,
                "error": {"type": "ValueError", "message": "no column 'price'"}
                if own == "failed"
                else None,
                "estimate": 4.0,
            }
        )
    done = sum(one["state"] not in ("created", "active") for one in jobs)
    failed = sum(one["state"] == "failed" for one in jobs)
    ended = now - 10 if state in ("completed", "failed", "cancelled") else None
    return {
        "id": name,
        "name": title,
        "tenant": TENANTS[len(title) % 5],
        "state": state,
        "submitted": now - 65,
        "started": None if state == "created" else now - 60,
        "ended": ended,
        "soft_sla": soft,
        "hard_sla": hard,
        "done": done,
        "total": size,
        "failed": failed,
        "jobs": jobs,
    }


def summary(factor: float) -> dict[str, Any]:
    def figures(scale: float) -> dict[str, float | None]:
        return {
            "wait.p50": 0.02 * scale,
            "wait.p95": 0.3 * scale,
            "wait.p99": 0.9 * scale,
            "completion.p95": 1.2 * scale,
            "throughput": 38.2 / scale,
            "lost": 0.01 * scale,
            "missed": None,
        }

    return {
        "policy": "gateway/default",
        "groups": {
            "all": {"all": figures(factor) | {"utilisation": 0.83}},
            "class": {one: figures((1 + rank) * factor) for rank, one in enumerate(CLASSES)},
            "tenant": {one: figures(factor) for one in TENANTS},
        },
    }


CONFIG = """\
server:
  listen: 127.0.0.1:8080
  tokens:
    - {name: ops, role: operator, sha256: "***"}
gateway:
  upstream: http://127.0.0.1:9000
  capacity: 24
  classes:
    interactive: {reserved_floor: 2}
    bulk: {queue_limit: 200}
jobs:
  database: sqlite:///fairlead.db
"""
