"""One run of a stream app: its queue, workers, scheduler and listeners, from start to stop.

The end of a job goes through here, on the worker's thread: the listener notes the result, the queue frees the
worker and the group, then the scheduler is told, directly or by the steward.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fairlead.core import Gate
from fairlead.errors import FairleadError, SchedulerFailed
from fairlead.streams.calling import SchedulerCalls, Steward, after
from fairlead.streams.gating import GateScheduler
from fairlead.streams.jobs import CONSUMPTION, Job
from fairlead.streams.letters import LetterFiles
from fairlead.streams.listener import Listener
from fairlead.streams.queue import JobsQueue
from fairlead.streams.scheduler import lacking
from fairlead.streams.workers import Workers

if TYPE_CHECKING:
    from collections.abc import ItemsView, KeysView, Sequence, ValuesView

    from fairlead.runtime import MakeGate
    from fairlead.streams.broker import Broker, Outbox
    from fairlead.streams.scheduler import StreamScheduler
    from fairlead.streams.settings import AppSettings, Topic

log = logging.getLogger("fairlead.streams")

JOINING = 5.0  # seconds for all listeners to join
WATCH = 1.0  # seconds between two looks for what is stuck
HURRY = 0.2  # seconds until a second signal is heeded
LAST = 1.0  # seconds beyond the grace for threads to end


class Assignments(Mapping[str, tuple[int, ...]]):
    """The partitions held now, by topic; schedulers see it change, and whoever walks through it sees one moment."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, ...]] = {}  # replaced, never changed

    def replace(self, held: dict[str, tuple[int, ...]]) -> None:
        """These are held from now on."""
        self._held = held

    def __getitem__(self, topic: str) -> tuple[int, ...]:
        return self._held[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def keys(self) -> KeysView[str]:
        return self._held.keys()

    def values(self) -> ValuesView[tuple[int, ...]]:
        return self._held.values()

    def items(self) -> ItemsView[str, tuple[int, ...]]:
        return self._held.items()

    def __repr__(self) -> str:
        return repr(self._held)


class Runtime:
    """Everything that runs while an app does."""

    def __init__(
        self,
        settings: AppSettings,
        topics: Sequence[Topic],
        broker: Broker,
        make_gate: MakeGate = Gate,
    ) -> None:
        self._make_gate = make_gate
        self.settings = settings
        self.broker = broker
        self.assignments = Assignments()
        self.withheld_reports = 0
        self.stopped = False
        self._stop_by = 0.0
        self.begun_at = 0.0
        self.topics = {topic.name: topic for topic in topics}
        self._outbox: Outbox | None = None
        self.letters = LetterFiles()
        self._settled = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.workers = Workers(settings.concurrency, self.finished)
        self.queue = JobsQueue(
            settings.concurrency,
            self._start_job,
            freed=self._freed,
            assignments=self.assignments,
        )
        self.calls = SchedulerCalls(
            self._make_scheduler(), self.queue, self.reset, settings.scheduler_patience
        )
        self.queue.scheduler = self.calls.name
        groups: dict[str, list[Topic]] = {}
        for topic in topics:
            groups.setdefault(topic.subscription_group, []).append(topic)
        self.listeners = {name: Listener(self, name, own) for name, own in groups.items()}
        self._steward = None if self.calls.scheduler.inline else Steward(self.calls)
        self._watch = threading.Thread(target=self._watch_over, name="fairlead-watch", daemon=True)

    def _make_scheduler(self) -> StreamScheduler:
        chosen = self.settings.scheduler
        if chosen is None:
            return GateScheduler(
                self.queue,
                policy=self.settings.policy,
                capacity=self.settings.capacity,
                weights={topic.name: topic.weight for topic in self.topics.values()},
                gate=self._make_gate,
            )
        try:
            made = chosen(self.queue)
        except BaseException as error:
            raise SchedulerFailed(
                f"the scheduler {chosen.__name__} could not be made: {type(error).__name__}: {error}"
            ) from error
        if lack := lacking(made):
            raise SchedulerFailed(f"the scheduler {chosen.__name__} {lack}")
        return made

    def start(self) -> None:
        """Begin to listen."""
        self.begun_at = time.monotonic()
        for listener in self.listeners.values():
            listener.start()
        self._watch.start()

    @property
    def ended(self) -> bool:
        """Say whether `stop` has done all but wait for the last threads."""
        return self._ended.is_set()

    # Called by listeners, workers and the queue

    def outbox(self) -> Outbox:
        """The way to write dead letters; made when it is first needed."""
        with self._lock:
            if self._outbox is None:
                self._outbox = self.broker.outbox()
            return self._outbox

    def renew_outbox(self) -> None:
        """Give up an outbox that is broken for good; the next dead letter gets another one."""
        with self._lock:
            broken, self._outbox = self._outbox, None
        if broken is not None:
            threading.Thread(target=broken.close, name="fairlead-outbox-end", daemon=True).start()

    def settled(self) -> bool:
        """Say whether all listeners have joined, or have had the time to.

        They share one Kafka group.  One that is blocked does not poll, and so would keep the others from joining for as
        long as `max.poll.interval.ms`: at the start, none is given work that may block it before all have joined.
        """
        if not self._settled:
            self._settled = (
                len(self.listeners) == 1
                or self.calls.scheduler.buffered
                or all(listener.joined for listener in self.listeners.values())
                or time.monotonic() > self.begun_at + JOINING
            )
        return self._settled

    def note_assignments(self) -> None:
        """Partitions have come or gone."""
        with self._lock:
            held: dict[str, list[int]] = {}
            for listener in self.listeners.values():
                for tp in list(listener.holdings):
                    held.setdefault(tp.topic, []).append(tp.partition)
            self.assignments.replace({topic: tuple(sorted(held[topic])) for topic in sorted(held)})

    def _start_job(self, job: Job) -> None:
        """Hand a job to its worker; where a process has died, its call is noted first."""
        holding = job.holding
        if job.kind is CONSUMPTION and holding.marks.careful and not job.stale:
            holding.listener.mark(job)
        else:
            self.workers.start(job)

    def finished(self, job: Job, error: BaseException | None) -> None:
        """A worker is done with a job."""
        try:
            self._note(job, error)
        finally:  # whatever happens, its worker is free
            self.queue.done(job)
            if self._steward is not None:
                self._steward.after(job)
            else:
                after(self.calls, job)

    def _note(self, job: Job, error: BaseException | None) -> None:
        if job.kind is CONSUMPTION:
            job.holding.listener.intake.ended(job, error)
        elif error is not None:
            log.error(
                "%s of %s[%d] raised %r", job.kind, job.topic, job.partition, error, exc_info=error
            )

    def manage(self, group_id: str) -> None:
        """Have the scheduler look again, without waiting for it."""
        if self._steward is not None:
            self._steward.tick(group_id)
        else:
            self.calls.manage(group_id)

    def _freed(self, group_id: str) -> None:
        self.listeners[group_id].wake()

    def reset(self, group_id: str, why: str) -> None:
        """Have a group start anew."""
        self.listeners[group_id].reset(why)

    # Watching

    def _watch_over(self) -> None:
        reported: dict[Job, float] = {}
        report_at = self.begun_at + WATCH
        beat = WATCH if self.calls.scheduler.buffered else self.calls.beat
        while not self._ended.wait(beat):
            self.calls.look()
            self.queue.look()
            now = time.monotonic()
            if now < report_at:
                continue
            report_at = now + WATCH
            self.calls.overdue()
            held = {job: now - since for job, since in self.withheld()}
            reported = {job: age for job, age in reported.items() if job in held}
            for job, age in held.items():
                if age >= max(self.settings.withheld_limit, 2 * reported.get(job, 0.0)):
                    reported[job] = age
                    self.withheld_reports += 1
                    log.warning(
                        "the %s job of %s[%d] has been withheld by %s for %.1f s (%s); group %s waits for it",
                        job.kind,
                        job.topic,
                        job.partition,
                        self.calls.name,
                        age,
                        job.state,
                        job.group_id,
                    )

    def withheld(self) -> Iterator[tuple[Job, float]]:
        """Tell the jobs the scheduler has not let go, or has not unlocked though they have finished, and since when."""
        for job in self.queue.given():
            since = job.given_at if job.ended else job.withheld_since
            if since is not None:
                yield job, since

    # The end

    def hurry(self) -> None:
        """Have `stop` wait no longer for what runs; also from signal handlers."""
        self._stop_by = 0.0

    def stop(self, grace: float) -> None:
        """Finish what runs, hand back what waits, commit and leave, within the grace."""
        begun = time.monotonic()
        self._stop_by = begun + grace
        self.stopped = True
        self.queue.stop()
        for listener in self.listeners.values():
            listener.drain()
        # In slices, for `hurry` may move the end.
        while not self.queue.drain(min(HURRY, self._stop_by - time.monotonic())):
            if time.monotonic() >= self._stop_by:
                log.warning(
                    "after a grace of %.3g s these still run, and are left to the next owner: %s",
                    time.monotonic() - begun,
                    self.queue.running(),
                )
                break
        by = self._stop_by
        for listener in self.listeners.values():
            listener.finish(by)
        for listener in self.listeners.values():
            if listener.is_alive():
                listener.join(max(0.0, by - time.monotonic()) + LAST)
        self._ended.set()
        if self._steward is not None:
            self._steward.stop(LAST)
        self.workers.stop(max(0.0, by - time.monotonic()))
        if isinstance(self.calls.scheduler, GateScheduler):
            self.calls.scheduler.close()
        self.letters.close(LAST)
        if self._outbox is not None:
            try:
                self._outbox.close()
            except FairleadError as error:
                log.warning("dead letters: %s", error)
