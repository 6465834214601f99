"""Who waits for a scheduler's lock, and what it is told when it is asked again after a hang.

Threads wait for signals, and looks are taken by hand: nothing here waits for time to pass.
"""

import threading

import pytest

from fairlead.streams import StreamScheduler
from fairlead.streams.calling import BEATS, SchedulerCalls, Steward
from fairlead.streams.jobs import Job
from fairlead.streams.queue import JobsQueue
from fairlead.streams.schedulers import FairByTopic
from tests.streams.staging import PATIENCE, job, until


class Keeps(StreamScheduler):
    """Withholds everything; a batch of the group `bad` makes it wait for a signal."""

    def __init__(self, queue):
        super().__init__(queue)
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.kept: list[Job] = []

    def schedule_consumption(self, jobs):
        for one in jobs:
            self.queue.lock(one)
        self.kept += jobs
        if jobs[0].group_id == "bad":
            self.wait()

    def clear(self, group_id):
        self.kept = [one for one in self.kept if one.group_id != group_id]

    def wait(self):
        self.inside.set()
        assert self.go_on.wait(PATIENCE)


def called(make: type[Keeps]) -> tuple[Keeps, JobsQueue, SchedulerCalls]:
    queue = JobsQueue(100, lambda one: None)
    scheduler = make(queue)
    calls = SchedulerCalls(scheduler, queue, lambda group, why: pytest.fail(why))
    return scheduler, queue, calls


def given(queue: JobsQueue, group: str) -> Job:
    made = job("orders", subscription_group=group)
    queue.give([made])
    return made


def test_whoever_comes_back_to_the_lock_goes_behind_who_waits():
    had: list[str] = []

    class Noting(Keeps):
        def manage(self):
            had.append("manage")
            if len(had) == 1:
                self.wait()

        def clear(self, group_id):
            had.append("clear")

    scheduler, _, calls = called(Noting)

    def come_back() -> None:
        for _ in range(100):
            calls.manage("good")

    again = threading.Thread(target=come_back)
    again.start()
    assert scheduler.inside.wait(PATIENCE)
    waiting = threading.Thread(target=scheduler.on_clear, args=("good",))
    waiting.start()
    until(scheduler.turnstile._next.locked)
    scheduler.go_on.set()
    again.join(PATIENCE)
    waiting.join(PATIENCE)
    assert had[:3] == ["manage", "clear", "manage"]
    assert len(had) == 101


def test_a_method_may_call_the_twin_of_another():
    class Nested(Keeps):
        def manage(self):
            self.on_clear("good")
            assert self.turnstile.mine  # still

    scheduler, _, _ = called(Nested)
    scheduler.on_manage()
    assert not scheduler.turnstile.mine
    assert scheduler.turnstile.turns == 1


def test_to_wait_while_others_have_their_turns_is_not_to_hang():
    scheduler, _, calls = called(Keeps)
    calls._current[1] = ("manage", 0.0)
    scheduler.turnstile.outside.add(1)
    for _ in range(100):
        scheduler.turnstile.turns += 1
        for _ in range(BEATS):
            calls.look()
    assert not calls.away
    assert calls.hangs == 0


def test_who_waited_long_hangs_only_after_its_patience_in_the_schedulers_hands(caplog):
    scheduler, _, calls = called(Keeps)
    calls._current[1] = ("manage", 0.0)
    scheduler.turnstile.outside.add(1)
    for _ in range(BEATS):
        calls.look()
    scheduler.turnstile.outside.clear()
    scheduler.turnstile.turns += 1
    calls._current[2] = ("clear", -1.0)
    scheduler.turnstile.outside.add(2)
    for _ in range(BEATS):
        calls.look()
    assert calls.hangs == 0
    calls.look()
    assert calls.hangs == 1
    assert "Keeps.manage hangs" in caplog.text  # not clear, which has waited for longer


def test_a_thread_of_its_own_that_hangs_with_the_lock_is_gone_round_too():
    scheduler, queue, calls = called(Keeps)
    bad = given(queue, "bad")
    own = threading.Thread(target=scheduler.on_schedule_consumption, args=([bad],))
    own.start()
    assert scheduler.inside.wait(PATIENCE)
    good = given(queue, "good")
    listener = threading.Thread(target=calls.consumption, args=("good", [good]))
    listener.start()
    until(lambda: scheduler.turnstile.outside)
    for _ in range(BEATS + 1):
        calls.look()
    listener.join(PATIENCE)
    assert good.state == "running"
    scheduler.go_on.set()
    own.join(PATIENCE)


