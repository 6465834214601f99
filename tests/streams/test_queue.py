"""The jobs queue: who is busy, which group is blocked, what misuse says, and that it changes nothing."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairlead.errors import Misuse, StreamMisuse
from fairlead.streams.jobs import Job, Kind
from fairlead.streams.queue import JobsQueue
from fairlead.testing import ManualClock
from tests.streams.staging import job


class Bench:
    def __init__(self, concurrency: int = 2):
        self.clock = ManualClock(100.0)
        self.started: list[Job] = []
        self.freed: list[str] = []
        self.queue = JobsQueue(
            concurrency, self.started.append, freed=self.freed.append, clock=self.clock
        )
        self.queue.scheduler = "Picky"

    def give(self, *args, **options) -> Job:
        made = job(*args, **options)
        self.queue.give([made])
        return made

    def snapshot(self):
        queue = self.queue
        flags = [
            (one.locked, one.queued_at, one.ended, one.withheld_since) for one in queue.given()
        ]
        return dict(queue.statistics), queue.blocked("default"), flags, list(self.started)


def test_a_push_starts_a_job_while_a_worker_is_free_and_it_is_busy_at_once():
    bench = Bench(concurrency=2)
    jobs = [bench.give(partition=number) for number in range(3)]
    assert bench.queue.statistics == {"busy": 0, "enqueued": 0, "waiting": 3}
    assert bench.queue << jobs[0] is bench.queue
    assert bench.queue.statistics == {"busy": 1, "enqueued": 0, "waiting": 2}
    bench.queue << jobs[1] << jobs[2]
    assert bench.queue.statistics == {"busy": 2, "enqueued": 1, "waiting": 0}
    bench.queue.done(jobs[0])
    assert bench.started == jobs
    assert jobs[0].ended
    assert bench.queue.statistics == {"busy": 2, "enqueued": 0, "waiting": 0}


def test_a_group_is_blocked_from_the_moment_a_job_is_given_until_it_has_finished():
    bench = Bench()
    made = bench.give()
    assert bench.queue.blocked("default")
    bench.queue.push(made)
    assert bench.queue.blocked("default")
    bench.queue.done(made)
    assert not bench.queue.blocked("default")
    assert bench.freed == ["default"]


def test_unlocking_without_pushing_still_blocks():
    bench = Bench()
    made = bench.give()
    bench.queue.lock(made)
    bench.queue.unlock(made)
    assert bench.queue.blocked("default")


def test_a_long_running_job_blocks_nobody():
    bench = Bench()
    bench.give(long_running=True)
    assert not bench.queue.blocked("default")


def test_a_locked_job_may_be_pushed_and_unlocked_after_even_when_it_has_finished_by_then():
    bench = Bench()
    made = bench.give()
    bench.queue.lock(made)
    bench.queue.push(made)
    bench.queue.done(made)
    assert bench.queue.blocked("default")
    assert not bench.freed
    bench.queue.unlock(made)
    assert not bench.queue.blocked("default")
    assert bench.freed == ["default"]


def test_release_unlocks_and_pushes():
    bench = Bench()
    made = bench.give()
    bench.queue.lock(made)
    bench.queue.release(made)
    assert bench.started == [made]
    assert not made.locked


def cleared(bench, made):
    bench.queue.clear("default")


def finished(bench, made):
    bench.queue.push(made)
    bench.queue.done(made)


MISUSES = [
    ([], "unlock", "unlocked without being locked"),
    ([], "release", "released without being locked"),
    (["lock"], "lock", "locked twice"),
    (["push"], "push", "pushed twice"),
    (["push"], "lock", "locked too late"),
    (["push"], "unlock", "unlocked without being locked"),
    (["lock", "push"], "release", "released twice"),
    (["lock", "unlock"], "unlock", "unlocked without being locked"),
    ([cleared], "push", "after clear('default')"),
    ([cleared], "lock", "after clear('default')"),
    (["lock", cleared], "unlock", "after clear('default')"),
    ([finished], "push", "after it had finished"),
    ([finished], "unlock", "after it had finished"),
]


@pytest.mark.parametrize(("before", "verb", "said"), MISUSES)
def test_misuse_names_scheduler_topic_and_age_and_changes_nothing(before, verb, said):
    bench = Bench()
    made = bench.give("orders", 5)
    other = bench.give("reports", 1)
    for deed in before:
        if callable(deed):
            deed(bench, made)
        else:
            getattr(bench.queue, deed)(made)
    bench.clock.advance(1.5)
    snapshot = bench.snapshot()
    with pytest.raises(StreamMisuse) as caught:
        getattr(bench.queue, verb)(made)
    assert isinstance(caught.value, Misuse)
    assert caught.value.job is made
    for word in ("Picky", "orders[5]", "1.500 s", said):
        assert word in str(caught.value)
    assert bench.snapshot() == snapshot
    assert not other.ended


@pytest.mark.parametrize("foreign", [None, "job", 7, object()])
@pytest.mark.parametrize("verb", ["push", "lock", "unlock", "release"])
def test_a_foreign_object_is_misuse(foreign, verb):
    bench = Bench()
    with pytest.raises(StreamMisuse, match=r"Picky .* which is no job"):
        getattr(bench.queue, verb)(foreign)


def test_a_job_that_was_never_given_is_misuse():
    with pytest.raises(StreamMisuse, match=r"orders\[0\].* never given"):
        Bench().queue.push(job())


def test_clear_ends_one_group_alone_and_lets_what_runs_go_on():
    bench = Bench(concurrency=1)
    ran = bench.give(subscription_group="a")
    queued = bench.give(partition=1, subscription_group="a")
    locked = bench.give(partition=2, subscription_group="a")
    other = bench.give(partition=3, subscription_group="b")
    bench.queue << ran << queued << other
    bench.queue.lock(locked)
    assert bench.queue.clear("a") == [queued, locked]
    assert not bench.queue.blocked("a")
    assert bench.queue.blocked("b")
    assert bench.queue.statistics == {"busy": 1, "enqueued": 1, "waiting": 0}
    bench.queue.done(ran)
    assert bench.started == [ran, other]
    assert not queued.ended


def test_jobs_of_one_partition_do_not_run_beside_each_other():
    bench = Bench(concurrency=3)
    consume = bench.give()
    tick = Job(Kind.PERIODIC, consume.holding)
    other = bench.give(partition=1)
    bench.queue.give([tick])
    bench.queue << consume << tick << other
    assert bench.started == [consume, other]
    assert bench.queue.statistics == {"busy": 2, "enqueued": 1, "waiting": 0}
    bench.queue.done(consume)
    assert bench.started == [consume, other, tick]


def test_jobs_by_key_share_their_partition_but_not_with_a_tick():
    bench = Bench(concurrency=4)
    first = bench.give(parallel_by=lambda message: message.key)
    second = Job(first.kind, first.holding, first.taken, blocking=True)
    third = Job(first.kind, first.holding, first.taken, blocking=True)
    tick = Job(Kind.PERIODIC, first.holding)
    bench.queue.give([second, third, tick])
    bench.queue << first << second << tick << third
    assert bench.started == [first, second]
    bench.queue.done(first)
    assert bench.started == [first, second]
    bench.queue.done(second)
    assert bench.started == [first, second, tick]
    bench.queue.done(tick)
    assert bench.started == [first, second, tick, third]


def test_when_it_stops_what_is_queued_is_handed_back_and_housekeeping_runs():
    bench = Bench(concurrency=1)
    ran, queued, late = (bench.give(partition=number) for number in range(3))
    bench.queue << ran << queued
    bench.queue.stop()
    bench.queue.push(late)
    assert bench.queue.drain(0.0) is False
    bench.queue.done(ran)
    assert bench.started == [ran]
    assert queued.handed_back
    assert late.handed_back
    assert bench.queue.drain(0.0)
    goodbye = bench.give(kind=Kind.SHUTDOWN)
    bench.queue.push(goodbye)
    assert bench.started == [ran, goodbye]


class QueueMachine(RuleBasedStateMachine):
    """Random schedulers, right and wrong: each job ends once, and a group is blocked exactly while it must be."""

    def __init__(self):
        super().__init__()
        self.bench = Bench(concurrency=2)
        self.jobs: list[Job] = []
        self.given: set[Job] = set()
        self.locked: set[Job] = set()
        self.pushed: set[Job] = set()
        self.ended: set[Job] = set()
        self.cleared: set[Job] = set()

    @rule(group=st.sampled_from("ab"), long_running=st.booleans(), partition=st.integers(0, 3))
    def give(self, group, long_running, partition):
        made = self.bench.give(
            "t" + group, partition, subscription_group=group, long_running=long_running
        )
        self.jobs.append(made)
        self.given.add(made)

    def pick(self, which) -> Job | None:
        return self.jobs[which % len(self.jobs)] if self.jobs else None

    def do(self, made: Job, verb: str, legal: bool) -> bool:
        before = self.bench.snapshot()
        try:
            getattr(self.bench.queue, verb)(made)
        except StreamMisuse:
            assert not legal
            assert self.bench.snapshot() == before
            return False
        assert legal
        return True

    def known(self, made: Job) -> bool:
        return made not in self.cleared and not (made in self.ended and made not in self.locked)

    @rule(which=st.integers(0, 50))
    def lock(self, which):
        if (made := self.pick(which)) is not None:
            legal = self.known(made) and made not in self.locked | self.pushed
            if self.do(made, "lock", legal):
                self.locked.add(made)

    @rule(which=st.integers(0, 50))
    def unlock(self, which):
        if (made := self.pick(which)) is not None and self.do(
            made, "unlock", self.known(made) and made in self.locked
        ):
            self.locked.discard(made)

    @rule(which=st.integers(0, 50), verb=st.sampled_from(("push", "release")))
    def push(self, which, verb):
        if (made := self.pick(which)) is None:
            return
        legal = self.known(made) and made not in self.pushed
        legal = legal and (verb == "push" or made in self.locked)
        if self.do(made, verb, legal):
            self.pushed.add(made)
            if verb == "release":
                self.locked.discard(made)

    @rule(which=st.integers(0, 50))
    def end(self, which):
        running = self.bench.queue.running()
        if running:
            made = running[which % len(running)]
            self.bench.queue.done(made)
            self.ended.add(made)

    @rule(group=st.sampled_from("ab"))
    def clear(self, group):
        started = set(self.bench.started)
        for made in self.bench.queue.clear(group):
            assert made not in started
            self.cleared.add(made)
        self.given = {one for one in self.given if one.group_id != group}
        self.locked = {one for one in self.locked if one.group_id != group}

    @invariant()
    def polling_is_blocked_exactly_while_it_must_be(self):
        for group in "ab":
            must = any(
                made.group_id == group
                and made.blocking
                and (made not in self.ended or made in self.locked)
                for made in self.given
            )
            assert self.bench.queue.blocked(group) == must

    @invariant()
    def each_job_starts_once_and_no_worker_idles(self):
        started = self.bench.started
        assert len(set(started)) == len(started)
        assert set(started) <= self.pushed
        waiting = self.pushed - set(started) - self.cleared
        busy = len(self.bench.queue.running())
        assert busy <= 2
        if busy < 2:
            assert not waiting

    @invariant()
    def the_counts_are_right(self):
        counts = self.bench.queue.statistics
        held = [one for one in self.given if one not in self.pushed and one not in self.cleared]
        assert counts["waiting"] == len(held)
        assert counts["enqueued"] == len(self.pushed - set(self.bench.started) - self.cleared)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
