"""From the description of an executor to what runs its calls."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from fairlead.errors import ConfigError
from fairlead.jobs.executors.local import LocalRunner
from fairlead.jobs.executors.processes import ProcessRunner
from fairlead.jobs.executors.threads import ThreadRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.jobs.executors.base import ExecutorSpec, Runner
    from fairlead.jobs.executors.processes import Instead

# Processes of an executor for jobs that are suspected of killing theirs: after the death of a worker with hundreds of
# jobs no more than these are started at once.
MOST_APART = 4


def runner_of(spec: ExecutorSpec, app: str | None = None) -> Runner:
    """Make the runner of an executor that this process serves; `app` is "module:jobs", if that is known."""
    slots = spec.slots or 0
    if spec.kind == "local":
        return LocalRunner(slots)
    if spec.kind == "threads":
        return ThreadRunner(slots)
    if spec.kind == "processes":
        return ProcessRunner(slots, app=app)
    if spec.kind == "ray":
        from fairlead.jobs.executors.ray import RayRunner

        return RayRunner(spec, app=app)
    raise ConfigError(f"executor {spec.name!r} is served elsewhere; it has no runner here")


def apart_of(
    spec: ExecutorSpec, app: str | None = None
) -> Callable[[Instead], ProcessRunner] | None:
    """Return what makes a runner with a process for each call, for an executor whose calls share this process.

    That runner gives a call that raises there to `instead`, with the error.
    """
    if spec.kind not in ("local", "threads") or os.name != "posix" or not sys.executable:
        return None
    slots = min(spec.slots or MOST_APART, MOST_APART)
    return lambda instead: ProcessRunner(slots, app=app, instead=instead)
