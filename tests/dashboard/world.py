"""A made-up server's state, of which a test can change anything: documents of the control API, and no scheduler."""

import time
from typing import Any

from tests.dashboard import gates
from tests.dashboard.gates import CLASSES, TENANTS, wave

SLOTS = 24
WORKERS = 4
TOPICS = ("orders", "emails")
PARTITIONS = 3
PLANNERS = [
    "EarliestDeadlineExecutionPlanner",
    "GlobalPriorityExecutionPlanner",
    "SJFSExecutionPlanner",
]


def backends(t: float, *, down: bool) -> list[dict[str, Any]]:
    """Show the backend of the gateway as its fleet does."""
    failure = {"at": t, "what": "it is unreachable: connection refused"}
    return [
        {
            "url": "http://10.0.0.1:9001",
            "state": "unhealthy" if down else "healthy",
            "in_flight": 0,
            "capacity": 24,
            "tries": 4000,
            "errors": 3 if down else 0,
            "last_failure": failure if down else None,
            "back_at": None,
            "capacity_from": "configuration",
            "health": "/health",
            "models": None,
            "added_by": "file",
        }
    ]


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
        self.outage: str | None = None  # why the gateway has no backend
        self.weights = dict.fromkeys(TENANTS, 1.0) | {"acme": 2.0}
        self.runs = runs(time.time() if now is None else now)
        self.text = CONFIG
        self.notes: list[str] = []  # what of a new configuration waits for a start
        self.planner = PLANNERS[1]
        self.path: str | None = "/etc/fairlead/fairlead.yaml"
        self.asked: list[tuple[str, str, Any]] = []  # what a page posted: method, path, body
        for step in range(90):
            self.look((time.time() if now is None else now) - 900 + 10 * step)

    def look(self, t: float) -> dict[str, Any]:
        self.seq += 1
        shown = [
            self.gate("gateway/default", "gateway", t, self.slots, shift=0.0, least=1.1),
            self.gate("flows/checkout", "flows", t, None, shift=0.3),
            self.gate("jobs/leader", "jobs", t, 8, shift=0.6, classes=("local", "gpu")),
            self.gate(
                "streams/workers",
                "streams",
                t,
                WORKERS,
                shift=0.8,
                classes=TOPICS,
                least=1.25,
                most=1.5,  # a partition has one call at a time, and there are six
            ),
        ]
        shown[0] |= {"degraded": self.outage, "backends": backends(t, down=self.outage is not None)}
        jobs = shown[2]
        snapshot = {
            "seq": self.seq,
            "t": t,
            "doors": [
                {
                    "name": "gateway",
                    "state": "degraded" if self.outage else "running",
                    "reason": self.outage,
                }
            ],
            "gates": shown,
            "jobs": {
                "leading": True,
                "reason": None,
                "ready": sum(one["waiting"] for one in jobs["classes"]),
                "running": jobs["slots"]["used"],
                "waiting": 14,
                "failed": 2,
                "done": 1240 + self.seq // 7,
                "sla_soft_missed": 4,
                "sla_hard_missed": 1,
                "workers": 2,
            },
            "streams": [stream(t, self.seq, shown[3])],
        }
        self.snapshots = [*self.snapshots[-1799:], snapshot]
        self.decisions = [*self.decisions[-999:], *gates.decisions(t, self.seq)]
        return snapshot

    def gate(self, name: str, door: str, t: float, total: int | None, **more: Any) -> Any:
        return gates.gate(name, door, t, total, seq=self.seq, weights=self.weights, **more)

    def waiting(self, gate: str, limit: int) -> dict[str, Any]:
        found = next(one for one in self.snapshots[-1]["gates"] if one["id"] == gate)
        return gates.waiting(found, limit)


