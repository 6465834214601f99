"""From records to jobs: what a listener hands to the scheduler, and how the end of each job is noted.

Called by the listener's thread, and, for the end of jobs, by workers; `lock` is the listener's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from math import inf
from typing import TYPE_CHECKING

from fairlead.config import error_text
from fairlead.streams.broker import Batch
from fairlead.streams.burials import Burial, Burials
from fairlead.streams.consumer import called
from fairlead.streams.jobs import CONSUMPTION, Job, Kind
from fairlead.streams.marks import ALONE, BESIDE, ProcessDied, Run, doubt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fairlead.streams.broker import Eof, Message, Tp
    from fairlead.streams.calling import SchedulerCalls
    from fairlead.streams.flow import Flow
    from fairlead.streams.holdings import Holding
    from fairlead.streams.partitions import Partition
    from fairlead.streams.runtime import Runtime
    from fairlead.streams.statistics import Counts

log = logging.getLogger("fairlead.streams")

LONGEST_TROUBLE = 200  # characters


class Intake:
    """The records of one listener on their way to the scheduler."""

    def __init__(
        self,
        runtime: Runtime,
        group_id: str,
        holdings: dict[Tp, Holding],
        flow: Flow,
        counts: Counts,
        wake: Callable[[], None],
    ) -> None:
        self.lock = threading.Lock()  # over holdings, partitions and what is kept here
        self.dirty: dict[Holding, None] = {}  # finished more than was committed
        self.fresh: dict[
            Holding, None
        ] = {}  # have records; what was left beside their commits is not known
        self.hasty = False  # a careful partition has something to commit at once
        self.stopped = False
        self._runtime = runtime
        self._queue = runtime.queue
        self._group_id = group_id
        self._holdings = holdings
        self._flow = flow
        self._counts = counts
        self._wake = wake
        self._burials = Burials(
            runtime.settings.group, runtime.outbox, runtime.renew_outbox, runtime.letters
        )
        self._touched: deque[Holding] = deque()  # may have something to run
        self._retry_at: dict[Holding, float] = {}
        self._ticking: dict[Holding, Job] = {}
        self._ends: dict[Holding, Job] = {}  # the latest job that tells of a partition's end

    @property
    def calls(self) -> SchedulerCalls:
        """The scheduler."""
        return self._runtime.calls

    def due_at(self) -> float:
        """Tell when there is something to give, as far as is known now."""
        waits = self._touched and self._runtime.settled()
        if waits and not self._queue.blocked(self._group_id):
            return -inf
        return min(list(self._retry_at.values()), default=inf)

    def go_on(self, holding: Holding) -> None:
        """Give the scheduler what a partition may run next; by workers, after a job of it has finished."""
        if holding.lost or self.stopped:
            return
        with self.lock:
            jobs = self._take(holding, time.monotonic())
        if jobs:
            self._offer(jobs)
        self._wake()

    def ended(self, job: Job, error: BaseException | None) -> None:
        """Note how a consumption job has ended; by workers."""
        holding, taken = job.holding, job.taken
        if job.skipped or taken is None:
            return
        counts = self._counts.topics[job.topic]
        took = 0.0 if job.started_at is None else time.monotonic() - job.started_at
        with self.lock:
            counts.calls += 1
            counts.seconds += took
            if holding.marks.runs.pop(job, None) is not None:
                self.hasty = True
                self.dirty[holding] = None
            if job.stale:
                return
            partition = holding.partition
            if error is None:
                counts.consumed += len(taken.messages)
                partition.finish(taken)
                self.dirty[holding] = None
                if (partition.position or 0) > partition.doubted_to >= 0:
                    partition.doubted_to = -1
                    holding.marks.deaths = 0
            else:
                self._note_failure(holding, partition, job, error)
        if not self.calls.scheduler.buffered:
            self._touched.append(holding)
            if not job.blocking:
                self._wake()

    def _note_failure(
        self, holding: Holding, partition: Partition, job: Job, error: BaseException
    ) -> None:
        now = time.monotonic()
        counts = self._counts.topics[job.topic]
        counts.failures += 1
        holding.trouble = error_text(error)[:LONGEST_TROUBLE]
        message = partition.fail(job.taken, now)  # type: ignore[arg-type]
        self._flow.watch(holding)
        if message is not None:
            self._burials.add(holding, message, error)
            what = "goes to the dead-letter topic"
        else:
            counts.retries += 1
            self._retry_at[holding] = at = partition.rests_until()
            what = f"is tried again in {max(0.0, at - now):.3g} s"
        log.warning(
            "%s raised %r on %s, offsets %d to %d; it %s",
            holding.topic.shape.consumer.__name__,
            error,
            holding.tp,
            job.messages[0].offset,
            job.messages[-1].offset,
            what,
            exc_info=error,
        )
        self._wake()

    def deliver(self, event: Batch | Eof) -> None:
        """Let records wait; note the end of a partition."""
        with self.lock:
            holding = self._holdings.get(event.tp)
            if holding is None:
                return
            if not isinstance(event, Batch):
                holding.eof = True
            else:
                if not holding.had_records:
                    holding.start = event.first
                holding.had_records = True
                holding.eof = False
                holding.read = event.next_offset
                holding.partition.deliver(event)
                self._counts.topics[holding.topic.name].records += len(event)
                self._flow.delivered(holding, event)
                if not holding.marks.known:
                    self.fresh[holding] = None
        self._touched.append(holding)

    def give(self, now: float) -> None:
        """Give the scheduler what may be given now."""
        if self._retry_at:
            with self.lock:
                for holding in [one for one, at in self._retry_at.items() if at <= now]:
                    del self._retry_at[holding]
                    self._touched.append(holding)
        if self.calls.away:
            self.calls.go_round(self._group_id)
        if not self._touched or not self._runtime.settled():
            return
        waits = not self.calls.scheduler.buffered and self._queue.blocked(self._group_id)
        jobs: list[Job] = []
        eofed: list[Job] = []
        later: list[Holding] = []
        with self.lock:
            for holding in self._drain_touched():
                if holding.lost:
                    continue
                if waits and not holding.topic.long_running:
                    later.append(holding)
                    continue
                jobs += self._take(holding, now)
                if holding.eof and holding.partition.at_rest:
                    holding.eof = False
                    if holding.topic.shape.eofs:
                        self._ends[holding] = job = Job(Kind.EOFED, holding)
                        eofed.append(job)
        self._touched.extend(later)
        if jobs:
            self._offer(jobs)
        if eofed:
            self.hand_over(Kind.EOFED, eofed)

    def _drain_touched(self) -> dict[Holding, None]:
        touched: dict[Holding, None] = {}
        while self._touched:
            touched[self._touched.popleft()] = None
        return touched

    def _take(self, holding: Holding, now: float) -> list[Job]:
        """Make jobs of what a partition may run now.  The lock is held."""
        partition, topic = holding.partition, holding.topic
        jobs: list[Job] = []
        if not holding.marks.known and holding.had_records:
            return jobs
        while partition.tries and (message := partition.condemn()) is not None:
            self._condemn(holding, message)
        while (taken := partition.take(now)) is not None:
            job = Job(CONSUMPTION, holding, taken, blocking=not topic.long_running)
            job.alone = taken.messages.first <= partition.doubted_to
            if topic.shape.describes:
                self._describe(job)
            jobs.append(job)
        if (at := partition.rests_until()) < inf:
            self._retry_at[holding] = at
        if not jobs and holding.eof and partition.at_rest:
            self._touched.append(holding)
        return jobs

    def _condemn(self, holding: Holding, message: Message) -> None:
        tries = holding.partition.tries[message.offset]
        died = ProcessDied(f"the process died while it ran this record, {tries} times")
        holding.trouble = error_text(died)
        self._counts.topics[holding.topic.name].failures += 1
        self._burials.add(holding, message, died)
        self._flow.watch(holding)
        log.error("%r goes to the dead-letter topic: %s", message, died)

    def greet(self, holding: Holding, stored: tuple[int | None, str], now: float) -> None:
        """Note what the last owner of a partition has left beside its commit; its records may run now."""
        offset, text = stored
        with self.lock:
            self.fresh.pop(holding, None)
            holding.committed = offset if holding.committed is None else holding.committed
            note = holding.marks.found(text, now)
            if note is not None:
                doubt(holding.partition, note)
                first = holding.partition.doubted_to
                what = (
                    "its calls are noted before they start"
                    if first < 0
                    else (f"records up to offset {first} ran then, and run alone, one by one")
                )
                log.warning("a process that held %s died, or was cut off; %s", holding.tp, what)
            self.dirty[holding] = None
        self._touched.append(holding)

    def mark(self, jobs: Iterable[Job]) -> list[Holding]:
        """Note calls that are about to start; return the partitions whose notes are to be stored."""
        found: dict[Holding, None] = {}
        with self.lock:
            for job in jobs:
                if job.stale or job.taken is None:
                    continue
                holding, messages = job.holding, job.taken.messages
                tries = max(lane.failures for lane in job.taken.lanes)
                if job.alone:
                    tries = max(tries, holding.marks.deaths)
                how = ALONE if job.alone and len(messages) == 1 else BESIDE
                tries = tries if how == ALONE else 0
                holding.marks.runs[job] = Run(messages.first, messages.last, tries, how)
                found[holding] = None
        return list(found)

    def unmark(self, jobs: Iterable[Job]) -> None:
        """Forget calls that are slow: what they do next is no death, but the loss of their partition."""
        with self.lock:
            for job in jobs:
                if job.holding.marks.runs.pop(job, None) is not None:
                    self.dirty[job.holding] = None
                    self.hasty = True

    def calm(self, now: float) -> bool:
        """End the care for partitions whose time is up; return whether any is careful still."""
        careful = False
        with self.lock:
            for holding in self._holdings.values():
                if holding.marks.calm(now):
                    self.dirty[holding] = None
                careful |= holding.marks.careful
        return careful

    def _describe(self, job: Job) -> None:
        before = called.set(job.holding)
        try:
            consumer = job.holding.consumer
            job.tenant = consumer.tenant(job.messages)
            cost, deadline = consumer.cost(job.messages), consumer.deadline(job.messages)
            hash(job.tenant)
            if not (0 <= cost < inf and -inf <= deadline <= inf):
                raise ValueError(f"a cost of {cost!r}, a deadline of {deadline!r}")
            # Also a Decimal is a number, and cannot be added to others.
            job.cost = cost if isinstance(cost, int) else float(cost)
            job.deadline = float(deadline)
        except Exception as error:
            job.tenant, job.cost, job.deadline = job.topic, len(job.messages), inf
            log.error("%s could not describe a batch: %r", job.topic, error, exc_info=error)
        finally:
            called.reset(before)

    def _offer(self, jobs: list[Job]) -> None:
        self._queue.give(jobs)
        self.calls.consumption(self._group_id, jobs)

    def hand_over(self, kind: Kind, jobs: list[Job]) -> None:
        """Give the scheduler jobs that are not consumption."""
        if jobs:
            self._queue.give(jobs)
            self.calls.lifecycle(self._group_id, kind, jobs)

    def tick(self) -> None:
        """Have the scheduler look again, and the consumers that tick, tick."""
        self._runtime.manage(self._group_id)
        jobs = []
        with self.lock:
            for holding in self._holdings.values():
                last = self._ticking.get(holding)
                if holding.topic.shape.ticks and (last is None or last.ended or last.cleared):
                    self._ticking[holding] = job = Job(Kind.PERIODIC, holding)
                    jobs.append(job)
        self.hand_over(Kind.PERIODIC, jobs)

    def bury(self, now: float) -> None:
        """See to dead letters: what is stored, or skipped, counts as done."""
        if not self._burials:
            return
        jobs = []
        with self.lock:
            for holding, message, end in self._burials.settled(now):
                counts = self._counts.topics[holding.topic.name]
                counts.dead_letters += end is Burial.WRITTEN
                counts.dead_letters_filed += end is Burial.FILED
                counts.dead_letters_skipped += end is Burial.SKIPPED
                if not holding.lost:
                    holding.partition.bury(message)
                    self.dirty[holding] = None
                    self._touched.append(holding)
                    jobs.append(Job(Kind.IDLE, holding))
        self.hand_over(Kind.IDLE, jobs)

    def refusal(self, holding: Holding) -> str:
        """Return why a dead letter of a partition was last refused.  The lock is held."""
        return self._burials.refusal(holding)

    def unsaved(self) -> list[Holding]:
        """Tell the partitions that have finished more than was committed."""
        with self.lock:
            return [holding for holding in self.dirty if not holding.lost]

    def positions(
        self, holdings: Iterable[Holding], *, leaving: bool = False
    ) -> dict[Holding, tuple[int, str]]:
        """Return what to commit of partitions, with the notes beside it: blank ones for partitions that go."""
        with self.lock:
            found = {}
            for one in holdings:
                held = one.marks.known and not leaving
                note = one.marks.note(one.partition) if held else ""
                at = one.partition.position
                if note == one.marks.stored and (at is None or at == one.committed):
                    self.dirty.pop(one, None)
                else:
                    found[one] = one.place, note
            return found

    def committed(self, positions: Mapping[Holding, tuple[int, str]]) -> None:
        """So much has been committed."""
        with self.lock:
            for one, (at, note) in positions.items():
                one.committed, one.marks.stored = at, note
                if one.partition.position in (None, at) and not one.marks.careful:
                    self.dirty.pop(one, None)

    def forget(self, holding: Holding) -> None:
        """A partition is gone.  The lock is held."""
        self.dirty.pop(holding, None)
        self._retry_at.pop(holding, None)
        self._ticking.pop(holding, None)
        self._ends.pop(holding, None)
        self._burials.forget(holding)
        self.fresh.pop(holding, None)

    def renew(self, holding: Holding, generation: int) -> int | None:
        """A partition begins again: tell where to read on, None if nothing was read.  The lock is held."""
        told = self._ends.get(holding)
        self.forget(holding)
        at = holding.renew(generation)
        if at is None and told is not None and told.cleared:
            # Nothing is read again, so the broker will not say again that it ends.
            holding.eof = True
            self._touched.append(holding)
        if holding.partition.position not in (None, holding.committed):
            self.dirty[holding] = None
        return at
