"""A listener: one thread per subscription group, the only one that calls its broker client.

**One batch.**  The listener polls; each batch joins the records that wait of its partition (`Holding`).  What a partition
may run next becomes a job, is entered in the queue's books and given to the scheduler.  The scheduler pushes it, at once or
later; a worker runs the consumer.  Its end is noted in the partition, which moves the position that may be committed, and
then in the books.  Every `commit_interval` the listener commits the positions that have moved.

**Polling.**  While blocking work of the group waits or runs, the group is not polled.  With a scheduler that takes batches
of later polls (the built-in one), it is polled on, so that every partition with a backlog has its next batch waiting; when
a partition has enough, polling stops, and where others have too little, or this lasts for over a second, that partition is
paused.  A consumer of a topic that is not `long_running` and takes longer than `max.poll.interval.ms` costs the membership
either way, as Kafka means it.  A `long_running` partition is paused before its job is given, and polling goes on.

**Failure.**  The partition rests, paused, and goes on after; other partitions are not concerned.  A record to be buried is
sent to the dead-letter topic from here; when the broker has it, an idle job carries the partition on.

**Revocation.**  Inside `poll`, what is finished is committed, then the holding is marked as lost: queued jobs of it will be
skipped, a running one is let run, and its result reaches nobody.  If it had records, a revocation job follows.

**Recovery.**  When the scheduler raises, or the client is broken for good, the group starts anew: finished records are
committed, all holdings are lost, the queue and the scheduler forget the group's jobs, and a new client joins.

**Shutdown.**  Everything is paused and polled on while running jobs finish; then shutdown jobs, the last commit, and the
client leaves.  All within the grace; what is not done by then is left to the next owner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from math import inf
from typing import TYPE_CHECKING

from fairlead.errors import BrokerFault, CommitRefused
from fairlead.streams.broker import Batch
from fairlead.streams.burials import Burials
from fairlead.streams.flow import Flow
from fairlead.streams.holdings import Holding
from fairlead.streams.jobs import CONSUMPTION, Job, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlead.streams.broker import Client, Eof, Tp
    from fairlead.streams.calling import SchedulerCalls
    from fairlead.streams.partitions import Partition
    from fairlead.streams.runtime import Runtime
    from fairlead.streams.settings import Topic

log = logging.getLogger("fairlead.streams")

SLICE = 0.05  # seconds of one poll
MOST = 2000  # records of one poll
CALM = 30.0  # seconds without trouble after which resets are quick again


class Listener(threading.Thread):
    """The thread of one subscription group."""

    def __init__(self, runtime: Runtime, group_id: str, topics: Sequence[Topic]) -> None:
        super().__init__(name=f"fairlead-listener-{group_id}", daemon=True)
        self.group_id = group_id
        self.topics = {topic.name: topic for topic in topics}
        self.lock = threading.Lock()  # over holdings and partitions
        self.holdings: dict[Tp, Holding] = {}
        self.rebalances = self.resets = self.commits = self.refused = 0
        self.retries = self.dead_letters = self.failures = self.records = 0
        self.polled_at = time.monotonic()
        self.beat_at = self.polled_at  # when the loop last went round
        self._runtime = runtime
        self._settings = runtime.settings
        self._queue = runtime.queue
        self._flow = Flow(self.holdings)
        self._burials = Burials(runtime.outbox)
        self._generation = 0
        self._wake = threading.Event()
        self._asleep = False
        self._touched: deque[Holding] = deque()  # may have something to run
        self._dirty: dict[Holding, None] = {}  # finished more than was committed
        self._retry_at: dict[Holding, float] = {}
        self._pending: list[Job] = []  # in the books, and the scheduler could not be asked yet
        self._ticking: dict[Holding, Job] = {}
        self._reset_for: str | None = None
        self._reset_at = -inf
        self._reset_count = 0
        self._draining = False
        self._close_by: float | None = None
        self._tick_at = self.polled_at + self._settings.tick_interval
        self._commit_at = self.polled_at + self._settings.commit_interval
        self._client: Client | None = None
        self.closed = False

    @property
    def calls(self) -> SchedulerCalls:
        return self._runtime.calls

    # Called by others

    def wake(self) -> None:
        """Have a sleeping listener look again."""
        if self._asleep:
            self._wake.set()

    def reset(self, why: str) -> None:
        """Have the group start anew; from any thread."""
        self._reset_for = why
        self.wake()

    def drain(self) -> None:
        """Give no more jobs; keep the membership until `finish`."""
        self._draining = True
        self.wake()

    def finish(self, by: float) -> None:
        """Run shutdown jobs, commit and leave, until an instant at the latest."""
        self._close_by = by
        self.wake()

    def go_on(self, holding: Holding) -> None:
        """Give the scheduler what a partition may run next; by workers, after a job of it has finished."""
        if holding.lost or self._draining:
            return
        with self.lock:
            jobs = self._take(holding, time.monotonic())
        if jobs and not self._give(jobs):
            with self.lock:
                self._pending.extend(jobs)
        self.wake()

    def ended(self, job: Job, error: BaseException | None) -> None:
        """Note how a consumption job has ended; by workers."""
        holding, taken = job.holding, job.taken
        if job.skipped or taken is None:
            return
        with self.lock:
            if holding.lost:
                return
            partition = holding.partition
            if error is None:
                partition.finish(taken)
                self._dirty[holding] = None
            else:
                self._note_failure(holding, partition, job, error)
        if not self.calls.scheduler.buffered:
            self._touched.append(holding)
            if not job.blocking:
                self.wake()

    def _note_failure(
        self, holding: Holding, partition: Partition, job: Job, error: BaseException
    ) -> None:
        now = time.monotonic()
        self.failures += 1
        message = partition.fail(job.taken, now)  # type: ignore[arg-type]
        self._flow.watch(holding)
        if message is not None:
            self._burials.add(holding, message, error)
            what = "goes to the dead-letter topic"
        else:
            self.retries += 1
            self._retry_at[holding] = at = partition.ready_at()
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
        self.wake()

    # The loop

    def run(self) -> None:
        while not self.closed:
            try:
                self.beat_at = time.monotonic()
                self._turn(self.beat_at)
            except BrokerFault as fault:
                self._mind(fault)
            except BaseException as error:
                log.exception("the listener of %s failed", self.group_id)
                self._reset_for = f"the listener failed: {error!r}"

    def _turn(self, now: float) -> None:
        if self._reset_for is not None and self._close_by is None:
            self._start_anew(self._reset_for)
            return
        if self._client is None:
            self._client = self._connect()
        if self._close_by is not None:
            self._close(self._client, self._close_by)
            return
        client = self._client
        self._flow.reconcile(client, now, stop=self._draining)
        pause = self._until_due(now)
        if self._may_poll(now):
            self.polled_at = now
            for event in client.poll(pause, MOST):
                if not self._draining:
                    self._deliver(event)
            now = time.monotonic()
            self._flow.reconcile(client, now, stop=self._draining)
        else:
            self._sleep(pause)
            now = time.monotonic()
        if self._draining:
            return
        self._bury(now)
        self._give_what_is_ready(now)
        if now >= self._tick_at:
            self._tick(now)
        if now >= self._commit_at:
            self._commit_at = now + self._settings.commit_interval
            self._commit(client, self._dirty_holdings())

    def _until_due(self, now: float) -> float:
        """Tell how long there is nothing to do but to read."""
        if (self._touched or self._pending) and not self._queue.blocked(self.group_id):
            return 0.0
        due = min(self._tick_at, self._commit_at, now + SLICE)
        if self._retry_at:
            due = min(due, *list(self._retry_at.values()))
        return max(0.0, due - now)

    def _may_poll(self, now: float) -> bool:
        if self._draining:
            return True
        if self._pending and now - self.polled_at < 1.0:
            return False
        if not self.calls.scheduler.buffered:
            return not self._queue.blocked(self.group_id) and self._flow.may_read(
                now, self.polled_at
            )
        if now - self.polled_at > 1.0 and self._overdue(now):
            return False
        return self._flow.may_read(now, self.polled_at)

    def _overdue(self, now: float) -> bool:
        """Say whether a job that should be quick has run for as long as a member may go without polling."""
        limit = now - self._settings.max_poll_interval
        return any(
            job.blocking and job.group_id == self.group_id and (job.started_at or now) < limit
            for job in self._queue.running()
        )

    def _sleep(self, seconds: float) -> None:
        self._asleep = True
        if self._reset_for is None and (self._must_wait() or seconds):
            self._wake.wait(seconds)
        self._asleep = False
        self._wake.clear()

    def _must_wait(self) -> bool:
        return self._queue.blocked(self.group_id)

    def _mind(self, fault: BrokerFault) -> None:
        log.warning("%s: %s", self.group_id, fault)
        if fault.fatal:
            self._reset_for = f"the client is broken: {fault}"
        else:
            self._sleep(SLICE if fault.retriable else 1.0)

    # Records and jobs

    def _deliver(self, event: Batch | Eof) -> None:
        with self.lock:
            holding = self.holdings.get(event.tp)
            if holding is None:
                return
            if not isinstance(event, Batch):
                holding.eof = True
            else:
                holding.had_records = True
                holding.eof = False
                holding.partition.deliver(event)
                self.records += len(event)
                self._flow.delivered(holding)
        self._touched.append(holding)

    def _give_what_is_ready(self, now: float) -> None:
        if self._retry_at:
            with self.lock:
                for holding in [one for one, at in self._retry_at.items() if at <= now]:
                    del self._retry_at[holding]
                    self._touched.append(holding)
        if self._pending:
            with self.lock:
                pending, self._pending = self._pending, []
            if not self.calls.consumption(self.group_id, pending):
                self._pending.extend(pending)
                return
        if not self._touched:
            return
        waits = not self.calls.scheduler.buffered and self._queue.blocked(self.group_id)
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
                        eofed.append(Job(Kind.EOFED, holding))
        self._touched.extend(later)
        if jobs and not self._give(jobs):
            self._pending.extend(jobs)
        if eofed:
            self._hand_over(Kind.EOFED, eofed)

    def _drain_touched(self) -> dict[Holding, None]:
        touched: dict[Holding, None] = {}
        while self._touched:
            touched[self._touched.popleft()] = None
        return touched

    def _take(self, holding: Holding, now: float) -> list[Job]:
        """Make jobs of what a partition may run now.  The lock is held."""
        partition, topic = holding.partition, holding.topic
        jobs = []
        while (taken := partition.take(now)) is not None:
            job = Job(CONSUMPTION, holding, taken, blocking=not topic.long_running)
            if topic.shape.tells_tenant or topic.shape.tells_cost:
                self._describe(job)
            jobs.append(job)
        if not jobs and (at := partition.ready_at()) < inf:
            self._retry_at[holding] = at
        elif holding.eof and partition.at_rest:
            self._touched.append(holding)
        return jobs

    def _describe(self, job: Job) -> None:
        try:
            consumer = job.holding.consumer
            job.tenant = consumer.tenant(job.messages)
            job.cost = consumer.cost(job.messages)
            hash(job.tenant)
            if not 0 <= job.cost < inf:
                raise ValueError(f"a cost of {job.cost!r}")
        except Exception as error:
            job.tenant, job.cost = job.topic, len(job.messages)
            log.error("%s could not describe a batch: %r", job.topic, error, exc_info=error)

    def _give(self, jobs: list[Job]) -> bool:
        self._queue.give(jobs)
        return self.calls.consumption(self.group_id, jobs)

    def _hand_over(self, kind: Kind, jobs: list[Job]) -> None:
        if jobs:
            self._queue.give(jobs)
            self.calls.lifecycle(kind, jobs)

    def _tick(self, now: float) -> None:
        self._tick_at = now + self._settings.tick_interval
        self.calls.manage(self.group_id)
        jobs = []
        with self.lock:
            for holding in self.holdings.values():
                last = self._ticking.get(holding)
                if holding.topic.shape.ticks and (last is None or last.finished or last.cleared):
                    self._ticking[holding] = job = Job(Kind.PERIODIC, holding)
                    jobs.append(job)
        self._hand_over(Kind.PERIODIC, jobs)

    def _bury(self, now: float) -> None:
        if not self._burials:
            return
        jobs = []
        with self.lock:
            for holding, message in self._burials.settled(now):
                if not holding.lost:
                    holding.partition.bury(message)
                    self.dead_letters += 1
                    self._dirty[holding] = None
                    self._touched.append(holding)
                    jobs.append(Job(Kind.IDLE, holding))
        self._hand_over(Kind.IDLE, jobs)

    # Commits

    def _dirty_holdings(self) -> list[Holding]:
        with self.lock:
            return [holding for holding in self._dirty if not holding.lost]

    def _commit(self, client: Client, holdings: Iterable[Holding]) -> bool:
        """Commit what has finished; False if that was refused, for now or for good."""
        with self.lock:
            positions = {
                one: one.partition.position
                for one in holdings
                if one.partition.position is not None and one.partition.position != one.committed
            }
        offsets = {one.tp: at for one, at in positions.items() if at is not None}
        if offsets:
            try:
                client.commit(offsets)
            except CommitRefused as refusal:
                self.refused += 1
                log.warning("%s: %s; tried again at the next interval", self.group_id, refusal)
                return False
            self.commits += 1
        with self.lock:
            for one, at in positions.items():
                one.committed = at
                if one.partition.position == at:
                    self._dirty.pop(one, None)
        return True

    # Membership: called by the client, inside `poll` and `close`

    def _connect(self) -> Client:
        eof = any(topic.shape.eofs for topic in self.topics.values())
        client = self._runtime.broker.client(self._settings.group, name=self.group_id, eof=eof)
        client.subscribe(
            sorted(self.topics), assigned=self._assigned, revoked=self._revoked, lost=self._lost
        )
        return client

    def _assigned(self, tps: list[Tp]) -> None:
        self.rebalances += 1
        with self.lock:
            self._generation += 1
            for tp in tps:
                topic = self.topics[tp.topic]
                self.holdings[tp] = Holding(
                    topic, tp, self._generation, self._settings.concurrency, self
                )
            self._flow.resize()
        self._runtime.note_assignments()

    def _revoked(self, tps: list[Tp]) -> None:
        self.rebalances += 1
        with self.lock:
            going = [holding for tp in tps if (holding := self.holdings.get(tp)) is not None]
        if self._client is not None:
            self._commit(self._client, going)
        self._let_go(going)

    def _lost(self, tps: list[Tp]) -> None:
        self.rebalances += 1
        with self.lock:
            going = [holding for tp in tps if (holding := self.holdings.get(tp)) is not None]
        self._let_go(going)

    def _let_go(self, going: list[Holding]) -> None:
        with self.lock:
            for holding in going:
                holding.lost = True
                del self.holdings[holding.tp]
                for kept in (self._dirty, self._retry_at, self._ticking):
                    kept.pop(holding, None)  # type: ignore[attr-defined]
                self._flow.forget(holding)
                self._burials.forget(holding)
            self._flow.resize()
        self._runtime.note_assignments()
        if self._close_by is None:
            self._hand_over(
                Kind.REVOCATION, [Job(Kind.REVOCATION, one) for one in going if one.had_records]
            )

    # Recovery and shutdown

    def _start_anew(self, why: str) -> None:
        now = time.monotonic()
        self._reset_count = 0 if now - self._reset_at > CALM else self._reset_count + 1
        self.resets += 1
        log.error("group %s starts anew: %s", self.group_id, why)
        client, self._client = self._client, None
        if client is not None:
            try:
                self._commit(client, self._dirty_holdings())
            except BrokerFault as fault:
                log.warning("%s: %s", self.group_id, fault)
        self._pending.clear()
        self._queue.clear(self.group_id)
        self.calls.clear(self.group_id)
        with self.lock:
            going = list(self.holdings.values())
        self._let_go(going)
        self._reset_for = None
        if client is not None:
            try:
                client.close()
            except BrokerFault as fault:
                log.warning("%s: %s", self.group_id, fault)
        until = now + min(10.0, 0.05 * 2.0 ** min(self._reset_count, 20))
        while (left := until - time.monotonic()) > 0 and not self._draining:
            self._sleep(left)
        self._reset_at = time.monotonic()

    def _close(self, client: Client, by: float) -> None:
        jobs = [Job(Kind.SHUTDOWN, one) for one in self.holdings.values() if one.had_records]
        self._hand_over(Kind.SHUTDOWN, jobs)
        while not all(job.finished for job in jobs) and time.monotonic() < by:
            self._poll_idly(client)
        while not self._committed(client) and time.monotonic() < by:
            self._poll_idly(client)
        self.closed = True
        try:
            client.close()
        except BrokerFault as fault:
            log.warning("%s: %s", self.group_id, fault)

    def _committed(self, client: Client) -> bool:
        try:
            return self._commit(client, self._dirty_holdings())
        except BrokerFault:
            return False

    def _poll_idly(self, client: Client) -> None:
        try:
            client.poll(SLICE, 1)
        except BrokerFault as fault:
            log.warning("%s: %s", self.group_id, fault)
            self._sleep(SLICE)
