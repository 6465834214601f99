"""ThreadScheduler: the same API and the same core between threads; synchronised by signals, never by sleeping."""

import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextvars import ContextVar
from typing import Any

import pytest

from fairlead import (
    ConfigError,
    InFlight,
    Misuse,
    Policy,
    PolicyError,
    Priority,
    QueueFull,
    SelfDeadlockWarning,
    ShuttingDown,
    ThreadScheduler,
    TokenBucket,
    WaitedTooLong,
)
from tests.doors.rig import balanced
from tests.doors.test_bad_input import BAD_PRIORITIES
from tests.doors.test_submit import closed, double

PATIENCE = 30.0  # seconds after which a test has failed; never waited for otherwise


@pytest.fixture(autouse=True)
def no_thread_remains() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert left == []


class Busy:
    """Keep slots busy with spawned work until `release`."""

    def __init__(self, scheduler, slots=1):
        self.opened = threading.Event()
        started = threading.Semaphore(0)

        def hold():
            started.release()
            assert self.opened.wait(PATIENCE)

        self.futures = [scheduler.spawn(50, hold) for _ in range(slots)]
        for _ in range(slots):
            assert started.acquire(timeout=PATIENCE)

    def release(self):
        self.opened.set()
        wait(self.futures)


def until_waiting(scheduler, count):
    """Return when so many wait.  There is no signal for a thread that blocks; the lock is asked until it shows."""
    deadline = threading.Event()
    timer = threading.Timer(PATIENCE, deadline.set)
    timer.start()
    while scheduler.stats().queued_count != count:
        assert not deadline.is_set()
    timer.cancel()
    timer.join()


def usable(scheduler, slots):
    """Tell whether all the slots can be held at once."""
    together = threading.Barrier(slots)
    meeting = [scheduler.spawn(50, together.wait, PATIENCE) for _ in range(slots)]
    return sorted(each.result(PATIENCE) for each in meeting) == list(range(slots))


class TestTheApi:
    def test_submit_spawn_and_turn(self):
        with ThreadScheduler.bounded(max_concurrency=2) as scheduler:
            assert scheduler.submit(80, pow, 2, 3) == 8
            assert scheduler.submit(Priority.HIGH, int, "11", base=2) == 3
            assert scheduler.submit_normal(pow, 2, 4) == 16
            assert scheduler.spawn(20, pow, 2, 5).result(PATIENCE) == 32
            with scheduler.turn(priority=80, timeout=5.0):
                assert scheduler.stats().active_count == 1
            with scheduler.bind(tenant="a").turn():
                pass
            stats = scheduler.stats()
        assert stats.total_completed == 6
        assert (stats.high_priority_completed, stats.low_priority_completed) == (3, 1)
        assert balanced(stats)

    def test_submit_runs_in_the_callers_thread_and_spawn_does_not(self):
        with ThreadScheduler.bounded(1) as scheduler:
            here = threading.current_thread()
            assert scheduler.submit(50, threading.current_thread) is here
            assert scheduler.spawn(50, threading.current_thread).result(PATIENCE) is not here

    def test_all_keywords_go_to_the_function(self):
        def keywords(**given):
            return given

        given = {"priority": 1, "timeout": 2, "name": 3, "work": 4, "self": 5}
        with ThreadScheduler.bounded(1) as scheduler:
            assert scheduler.submit(50, keywords, **given) == given
            assert scheduler.spawn(50, keywords, **given).result(PATIENCE) == given

    def test_the_works_own_exception_and_no_slot_lost(self):
        error = KeyError("as it is")

        def fail():
            raise error

        with ThreadScheduler.bounded(1) as scheduler:
            for _ in range(5):
                with pytest.raises(KeyError) as caught:
                    scheduler.submit(50, fail)
                assert caught.value is error
                assert scheduler.spawn(50, fail).exception(PATIENCE) is error
            with pytest.raises(KeyError), scheduler.turn():
                raise error
            stats = scheduler.stats()
            assert (stats.total_completed, stats.total_failed) == (11, 11)
            assert usable(scheduler, 1)

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_more_than_an_exception_costs_no_worker_and_no_slot(self, error):
        def end():
            raise error

        with ThreadScheduler.bounded(1) as scheduler:
            assert isinstance(scheduler.spawn(50, end).exception(PATIENCE), error)
            with pytest.raises(error):
                scheduler.submit(50, end)
            assert usable(scheduler, 1)

    def test_unbounded_has_the_same_api(self):
        with ThreadScheduler.unbounded() as scheduler:
            assert usable(scheduler, 20)
            assert scheduler.submit(50, int) == 0
            with scheduler.turn():
                pass
            scheduler.resize(1)
            assert usable(scheduler, 20)
            assert not scheduler.stats().enabled
            assert scheduler.stats().total_completed == 42

    def test_resize(self):
        with ThreadScheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            waiting = scheduler.spawn(50, int)
            assert scheduler.stats().queued_count == 1
            scheduler.resize(2)
            assert waiting.result(PATIENCE) == 0
            busy.release()
            assert usable(scheduler, 2)
            scheduler.resize(1)
            assert scheduler.stats().max_concurrency == 1
            with pytest.raises(ConfigError):
                scheduler.resize(0)
        with (
            ThreadScheduler.bounded(capacity=TokenBucket(1.0, burst=1)) as scheduler,
            pytest.raises(Misuse, match="TokenBucket"),
        ):
            scheduler.resize(2)


