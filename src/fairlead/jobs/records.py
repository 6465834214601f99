"""What travels between the store, the scheduler and the workers: plain records, almost without behaviour.

A job is known by the number of its run and its place in it, `(dag, node)`; people write that "1042.3".  Times are
seconds since the epoch on the *store's* clock; None and -inf never stand for a time.  `fence` is a random number drawn
at each claim: whoever writes about an active job must show the one it was claimed with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

Id = tuple[int, int]
NOBODY = 0  # a number that no worker has


class NewJob(NamedTuple):
    """A job to be stored."""

    name: str
    task: str
    executor: str
    payload: str  # JSON {"args": [...], "kwargs": {...}}; {"$result": <node>} stands for a result
    needs: tuple[int, ...] = ()  # the nodes it waits for
    uses: tuple[int, ...] = ()  # those of them whose results stand in the payload
    level: int = 0  # depth: 0 for a root, else 1 + the deepest it needs
    height: float = 0.0  # critical path: its estimate and the longest of what follows
    estimate: float | None = None
    soft: float | None = None  # its own, or its run's
    hard: float | None = None
    own_sla: bool = False  # its own: a miss is an event of the job, not only of the run
    retries: int = 0
    retry_delay: float = 1.0
    timeout: float | None = None


class NewRun(NamedTuple):
    """A DAG to be stored, with all its jobs; `node` is a job's index."""

    name: str
    jobs: tuple[NewJob, ...]
    tenant: str = ""
    key: str | None = None  # unique per tenant, for ever
    soft: float | None = None
    hard: float | None = None
    start_at: float | None = None


class AlikeRuns(Sequence[NewRun]):
    """Runs that differ in nothing but names and payloads, as columns; queues are filled with them by the thousand.

    Each has one job, and neither a key nor an SLA.  To whoever does not know this class they are runs like any other.
    """

    __slots__ = ("first", "job_names", "names", "payloads")

    def __init__(self, first: NewRun) -> None:
        self.first = first
        self.names: list[str] = []
        self.job_names: list[str] = []
        self.payloads: list[str] = []

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> NewRun: ...
    @overload
    def __getitem__(self, place: slice) -> list[NewRun]: ...
    def __getitem__(self, place: int | slice) -> NewRun | list[NewRun]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        (job,) = self.first.jobs
        job = job._replace(name=self.job_names[place], payload=self.payloads[place])
        return self.first._replace(name=self.names[place], jobs=(job,))

    def __iter__(self) -> Iterator[NewRun]:
        make = tuple.__new__  # what the record's own maker does, in a third of the time
        _, _, *of_run = self.first
        _, task, executor, _, *of_job = self.first.jobs[0]
        for name, job, payload in zip(self.names, self.job_names, self.payloads, strict=True):
            jobs = (make(NewJob, (job, task, executor, payload, *of_job)),)
            yield make(NewRun, (name, jobs, *of_run))


class Submitted(NamedTuple):
    """The answer to a submission: the run, and whether it is new (else the key was taken)."""

    dag: int
    new: bool


class ReadyJob(NamedTuple):
    """A job that may run as soon as there is room (and `start_at` has come)."""

    dag: int
    node: int
    name: str
    task: str
    executor: str
    tenant: str
    level: int
    height: float
    estimate: float | None
    soft: float | None
    hard: float | None
    ready_at: float  # when it first became ready; a retry keeps it
    start_at: float  # 0: at once
    active: bool  # has a job of its run been started before?


class RunningJob(NamedTuple):
    """An active job: who holds it."""

    dag: int
    node: int
    task: str
    executor: str
    tenant: str
    worker: int
    fence: int
    acked: bool
    claimed_at: float
    attempts: int
    crashes: int
    retries: int
    retry_delay: float
    cancelling: bool
    name: str = ""
    timeout: float | None = None


class Claim(NamedTuple):
    """A job that the scheduler wants to start on a worker."""

    dag: int
    node: int
    worker: int
    fence: int


