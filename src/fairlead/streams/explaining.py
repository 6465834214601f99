"""Why does a batch wait, and what can be done about it?  In sentences, from what the runtime itself goes by.

It reads and changes nothing.  A scheduler may tell its own reasons (`StreamScheduler.explain`); if that fails, what is
known without it is told.
"""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

from fairlead.errors import ConfigError
from fairlead.streams.broker import Tp
from fairlead.streams.gating import GateScheduler
from fairlead.streams.jobs import CONSUMPTION, Job
from fairlead.streams.scheduler import StreamScheduler

if TYPE_CHECKING:
    from fairlead.streams.holdings import Holding
    from fairlead.streams.listener import Listener
    from fairlead.streams.runtime import Runtime

SOME = 3  # of many jobs are told


def explain_job(runtime: Runtime, job: Job) -> str:
    """Say why a job has not started, or where it stands."""
    return f"{_name(job)} {_stands(runtime, job, time.monotonic())}"


def explain_partition(runtime: Runtime, topic: str, partition: int) -> str:
    """Say what a partition waits for; it need not be held."""
    listener = next((one for one in runtime.listeners.values() if topic in one.topics), None)
    if listener is None:
        known = sorted(name for one in runtime.listeners.values() for name in one.topics)
        raise ConfigError(f"topic {topic!r} is none of this app's; it has {', '.join(known)}")
    tp = Tp(topic, partition)
    holding = listener.holdings.get(tp)
    if runtime.stopped:
        return f"{tp} waits for nothing any more: the app stops."
    if holding is None:
        return _absent(runtime, listener, tp)
    now = time.monotonic()
    jobs = [job for job in runtime.queue.given(listener.group_id) if job.holding is holding]
    told = [f"{_name(job)} {_stands(runtime, job, now)}" for job in jobs[:SOME]]
    if len(jobs) > SOME:
        told.append(f"There are {len(jobs) - SOME} more of its jobs.")
    told += _failures(listener, holding, now)
    if not told:
        told.append(_idle(runtime, listener, holding, now))
    return " ".join(told)


def _name(job: Job) -> str:
    what = f"{len(job.messages)} messages" if job.kind is CONSUMPTION else job.kind
    return f"{job.holding.tp} ({what})"


def _stands(runtime: Runtime, job: Job, now: float) -> str:
    queue, name = runtime.queue, runtime.calls.name
    if job.cleared:
        return f"was cleared: group {job.group_id!r} started anew, and its records are read again."
    if job.handed_back:
        return "was handed back, for the app stops: the next owner reads its records again."
    if job.ended:
        if job.locked and job in queue.given(job.group_id):
            return (
                f"has finished, and {name} has not unlocked it: group {job.group_id!r} is not polled before "
                f"queue.unlock(job)."
            )
        return "has finished."
    if job.started_at is not None:
        method = job.holding.topic.shape.methods.get(job.kind, "housekeeping")
        consumer = job.holding.topic.shape.consumer.__name__
        return f"has been running for {now - job.started_at:.1f} s, in {consumer}.{method}."
    if job.queued_at is not None:
        return _queued(runtime, job)
    if job.given_at is None:
        return "has not been given to the scheduler."
    return _withheld(runtime, job, now)


def _queued(runtime: Runtime, job: Job) -> str:
    before = runtime.queue.before(job)
    if before is None:
        return f"is queued, and waits for another job of {job.holding.tp} to end."
    if job.alone:
        return "is queued, and runs alone, after what runs now: its record ran when a process died."
    if (lonely := runtime.queue.lonely) is not None:
        return f"is queued, and waits for {_name(lonely)}, which runs alone: it ran when a process died."
    size = runtime.queue.concurrency
    line = f", {before} jobs before it" if before else ", next in line"
    return f"is queued{line}: all {size} workers are busy. If that lasts, raise concurrency."


def _withheld(runtime: Runtime, job: Job, now: float) -> str:
    scheduler, name = runtime.calls.scheduler, runtime.calls.name
    said = [_reason(scheduler, job, now)]
    hanging = runtime.calls.hanging()
    if hanging is not None:
        method, seconds = hanging
        others = "other groups go round it" if runtime.calls.away else "nothing is scheduled"
        said.append(
            f"{name}.{method} has not returned for {seconds:.1f} s, and {others} until it does: "
            "a scheduler must not wait for anything."
        )
    elif isinstance(scheduler, GateScheduler):
        limit = "concurrency" if runtime.settings.capacity is None else "concurrency or the limit"
        said.append(
            f"If that lasts, raise {limit}, or the priority or the weight of topic {job.topic!r}."
        )
    else:
        said.append(_remedy(runtime, job, name))
    if job.blocking and not scheduler.buffered:
        said.append(f"Group {job.group_id!r} is not polled before it has run.")
    return " ".join(said)