class Announced:
    """A lock which says when somebody waits for it."""

    def __init__(self) -> None:
        self.awaited = threading.Event()
        self._lock = threading.Lock()
        self.locked, self.release = self._lock.locked, self._lock.release

    def acquire(self, timeout: float) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self.awaited.set()
        return self._lock.acquire(timeout=timeout)


def test_a_late_clear_comes_before_the_new_jobs_of_its_group(monkeypatch):
    class Telling(Keeps):
        def on_clear(self, group_id):  # it waits before it has the lock
            self.wait()
            super().on_clear(group_id)

    scheduler, queue, calls = called(Telling)
    announced = Announced()
    monkeypatch.setattr(calls, "_telling", announced, raising=False)
    scheduler.left_alone = True
    calls.clear("good")
    scheduler.left_alone = False
    steward = threading.Thread(target=calls.manage, args=("other",))
    steward.start()
    assert scheduler.inside.wait(PATIENCE)
    new = given(queue, "good")
    listener = threading.Thread(target=calls.consumption, args=("good", [new]))
    listener.start()
    until(lambda: announced.awaited.is_set() or not listener.is_alive())
    scheduler.go_on.set()
    steward.join(PATIENCE)
    listener.join(PATIENCE)
    assert scheduler.kept == [new]


def test_nobody_waits_for_a_late_clear_that_hangs():
    class Telling(Keeps):
        def clear(self, group_id):
            self.wait()

    scheduler, queue, calls = called(Telling)
    scheduler.left_alone = True
    calls.clear("good")
    scheduler.left_alone = False
    steward = threading.Thread(target=calls.manage, args=("other",))
    steward.start()
    assert scheduler.inside.wait(PATIENCE)
    new = given(queue, "good")
    listener = threading.Thread(target=calls.consumption, args=("good", [new]))
    listener.start()
    for _ in range(BEATS + 1):
        calls.look()
    listener.join(PATIENCE)
    assert new.state == "running"
    scheduler.go_on.set()
    steward.join(PATIENCE)


def test_a_job_is_finished_though_the_scheduler_is_found_to_hang_at_that_moment():
    class FoundToHang(SchedulerCalls):
        """At the second look at it."""

        looks = 0

        @property
        def away(self):
            self.looks += 1
            return self.looks > 1

    queue = JobsQueue(1, lambda one: None)
    steward = Steward(FoundToHang(Keeps(queue), queue, lambda group, why: pytest.fail(why)))
    ended = job("orders")
    steward.after(ended)
    steward.stop(PATIENCE)
    assert ended.finished


def test_after_a_hang_it_does_not_count_on_what_was_pushed_in_its_stead():
    """Else the old jobs, to it still to come, would be before the new one: a tick for each share of them."""
    started: list[Job] = []
    queue = JobsQueue(8, started.append, assignments={"orders": tuple(range(40)), "reports": (0,)})
    scheduler = FairByTopic(queue)
    calls = SchedulerCalls(scheduler, queue, lambda group, why: pytest.fail(why))
    jobs = [job("orders", partition) for partition in range(40)]
    queue.give(jobs)
    calls.consumption("default", jobs)
    scheduler.left_alone = True
    calls.go_round("default")
    for one in jobs:
        queue.done(one)
        one.finished = True
    scheduler.left_alone = False
    new = job("orders", 41)
    queue.give([new])
    calls.consumption("default", [new])
    assert started == [*jobs, new]


def test_who_had_nothing_taken_from_it_is_told_nothing():
    told: list[str] = []

    class Noting(Keeps):
        def clear(self, group_id):
            told.append(group_id)

    scheduler, _, calls = called(Noting)
    scheduler.left_alone = True
    calls.go_round("good")
    scheduler.left_alone = False
    calls.manage("good")
    assert not told


def test_a_call_whose_jobs_are_cleared_under_its_hands_is_not_blamed():
    class Pushes(Keeps):
        def schedule_consumption(self, jobs):
            self.queue.clear("good")  # as another thread does whose call has failed
            self.queue << jobs[0]

    _, queue, calls = called(Pushes)  # whose reset fails the test
    calls.consumption("good", [given(queue, "good")])
    assert calls.raised == 0


def test_a_call_that_pushes_what_was_cleared_before_it_is_blamed():
    resets: list[str] = []

    class Stale(Keeps):
        def schedule_consumption(self, jobs):
            self.queue << old

    queue = JobsQueue(100, lambda one: None)
    calls = SchedulerCalls(Stale(queue), queue, lambda group, why: resets.append(group))
    old = given(queue, "good")
    queue.clear("good")
    calls.consumption("good", [given(queue, "good")])
    assert (calls.raised, resets) == (1, ["good"])
