"""Fairlead broken on purpose, in a member of a storm: what the checker has to notice.  And the schedulers of storms."""

from typing import Any

from fairlead.streams import StreamScheduler
from fairlead.streams.holdings import Holding
from fairlead.streams.intake import Intake
from fairlead.streams.listener import Listener
from fairlead.streams.partitions import KeyedPartition, Partition
from fairlead.streams.schedulers import FairByTopic, OneAtATime

SCHEDULERS: dict[str, type[StreamScheduler] | None] = {
    "gate": None,
    "FairByTopic": FairByTopic,
    "OneAtATime": OneAtATime,
}


def highest() -> None:
    """Commit what follows the highest record that has finished, whatever is before it."""

    def close(self: Any, offsets: Any) -> None:
        for offset in offsets:
            del self._lane_of[offset]
            self.position = max(self.position or 0, offset + 1)

    KeyedPartition._close = close  # type: ignore[method-assign]


def at_once() -> None:
    """Commit records when they are handed out: at most once."""
    take = Partition.take

    def took(self: Any, now: float) -> Any:
        taken = take(self, now)
        if taken is not None:
            self.position = taken.messages.next_offset
        return taken

    Partition.take = took  # type: ignore[method-assign]


def unfenced() -> None:
    """Let the result of a partition that has gone count as if it had not."""
    forget = Intake.forget

    def ended(self: Any, job: Any, error: BaseException | None) -> None:
        with self.lock:
            if error is None and not job.skipped:
                job.holding.partition.finish(job.taken)
                self.dirty[job.holding] = None

    def unsaved(self: Any) -> list[Holding]:
        with self.lock:
            return list(self.dirty)

    def forgets(self: Any, holding: Holding) -> None:
        kept = dict(self.dirty)
        forget(self, holding)
        self.dirty.update(kept)

    Intake.ended, Intake.forget = ended, forgets  # type: ignore[method-assign]
    Intake.unsaved = unsaved  # type: ignore[method-assign]


def forgetful() -> None:
    """Never commit when a partition is revoked or lost, nor at intervals: only at the end."""
    commit = Listener._commit

    def commits(self: Any, client: Any, holdings: Any, **how: Any) -> bool:
        return commit(self, client, holdings, **how) if self._close_by is not None else True

    Listener._commit = commits  # type: ignore[method-assign]


def drops() -> None:
    """Lose a batch on its way, now and then."""
    deliver = Intake.deliver
    times = [0]

    def delivers(self: Any, event: Any) -> None:
        times[0] += 1
        if times[0] % 20:
            deliver(self, event)

    Intake.deliver = delivers  # type: ignore[method-assign]
