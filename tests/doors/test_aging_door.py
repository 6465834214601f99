"""Aging seen through the door: the seed's table, scaled; the bound on waiting; order against a reference."""

import asyncio
import random
from fractions import Fraction

import pytest

from fairlead import Scheduler
from fairlead.testing import run_virtual
from tests.doors.rig import Busy, Journal, ticks

# Waited so many seconds, a task of priority 0 stands at: the table of the seed.
TABLE = [(5, 10), (10, 20), (15, 30), (20, 40), (25, 50), (30, 60), (50, 100)]
MOMENT = 0.01


async def first_of(waited, newcomer, starvation_timeout="30s", patient=0):
    """Let a patient one wait, then let a newcomer come and the slot come free; tell who goes first."""
    journal = Journal()
    async with Scheduler.bounded(1, starvation_timeout=starvation_timeout) as scheduler:
        busy = Busy(scheduler)
        scheduler.spawn(patient, journal.note, "patient")
        await asyncio.sleep(waited)
        scheduler.spawn(newcomer, journal.note, "newcomer")
        await busy.release()
    return journal[0]


@pytest.mark.parametrize(("waited", "effective"), TABLE)
class TestTable:
    def test_just_before_the_newcomer_of_that_priority_goes_first(self, waited, effective):
        assert run_virtual(first_of(waited - MOMENT, effective)) == "newcomer"

    def test_at_that_time_arrival_decides(self, waited, effective):
        assert run_virtual(first_of(waited, effective)) == "patient"

    def test_just_after_the_patient_one_goes_first(self, waited, effective):
        assert run_virtual(first_of(waited + MOMENT, effective)) == "patient"

    def test_one_point_more_still_beats_it(self, waited, effective):
        expected = "patient" if effective == 100 else "newcomer"
        assert run_virtual(first_of(waited, effective + 1)) == expected

    @pytest.mark.parametrize(("timeout", "factor"), [("60s", 2), ("10s", 1 / 3), (15, 0.5)])
    def test_the_times_scale_with_the_timeout(self, waited, effective, timeout, factor):
        for moment, expected in ((-MOMENT, "newcomer"), (MOMENT, "patient")):
            asked = first_of(waited * factor + moment, effective, timeout)
            assert run_virtual(asked) == expected


def test_at_submission_nothing_has_been_gained():
    assert run_virtual(first_of(0, 0)) == "patient"
    assert run_virtual(first_of(0, 1)) == "newcomer"


def test_aging_is_linear_between_the_tables_times():
    assert run_virtual(first_of(7.49, 15)) == "newcomer"
    assert run_virtual(first_of(7.51, 15)) == "patient"


def test_it_starts_from_any_priority():
    assert run_virtual(first_of(14.9, 50, patient=20)) == "newcomer"
    assert run_virtual(first_of(15.1, 50, patient=20)) == "patient"


def test_at_the_ceiling_arrival_order_decides():
    async def main():
        journal = Journal()
        async with Scheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            scheduler.spawn(90, journal.note, "90 at 0")
            await asyncio.sleep(1)
            scheduler.spawn(0, journal.note, "0 at 1")
            await asyncio.sleep(1)
            scheduler.spawn(100, journal.note, "100 at 2")
            await asyncio.sleep(50)  # by now all three stand at 100
            scheduler.spawn(100, journal.note, "100 at 52")
            await busy.release()
        return journal

    assert run_virtual(main()) == ["90 at 0", "0 at 1", "100 at 2", "100 at 52"]


