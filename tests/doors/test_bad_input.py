"""Bad input: a clear error, nothing changed, no coroutine left un-awaited (promises §3, door A)."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from fairlead import (
    ConfigError,
    Misuse,
    Scheduler,
    SelfDeadlockWarning,
    SharedPool,
    ThreadScheduler,
    TokenBucket,
)
from fairlead.testing import run_virtual
from tests.doors.rig import MAKERS, Busy, balanced, ticks, usable
from tests.doors.test_submit import closed, double

BAD_PRIORITIES = [
    float("nan"),
    float("inf"),
    float("-inf"),
    True,
    False,
    "80",
    "high",
    b"80",
    Decimal(80),
    Fraction(80),
    80.0,
    1e308,
    None,
    [80],
    object(),
    80j,
]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("priority", BAD_PRIORITIES, ids=repr)
class TestPriority:
    def test_is_refused_by_every_verb_and_nothing_has_changed(self, make, priority):
        async def main():
            async with make() as scheduler:
                before = scheduler.stats()
                for ask in (scheduler.submit, scheduler.spawn):
                    work = double(1)
                    with pytest.raises(ConfigError, match=r"priority must be an integer 0\.\.100"):
                        await ask(priority, work)
                    assert closed(work)
                    with pytest.raises(ConfigError):
                        await ask(priority, double, 1)
                with pytest.raises(ConfigError, match="priority"):
                    async with scheduler.turn(priority):
                        pass
                assert scheduler.stats() == before
                assert await usable(scheduler, 2)

        run_virtual(main())


def test_the_message_shows_what_was_given_at_a_bearable_length():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            with pytest.raises(ConfigError, match="got nan"):
                await scheduler.submit(float("nan"), int)  # type: ignore[arg-type]
            with pytest.raises(ConfigError) as caught:
                await scheduler.submit("x" * 10_000, int)  # type: ignore[arg-type]
            assert len(str(caught.value)) < 250
            with pytest.raises(ConfigError) as caught:
                await scheduler.submit("\x1b[31m\n\u202e", int)  # type: ignore[arg-type]
            assert str(caught.value).isascii()
            assert str(caught.value).isprintable()

    run_virtual(main())


@pytest.mark.parametrize("given", [10**5000, -(10**5000)], ids=["far above", "far below"])
def test_a_number_too_long_to_print_is_clamped_like_another(given):
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            assert await scheduler.submit(given, double, 1) == 2
            assert scheduler.stats().total_clamped == 1
            assert balanced(scheduler.stats())

    run_virtual(main())


@pytest.mark.parametrize("work", [None, 5, "fetch", [], ...], ids=repr)
def test_work_that_cannot_be_run_is_refused_and_nothing_has_changed(work):
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            before = scheduler.stats()
            for ask in (scheduler.submit, scheduler.spawn):
                with pytest.raises(ConfigError, match="work must be a function or an awaitable"):
                    await ask(50, work)
            with pytest.raises(ConfigError):
                await scheduler.submit_normal(work)
            assert scheduler.stats() == before
            assert await usable(scheduler, 1)

    run_virtual(main())


def test_a_coroutine_object_takes_no_arguments():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            before = scheduler.stats()
            for ask in (scheduler.submit, scheduler.spawn):
                for args, kwargs in (((1,), {}), ((), {"plus": 1})):
                    work = double(1)
                    with pytest.raises(ConfigError, match="takes no arguments"):
                        await ask(50, work, *args, **kwargs)
                    assert closed(work)
            assert scheduler.stats() == before

    run_virtual(main())


def test_no_awaitable_takes_arguments():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            future = asyncio.get_running_loop().create_future()
            for ask in (scheduler.submit, scheduler.spawn):
                with pytest.raises(ConfigError, match="takes no arguments"):
                    await ask(50, future, 1)
            assert scheduler.stats().total_submitted == 0

    run_virtual(main())


def test_a_coroutine_that_was_already_awaited_is_misuse():
    async def main():
        async with Scheduler.bounded(1) as scheduler:
            before = scheduler.stats()
            for ask in (scheduler.submit, scheduler.spawn):
                spent = double(1)
                await spent
                with pytest.raises(Misuse, match="already awaited"):
                    await ask(50, spent)
            assert scheduler.stats() == before

    run_virtual(main())


@pytest.mark.parametrize("verb", ["submit", "spawn"])
def test_a_coroutine_under_way_elsewhere_is_left_alone(verb):
    """Closing it would end the work of whoever awaits it."""

    async def main():
        async with Scheduler.bounded(1) as scheduler:

            async def slow():
                await asyncio.sleep(1)
                return "done"

            coroutine = slow()
            elsewhere = asyncio.create_task(coroutine)
            await ticks(2)
            with pytest.raises(Misuse, match="already awaited"):
                await getattr(scheduler, verb)(50, coroutine)
            assert await elsewhere == "done"

    run_virtual(main())


class TestAnotherLoopOrThread:
    def test_another_loop(self):
        async def main():
            async with Scheduler.bounded(1) as scheduler:
                await scheduler.submit(50, int)
                before = scheduler.stats()
                caught: list[BaseException] = []

                async def foreign():
                    for ask in (scheduler.submit, scheduler.spawn):
                        work = double(1)
                        try:
                            await ask(50, work)
                        except Misuse as error:
                            caught.append(error)
                        assert closed(work)
                        try:
                            await ask(50, double, 1)
                        except Misuse as error:
                            caught.append(error)
                    for deed in (scheduler.shutdown, scheduler.turn().__aenter__):
                        try:
                            await deed()
                        except Misuse as error:
                            caught.append(error)
                    try:
                        scheduler.resize(5)
                    except Misuse as error:
                        caught.append(error)

                thread = threading.Thread(target=asyncio.run, args=(foreign(),))
                thread.start()
                thread.join()
                assert len(caught) == 7
                assert all("another event loop" in str(error) for error in caught)
                assert scheduler.stats() == before

        run_virtual(main())

    def test_a_thread_without_a_loop(self):
        async def main():
            async with Scheduler.bounded(1) as scheduler:
                await scheduler.submit(50, int)
                before = scheduler.stats()
                caught: list[BaseException] = []

                def foreign():
                    work = double(1)
                    for deed in (
                        lambda: scheduler.spawn(50, work),
                        lambda: scheduler.spawn(50, double, 1),
                        lambda: scheduler.submit(50, int).send(None),
                        lambda: scheduler.submit(50, double, 1).send(None),
                        lambda: scheduler.resize(3),
                    ):
                        try:
                            deed()
                        except Misuse as error:
                            caught.append(error)
                    assert closed(work)

                thread = threading.Thread(target=foreign)
                thread.start()
                thread.join()
                assert len(caught) == 5
                assert all("outside the event loop" in str(error) for error in caught)
                assert all("ThreadScheduler" in str(error) for error in caught)
                assert scheduler.stats() == before

        run_virtual(main())

    def test_one_loop_after_another_is_fine_while_nothing_runs(self):
        scheduler = Scheduler.bounded(1)

        async def main():
            return await scheduler.spawn(50, double, 1) + await scheduler.submit(50, double, 1)

        assert run_virtual(main()) == run_virtual(main()) == asyncio.run(main()) == 4
        run_virtual(scheduler.shutdown())
        assert balanced(scheduler.stats())

    def test_before_any_loop_a_scheduler_can_be_made_and_looked_at(self):
        for make in MAKERS.values():
            assert make().stats().total_submitted == 0

    def test_a_fork_after_the_start_is_told_apart(self):
        """Neither twin may hang or run the parent's work in the child."""
        program = """
            import asyncio, os, sys, warnings
            from fairlead import Misuse, Scheduler, ThreadScheduler

            def in_child(check):
                sys.stdout.flush()
                pid = os.fork()
                if pid == 0:
                    try:
                        check()
                    except Misuse as error:
                        print("Misuse:", error, flush=True)
                    finally:
                        os._exit(0)
                os.waitpid(pid, 0)

            async def main():
                async with Scheduler.bounded(1) as scheduler:
                    await scheduler.spawn(50, int)
                    async def ask(work):
                        await scheduler.submit(50, work)
                    in_child(lambda: asyncio.run(ask(int)))
                    in_child(lambda: asyncio.run(ask(lambda: None)))

            asyncio.run(main())
            warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, from 3.12 on
            with ThreadScheduler.bounded(1) as threads:
                threads.spawn(50, int).result()
                in_child(lambda: threads.spawn(50, int).result(10))
                in_child(lambda: threads.submit(50, int))
                assert threads.spawn(50, int).result() == 0
            print("parent ended")
        """
        ran = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        *told, last = ran.stdout.splitlines()
        assert last == "parent ended", ran.stderr
        assert len(told) == 4
        assert all(line.startswith("Misuse:") for line in told)
        assert all("fork" in line for line in told[2:])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": -1}, "max_concurrency"),
        ({"max_concurrency": None}, "max_concurrency"),
        ({"max_concurrency": 10**9}, "max_concurrency"),
        ({"max_concurrency": True}, "max_concurrency"),
        ({"max_concurrency": 4.0}, "max_concurrency"),
        ({"max_concurrency": "4"}, "max_concurrency"),
        ({"max_queue_size": -1}, "max_queue_size"),
        ({"max_queue_size": None}, "max_queue_size"),
        ({"max_queue_size": True}, "max_queue_size"),
        ({"max_queue_size": 1.5}, "max_queue_size"),
        ({"starvation_timeout": "30"}, "starvation_timeout"),
        ({"starvation_timeout": "-5s"}, "starvation_timeout"),
        ({"starvation_timeout": "٣٠s"}, "starvation_timeout"),
        ({"starvation_timeout": "30 parsecs"}, "starvation_timeout"),
        ({"starvation_timeout": "s"}, "starvation_timeout"),
        ({"starvation_timeout": ""}, "starvation_timeout"),
        ({"starvation_timeout": "1,5s"}, "starvation_timeout"),
        ({"starvation_timeout": 0}, "starvation_timeout"),
        ({"starvation_timeout": -5}, "starvation_timeout"),
        ({"starvation_timeout": float("nan")}, "starvation_timeout"),
        ({"starvation_timeout": float("inf")}, "starvation_timeout"),
        ({"starvation_timeout": True}, "starvation_timeout"),
        ({"starvation_timeout": None}, "starvation_timeout"),
        ({"starvation_timeout": 1e-320}, "starvation_timeout"),
        ({"starvation_timeout": "9" * 400 + "s"}, "starvation_timeout"),
        ({"policy": "fifo"}, "policy"),
        ({"policy": Scheduler}, "policy"),
        ({"capacity": 4}, "capacity"),
        ({"capacity": "slots"}, "capacity"),
    ],
    ids=repr,
)
class TestSettings:
    """`bounded()` raises at the call, and says which argument is wrong."""

    def test_scheduler(self, settings: dict[str, Any], named):
        with pytest.raises(ConfigError, match=named):
            Scheduler.bounded(**settings)

    def test_threads(self, settings: dict[str, Any], named):
        with pytest.raises(ConfigError, match=named):
            ThreadScheduler.bounded(**settings)

    def test_pool(self, settings: dict[str, Any], named):
        pool = {key: settings[key] for key in ("max_concurrency", "capacity") if key in settings}
        member = {key: value for key, value in settings.items() if key not in pool}
        with pytest.raises(ConfigError, match=named):
            SharedPool(**pool).scheduler(**member)