def test_priority_then_arrival():
    order: list[int] = []
    with ThreadScheduler.bounded(1) as scheduler:
        busy = Busy(scheduler)
        futures = [
            scheduler.spawn(priority, order.append, priority * 10 + number)
            for number, priority in enumerate([20, 50, 80, 50, 100, 20])
        ]
        busy.release()
        wait(futures)
    assert order == [1004, 802, 501, 503, 200, 205]


def test_two_hundred_callers_at_once():
    running = most = 0
    guard = threading.Lock()
    start = threading.Barrier(200)

    def work(number):
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        with guard:
            running -= 1
        return number * 2

    def call(number):
        start.wait(PATIENCE)
        if number % 3 == 0:
            return scheduler.spawn(number % 101, work, number).result(PATIENCE)
        if number % 3 == 1:
            with scheduler.turn(number % 101):
                return work(number)
        return scheduler.submit(number % 101, work, number)

    with ThreadScheduler.bounded(4) as scheduler, ThreadPoolExecutor(200) as callers:
        assert list(callers.map(call, range(200))) == [number * 2 for number in range(200)]
        stats = scheduler.stats()
        assert stats.total_submitted == stats.total_completed == 200
        assert stats.high_priority_completed == sum(1 for n in range(200) if n % 101 >= 75)
        assert balanced(stats)
        assert most <= 4
        assert usable(scheduler, 4)


def test_the_limit_is_atomic_with_the_insert():
    start = threading.Barrier(100)

    def call(_):
        start.wait(PATIENCE)
        try:
            scheduler.spawn(50, int)
        except QueueFull:
            return 1
        return 0

    with ThreadScheduler.bounded(1, max_queue_size=10) as scheduler:
        busy = Busy(scheduler)
        with ThreadPoolExecutor(100) as callers:
            assert sum(callers.map(call, range(100))) == 90
        assert scheduler.stats().queued_count == 10
        with pytest.raises(QueueFull, match="10/10"):
            scheduler.submit(50, int)
        busy.release()


def test_a_storm_of_spawns_and_cancellations():
    def call(seed):
        futures = [scheduler.spawn((seed * 7 + n) % 101, int) for n in range(100)]
        for future in futures[:: 1 + seed % 3]:
            future.cancel()
        return wait(futures, PATIENCE)

    with ThreadScheduler.bounded(3) as scheduler:
        with ThreadPoolExecutor(16) as callers:
            assert all(not undone for _, undone in callers.map(call, range(32)))
        scheduler.shutdown()
        stats = scheduler.stats()
    assert stats.total_submitted == 3200
    assert balanced(stats)


class TestCancel:
    def test_while_queued_withdraws(self):
        with ThreadScheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            waiting, following = scheduler.spawn(80, pytest.fail), scheduler.spawn(20, int)
            assert waiting.cancel()
            assert waiting.cancelled()
            assert waiting.cancel()  # as with any future of its kind
            with pytest.raises(CancelledError):
                waiting.result(PATIENCE)
            assert scheduler.stats().queued_count == 1
            busy.release()
            assert following.result(PATIENCE) == 0
        stats = scheduler.stats()
        assert stats.total_cancelled == 1
        assert balanced(stats)

    def test_while_running_or_done_does_nothing(self):
        with ThreadScheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            assert not busy.futures[0].cancel()
            busy.release()
            assert not busy.futures[0].cancel()
            assert busy.futures[0].result(PATIENCE) is None
            assert scheduler.stats().total_cancelled == 0

    def test_result_with_a_timeout_leaves_the_work_alone(self):
        with ThreadScheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            with pytest.raises(TimeoutError):
                busy.futures[0].result(0)
            busy.release()
            assert busy.futures[0].result(PATIENCE) is None


