"""Work that outlasts `max.poll.interval.ms`, in sentences: which it is, and the cure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.streams.jobs import Job


def ran_for(job: Job, now: float) -> str:
    """Name a job's consumer and partition, and for how long it has run."""
    consumer = job.holding.topic.shape.consumer.__name__
    return (
        f"{consumer}.consume has run for {now - (job.started_at or now):.1f} s on {job.holding.tp}"
    )


def outlasted(job: Job, now: float, interval: float) -> str:
    """Say which work outlasts the poll interval, what comes of that, and the cure."""
    return (
        f"{ran_for(job, now)}, longer than max.poll.interval.ms ({interval:g} s): give topic {job.topic!r} "
        f"long_running=True, or a smaller batch_size than {job.holding.topic.batch_size}, or raise "
        "max.poll.interval.ms; until then its partition goes to another member and its records run again"
    )
