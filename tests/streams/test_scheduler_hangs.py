"""Schedulers that hang: a call of theirs does not return, and nobody can make it.

Others are held up for the patience and no longer; what the scheduler withholds of them is pushed in its stead, once;
what the call still does when it returns at last changes nothing that is theirs.  Nothing here waits for time to pass:
looks are taken by hand, or a signal ends the wait.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.errors import StreamMisuse
from fairlead.streams import StreamScheduler
from fairlead.streams.broker import Tp
from fairlead.streams.calling import BEATS, REST, SchedulerCalls, after
from fairlead.streams.jobs import Job, Kind
from fairlead.streams.queue import JobsQueue
from fairlead.streams.schedulers import FairByTopic
from fairlead.testing.streams import MemoryBroker
from tests.streams.staging import (
    PATIENCE,
    Book,
    app_on,
    client_of,
    filled,
    job,
    running,
    until,
    writing,
)


class Hangs(StreamScheduler):
    """Withholds everything; a batch of the group `bad` makes it wait for a signal, and push all it has after it."""

    def __init__(self, queue):
        super().__init__(queue)
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.had: list[Job] = []
        self.told: list[str] = []

    def schedule_consumption(self, jobs):
        self.told.append("schedule_consumption")
        for one in jobs:
            self.queue.lock(one)
        self.had += jobs
        if jobs[0].group_id == "bad":
            self.inside.set()
            assert self.go_on.wait(PATIENCE)
            for one in self.had:
                self.queue.release(one)
            self.had.clear()

    def manage(self):
        self.told.append("manage")

    def clear(self, group_id):
        self.told.append(f"clear {group_id}")


class Stage:
    """A scheduler and its queue, without a broker or workers: jobs that start are noted."""

    def __init__(self, make_queue: Callable[..., JobsQueue] = JobsQueue) -> None:
        self.started: list[Job] = []
        self.resets: list[str] = []
        self.queue = make_queue(100, self.started.append)
        self.scheduler = Hangs(self.queue)
        self.calls = SchedulerCalls(
            self.scheduler, self.queue, lambda group, why: self.resets.append(group)
        )
        self._thread: threading.Thread | None = None

    def give(self, topic: str, group: str, partition: int = 0) -> Job:
        made = job(topic, partition, subscription_group=group)
        self.queue.give([made])
        self.calls.consumption(group, [made])
        return made

    def hang(self) -> Job:
        made = job("orders", subscription_group="bad")
        self.queue.give([made])
        self._thread = threading.Thread(target=self.calls.consumption, args=("bad", [made]))
        self._thread.start()
        assert self.scheduler.inside.wait(PATIENCE)
        return made

    def look(self, times: int) -> None:
        for _ in range(times):
            self.calls.look()

    def away(self) -> bool:
        return self.calls.away

    def return_at_last(self) -> None:
        self.scheduler.go_on.set()
        assert self._thread is not None
        self._thread.join(PATIENCE)


def others_go_on(stage: Stage) -> list[Job]:
    """Have the scheduler hang after it was given jobs of another group; check what becomes of them and of new ones."""
    plain = stage.give("reports", "good")
    pushed = stage.give("reports", "good", 1)
    stage.queue.push(pushed)  # and it hangs before it unlocks it
    stage.queue.done(pushed)
    stage.hang()
    stage.look(BEATS + 1)
    stage.calls.go_round("good")  # as its listener does on each turn
    later = stage.give("reports", "good", 2)
    assert [plain.state, pushed.state, later.state] == ["running", "finished", "running"]
    assert stage.started == [pushed, plain, later]
    stage.queue.done(plain)
    stage.queue.done(later)
    assert not stage.queue.blocked("good")
    stage.return_at_last()
    assert stage.started.count(plain) == 1
    assert not stage.resets
    return [plain, pushed, later]


def test_others_are_served_what_it_withheld_and_what_is_new_and_nothing_twice():
    others_go_on(Stage())


class KeepsWhatItWithheld(JobsQueue):
    """Broken: only what is new goes round a scheduler that hangs."""

    def overrule(self, group_id):
        for one in self.given(group_id):
            if not one.locked and one.queued_at is None:
                self.push(one)


class NotFenced(JobsQueue):
    """Broken: what the call does when it returns at last is taken at its word."""

    def overrule(self, group_id):
        taken = super().overrule(group_id)
        for one in self.given(group_id):
            one.overruled = False
        return taken


@pytest.mark.parametrize("broken", [KeepsWhatItWithheld, NotFenced])
def test_a_queue_that_goes_round_it_wrongly_is_found_out(broken):
    stage = Stage(broken)
    with pytest.raises(AssertionError):
        others_go_on(stage)
    stage.return_at_last()


def test_a_call_hangs_after_its_patience_and_is_named(caplog):
    stage = Stage()
    stage.hang()
    stage.look(BEATS)
    assert not stage.away()
    stage.look(1)
    assert stage.away()
    assert "Hangs.schedule_consumption hangs: it has not returned for 0.5 s" in caplog.text
    stage.return_at_last()


def test_calls_that_return_do_not_hang_however_many_follow_each_other():
    """Slow but alive: each look finds a call, and never the same for long.  So a pause of the process is one beat."""
    stage = Stage()
    calls = stage.calls
    for number in range(100 * BEATS):
        calls._current[1] = ("manage", float(number // BEATS))
        calls.look()
    assert not calls.away
    assert calls.hangs == 0


def test_who_waits_for_its_lock_goes_round_it_when_it_is_found_to_hang():
    stage = Stage()
    stage.hang()
    made = job("reports", subscription_group="good")
    stage.queue.give([made])
    waiting = threading.Thread(target=stage.calls.consumption, args=("good", [made]))
    waiting.start()
    until(lambda: len(stage.calls._current) == 2)
    stage.look(BEATS + 1)
    waiting.join(PATIENCE)
    assert made.state == "running"
    stage.return_at_last()


def test_its_own_jobs_are_run_when_it_returns():
    stage = Stage()
    bad = stage.hang()
    stage.look(BEATS + 1)
    assert bad.state == "locked"
    stage.return_at_last()
    assert bad.state == "running"


def test_it_is_asked_nothing_until_it_has_returned_and_rested_then_told_first_what_it_missed():
    stage = Stage()
    stage.hang()
    stage.look(10 * REST * BEATS)
    stage.calls.manage("good")
    stage.calls.clear("good")
    stage.return_at_last()
    stage.look(REST * BEATS - 1)
    assert stage.away()
    stage.calls.manage("good")
    stage.give("reports", "good")
    stage.calls.lifecycle("good", Kind.IDLE, [])
    assert stage.scheduler.told == ["schedule_consumption"]
    stage.look(1)
    assert not stage.away()
    stage.calls.manage("good")
    assert stage.scheduler.told == ["schedule_consumption", "clear good", "manage"]
    assert stage.calls.hangs == 1


def test_a_job_taken_from_it_may_be_used_freely_and_nothing_changes():
    stage = Stage()
    withheld = stage.give("reports", "good")
    stage.queue.overrule("good")
    for deed in (stage.queue.lock, stage.queue.unlock, stage.queue.push, stage.queue.release):
        deed(withheld)
        assert (withheld.state, withheld.locked) == ("running", False)
    assert stage.started == [withheld]
    stage.queue.done(withheld)
    stage.queue.push(withheld)
    assert stage.started == [withheld]
    other = stage.give("reports", "good")
    stage.queue.release(other)
    with pytest.raises(StreamMisuse, match="pushed twice"):
        stage.queue.push(other)


def test_a_scheduler_that_withholds_by_topic_finds_its_way_back():
    """What was taken from it is, to it, what it has let go: it counts until it has finished."""
    started: list[Job] = []
    queue = JobsQueue(2, started.append, assignments={"orders": (0, 1), "reports": (0,)})
    scheduler = FairByTopic(queue)
    calls = SchedulerCalls(scheduler, queue, lambda group, why: pytest.fail(why))
    jobs = [job("orders", partition) for partition in range(3)]
    queue.give(jobs)
    calls.consumption("default", jobs)
    assert started == jobs[:1]  # one worker of two is the topic's share
    queue.overrule("default")
    assert started == jobs[:2]
    for one in jobs:
        queue.done(one)
        after(calls, one)
        calls.manage("default")
    assert started == jobs
    last = job("orders", 4)
    queue.give([last])
    calls.consumption("default", [last])
    assert started[-1] is last


# In an app


class HangsIn(StreamScheduler):
    """Pushes as they come; waits for a signal in one method, for the group `bad` or for nobody in particular."""

    method = ""
    hang: threading.Event
    inside: threading.Event

    def schedule_consumption(self, jobs):
        self.lag("schedule_consumption", jobs)
        self._push(jobs)

    def manage(self):
        self.lag("manage", None)

    def clear(self, group_id):
        self.lag("clear", group_id)

    def lag(self, method: str, about: Any) -> None:
        group = about[0].group_id if isinstance(about, list) else about
        if method == self.method and group in (None, "bad"):
            self.inside.set()
            assert self.hang.wait(PATIENCE)


def _hanging(method: str) -> Callable[..., None]:
    plain = method.removeprefix("on_")

    def called(self: HangsIn, *about: Any) -> None:
        self.lag(method, about[0] if about else None)
        getattr(super(HangsIn, self), method if plain != method else plain)(*about)

    return called


LIFECYCLE = [f"schedule_{kind}" for kind in Kind if kind is not Kind.CONSUMPTION]
PLAIN = ["schedule_consumption", "manage", "clear", *LIFECYCLE]
for name in LIFECYCLE:
    setattr(HangsIn, name, _hanging(name))


METHODS = [one for one in PLAIN if one != "schedule_shutdown"]


@pytest.mark.parametrize("method", [*METHODS, "on_schedule_consumption", "on_manage"])
def test_while_any_method_hangs_the_other_groups_go_on_and_stopping_works(method, caplog):
    hang, inside = threading.Event(), threading.Event()
    members: dict[str, Any] = {"method": method, "hang": hang, "inside": inside}
    if method.startswith("on_"):
        members[method] = _hanging(method)
    scheduler = type("Hanging", (HangsIn,), members)
    broker = MemoryBroker({"orders": 2, "reports": 2, "dead": 1})
    book = Book()

    def refuses(self, messages):
        if messages[0].value == b"poison":
            raise ValueError("poison")

    more = {"tick": lambda self: None, "eofed": lambda self: None, "consume": refuses}
    app = app_on(broker, scheduler=scheduler, scheduler_patience="50ms", tick_interval="20ms")
    app.topic(
        "orders",
        writing(book, **more),
        subscription_group="bad",
        max_retries=0,
        batch_size=1,
        dead_letter="dead",
    )
    app.topic("reports", writing(book), subscription_group="good")
    app.start()
    try:
        broker.write("orders", b"poison", partition=0)
        until(lambda: method == "schedule_consumption" or broker.offsets("g") or inside.is_set())
        if method == "clear":
            app.runtime.reset("bad", "by the test")
        if method == "schedule_revocation":
            broker.lose(client_of(app, "bad"))
        assert inside.wait(PATIENCE)
        for number in range(50):
            broker.write("reports", b"%d" % number, partition=number % 2)
            book.wait_for("record", number + 1)
        good = {Tp("reports", 0): 25, Tp("reports", 1): 25}
        assert broker.wait_for(lambda: good.items() <= broker.offsets("g").items())
        until(lambda: app.statistics().scheduler_away)
        assert app.statistics().scheduler_hangs == 1
        assert "Hanging." in caplog.text
        assert " hangs: it has not returned for 0.05 s" in caplog.text
    finally:
        app.stop(0.5)  # while it hangs
        hang.set()


def test_while_schedule_shutdown_hangs_the_other_groups_are_told_farewell():
    hang, inside = threading.Event(), threading.Event()
    members = {"method": "schedule_shutdown", "hang": hang, "inside": inside}
    broker = filled({"orders": 1, "reports": 2}, 1)
    book = Book()
    more = {"shutdown": lambda self: book.write("farewell", self.topic)}
    app = app_on(broker, scheduler=type("Hanging", (HangsIn,), members), scheduler_patience="50ms")
    app.topic("orders", writing(book, **more), subscription_group="bad")
    app.topic("reports", writing(book, **more), subscription_group="good")
    app.start()
    book.wait_for("record", 3)
    stopping = threading.Thread(target=app.stop, args=(PATIENCE,))
    stopping.start()
    book.wait_for("farewell", 2)
    assert inside.wait(PATIENCE)
    assert book.of("farewell") == [("reports",)] * 2
    hang.set()
    stopping.join(PATIENCE)
    assert sorted(book.of("farewell")) == [("orders",), ("reports",), ("reports",)]
    assert sum(broker.offsets("g").values()) == 3


def test_what_it_withheld_of_another_group_is_run_while_it_hangs_and_once():
    class Holds(Hangs):
        def manage(self):
            """Lets nothing go."""

    broker = filled({"reports": 2}, 3)
    broker.write("orders", b"", partition=0)
    book = Book()
    app = app_on(broker, scheduler=Holds, scheduler_patience="50ms")
    app.topic("orders", writing(book), subscription_group="bad")
    app.topic("reports", writing(book), subscription_group="good")
    with running(app):
        scheduler = app.runtime.calls.scheduler
        assert isinstance(scheduler, Holds)
        assert scheduler.inside.wait(PATIENCE)
        book.wait_for("record", 6)
        scheduler.go_on.set()
        assert broker.wait_for(lambda: sum(broker.offsets("g").values()) == 7)
        assert app.statistics().groups["good"].resets == 0
    assert len(book.of("record")) == 7