def stream(t: float, seq: int, gate: dict[str, Any]) -> dict[str, Any]:
    """An app whose workers that gate guards: what waits there is withheld."""
    running = {one["name"]: one["running"] for one in gate["classes"]}
    withheld = [
        (topic["name"], topic["running"] + number)
        for topic in gate["classes"]
        for number in range(topic["waiting"])
    ]

    def lag(topic: str, number: int) -> int:
        shift = number / 6 + TOPICS.index(topic) / 3
        return int(wave(t, 200, 60, 4000 / (number + 1 + TOPICS.index(topic)), shift))

    partitions = [
        {
            "topic": topic,
            "partition": number,
            "subscription_group": "default",
            "generation": 3,
            "position": 120_000 + seq * 7,
            "committed": 119_950 + seq * 7,
            "end": 120_000 + seq * 7 + lag(topic, number),
            "lag": lag(topic, number),
            "buffered": 20,
            "running": int(number < running[topic]),
            "paused": number == 2 and topic == "emails",
        }
        for topic in sorted(TOPICS)
        for number in range(PARTITIONS)
    ]
    topics = {
        name: {
            "consumer": consumer,
            "subscription_group": "default",
            "priority": priority,
            "weight": float(weight),
            "long_running": False,
            "rank": 0,
            "dead_letter": None,
            "partitions": PARTITIONS,
            "lag": sum(lag(name, number) for number in range(PARTITIONS)),
            "buffered": 60,
            "in_flight": 20 * running[name],
            "records": 90_000 + seq,
            "consumed": 89_900 + seq,
            "calls": 4000,
            "seconds": 512.3,
            "failures": 3,
            "retries": 3,
            "dead_letters": 0,
            "dead_letters_filed": 0,
            "dead_letters_skipped": 0,
        }
        for name, consumer, priority, weight in (
            ("orders", "Orders", 80, 3),
            ("emails", "Emails", 20, 1),
        )
    }
    return {
        "state": "running",
        "group": "billing",
        "concurrency": WORKERS,
        "uptime": 812.0,
        "workers": {
            "busy": gate["slots"]["used"],
            "enqueued": 0,
            "waiting": len(withheld),
            "handed_back": 0,
        },
        "scheduler": {
            "name": "GateScheduler",
            "calls": 9000,
            "seconds": 1.2,
            "slowest": 0.004,
            "slow": 0,
            "raised": 0,
            "hangs": 0,
            "away": False,
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
                "topic": topic,
                "partition": partition,
                "subscription_group": "default",
                "kind": "consumption",
                "state": "locked",
                "messages": 20,
                "age": 0.42 - 0.13 * number,
                "explain": f"{topic} {partition} (20 messages) has waited in the gate for "
                f"{0.42 - 0.13 * number:.2f} s: all {WORKERS} workers are busy",
            }
            for number, (topic, partition) in enumerate(withheld)
        ],
        "withheld_count": len(withheld),
        "withheld_oldest": 0.42,
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
                "task": ("extract", "clean", "join", "score", "publish")[node % 5],
                "executor": "local",
                "state": own,
                "deps": sorted(set(deps)),
                "attempts": 1 if begun else 0,
                "submitted": now - 65,
                "started": begun,
                "ended": begun + 4.5 if begun and own in ("completed", "failed") else None,
                "worker": 1 if begun else None,
                "error": {"type": "ValueError", "message": "no column 'price'"}
                if own == "failed"
                else None,
                "estimate": 4.0,
                "soft_sla": soft,
                "hard_sla": hard,
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
        "cancelling": False,
        "jobs": jobs,
    }


def summary(factor: float) -> dict[str, Any]:
    """What a simulation comes to; a factor below 1 is better."""

    def spread(name: str, middle: float) -> dict[str, float]:
        parts = {"mean": 1, "p50": 0.5, "p90": 4, "p95": 7, "p99": 18, "p99.9": 25, "max": 30}
        return {f"{name}.{part}": middle * size for part, size in parts.items()}

    def figures(scale: float) -> dict[str, float | None]:
        lost = 0.01 * scale
        return {
            **spread("wait", 0.04 * scale),
            **spread("completion", 0.3 + 0.04 * scale),
            "arrived": 12_000,
            "done": int(12_000 * (1 - lost)),
            "throughput": 40 * (1 - lost),
            "refused": lost,
            **dict.fromkeys(("expired", "evicted", "withdrawn", "unfinished"), 0.0),
            "lost": lost,
            "deadlines": 0,
            "missed": None,
            "promoted": 3,
            "preempted": 0,
            "share": 0.25,
            "fair": 0.25,
        }

    arrived, lost = 48_211, int(482 * factor)
    return {
        "policy": "gateway/default",
        "seed": 1,
        "horizon": 300.0,
        "slots": SLOTS,
        "totals": {
            "arrived": arrived,
            "done": arrived - lost,
            "started": arrived - lost,
            "refused": lost,
            "promoted": 12,
            **dict.fromkeys(("evicted", "expired", "late", "preempted", "retried"), 0),
            **dict.fromkeys(("running", "waiting", "withdrawn"), 0),
        },
        "groups": {
            "all": {"all": figures(factor) | {"utilisation": 0.83, "misplaced": 0.02} | WASTED},
            "class": {
                one: figures((1 + rank) * factor) | WASTED for rank, one in enumerate(CLASSES)
            },
            "tenant": {one: figures(factor) | WASTED for one in TENANTS},
            "workload": {"chat": figures(factor)},
        },
    }


WASTED = {"wasted": 0.0}
CONFIG = """\
server:
  listen: 127.0.0.1:8080
  tokens:
    - {name: ops, role: operator, sha256: "***"}
gateway:
  listen: 127.0.0.1:8082
  upstreams:
    - {url: http://127.0.0.1:9000}
  capacity: 24
  priority_scheduler:
    enabled: true
    classes:
      system: {reserved_floor: 2}
      interactive: {reserved_floor: 5, reserved_per_slot: 0}
      default: {reserved_floor: 0, reserved_per_slot: 0}
      bulk: {queue_size: 200}
jobs:
  database: sqlite:///fairlead.db
"""