class TestTimeouts:
    """A few real milliseconds: they are what is tested, and nothing is synchronised by them."""

    def test_a_turn_that_waits_too_long(self):
        with ThreadScheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            with pytest.raises(WaitedTooLong), scheduler.turn(timeout=0.005):
                pytest.fail("there was no slot")
            with pytest.raises(WaitedTooLong), scheduler.turn(timeout=0):
                pytest.fail("there was no slot")
            with pytest.raises(WaitedTooLong):
                scheduler.bind(timeout="5ms").submit(50, int)
            with pytest.raises(WaitedTooLong):
                scheduler.bind(timeout="5ms").spawn(50, int).result(PATIENCE)
            busy.release()
            with scheduler.turn(timeout=0):
                pass
            assert scheduler.stats().total_expired >= 3
        assert balanced(scheduler.stats())

    def test_a_sooner_one_is_not_kept_by_a_later_one(self):
        with ThreadScheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            later = scheduler.bind(timeout="1h").spawn(50, int)
            sooner = scheduler.bind(timeout="5ms").spawn(50, int)
            assert isinstance(sooner.exception(PATIENCE), WaitedTooLong)
            assert not later.done()
            busy.release()
            assert later.result(PATIENCE) == 0
        # The timer thread has ended though its next time was an hour away (see no_thread_remains).

    def test_a_token_bucket_wakes_waiters_as_time_passes(self):
        with ThreadScheduler.bounded(capacity=TokenBucket(500.0, burst=1)) as scheduler:
            futures = [scheduler.spawn(50, int) for _ in range(10)]
            assert [future.result(PATIENCE) for future in futures] == [0] * 10
            assert scheduler.submit(50, int) == 0

    def test_a_hold_that_expires_is_counted_once(self):
        with ThreadScheduler.bounded(capacity=InFlight(1, expire_after=0.005)) as scheduler:
            busy = Busy(scheduler)
            assert scheduler.spawn(50, int).result(PATIENCE) == 0
            with scheduler.turn():
                assert scheduler.spawn(50, int).result(PATIENCE) == 0
            busy.release()
            assert busy.futures[0].exception(PATIENCE) is None
        assert balanced(scheduler.stats())


class TestLateTimer:
    """What a timer that comes very late finds: holds that began and ended before anybody was told."""

    @staticmethod
    def late(scheduler: ThreadScheduler, seconds: float) -> None:
        """Let the gate's time pass at once; the lock is held, so nobody has noticed anything meanwhile."""
        gate = scheduler._gate
        gate.after(gate.gate.advance(gate.now() + seconds))

    def test_work_whose_hold_ended_before_a_worker_had_it_runs(self):
        with ThreadScheduler.bounded(capacity=InFlight(1, expire_after=60)) as scheduler:
            with scheduler._gate.lock:
                future = scheduler.spawn(50, int)
                self.late(scheduler, 61)
            assert future.result(PATIENCE) == 0
        assert balanced(scheduler.stats())

    def test_work_that_would_have_started_and_ended_meanwhile_is_answered(self):
        with ThreadScheduler.bounded(capacity=InFlight(1, expire_after=60)) as scheduler:
            busy = Busy(scheduler)
            with scheduler._gate.lock:
                future = scheduler.spawn(50, int)
                self.late(scheduler, 121)
            assert isinstance(future.exception(PATIENCE), WaitedTooLong)
            busy.release()
        assert balanced(scheduler.stats())

    def test_a_caller_that_would_have_had_its_turn_meanwhile_is_answered(self):
        with ThreadScheduler.bounded(capacity=InFlight(1, expire_after=60)) as scheduler:
            busy = Busy(scheduler)
            with ThreadPoolExecutor(1) as callers:
                call = callers.submit(scheduler.submit, 50, int)
                until_waiting(scheduler, 1)
                with scheduler._gate.lock:
                    self.late(scheduler, 121)
                assert isinstance(call.exception(PATIENCE), WaitedTooLong)
            busy.release()
        assert balanced(scheduler.stats())


