"""An app at this moment as one JSON document: what `/status`, `fairlead streams top` and dashboards read.

It reads the figures under the locks of those who write them, and decides nothing.  What grows with the work is
bounded: the oldest withheld jobs are listed and explained, the others counted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fairlead.streams.explaining import explain_job
from fairlead.streams.statistics import statistics_of

if TYPE_CHECKING:
    from fairlead.streams.app import StreamApp
    from fairlead.streams.jobs import Job
    from fairlead.streams.runtime import Runtime
    from fairlead.streams.statistics import GroupFigures, Statistics

WITHHELD = 20  # jobs that are listed, oldest first
NOTHING: dict[str, Any] = {
    "partitions": 0,
    "lag": 0,
    "buffered": 0,
    "in_flight": 0,
    "records": 0,
    "consumed": 0,
    "calls": 0,
    "seconds": 0.0,
    "failures": 0,
    "retries": 0,
    "dead_letters": 0,
    "dead_letters_filed": 0,
    "dead_letters_skipped": 0,
}


def snapshot_of(app: StreamApp) -> dict[str, Any]:
    """Make the document; an app that has not been started has everything but figures."""
    settings = app.settings
    document: dict[str, Any] = {
        "state": app.state,
        "group": settings.group,
        "concurrency": settings.concurrency,
        "uptime": 0.0,
        "workers": {"busy": 0, "enqueued": 0, "waiting": 0, "handed_back": 0},
        "scheduler": None,
        "groups": {},
        "topics": {},
        "partitions": [],
        "withheld": [],
        "withheld_count": 0,
        "withheld_oldest": 0.0,
    }
    runtime = app.started
    sums: dict[str, dict[str, Any]] = {}
    if runtime is not None:
        _fill(document, runtime, statistics_of(runtime))
        sums = _sums(runtime, document["partitions"])
    for name, topic in app.topics.items():
        document["topics"][name] = {
            "consumer": topic.shape.consumer.__name__,
            "subscription_group": topic.subscription_group,
            "priority": topic.priority,
            "weight": topic.weight,
            "rank": topic.rank,
            "long_running": topic.long_running,
            "dead_letter": topic.dead_letter,
            **sums.get(name, NOTHING),
        }
    return document


def _fill(document: dict[str, Any], runtime: Runtime, figures: Statistics) -> None:
    document["uptime"] = round(time.monotonic() - runtime.begun_at, 3)
    document["workers"] = {
        "busy": figures.busy,
        "enqueued": figures.enqueued,
        "waiting": figures.waiting,
        "handed_back": figures.handed_back,
    }
    document["scheduler"] = {
        "name": figures.scheduler,
        "calls": figures.scheduler_calls,
        "seconds": round(figures.scheduler_seconds, 6),
        "slowest": round(figures.scheduler_slowest, 6),
        "slow": figures.scheduler_slow,
        "raised": figures.scheduler_raised,
        "hangs": figures.scheduler_hangs,
        "away": figures.scheduler_away,
    }
    for name, group in figures.groups.items():
        document["groups"][name] = _group(runtime, name, group)
        document["partitions"] += _partitions(group)
    document["partitions"].sort(key=lambda one: (one["topic"], one["partition"]))
    held = sorted(runtime.withheld(), key=lambda one: one[1])
    now = time.monotonic()
    document["withheld_count"] = len(held)
    document["withheld_oldest"] = round(now - held[0][1], 3) if held else 0.0
    document["withheld"] = [
        {
            "topic": job.topic,
            "partition": job.partition,
            "subscription_group": job.group_id,
            "kind": str(job.kind),
            "state": job.state,
            "messages": len(job.messages),
            "age": round(now - since, 3),
            "explain": explain_job(runtime, job),
        }
        for job, since in _some(held)
    ]


def _some(held: list[tuple[Job, float]]) -> list[tuple[Job, float]]:
    """Choose what to list of many, oldest first: the oldest of each topic are among them."""
    first: dict[str, tuple[Job, float]] = {}
    for one in held:
        first.setdefault(one[0].topic, one)
    chosen = dict([*first.values(), *held][: WITHHELD + len(first)])
    return sorted(list(chosen.items())[:WITHHELD], key=lambda one: one[1])


def _group(runtime: Runtime, name: str, group: GroupFigures) -> dict[str, Any]:
    listener = runtime.listeners[name]
    return {
        "blocked": group.blocked,
        "connected": listener.connected,
        "polled_ago": round(group.polled_ago, 3),
        "partitions": len(group.partitions),
        "records": group.records,
        "failures": group.failures,
        "retries": group.retries,
        "dead_letters": group.dead_letters,
        "commits": group.commits,
        "refused_commits": group.refused_commits,
        "rebalances": group.rebalances,
        "resets": group.resets,
    }


def _partitions(group: GroupFigures) -> list[dict[str, Any]]:
    return [
        {
            "topic": one.tp.topic,
            "partition": one.tp.partition,
            "subscription_group": group.group_id,
            "generation": one.generation,
            "position": one.position,
            "committed": one.committed,
            "end": one.end,
            "lag": one.lag,
            "buffered": one.buffered,
            "running": one.running,
            "paused": one.paused,
        }
        for one in group.partitions
    ]


def _sums(runtime: Runtime, partitions: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add up each topic."""
    held: dict[str, list[dict[str, Any]]] = {}
    for one in partitions:
        held.setdefault(one["topic"], []).append(one)
    in_flight: dict[str, int] = {}
    for job in runtime.queue.given():
        in_flight[job.topic] = in_flight.get(job.topic, 0) + len(job.messages)
    sums = {}
    for listener in runtime.listeners.values():
        for name, counts in listener.counts.topics.items():
            own = held.get(name, [])
            known = [one["lag"] for one in own if one["lag"] is not None]
            sums[name] = {
                "partitions": len(own),
                "lag": sum(known) if known or not own else None,
                "buffered": sum(one["buffered"] for one in own),
                "in_flight": in_flight.get(name, 0),
                "records": counts.records,
                "consumed": counts.consumed,
                "calls": counts.calls,
                "seconds": round(counts.seconds, 6),
                "failures": counts.failures,
                "retries": counts.retries,
                "dead_letters": counts.dead_letters,
                "dead_letters_filed": counts.dead_letters_filed,
                "dead_letters_skipped": counts.dead_letters_skipped,
            }
    return sums
