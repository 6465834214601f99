"""Bad schedulers: whatever one does, it is named, its group starts anew or waits, and the other groups go on."""

import logging
import threading
import time
from typing import cast

import pytest

from fairlead.errors import StreamMisuse
from fairlead.streams import StreamScheduler
from fairlead.streams.broker import Tp
from fairlead.streams.calling import SchedulerCalls, Steward
from fairlead.streams.jobs import Job, Kind
from fairlead.streams.queue import JobsQueue
from fairlead.streams.schedulers import FairByTopic, OneAtATime
from fairlead.testing.streams import MemoryBroker
from tests.streams.staging import (
    PATIENCE,
    Book,
    app_on,
    filled,
    running,
    scheduler_of,
    until,
    wait_committed,
    writing,
)
from tests.streams.staging import job as a_job


class AsTheyCome(StreamScheduler):
    """Right; the bad ones are derived from it."""

    def schedule_consumption(self, jobs):
        for job in jobs:
            if job.group_id == "bad" and self.misbehave(job):
                continue
            self.queue << job

    def misbehave(self, job):
        return False


class Raises(AsTheyCome):
    times = 3

    def misbehave(self, job):
        if self.times:
            self.times -= 1
            raise RuntimeError("cannot schedule")


class RaisesSystemExit(AsTheyCome):
    times = 2

    def misbehave(self, job):
        if self.times:
            self.times -= 1
            raise SystemExit(3)


class RaisesInManage(AsTheyCome):
    times = 3

    def __init__(self, queue):
        super().__init__(queue)
        self.ended = []

    def misbehave(self, job):
        self.ended.append(job)

    def manage(self):
        if self.times and any(job.finished for job in self.ended):
            self.times -= 1
            self.ended.clear()
            raise RuntimeError("cannot schedule")


class PushesTwice(AsTheyCome):
    times = 2

    def misbehave(self, job):
        if self.times:
            self.times -= 1
            self.queue << job << job


class UnlocksTwice(AsTheyCome):
    times = 2

    def misbehave(self, job):
        if self.times:
            self.times -= 1
            self.queue.lock(job)
            self.queue.unlock(job)
            self.queue.unlock(job)


class PushesAForeignObject(AsTheyCome):
    times = 2

    def misbehave(self, job):
        if self.times:
            self.times -= 1
            self.queue << cast(Job, "a job")


class KeepsAJobAfterClear(AsTheyCome):
    times = 1

    def __init__(self, queue):
        super().__init__(queue)
        self.kept = []

    def misbehave(self, job):
        if self.times:
            self.times -= 1
            self.queue.lock(job)
            self.kept.append(job)
            raise RuntimeError("cannot schedule")

    def manage(self):
        if self.kept:
            self.queue.release(self.kept[0])


class RaisesInClear(Raises):
    def clear(self, group_id):
        raise RuntimeError("cannot clear")


class CatchesItsMisuse(AsTheyCome):
    def misbehave(self, job):
        self.queue.lock(job)
        with pytest.raises(StreamMisuse):
            self.queue.lock(job)
        self.queue.release(job)
        with pytest.raises(StreamMisuse):
            self.queue.push(job)
        return True


class RaisesInTheRest(AsTheyCome):
    def schedule_periodic(self, jobs):
        raise RuntimeError("cannot schedule")

    schedule_revocation = schedule_shutdown = schedule_idle = schedule_eofed = schedule_periodic


class Sleepy(AsTheyCome):
    times = 3

    def misbehave(self, job):
        if self.times:
            self.times -= 1
            time.sleep(0.15)


RECOVERS: list[type[StreamScheduler]] = [
    Raises,
    RaisesSystemExit,
    RaisesInManage,
    PushesTwice,
    UnlocksTwice,
    PushesAForeignObject,
    KeepsAJobAfterClear,
    RaisesInClear,
]
FINE: list[type[StreamScheduler]] = [
    CatchesItsMisuse,
    RaisesInTheRest,
    Sleepy,
    FairByTopic,
    OneAtATime,
]