class TestShutdown:
    def test_leaving_the_block_drains(self):
        with ThreadScheduler.bounded(1) as scheduler:
            futures = [scheduler.spawn(50, pow, 2, number) for number in range(20)]
        assert [future.result(0) for future in futures] == [2**number for number in range(20)]
        assert scheduler.stats().shutting_down
        for ask in (scheduler.submit, scheduler.spawn):
            with pytest.raises(ShuttingDown):
                ask(50, int)
        with pytest.raises(ShuttingDown), scheduler.turn():
            pass
        scheduler.shutdown()
        scheduler.shutdown("abort")

    def test_abort_answers_every_waiter(self):
        scheduler = ThreadScheduler.bounded(1)
        busy = Busy(scheduler)
        spawned = scheduler.spawn(50, int)
        with ThreadPoolExecutor(3) as callers:
            submitted = callers.submit(scheduler.submit, 50, int)
            until_waiting(scheduler, 2)
            closing = callers.submit(scheduler.shutdown, "abort")
            for waiter in (spawned, submitted):
                assert isinstance(waiter.exception(PATIENCE), ShuttingDown)
            assert not closing.done()
            busy.release()
            closing.result(PATIENCE)
        stats = scheduler.stats()
        assert (stats.total_completed, stats.total_cancelled) == (1, 2)
        assert balanced(stats)

    def test_a_timeout_aborts_the_rest(self):
        scheduler = ThreadScheduler.bounded(1)
        busy = Busy(scheduler)
        waiting = scheduler.spawn(50, int)
        with pytest.raises(WaitedTooLong):
            scheduler.shutdown(timeout=0)
        assert isinstance(waiting.exception(PATIENCE), ShuttingDown)
        busy.release()
        scheduler.shutdown()
        assert balanced(scheduler.stats())

    def test_from_inside_its_own_work_it_is_misuse(self):
        with ThreadScheduler.bounded(2) as scheduler:

            def close(first):
                if first:
                    scheduler.submit(50, int)
                with pytest.raises(Misuse, match="wait for itself"):
                    scheduler.shutdown()
                return "refused"

            for first in (False, True):
                assert scheduler.submit(50, close, first) == "refused"
                assert scheduler.spawn(50, close, first).result(PATIENCE) == "refused"
                with scheduler.turn():
                    assert close(first) == "refused"
            assert not scheduler.stats().shutting_down

    def test_several_at_once(self):
        scheduler = ThreadScheduler.bounded(1)
        busy = Busy(scheduler)
        with ThreadPoolExecutor(4) as callers:
            closing = [callers.submit(scheduler.shutdown) for _ in range(4)]
            busy.release()
            for each in closing:
                each.result(PATIENCE)
        assert balanced(scheduler.stats())

    @pytest.mark.parametrize("how", ["abort", "cancel", "expire"])
    def test_a_drain_ends_when_what_waits_goes_away_with_nothing_running(self, how):
        scheduler = ThreadScheduler.bounded(capacity=TokenBucket(1 / 3600, burst=1))
        scheduler.submit(50, int)
        timeout = "5ms" if how == "expire" else "1h"
        waiting = scheduler.bind(timeout=timeout).spawn(50, int)
        with ThreadPoolExecutor(1) as callers:
            draining = callers.submit(scheduler.shutdown)
            while not scheduler.stats().shutting_down:
                pass
            if how == "abort":
                scheduler.shutdown("abort")
            elif how == "cancel":
                waiting.cancel()
            draining.result(PATIENCE)
        assert waiting.done()
        assert balanced(scheduler.stats())

    def test_an_exception_in_the_block_is_raised_after_the_drain(self):
        with pytest.raises(KeyError), ThreadScheduler.bounded(1) as scheduler:
            future = scheduler.spawn(50, int)
            raise KeyError
        assert future.result(0) == 0

    def test_a_bad_mode_changes_nothing(self):
        with ThreadScheduler.bounded(1) as scheduler:
            with pytest.raises(ConfigError, match="drain"):
                scheduler.shutdown("now")  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="timeout"):
                scheduler.shutdown(timeout="5")
            assert scheduler.submit(50, int) == 0