class Claimed(NamedTuple):
    """A job that was claimed, with all that is needed to run it."""

    dag: int
    node: int
    worker: int
    fence: int
    name: str
    task: str
    payload: str
    inputs: dict[int, str]  # node -> its result, JSON
    attempts: int  # failures so far
    crashes: int
    retries: int
    retry_delay: float
    timeout: float | None
    suspect: bool = False  # a process died with it: it runs in a process of its own


class Death(NamedTuple):
    """The death of the process that ran a job."""

    alone: bool  # no other job was in the process
    beside: str  # the other jobs, or how the process ended


class Ending(NamedTuple):
    """How one claim of a job ended; `state` is where the job goes.

    If a cancel was asked for meanwhile, the store makes `retry` and `failed` into `cancelled`.
    """

    dag: int
    node: int
    fence: int
    state: str
    result: str | None = None  # JSON
    error: str | None = None  # JSON {"type": ..., "message": ..., "traceback": ...}
    delay: float = 0.0  # before a retry
    attempts: int | None = None  # from now on; None: as many as before
    crashes: int | None = None
    ran: float | None = None  # seconds; None: it never ran
    task: str | None = None  # to learn from
    death: Death | None = None  # to be remembered


class RunEnd(NamedTuple):
    """A run that has ended."""

    dag: int
    state: str


class Finished(NamedTuple):
    """What a batch of endings did, in one transaction."""

    applied: list[Id]
    refused: list[Id]  # wrong fence or not active: somebody else has it now
    ready: list[ReadyJob]  # unblocked, or back for a retry
    ended: list[RunEnd]


class News(NamedTuple):
    """What other processes did since the last look.  Always the truth of now: hearing of a thing twice does no harm."""

    ready: list[ReadyJob]
    ended: list[Id]  # no longer active, or no longer to be run
    refreshed: list[int]  # runs of which `ready` tells everything that is ready; forget the rest
    settings: bool  # a planner, a schedule or an SLA was changed
    workers: bool
    runs_ended: list[int]


class WorkerRow(NamedTuple):
    """A worker: so many slots for one executor, in one process, since that process started."""

    id: int
    name: str
    executor: str
    slots: int
    process: str  # which process it lives in: unique for each start of one
    beats: int  # how often it has given a sign of life
    expired: bool  # by the store's clock
    draining: bool
    tasks: frozenset[str] | None = (
        None  # those its process knows; None: an older Fairlead, which did not say
    )

    def knows(self, task: str) -> bool:
        """Whether the worker can run a task."""
        return self.tasks is None or task in self.tasks


class Beat(NamedTuple):
    """The answer to a heartbeat."""

    alive: list[int]  # the workers that are still known; the others have lost all they ran
    cancel: list[tuple[int, int, int]]  # (dag, node, fence) of active jobs that are to stop


class RunRow(NamedTuple):
    """A run, as it is shown."""

    dag: int
    name: str
    tenant: str
    key: str | None
    state: str
    soft: float | None
    hard: float | None
    created_at: float
    start_at: float | None
    started_at: float | None
    completed_on: float | None
    left: int  # jobs that have not ended
    jobs: int
    cancelling: bool
    failed: int = 0  # jobs that failed or expired


class JobRow(NamedTuple):
    """A job, as it is shown."""

    dag: int
    node: int
    name: str
    task: str
    executor: str
    state: str
    needs: tuple[int, ...]
    waits: int  # dependencies that have not completed
    level: int
    estimate: float | None
    soft: float | None
    hard: float | None
    attempts: int
    crashes: int
    retries: int
    start_at: float
    ready_at: float | None
    claimed_at: float | None
    started_at: float | None
    completed_on: float | None
    worker: int | None
    cancelling: bool
    result: str | None
    error: str | None


class Missed(NamedTuple):
    """An SLA that was missed, told once."""

    dag: int
    node: int | None  # None: the run's
    kind: str  # "soft" or "hard"
    at: float


class Schedule(NamedTuple):
    """A cron schedule: at each tick one run is submitted."""

    name: str
    cron: str
    timezone: str
    run: dict[str, Any]  # the DAG file, as read
    misfire: str = "one"  # of ticks missed: "skip" all, fire "one", or "all"
    cursor: float = 0.0  # the last tick dealt with
    paused: bool = False