@pytest.mark.parametrize("scheduler", RECOVERS + FINE)
def test_a_bad_scheduler_is_contained_and_named_and_everything_is_consumed(scheduler, caplog):
    broker = filled({"orders": 2, "reports": 2}, 40)
    book = Book()
    more = {
        "tick": lambda self: book.write("tick"),
        "shutdown": lambda self: book.write("farewell"),
        "revoked": lambda self: book.write("farewell"),
    }
    app = app_on(broker, scheduler=scheduler, tick_interval="20ms")
    app.topic("orders", writing(book, **more), subscription_group="bad", batch_size=10)
    app.topic("reports", writing(book, **more), subscription_group="good", batch_size=10)
    with caplog.at_level(logging.WARNING), running(app):
        wait_committed(broker, 160)
        book.wait_for("tick", 4)
        groups = app.statistics().groups
        if scheduler is RaisesInManage:  # which group's job it was called for, `manage` cannot know
            assert groups["good"].resets + groups["bad"].resets > 0
        else:
            assert groups["good"].resets == 0
            assert (groups["bad"].resets > 0) == (scheduler in RECOVERS)
    assert {line[:3] for line in book.of("record")} == {
        (topic, partition, offset)
        for topic in ("orders", "reports")
        for partition in (0, 1)
        for offset in range(40)
    }
    assert len(book.of("farewell")) >= 4
    reports = [line for line in book.of("record") if line[0] == "reports"]
    if scheduler is not RaisesInManage:
        assert len(reports) == 80, "the other group saw no record twice"
    if scheduler in (*RECOVERS, RaisesInTheRest, Sleepy):
        assert f"{scheduler.__name__}." in caplog.text
    if scheduler is Sleepy:
        assert "schedule_consumption took" in caplog.text
        assert app.statistics().scheduler_slow >= 3
    if scheduler in RECOVERS:
        assert "raised" in caplog.text
    if scheduler is UnlocksTwice:
        assert "UnlocksTwice: the consumption job of orders[" in caplog.text


def test_clear_is_called_for_the_group_alone_and_its_jobs_are_misuse_from_then_on():
    broker = filled({"orders": 1, "reports": 1}, 2)
    book = Book()

    class Careful(AsTheyCome):
        def __init__(self, queue):
            super().__init__(queue)
            self.locked = []

        def misbehave(self, job):
            self.queue.lock(job)
            self.locked.append(job)
            if len(self.locked) == 1:
                raise RuntimeError("once")
            return True

        def clear(self, group_id):
            book.write("clear", group_id, [job.cleared for job in self.locked])

        def manage(self):
            if len(self.locked) > 1:
                book.write("retry")
                with pytest.raises(
                    StreamMisuse, match=r"Careful: .*orders\[0\].*after clear\('bad'\)"
                ):
                    self.queue.unlock(self.locked[0])
                for job in self.locked[1:]:
                    self.queue.release(job)
                del self.locked[1:]

    app = app_on(broker, scheduler=Careful)
    app.topic("orders", writing(book), subscription_group="bad")
    app.topic("reports", writing(book), subscription_group="good")
    with running(app):
        wait_committed(broker, 4)
    assert book.of("clear") == [("bad", [True])]
    assert book.of("retry")


class Forgets(AsTheyCome):
    def misbehave(self, job):
        return True


def test_a_forgotten_job_blocks_its_group_is_reported_never_committed_and_stopping_works(caplog):
    broker = filled({"orders": 1, "reports": 1}, 5)
    book = Book()
    app = app_on(broker, scheduler=Forgets, withheld_limit="20ms")
    app.topic("orders", writing(book), subscription_group="bad")
    app.topic("reports", writing(book), subscription_group="good")
    with running(app):
        wait_committed(broker, 5)
        listener = app.runtime.listeners["bad"]
        until(lambda: app.runtime.queue.blocked("bad"))
        polled = listener.polled_at
        until(lambda: app.runtime.withheld_reports)
        assert listener.polled_at == polled
        (held,) = app.statistics().withheld
        assert (held.topic, held.state) == ("orders", "given")
    assert {tp: at for tp, at in broker.offsets("g").items() if at} == {Tp("reports", 0): 5}
    assert "orders[0] has been withheld by Forgets" in caplog.text


def test_every_method_has_its_twin_which_takes_the_lock():
    held = []

    class Asking(StreamScheduler):
        def schedule_consumption(self, jobs):
            free = threading.Event()

            def look():
                if not self.turnstile.enter(lambda: True):
                    free.set()

            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            held.append(free.is_set())

    setattr(Asking, "manage", lambda self: Asking.schedule_consumption(self, ()))  # noqa: B010
    setattr(Asking, "clear", lambda self, group_id: Asking.schedule_consumption(self, ()))  # noqa: B010
    for kind in Kind:
        setattr(Asking, f"schedule_{kind}", Asking.schedule_consumption)

    class NoQueue:
        def __init__(self):
            self.assignments = {"a": (0,)}
            self.concurrency = 3

    scheduler = Asking(cast(JobsQueue, NoQueue()))
    assert (scheduler.assignments, scheduler.concurrency) == ({"a": (0,)}, 3)
    for kind in Kind:
        getattr(scheduler, f"on_schedule_{kind}")([])
    scheduler.on_manage()
    scheduler.on_clear("g")
    assert held == [True] * (len(Kind) + 2)