class TestBadInput:
    @pytest.mark.parametrize("priority", BAD_PRIORITIES, ids=repr)
    def test_priorities(self, priority):
        with ThreadScheduler.bounded(1) as scheduler:
            before = scheduler.stats()
            for ask in (scheduler.submit, scheduler.spawn):
                with pytest.raises(ConfigError, match="priority must be an integer"):
                    ask(priority, int)
            with pytest.raises(ConfigError), scheduler.turn(priority):
                pass
            assert scheduler.stats() == before

    def test_clamping(self):
        with ThreadScheduler.bounded(1) as scheduler:
            scheduler.submit(-10, int)
            scheduler.submit(150, int)
            stats = scheduler.stats()
        assert (stats.high_priority_completed, stats.low_priority_completed) == (1, 1)
        assert stats.total_clamped == 2

    def test_work(self):
        with ThreadScheduler.bounded(1) as scheduler:
            before = scheduler.stats()
            coroutine = double(1)
            works: list[Any] = [coroutine, double, None, 5]
            for work in works:
                for ask in (scheduler.submit, scheduler.spawn):
                    with pytest.raises(ConfigError):
                        ask(50, work)
            assert closed(coroutine)
            assert scheduler.stats() == before

    def test_a_turn_is_for_one_block(self):
        with ThreadScheduler.bounded(2) as scheduler:
            turn = scheduler.turn()
            with turn, pytest.raises(Misuse, match="entered before"):
                turn.__enter__()
            assert balanced(scheduler.stats())


