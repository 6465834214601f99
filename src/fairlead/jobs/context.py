"""What a job may ask about itself while it runs."""

from __future__ import annotations

from contextvars import ContextVar

from fairlead.errors import Misuse


class CurrentJob:
    """The job that runs here: which one it is, and whether it is to stop.

    `cancelled` turns true when the job is cancelled, has run out of time or is to be handed back; code on a thread,
    which nobody can stop from outside, should look at it now and then.  Processes and Ray tasks are killed instead.
    """

    __slots__ = ("_cancelled", "attempt", "dag", "fence", "name", "node")

    def __init__(self, dag: int, node: int, name: str, attempt: int, fence: int) -> None:
        self.dag = dag
        self.node = node
        self.name = name
        # 1 for the first; a try that was cut short by a crash does not count.
        self.attempt = attempt
        self.fence = fence  # grows never, repeats never: what this try writes elsewhere can be told from another's
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the job is to stop."""
        return self._cancelled

    def cancel(self) -> None:
        """Have the job know that it is to stop; for whoever runs it, from any thread."""
        self._cancelled = True

    @property
    def id(self) -> str:
        """The job's id, such as "1042.3"."""
        return f"{self.dag}.{self.node}"

    @property
    def run(self) -> str:
        """The id of the run it belongs to, such as "1042"."""
        return str(self.dag)

    def __repr__(self) -> str:
        return f"<job {self.id} {self.name!r}, attempt {self.attempt}>"


running: ContextVar[CurrentJob] = ContextVar("fairlead_job")


def current_job() -> CurrentJob:
    """Tell which job this code runs in."""
    job = running.get(None)
    if job is None:
        raise Misuse("current_job() was called outside a job; only code that a job runs may ask")
    return job