@pytest.mark.parametrize("total", [0, -1, None, True, 2.0, "2", 10**9])
def test_a_bad_resize_changes_nothing(total):
    async def main():
        async with Scheduler.bounded(2) as scheduler:
            before = scheduler.stats()
            with pytest.raises(ConfigError, match="max_concurrency"):
                scheduler.resize(total)
            assert scheduler.stats() == before
            assert await usable(scheduler, 2)

    run_virtual(main())


class TestSelfDeadlock:
    """Work that waits for a slot while every slot is held by such waiters is warned of, and only then."""

    async def tried(self, scheduler, holding, asking):
        """Hold a slot in one way and ask for another from inside; tell what was warned."""

        async def inner():
            return "inner"

        async def ask():
            if asking == "submit":
                return await scheduler.submit(50, inner)
            async with scheduler.turn():
                return await inner()

        async def hold():
            async with scheduler.turn():
                return await ask()

        outer: asyncio.Future[Any]
        if holding == "submit":
            outer = asyncio.create_task(scheduler.submit(50, ask))
        elif holding == "spawn":
            outer = scheduler.spawn(50, ask)
        else:
            outer = asyncio.create_task(hold())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await ticks()
        warned = [warning.category for warning in caught]
        scheduler.resize(10)
        assert await outer == "inner"
        return warned, [str(warning.message) for warning in caught]

    @pytest.mark.parametrize("asking", ["submit", "turn"])
    @pytest.mark.parametrize("holding", ["submit", "turn", "spawn"])
    def test_with_one_slot(self, holding, asking):
        async def main():
            async with Scheduler.bounded(1) as scheduler:
                return await self.tried(scheduler, holding, asking)

        warned, messages = run_virtual(main())
        assert warned == [SelfDeadlockWarning]
        assert messages[0].startswith("deadlock: submit from inside a task while max_concurrency=1")

    @pytest.mark.parametrize("asking", ["submit", "turn"])
    @pytest.mark.parametrize("holding", ["submit", "turn", "spawn"])
    def test_not_while_another_slot_is_free(self, holding, asking):
        async def main():
            async with Scheduler.bounded(2) as scheduler:
                return await self.tried(scheduler, holding, asking)

        assert run_virtual(main()) == ([], [])

    @pytest.mark.parametrize("holding", ["submit", "turn", "spawn"])
    def test_not_while_another_slot_will_come_free(self, holding):
        async def main():
            async with Scheduler.bounded(2) as scheduler:
                busy = Busy(scheduler)
                tried = await self.tried(scheduler, holding, "submit")
                await busy.release()
                return tried

        assert run_virtual(main()) == ([], [])

    @pytest.mark.parametrize("holding", ["submit", "spawn"])
    def test_when_the_last_of_several_holders_starts_to_wait(self, holding):
        async def main():
            async with Scheduler.bounded(3) as scheduler:
                started = asyncio.Event()

                async def outer(delay):
                    await asyncio.sleep(delay)
                    if delay == 2:
                        started.set()
                    return await scheduler.submit(50, double, delay)

                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    outers: list[asyncio.Future[Any]] = [
                        scheduler.spawn(50, outer, delay)
                        if holding == "spawn"
                        else asyncio.create_task(scheduler.submit(50, outer, delay))
                        for delay in range(3)
                    ]
                    await asyncio.sleep(1.5)
                    assert not caught
                    await started.wait()
                    await ticks()
                assert [warning.category for warning in caught] == [SelfDeadlockWarning]
                scheduler.resize(4)
                assert await asyncio.gather(*outers) == [0, 2, 4]

        run_virtual(main())

    @pytest.mark.parametrize("holding", ["submit", "spawn"])
    def test_also_after_a_nested_submit_that_went_well(self, holding):
        async def main():
            async with Scheduler.bounded(2) as scheduler:

                async def outer():
                    await scheduler.submit(50, int)
                    scheduler.resize(1)
                    return await scheduler.submit(50, double, 1)

                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    asked: asyncio.Future[Any] = (
                        scheduler.spawn(50, outer)
                        if holding == "spawn"
                        else asyncio.create_task(scheduler.submit(50, outer))
                    )
                    await ticks()
                scheduler.resize(2)
                assert await asked == 2
                return [warning.category for warning in caught]

        assert run_virtual(main()) == [SelfDeadlockWarning]

    def test_not_behind_another_at_a_bucket_of_the_same_label(self):
        async def main():
            bucket = TokenBucket(1, burst=1, by=lambda ticket: ticket.tenant)
            async with Scheduler.bounded(capacity=bucket) as scheduler:
                bound = scheduler.bind(tenant="a")
                async with bound.turn():
                    first = asyncio.create_task(bound.submit(50, double, 1))
                    await ticks()
                    with warnings.catch_warnings(record=True) as caught:
                        warnings.simplefilter("always")
                        assert await bound.submit(50, double, 2) == 4
                assert await first == 2
                return caught

        assert run_virtual(main()) == []

    def test_between_two_members_of_a_pool(self):
        async def main():
            pool = SharedPool(max_concurrency=1)
            one, two = pool.scheduler(), pool.scheduler()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                outer = one.spawn(50, lambda: two.submit(50, double, 1))
                await ticks()
            pool.resize(2)
            assert await outer == 2
            return [warning.category for warning in caught]

        assert run_virtual(main()) == [SelfDeadlockWarning]

    def test_spawning_from_inside_waits_for_nothing(self):
        async def main():
            async with Scheduler.bounded(1) as scheduler:

                async def outer():
                    return scheduler.spawn(50, double, 1)

                return await (await scheduler.submit(50, outer))

        assert run_virtual(main()) == 2

    @pytest.mark.parametrize("holding", ["submit", "turn", "spawn"])
    def test_as_an_error_it_leaves_nothing_behind(self, holding):
        """Under `-W error` the warning is raised at the submit: it does not wait, and its coroutine is closed."""

        async def main():
            async with Scheduler.bounded(1) as scheduler:
                work = double(1)

                async def outer():
                    with pytest.raises(SelfDeadlockWarning):
                        await scheduler.submit(50, work)
                    assert closed(work)
                    assert scheduler.stats().queued_count == 0
                    return "outer"

                if holding == "turn":
                    async with scheduler.turn():
                        assert await outer() == "outer"
                else:
                    assert await getattr(scheduler, holding)(50, outer) == "outer"
                assert balanced(scheduler.stats())
                assert await usable(scheduler, 1)

        run_virtual(main())
        gc.collect()


def test_a_clock_that_steps_back_harms_nothing():
    """The loop's clock is monotonic; should one step back, time stands still for the gate."""

    async def main():
        loop: Any = asyncio.get_running_loop()
        async with Scheduler.bounded(1) as scheduler:
            journal: list[str] = []
            await asyncio.sleep(100)
            busy = Busy(scheduler)
            scheduler.spawn(0, journal.append, "first")
            loop._jumping.now -= 50
            scheduler.spawn(0, journal.append, "second")
            scheduler.spawn(1, journal.append, "higher")
            await busy.release()
            await asyncio.sleep(100)
            assert journal == ["higher", "first", "second"]
            assert scheduler.stats().starvation_promotions == 0
            assert balanced(scheduler.stats())

    run_virtual(main())


def test_settings_are_checked_under_python_o():
    program = (
        "import asyncio\n"
        "from fairlead import ConfigError, Scheduler\n"
        "async def main():\n"
        "    async with Scheduler.bounded(1) as s:\n"
        "        try:\n"
        "            await s.submit(True, int)\n"
        "        except ConfigError:\n"
        "            return await s.spawn(50, pow, 2, 3)\n"
        "print(asyncio.run(main()))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-O", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == "8\n"
