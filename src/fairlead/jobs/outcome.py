"""What people get back: a run that was submitted, and how it ended."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import shown
from fairlead.errors import UnknownRun
from fairlead.jobs.states import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.jobs.records import Id, JobRow, RunRow
    from fairlead.jobs.stores.base import Store

NO_RESULT = (None, "null")
_RUN = re.compile(r"[0-9]{1,18}", re.ASCII)
_JOB = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})", re.ASCII)


class Run(NamedTuple):
    """A run that was submitted; `new` is False if its key had been used before."""

    id: str
    new: bool = True

    def __str__(self) -> str:
        return self.id


class Failure(str):
    """Why a job did not complete, as a text; its parts are `type`, `message` and `traceback`."""

    type: str
    message: str
    traceback: str

    def __new__(cls, error: dict[str, Any]) -> Failure:
        kind, message = str(error.get("type", "")), str(error.get("message", ""))
        self = super().__new__(cls, f"{kind}: {message}" if message else kind)
        self.type, self.message, self.traceback = kind, message, str(error.get("traceback", ""))
        return self


class Outcome(NamedTuple):
    """How a run ended: its state, the results of the jobs that completed and why others did not, by name."""

    id: str
    state: str
    results: dict[str, Any]
    errors: dict[str, Failure]
    states: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether every job completed."""
        return self.state == "completed"


def run_number(run: Any) -> int:
    """Read a run, or its id.

    >>> run_number(Run("17")), run_number("17"), run_number(17)
    (17, 17, 17)
    """
    value = getattr(run, "id", run)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63:
        return value
    if isinstance(value, str) and _RUN.fullmatch(value):
        return int(value)
    raise UnknownRun(f"there is no run {shown(value)}; the id of a run is a number, such as 1042")


async def find_run(store: Store, dag: int) -> RunRow:
    """Find a run."""
    row = await store.run(dag)
    if row is None:
        raise UnknownRun(f"there is no run {dag}; see fairlead jobs list")
    return row


def job_id(job: Any) -> Id:
    """Read the id of a job.

    >>> job_id("17.3")
    (17, 3)
    """
    if isinstance(job, str) and (found := _JOB.fullmatch(job)):
        return int(found[1]), int(found[2])
    raise UnknownRun(
        f"there is no job {shown(job)}; the id of a job is that of its run and a number, such as 1042.3"
    )


def outcome_of_rows(run: RunRow, jobs: Iterable[JobRow]) -> Outcome:
    """Put together what is told of an ended run."""
    results, errors, states = {}, {}, {}
    for job in jobs:
        name, state = job.name, job.state
        states[name] = state
        if state == "completed":
            # What most jobs return need not be read at length.
            results[name] = None if job.result in NO_RESULT else json.loads(job.result)
        elif state in TERMINAL and job.error is not None:
            errors[name] = Failure(json.loads(job.error))
    return Outcome(str(run.dag), run.state, results, errors, states)