class TestPromotions:
    @pytest.mark.parametrize(
        ("priority", "waited", "steps"),
        [
            (0, 4.9, 0),
            (0, 5, 1),
            (0, 12, 2),
            (10, 12, 2),
            (0, 49.9, 9),
            (0, 50, 10),
            (0, 500, 10),
            (95, 500, 0),
            (85, 500, 1),
            (100, 500, 0),
        ],
    )
    def test_steps_of_ten_are_counted_while_waiting_and_kept_after(self, priority, waited, steps):
        async def main():
            async with Scheduler.bounded(1) as scheduler:
                busy = Busy(scheduler)
                scheduler.spawn(priority, int)
                await asyncio.sleep(waited)
                seen = [scheduler.stats().starvation_promotions]
                await busy.release()
                await ticks()
                await asyncio.sleep(100)
                seen.append(scheduler.stats().starvation_promotions)
            return seen

        assert run_virtual(main()) == [steps, steps]

    def test_they_add_up_over_tasks_and_are_not_lost_by_withdrawing(self):
        async def main():
            async with Scheduler.bounded(1) as scheduler:
                busy = Busy(scheduler)
                futures = [scheduler.spawn(0, int) for _ in range(3)]
                await asyncio.sleep(10)
                assert scheduler.stats().starvation_promotions == 6
                futures[0].cancel()
                assert scheduler.stats().starvation_promotions == 6
                await asyncio.sleep(5)
                assert scheduler.stats().starvation_promotions == 8
                await busy.release()
            return scheduler.stats().starvation_promotions

        assert run_virtual(main()) == 8

    def test_a_longer_timeout_promotes_half_as_fast(self):
        async def main():
            async with Scheduler.bounded(1, starvation_timeout="1m") as scheduler:
                busy = Busy(scheduler)
                scheduler.spawn(0, int)
                await asyncio.sleep(25)
                seen = scheduler.stats().starvation_promotions
                await busy.release()
            return seen

        assert run_virtual(main()) == 2


@pytest.mark.parametrize("priority", [0, 20, 50, 75, 90])
def test_waiting_is_bounded_under_an_endless_stream_of_critical_work(priority):
    """P6: at most 5·⌈(100 − p)/10⌉ + 5 s, plus the drain of what was submitted earlier (here nothing)."""

    async def main():
        loop = asyncio.get_running_loop()
        async with Scheduler.bounded(1) as scheduler:
            scheduler.spawn(100, asyncio.sleep, 1)
            started = scheduler.spawn(priority, loop.time)
            while not started.done():
                # Two arrive for each that can be served.
                scheduler.spawn(100, asyncio.sleep, 1)
                scheduler.spawn(100, asyncio.sleep, 1)
                await asyncio.sleep(1)
            await scheduler.shutdown("abort")
        return started.result()

    grown = (100 - priority) / 2  # seconds until it stands at 100
    started = run_virtual(main())
    assert grown <= started <= grown + 1  # one task of a second may be under way
    assert started <= 5 * -(-(100 - priority) // 10) + 5


def reference(arrivals, work, rate):
    """Serve by hand: the highest effective priority, then arrival; exact numbers, no cleverness."""
    at, number = Fraction(0), 0
    order: list[int] = []
    waiting: list[int] = []
    while number < len(arrivals) or waiting:
        if not waiting:  # the slot is free: whoever comes next has it at once
            at = max(at, arrivals[number][0])
            waiting.append(number)
            number += 1

        def standing(index, at=at):
            arrived, priority = arrivals[index]
            return (-min(Fraction(100), priority + rate * (at - arrived)), index)

        following = min(waiting, key=standing)
        waiting.remove(following)
        order.append(following)
        at += work[following]
        while number < len(arrivals) and arrivals[number][0] <= at:
            waiting.append(number)
            number += 1
    return order


def history(dice):
    """Draw arrivals and works; all are exact in binary, and no work ends at the instant of an arrival."""
    arrivals, at = [], Fraction(0)
    for group in range(30):
        at += Fraction(dice.choice([0, 1, 2, 5, 20]), 4)
        for _ in range(dice.choice([1, 1, 2, 4])):
            priority = dice.choice([0, 20, 50, 50, 80, 100, dice.randrange(101)])
            arrivals.append((at + Fraction(group, 1024), priority))
    return arrivals, [Fraction(dice.choice([1, 4, 8, 30]), 4) for _ in arrivals]


@pytest.mark.parametrize("seed", range(60))
def test_order_is_exact_on_random_histories(seed):
    """P8: priority, aging, arrival; equal priorities and ties at the ceiling included."""
    arrivals, work = history(random.Random(seed))

    async def main():
        journal = Journal()

        async def serve(number):
            journal.append(number)
            await asyncio.sleep(float(work[number]))

        loop = asyncio.get_running_loop()
        async with Scheduler.bounded(1) as scheduler:
            for number, (arrived, priority) in enumerate(arrivals):
                if arrived > loop.time():
                    await asyncio.sleep(float(arrived) - loop.time())
                scheduler.spawn(priority, serve, number)
        return journal

    assert run_virtual(main()) == reference(arrivals, work, Fraction(2))