def test_finished_is_set_before_manage_runs_for_it_and_manage_runs_for_each():
    broker = filled({"orders": 2}, 10)

    class Watching(StreamScheduler):
        def __init__(self, queue):
            super().__init__(queue)
            self.jobs = []
            self.seen = []

        def schedule_consumption(self, jobs):
            assert len({job.group_id for job in jobs}) == 1
            for job in jobs:
                self.jobs.append(job)
                self.queue << job

        def manage(self):
            self.seen.append(sum(job.finished for job in self.jobs))

    app = app_on(broker, scheduler=Watching, tick_interval="1h")
    app.topic("orders", writing(Book()), batch_size=2)
    with running(app):
        wait_committed(broker, 20)
        scheduler = scheduler_of(app)
        until(lambda: len(scheduler.seen) >= 10)
        assert all(seen >= number for number, seen in enumerate(scheduler.seen, 1))


def test_manage_is_shown_one_finished_job_at_a_time_so_the_group_it_raises_for_is_known():
    """Two jobs of two groups end while it is asked about a third: each is news in its own call."""
    inside, go_on = threading.Event(), threading.Event()
    seen: list[list[str]] = []

    class RaisesForTheBad(AsTheyCome):
        def manage(self):
            news = [one.group_id for one in jobs if one.finished]
            seen.append(news)
            if len(news) == 1:
                inside.set()
                assert go_on.wait(PATIENCE)
            if "bad" in news:
                raise RuntimeError("cannot schedule")

    resets: list[str] = []
    queue = JobsQueue(4, lambda job: None)
    calls = SchedulerCalls(RaisesForTheBad(queue), queue, lambda group, why: resets.append(group))
    steward = Steward(calls)
    jobs = [a_job(group, subscription_group=group) for group in ("first", "good", "bad")]
    queue.give(jobs)
    for one in jobs:
        queue.push(one)
    queue.done(jobs[0])
    steward.after(jobs[0])
    assert inside.wait(PATIENCE)
    for one in jobs[1:]:
        queue.done(one)
        steward.after(one)
    go_on.set()
    steward.stop(PATIENCE)
    assert seen == [["first"], ["first", "good"], ["first", "good", "bad"]]
    assert resets == ["bad"]


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.CONSUMPTION])
def test_jobs_it_has_taken_out_of_its_list_before_it_raised_are_pushed_all_the_same(kind):
    class Pops(AsTheyCome):
        def pop(self, jobs):
            jobs.pop(0)
            raise RuntimeError("cannot schedule")

    for other in Kind:
        if other is not Kind.CONSUMPTION:
            setattr(Pops, f"schedule_{other}", Pops.pop)
    started: list[Job] = []
    queue = JobsQueue(4, started.append)
    calls = SchedulerCalls(Pops(queue), queue, lambda group, why: None)
    jobs = [a_job("orders", number, kind=kind) for number in range(2)]
    queue.give(jobs)
    calls.lifecycle("default", kind, list(jobs))
    assert started == jobs


def test_assignments_may_be_walked_through_while_they_change():
    broker = MemoryBroker({"orders": 1, "reports": 1})
    app = app_on(broker)
    for name in ("orders", "reports"):
        app.topic(name, writing(Book()))
    with running(app):
        held = scheduler_of(app).assignments
        until(lambda: len(held) == 2)
        walks = [iter(held), iter(held.keys()), iter(held.values()), iter(held.items())]
        begun = [next(walk) for walk in walks]
        broker.add_member("g", ["orders", "reports"])
        until(lambda: len(held) == 1)
        found = [[first, *walk] for first, walk in zip(begun, walks, strict=True)]
        whole = {"orders": (0,), "reports": (0,)}
        assert found == [list(whole), list(whole), list(whole.values()), list(whole.items())]
        (left,) = held
        assert held == {left: (0,)}
        assert repr(held) == repr({left: (0,)})
        with pytest.raises(TypeError):
            held["orders"] = ()
