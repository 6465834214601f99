"""A listener: one thread per subscription group, the only one that calls its broker client.

**One batch.** The listener polls; each batch joins the records that wait of its partition (`Holding`).  What a
partition may run next becomes a job, is entered in the queue's books and given to the scheduler.  The scheduler
pushes it, at once or later; a worker runs the consumer.  Its end is noted in the partition, which moves the
position that may be committed, and then in the books.  Every `commit_interval` the listener commits the positions
that have moved.

**Polling.** While blocking work of the group waits or runs, the group is not polled.  With a scheduler that takes
batches of later polls (the built-in one), it is polled on, so that every partition with a backlog has its next
batch waiting; when a partition has enough, polling stops, and where others have too little, or this lasts for over
a second, that partition is paused.  A consumer of a topic that is not `long_running` and takes longer than
`max.poll.interval.ms` costs the membership either way, as Kafka means it: it is named, its partition is marked as lost,
and a new client joins beside it.  A `long_running` partition is paused
before its job is given, and polling goes on.

**Failure.** The partition rests, paused, and goes on after; other partitions are not concerned.  A record to be
buried is sent to the dead-letter topic from here; when the broker has it, an idle job carries the partition on.

**Revocation.** Inside `poll`, what is finished is committed, then the holding is marked as lost: queued jobs of it
will be skipped, a running one is let run, and its result reaches nobody.  If it had records, a revocation job
follows.

**Recovery.** When the scheduler raises, the group starts anew: the queue and the scheduler forget its jobs, every
partition is renewed and read on from after what has finished, and what still runs reaches nobody.  The client and its
membership stay: to leave would be a rebalance of all other groups.  Only a client that is broken for good is left:
finished records are committed, all holdings are lost, and a new one joins.

**Shutdown.** Everything is paused and polled on while running jobs finish; then shutdown jobs, the last commit, and
the client leaves.  All within the grace; what is not done by then is left to the next owner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from math import inf
from typing import TYPE_CHECKING

from fairlead.errors import BrokerFault, CommitRefused
from fairlead.streams.flow import BATCHES, Flow
from fairlead.streams.holdings import Holding, Turns
from fairlead.streams.intake import Intake
from fairlead.streams.jobs import Job, Kind
from fairlead.streams.lateness import outlasted, ran_for
from fairlead.streams.recovery import Recovery
from fairlead.streams.statistics import Counts, TopicCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlead.streams.broker import Client, Tp
    from fairlead.streams.runtime import Runtime
    from fairlead.streams.settings import Topic

log = logging.getLogger("fairlead.streams")

SLICE = 0.05  # seconds of one poll
CAREFUL_SLICE = 0.002  # while calls wait to be noted before they start
GREETINGS = 3  # attempts to read what the last owner of a partition has left
LEAST, MOST = 100, 2000  # records of one poll
QUIET = 5.0  # seconds between two complaints about the broker
ENDS = 1.0  # seconds between two looks at where partitions end


class Listener(threading.Thread):
    """The thread of one subscription group."""

    def __init__(self, runtime: Runtime, group_id: str, topics: Sequence[Topic]) -> None:
        super().__init__(name=f"fairlead-listener-{group_id}", daemon=True)
        self.group_id = group_id
        self.topics = {topic.name: topic for topic in topics}
        self.holdings: dict[Tp, Holding] = {}
        self._turns: dict[Tp, Turns] = {}  # of all that were ever held
        self.counts = Counts({topic.name: TopicCounts() for topic in topics})
        self.polled_at = time.monotonic()
        self.beat_at = self.polled_at  # when the loop last went round
        self._runtime = runtime
        self._settings = runtime.settings
        self._queue = runtime.queue
        self._flow = Flow(self.holdings)
        largest = max(topic.batch_size for topic in topics)
        self.most = max(LEAST, min(MOST, BATCHES * largest))  # records of one poll
        self._generation = 0
        self._wake = threading.Event()
        self._asleep = False
        self.intake = Intake(runtime, group_id, self.holdings, self._flow, self.counts, self.wake)
        self.lock = self.intake.lock
        self._recovery = Recovery()
        self._draining = False
        self._close_by: float | None = None
        self._leaving = False  # shutdown jobs were given: no partition is said to have gone
        self._farewells: list[Job] = []
        self._tick_at = self.polled_at + self._settings.tick_interval
        self._commit_at = self.polled_at + self._settings.commit_interval
        self._ends_at = -inf
        self._client: Client | None = None
        self._complained_at = -inf
        self._late = False  # a job that should be quick is not
        self._named_late: set[str] = set()  # topics whose late work has been named
        self._look_at = -inf
        self._to_mark: deque[Job] = deque()  # are to start once they are noted
        self._careful = False  # a process has died lately
        self._greet_at = self._mark_at = -inf
        self._greetings = 0  # that failed
        self.joined = False  # has been given partitions once
        self.closed = False

    # Called by others

    @property
    def connected(self) -> bool:
        """Say whether there is a client: there is none between a broken one and the next attempt."""
        return self._client is not None

    def wake(self) -> None:
        """Have a sleeping listener look again."""
        if self._asleep:
            self._wake.set()

    def reset(self, why: str) -> None:
        """Have the group start anew; from any thread."""
        self._recovery.ask(why)
        self.wake()

    def mark(self, job: Job) -> None:
        """Start a job once it is noted beside the commit of its partition; from any thread."""
        self._to_mark.append(job)
        self.wake()

    def drain(self) -> None:
        """Give no more jobs; keep the membership until `finish`."""
        self._draining = self.intake.stopped = True
        self.wake()

    def finish(self, by: float) -> None:
        """Run shutdown jobs, commit and leave, until an instant at the latest."""
        self._close_by = by
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
                self._recovery.ask(f"the listener failed: {error!r}", broken=True)

    def _turn(self, now: float) -> None:
        if self._to_mark:
            self._start_marked(now)
        if self._recovery.why is not None and self._close_by is None:
            self._start_anew(now)
            return
        if self._client is None and self._draining:
            # To join in order to leave would help nobody.
            by = self._close_by
            self.closed = by is not None and (self._told() or now >= by)
            self._wake.wait(SLICE)
            return
        resting = now < self._recovery.until
        if self._client is None and resting:
            self._rest(self._recovery.until - now)
            return
        if self._client is None:
            self._client = self._connect()
            self.polled_at = now
        if self._close_by is not None:
            self._close(self._client, self._close_by)
            return
        client = self._client
        if not self._draining:
            self._look_for_late(now)
            if self._recovery.why is not None:
                return
        pause = self._until_due(now, resting=resting)
        may_poll = resting or self._may_poll(now)
        self._flow.reconcile(client, now, stop=self._draining or resting)
        if may_poll:
            self.polled_at = now
            self._read(client, pause)
            now = time.monotonic()
            self._flow.reconcile(client, now, stop=self._draining or resting)
        else:
            self._sleep(pause)
            now = time.monotonic()
        if self.intake.fresh and not self._draining:
            self._greet(client, now)
        self.intake.bury(now)
        if not self._draining:
            if not resting:
                self.intake.give(now)
            if now >= self._tick_at:
                self._tick_at = now + self._settings.tick_interval
                self.intake.tick()
        if self._to_mark:
            self._start_marked(now)
        if now >= self._commit_at or self.intake.hasty:
            self.intake.hasty = False
            self._commit_at = now + self._settings.commit_interval
            self._commit(client, self.intake.unsaved())
        if now >= self._ends_at:
            self._ends_at = now + ENDS
            self._careful = self._careful and self.intake.calm(now)
            self._note_ends(client, now)

    def _read(self, client: Client, pause: float) -> None:
        wanted = 0 if self._runtime.calls.scheduler.buffered else self._settings.concurrency
        events = client.poll(pause, self.most)
        while events and not self._draining:
            for event in events:
                self.intake.deliver(event)
            events = client.poll(0.0, self.most) if self._flow.narrow(wanted) else []

    def _until_due(self, now: float, *, resting: bool) -> float:
        """Tell how long there is nothing to do but to read."""
        give_at = self._recovery.until if resting else self.intake.due_at()
        slice_ = CAREFUL_SLICE if self._careful else SLICE
        return max(0.0, min(give_at, self._tick_at, self._commit_at, now + slice_) - now)

    def _may_poll(self, now: float) -> bool:
        if self._draining:
            return True
        if not self._runtime.calls.scheduler.buffered:
            return not self._queue.blocked(self.group_id) and self._flow.may_read(
                now, self.polled_at
            )
        return not self._late and self._flow.may_read(now, self.polled_at)

    def _look_for_late(self, now: float) -> None:
        """Name work that outlasts `max.poll.interval.ms`; once Kafka takes the partitions away, so do we.

        To wait for the client's word would not do: it speaks when it is polled, which is after that work.
        """
        if not self._late and now < self._look_at:
            return
        interval = self._settings.max_poll_interval
        self._look_at = now + min(1.0, interval / 4)
        if self._careful:
            self.intake.unmark(self._overdue(now - interval / 2))
        late = self._overdue(now - interval)
        self._late = bool(late)
        for job in late:
            if job.topic not in self._named_late:
                self._named_late.add(job.topic)
                log.warning("%s", outlasted(job, now, interval))
        if late and now - self.polled_at > interval and self._recovery.why is None:
            why = f"{ran_for(late[0], now)}, and Kafka takes the partitions of a member away that does not poll"
            self._recovery.ask(why, broken=True)

    def _overdue(self, limit: float) -> list[Job]:
        """Return the jobs that should be quick and have run since before an instant, oldest first."""
        return [
            job
            for job in self._queue.running()
            if job.blocking
            and job.group_id == self.group_id
            and job.started_at is not None
            and job.started_at < limit
            and not job.stale
        ]

    def _sleep(self, seconds: float) -> None:
        """Wait until the group may be polled, or something is due."""
        self._asleep = True
        # Asked again: what would have woken it may have happened just before.
        if self._recovery.why is None and not self._may_poll(time.monotonic()):
            self._wake.wait(seconds)
        self._asleep = False
        self._wake.clear()

    def _rest(self, seconds: float) -> None:
        """Wait, after trouble, unless the app stops."""
        self._asleep = True
        if not self._draining:
            self._wake.wait(seconds)
        self._asleep = False
        self._wake.clear()

    def _mind(self, fault: BrokerFault) -> None:
        now = time.monotonic()
        if now - self._complained_at > QUIET or fault.fatal:
            self._complained_at = now
            log.warning("%s: %s", self.group_id, fault)
        if fault.fatal:
            self._recovery.ask(f"the client is broken: {fault}", broken=True)
        else:
            self._rest(SLICE if fault.retriable else 1.0)

    # Commits

    def _greet(self, client: Client, now: float) -> None:
        """Read what the last owners of new partitions have left, and note that these are held."""
        if now < self._greet_at:
            return
        fresh = list(self.intake.fresh)
        try:
            stored = client.notes([one.tp for one in fresh])
        except BrokerFault as fault:
            self._greetings += 1
            self._greet_at = now + SLICE
            if self._greetings < GREETINGS:
                return
            log.warning("%s: whether a process has died is not known: %s", self.group_id, fault)
            stored = {}
        self._greetings = 0
        for one in fresh:
            self.intake.greet(one, stored.get(one.tp, (None, "")), now)
            self._careful |= one.marks.careful
        self._commit(client, fresh)

    def _start_marked(self, now: float) -> None:
        """Note the calls that wait for it, and start them, and with them what has ended: a note must blame no other.

        A call that is to run alone waits until its note is stored; others start all the same.
        """
        if now < self._mark_at:
            return
        jobs = [self._to_mark.popleft() for _ in range(len(self._to_mark))]
        stored = False
        try:
            marked = self.intake.mark(jobs)
            if self._client is not None:
                stored = self._commit(
                    self._client, dict.fromkeys([*marked, *self.intake.unsaved()])
                )
        except BrokerFault as fault:
            log.warning("%s: calls could not be noted: %s", self.group_id, fault)
        finally:
            for job in jobs:
                if stored or not job.alone or job.stale or self._draining:
                    self._runtime.workers.start(job)
                else:
                    self._to_mark.append(job)
                    self._mark_at = now + ENDS

    def _commit(
        self, client: Client, holdings: Iterable[Holding], *, leaving: bool = False
    ) -> bool:
        """Commit what has finished; False if that was refused, for now or for good."""
        offsets = self.intake.positions(holdings, leaving=leaving)
        if offsets:
            try:
                client.commit(
                    {one.tp: at for one, (at, _) in offsets.items()},
                    {one.tp: note for one, (_, note) in offsets.items()},
                )
            except CommitRefused as refusal:
                self.counts.refused += 1
                log.warning("%s: %s; tried again at the next interval", self.group_id, refusal)
                return False
            self.counts.commits += 1
            self.intake.committed(offsets)
        return True

    def _note_ends(self, client: Client, now: float) -> None:
        """Remember where partitions end, as the latest fetches said; of what is not read, that is old news."""
        read = now - self.polled_at < ENDS
        try:
            ends = client.ends(list(self.holdings))
        except BrokerFault:
            return  # whoever reads or commits will hear of it
        for tp, end in ends.items():
            if (holding := self.holdings.get(tp)) is not None:
                holding.note_end(end, now if read and not holding.paused else None)

    # Membership: called by the client, inside `poll` and `close`

    def _connect(self) -> Client:
        eof = any(topic.shape.eofs for topic in self.topics.values())
        client = self._runtime.broker.client(self._settings.group, name=self.group_id, eof=eof)
        client.subscribe(
            sorted(self.topics), assigned=self._assigned, revoked=self._revoked, lost=self._lost
        )
        return client

    def _assigned(self, tps: list[Tp]) -> None:
        self.counts.rebalances += 1
        self.joined = True
        self._let_go(self._held(tps))
        with self.lock:
            self._generation += 1
            for tp in tps:
                topic = self.topics[tp.topic]
                turns = self._turns.setdefault(tp, Turns(topic))
                self.holdings[tp] = Holding(
                    topic, tp, self._generation, self._settings.concurrency, self, turns
                )
            self._flow.resize()
        self._runtime.note_assignments()

    def _revoked(self, tps: list[Tp]) -> None:
        self.counts.rebalances += 1
        going = self._held(tps)
        try:
            if self._client is not None:
                self._commit(self._client, going, leaving=True)
        finally:
            self._let_go(going)

    def _lost(self, tps: list[Tp]) -> None:
        self.counts.rebalances += 1
        self._let_go(self._held(tps))

    def _held(self, tps: Iterable[Tp]) -> list[Holding]:
        return [holding for tp in tps if (holding := self.holdings.get(tp)) is not None]

    def _let_go(self, going: list[Holding]) -> None:
        if not going:
            return
        with self.lock:
            for holding in going:
                holding.lost = True
                del self.holdings[holding.tp]
                self._flow.forget(holding)
                self.intake.forget(holding)
            self._flow.resize()
        self._runtime.note_assignments()
        if not self._leaving:
            self._tell(Kind.REVOCATION, going)

    def _tell(self, kind: Kind, going: Iterable[Holding]) -> None:
        jobs = [Job(kind, one) for one in going if one.had_records]
        self._farewells = [job for job in self._farewells if not job.ended] + jobs
        self.intake.hand_over(kind, jobs)

    def _told(self) -> bool:
        return all(job.ended or job.cleared for job in self._farewells)

    # Recovery and shutdown

    def _start_anew(self, now: float) -> None:
        why, broken = self._recovery.begin(now)
        self.counts.resets += 1
        log.error("group %s starts anew: %s", self.group_id, why)
        self._queue.clear(self.group_id)
        self._runtime.calls.clear(self.group_id)
        if self._client is not None:
            (self._leave if broken else self._read_again)(self._client)

    def _read_again(self, client: Client) -> None:
        """Go back in each partition to what has not finished."""
        with self.lock:
            self._generation += 1
            starts = {
                one.tp: self.intake.renew(one, self._generation) for one in self.holdings.values()
            }
        try:
            self._flow.reconcile(client, self.beat_at, stop=True)
            for tp, at in starts.items():
                if at is not None:
                    client.seek(tp, at)
        except BrokerFault as fault:
            # Records would be skipped.
            self._recovery.ask(f"partitions cannot be read again: {fault}", broken=True)

    def _leave(self, client: Client) -> None:
        self._client = None
        self._committed(client)
        self._let_go(list(self.holdings.values()))
        self._quit(client)

    def _close(self, client: Client, by: float) -> None:
        self._leaving = True
        self._tell(Kind.SHUTDOWN, self.holdings.values())
        while not self._told() and time.monotonic() < by:
            self._poll_idly(client)
        while not self._committed(client) and time.monotonic() < by:
            self._poll_idly(client)
        self.closed = True
        self._quit(client)

    def _quit(self, client: Client) -> None:
        try:
            client.close()
        except BrokerFault as fault:
            log.warning("%s: %s", self.group_id, fault)

    def _committed(self, client: Client) -> bool:
        try:
            return self._commit(client, list(self.holdings.values()), leaving=True)
        except BrokerFault:
            return False

    def _poll_idly(self, client: Client) -> None:
        try:
            client.poll(SLICE, 1)
        except BrokerFault as fault:
            log.warning("%s: %s", self.group_id, fault)
            self._rest(SLICE)