class TestSelfDeadlock:
    @pytest.mark.parametrize("asking", ["submit", "turn"])
    @pytest.mark.parametrize("holding", ["submit", "turn", "spawn"])
    def test_is_warned_of_and_as_an_error_leaves_nothing_behind(self, holding, asking):
        with ThreadScheduler.bounded(1) as scheduler:

            def outer():
                with pytest.raises(SelfDeadlockWarning, match="max_concurrency=1"):
                    if asking == "submit":
                        scheduler.submit(50, int)
                    else:
                        scheduler.turn().__enter__()
                assert scheduler.stats().queued_count == 0
                return "outer"

            if holding == "submit":
                assert scheduler.submit(50, outer) == "outer"
            elif holding == "spawn":
                assert scheduler.spawn(50, outer).result(PATIENCE) == "outer"
            else:
                with scheduler.turn():
                    assert outer() == "outer"
            assert balanced(scheduler.stats())
            assert usable(scheduler, 1)

    def test_not_while_another_slot_is_free(self):
        with ThreadScheduler.bounded(2) as scheduler:
            assert scheduler.submit(50, scheduler.submit, 50, int) == 0
            with scheduler.turn(), scheduler.turn():
                assert scheduler.stats().active_count == 2
            assert usable(scheduler, 2)

    def test_also_after_a_nested_submit_that_went_well(self):
        with ThreadScheduler.bounded(2) as scheduler:

            def outer():
                scheduler.submit(50, int)
                scheduler.resize(1)
                with pytest.raises(SelfDeadlockWarning):
                    scheduler.submit(50, int)

            scheduler.submit(50, outer)

    def test_a_waiter_that_was_warned_runs_when_there_is_room(self):
        with (
            ThreadScheduler.bounded(1) as scheduler,
            ThreadPoolExecutor(1) as callers,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            nested = callers.submit(scheduler.submit, 50, scheduler.submit, 50, int)
            until_waiting(scheduler, 1)
            scheduler.resize(2)
            assert nested.result(PATIENCE) == 0


class TestBrokenPolicies:
    def test_a_key_that_fails_is_the_submitters_error(self):
        class Fussy(Policy):
            def key(self, ticket):
                if ticket.tenant == "bad":
                    raise ZeroDivisionError
                return ticket.seq

        with ThreadScheduler.bounded(1, policy=Fussy()) as scheduler:
            busy = Busy(scheduler)
            for ask in (scheduler.bind(tenant="bad").spawn, scheduler.bind(tenant="bad").submit):
                with pytest.raises(PolicyError, match="Fussy"):
                    ask(50, int)
            fine = scheduler.spawn(50, int)
            busy.release()
            assert fine.result(PATIENCE) == 0
            assert balanced(scheduler.stats())

    def test_a_pick_that_fails_is_logged_and_costs_no_slot(self, caplog):
        class Moody(Policy):
            broken = False

            def pick(self, admit, now):
                if self.broken:
                    raise ZeroDivisionError
                return super().pick(admit, now)

        policy = Moody()
        with ThreadScheduler.bounded(1, policy=policy) as scheduler:
            busy = Busy(scheduler)
            waiting = scheduler.spawn(50, int)
            policy.broken = True
            busy.release()
            assert scheduler.stats().active_count == 0
            policy.broken = False
            assert scheduler.spawn(50, int).result(PATIENCE) == 0
            assert waiting.result(PATIENCE) == 0
        assert "a policy failed" in caplog.text
        assert balanced(scheduler.stats())

    def test_what_was_started_before_the_failure_is_told(self):
        class FailsAt(Policy):
            def pick(self, admit, now):
                head = self.head(now)
                if head is not None and head.tenant == "bad":
                    raise ZeroDivisionError
                return super().pick(admit, now)

        with ThreadScheduler.bounded(1, policy=FailsAt()) as scheduler:
            busy = Busy(scheduler)
            good = scheduler.spawn(50, int)
            bad = scheduler.bind(tenant="bad").spawn(50, int)
            with pytest.raises(PolicyError):
                scheduler.resize(3)
            assert good.result(PATIENCE) == 0
            bad.cancel()
            busy.release()
        assert balanced(scheduler.stats())


def test_the_wait_of_work_whose_hold_expired_is_told_before_and_after_it_ends():
    """As in test_stats: here the second starts because the first has expired."""
    release, second = threading.Event(), threading.Event()

    def work():
        second.set()
        release.wait(PATIENCE)

    with ThreadScheduler.bounded(capacity=InFlight(1, expire_after=0.05)) as scheduler:
        expired = scheduler.spawn(20, release.wait, PATIENCE)
        running = scheduler.spawn(20, work)
        assert second.wait(PATIENCE)
        during = scheduler.stats().waits["low"].counts
        release.set()
        wait([expired, running])
    after = scheduler.stats().waits["low"].counts
    assert (during[0], sum(during)) == (after[0], sum(after)) == (1, 2)


def test_explain_says_why_spawned_work_waits():
    with ThreadScheduler.bounded(1) as scheduler:
        busy = Busy(scheduler)
        waiting = scheduler.spawn(20, int)
        assert "all 1 slots are in use" in str(scheduler.explain(waiting))
        busy.release()


def test_workers_are_kept_for_the_next_work():
    with ThreadScheduler.bounded(1) as scheduler:
        names = {scheduler.spawn(50, threading.get_ident).result(PATIENCE) for _ in range(50)}
        assert len(names) <= 2


def test_an_interrupt_of_a_waiting_caller_withdraws_it(monkeypatch):
    """Ctrl-C arrives while the main thread waits for its slot."""

    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    with ThreadScheduler.bounded(1) as scheduler:
        busy = Busy(scheduler)
        module = sys.modules["fairlead.tasks.threads"]
        with monkeypatch.context() as patch:
            patch.setattr(module.threading, "Event", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                scheduler.submit(50, int)
        assert scheduler.stats().queued_count == 0
        busy.release()
        assert usable(scheduler, 1)
    assert balanced(scheduler.stats())


def test_a_turn_left_in_another_thread_gives_its_slot_back():
    """As of a generator that one thread begins and another closes."""
    with ThreadScheduler.bounded(1) as scheduler:

        def rows():
            with scheduler.turn():
                yield 1

        generator = rows()
        thread = threading.Thread(target=next, args=(generator,))
        thread.start()
        thread.join()
        assert scheduler.stats().active_count == 1
        generator.close()
        assert scheduler.stats().active_count == 0
        assert not scheduler._gate.owners
        assert usable(scheduler, 1)
    assert balanced(scheduler.stats())


def test_spawned_work_sees_the_context_of_its_spawner_and_what_it_sets_stays_its_own():
    variable = ContextVar("variable", default="unset")
    with ThreadScheduler.bounded(1) as scheduler:
        variable.set("mine")
        assert scheduler.spawn(50, variable.get).result(PATIENCE) == "mine"
        scheduler.spawn(50, variable.set, "its own").result(PATIENCE)
        assert variable.get() == "mine"
        assert scheduler.spawn(50, variable.get).result(PATIENCE) == "mine"