def _reason(scheduler: StreamScheduler, job: Job, now: float) -> str:
    try:
        reason = str(scheduler.explain(job, now))
    except Exception:  # written by others, and nobody's work depends on it
        reason = StreamScheduler.explain(scheduler, job, now)
    if isinstance(scheduler, GateScheduler):
        waits = reason.removeprefix("waits: ")
        return f"has waited in the gate for {job.age(now):.1f} s: {waits.rstrip('.')}."
    return f"waits: {reason.rstrip('.')}."


def _remedy(runtime: Runtime, job: Job, name: str) -> str:
    if not job.locked:
        return f"{name} has to push every job it is given, or to lock it and push it later."
    busy, size = runtime.queue.statistics["busy"], runtime.queue.concurrency
    tick = runtime.settings.tick_interval
    free = "so workers are not what it waits for" if busy < size else "so no worker is free"
    return (
        f"{busy} of {size} workers are busy, {free}; {name}.manage() looks again when a job finishes, and every "
        f"{tick:g} s."
    )


def _absent(runtime: Runtime, listener: Listener, tp: Tp) -> str:
    return (
        f"{tp} is not assigned to this process: another member of group {runtime.settings.group!r} has it, or it "
        f"is about to come, or there is no such partition. {_connection(listener)}"
    ).rstrip()


def _connection(listener: Listener) -> str:
    if not listener.connected:
        return (
            f"The listener of {listener.group_id!r} is starting anew: see its log for the reason."
        )
    return ""


def _failures(listener: Listener, holding: Holding, now: float) -> list[str]:
    with listener.lock:
        partition = holding.partition
        resting, until = partition.resting(now), partition.rests_until()
        failures, burying = partition.failures, partition.burying
        refusal = listener.intake.refusal(holding)
    topic, said = holding.topic, []
    if burying:
        said.append(
            f"{holding.tp} waits until the broker has its dead letter in {topic.dead_letter!r} ({holding.trouble})."
        )
        if refusal:
            said.append(f"{topic.dead_letter!r} did not take it: {refusal}.")
    elif resting and until < inf:
        after = (
            f"after {topic.max_retries} retries its record goes to {topic.dead_letter!r}"
            if topic.dead_letter
            else "it is tried for ever: without dead_letter nothing is skipped"
        )
        said.append(
            f"{holding.tp} rests for {max(0.0, until - now):.1f} s more: {topic.shape.consumer.__name__}.consume "
            f"failed {_times(failures)}, last with {holding.trouble}; {after}."
        )
    return said


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _idle(runtime: Runtime, listener: Listener, holding: Holding, now: float) -> str:
    """Say what a partition waits for that has no job and no trouble."""
    waits = holding.partition.buffered
    what = f"{waits} records of {holding.tp} were read and wait" if waits else f"{holding.tp}"
    connection = _connection(listener)
    if connection:
        return f"{what}: {connection}" if waits else f"{what} waits. {connection}"
    lag = holding.lag
    if not waits and lag == 0:
        return f"{what} waits for nothing: all that was written is done."
    if not runtime.settled():
        return f"{holding.tp} waits until the other groups of this app have joined."
    blockers = [job for job in runtime.queue.given(listener.group_id) if job.blocking]
    if blockers and not runtime.calls.scheduler.buffered:
        first = min(blockers, key=lambda job: job.given_at or now)
        more = f" (and {len(blockers) - 1} more)" if len(blockers) > 1 else ""
        behind = f"group {listener.group_id!r} is blocked by {first.holding.tp}{more}"
        verb = ":" if waits else " is not read:"
        return f"{what}{verb} {behind}, which {_stands(runtime, first, now)}"
    if waits:
        return f"{what} for the listener to look at them."
    if lag is None:
        return f"{what} waits for records; where it ends is not known yet."
    paused = ", and is paused because enough of it waits" if holding.full else ""
    return f"{what} has {lag} records to read{paused}."
