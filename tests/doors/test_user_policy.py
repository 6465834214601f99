"""Policies written by users: by `key`, by the full contract, and broken ones, which harm only themselves (P20)."""

import asyncio
from collections import deque
from typing import Any

import pytest

from fairlead import ConfigError, Planner, Policy, PolicyError, Scheduler, Ticket
from fairlead.core.capacity import STOP
from fairlead.testing import run_virtual
from tests.doors.rig import Busy, Journal, balanced, ticks, usable
from tests.doors.test_submit import closed, double


class ShortestFirst(Policy):
    def key(self, ticket):
        return ticket.estimate or 60.0


class CheapestFirst(Policy):
    def __init__(self, favoured):
        self.favoured = favoured

    def key(self, ticket):
        return (ticket.tenant != self.favoured, ticket.cost, -ticket.priority)


class LastComeFirstServed(Policy):
    """The full contract, by hand: a stack."""

    def __init__(self):
        self.stack: deque[Ticket] = deque()

    def push(self, ticket, now):
        self.stack.append(ticket)

    def pick(self, admit, now):
        if not self.stack or admit(self.stack[-1]) is not None:
            return None
        return self.stack.pop()

    def remove(self, ticket, now):
        self.stack.remove(ticket)

    def open(self, scope, now):
        pass

    def head(self, now):
        return self.stack[-1] if self.stack else None

    def __len__(self):
        return len(self.stack)

    def __iter__(self):
        return iter(list(self.stack))


def test_a_policy_of_one_method():
    async def main():
        served = Journal()
        async with Scheduler.bounded(1, policy=ShortestFirst()) as scheduler:
            busy = Busy(scheduler)
            for estimate in (30, 5, 90, 10):
                scheduler.bind(estimate=estimate).spawn(50, served.note, estimate)
            scheduler.spawn(100, served.note, "unknown")
            await busy.release()
        return served

    assert run_virtual(main()) == [5, 10, 30, "unknown", 90]


def test_a_policy_with_settings_and_a_composite_key():
    async def main():
        served = Journal()
        async with Scheduler.bounded(1, policy=CheapestFirst("acme")) as scheduler:
            busy = Busy(scheduler)
            for tenant, cost, priority in (
                ("other", 1, 50),
                ("acme", 9, 50),
                ("acme", 2, 50),
                ("other", 1, 80),
            ):
                scheduler.bind(tenant=tenant, cost=cost).spawn(
                    priority, served.note, (tenant, cost, priority)
                )
            await busy.release()
        return served

    assert run_virtual(main()) == [
        ("acme", 2, 50),
        ("acme", 9, 50),
        ("other", 1, 80),
        ("other", 1, 50),
    ]


def test_a_policy_by_the_full_contract():
    async def main():
        served = Journal()
        async with Scheduler.bounded(1, policy=LastComeFirstServed()) as scheduler:
            busy = Busy(scheduler)
            futures = [scheduler.spawn(50, served.note, number) for number in range(6)]
            futures[3].cancel()
            assert scheduler.stats().queued_count == 5
            submitted = asyncio.create_task(scheduler.submit(50, served.note, "submitted"))
            await ticks(2)
            await busy.release()
            await submitted
            await scheduler.shutdown()
            assert balanced(scheduler.stats())
        return served

    assert run_virtual(main()) == ["submitted", 5, 4, 2, 1, 0]


class Fussy(Policy):
    """Raises in key() for one tenant."""

    def key(self, ticket):
        if ticket.tenant == "bad":
            raise ZeroDivisionError("no key for you")
        return ticket.seq


class Unordered(Policy):
    def key(self, ticket):
        return float("nan")


class Picky(LastComeFirstServed):
    """Raises in pick() while `broken`, before or after room was taken."""

    broken = ""

    def pick(self, admit, now):
        if self.broken == "before":
            raise ZeroDivisionError("no pick today")
        if self.broken == "in Fairlead's words":
            raise ConfigError("no pick today")
        if self.broken == "after" and self.stack and admit(self.stack[-1]) is None:
            raise ZeroDivisionError("no pick today")
        if self.broken == "forgets" and self.stack:
            admit(self.stack[-1])
            return None
        if self.broken == "stranger" and len(self.stack) > 1 and admit(self.stack[-1]) is None:
            return self.stack[0]
        return super().pick(admit, now)


def reports():
    """Collect what is reported to the loop's exception handler."""
    collected: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: collected.append(context.get("exception"))
    )
    return collected


@pytest.mark.parametrize("policy", [Fussy, Unordered])
def test_a_key_that_fails_is_the_submitters_error(policy):
    async def main():
        reported = reports()
        async with Scheduler.bounded(1, policy=policy()) as scheduler:
            busy = Busy(scheduler)
            view = scheduler.bind(tenant="bad")
            for ask in (view.submit, view.spawn):
                work = double(1)
                with pytest.raises(PolicyError, match=policy.__name__) as caught:
                    await ask(50, work)
                assert closed(work)
                assert isinstance(caught.value.__cause__, ZeroDivisionError) == (policy is Fussy)
            with pytest.raises(PolicyError):
                async with view.turn():
                    pass
            if policy is Fussy:
                fine = scheduler.spawn(50, double, 1)
                await busy.release()
                assert await fine == 2
            else:
                await busy.release()
            assert balanced(scheduler.stats())
            assert await usable(scheduler, 1)
        assert reported == []

    run_virtual(main())


@pytest.mark.parametrize(
    "broken", ["before", "after", "forgets", "stranger", "in Fairlead's words"]
)
def test_a_pick_that_fails_is_reported_costs_no_slot_and_others_go_on(broken):
    async def main():
        reported = reports()
        policy = Picky()
        async with Scheduler.bounded(2, policy=policy) as scheduler:
            busy = Busy(scheduler, 2)
            waiting = [scheduler.spawn(50, double, number) for number in range(3)]
            submitted = asyncio.create_task(scheduler.submit(50, double, 3))
            await ticks(2)
            policy.broken = broken
            await busy.release()  # nobody can be picked: the one who finished is not to blame
            assert reported
            assert all(isinstance(error, PolicyError) for error in reported)
            assert scheduler.stats().active_count == 0
            assert scheduler.stats().queued_count == 4
            policy.broken = ""
            following = scheduler.spawn(50, double, 4)  # any verb sets things going again
            assert await asyncio.gather(*waiting, submitted, following) == [0, 2, 4, 6, 8]
            assert balanced(scheduler.stats())
            assert await usable(scheduler, 2)

    run_virtual(main())


def test_a_pick_that_fails_at_the_offer_is_the_submitters_error():
    async def main():
        policy = Picky()
        policy.shortcut = False
        async with Scheduler.bounded(2, policy=policy) as scheduler:
            policy.broken = "after"
            for ask in (scheduler.submit, scheduler.spawn):
                work = double(1)
                with pytest.raises(PolicyError, match="Picky"):
                    await ask(50, work)
                assert closed(work)
            policy.broken = ""
            assert await scheduler.submit(50, double, 1) == 2
            assert balanced(scheduler.stats())
            assert await usable(scheduler, 2)

    run_virtual(main())


class FailsAt(LastComeFirstServed):
    """Serves one after the other, and fails at one tenant."""

    def pick(self, admit, now):
        if self.stack and self.stack[-1].tenant == "bad":
            raise ZeroDivisionError
        return super().pick(admit, now)


def test_what_was_started_before_the_failure_is_told():
    """A resize starts the first and fails at the second: the first runs though the call raises."""

    async def main():
        policy = FailsAt()
        async with Scheduler.bounded(1, policy=policy) as scheduler:
            busy = Busy(scheduler)
            bad = scheduler.bind(tenant="bad").spawn(50, double, 1)
            good = scheduler.spawn(50, double, 2)
            with pytest.raises(PolicyError, match="FailsAt"):
                scheduler.resize(3)
            assert await good == 4
            reports()
            bad.cancel()
            await busy.release()
            assert balanced(scheduler.stats())
            assert await usable(scheduler, 3)

    run_virtual(main())


def test_what_expired_before_the_failure_is_told():
    """The offer that fails has first brought the gate up to date: who waited too long there hears of it."""

    class Sometimes(Policy):
        def key(self, ticket):
            if ticket.tenant == "bad":
                raise ZeroDivisionError
            return ticket.seq

    async def main():
        loop: Any = asyncio.get_running_loop()
        async with Scheduler.bounded(1, policy=Sometimes()) as scheduler:
            busy = Busy(scheduler)
            impatient = scheduler.bind(timeout=1).spawn(50, int)
            await ticks()
            loop._jumping.now += 2  # the loop was blocked: the timer is late
            with pytest.raises(PolicyError):
                scheduler.bind(tenant="bad").spawn(50, int)
            with pytest.raises(Exception, match="no slot came free"):
                await impatient
            await busy.release()
            assert balanced(scheduler.stats())

    run_virtual(main())


def test_a_planner_that_withholds_and_one_that_invents():
    async def main():
        reported = reports()
        served = Journal()
        held = {"back": True}

        def plan(waiting, now):
            return [ticket for ticket in waiting if not (held["back"] and ticket.tenant == "later")]

        async with Scheduler.bounded(1, policy=Planner(plan)) as scheduler:
            later = scheduler.bind(tenant="later").spawn(50, served.note, "later")
            await scheduler.submit(50, served.note, "first")
            await ticks()
            assert not later.done()
            held["back"] = False
            await scheduler.submit(50, served.note, "second")
            await later
        assert served[0] == "first"
        assert reported == []

        broken = Planner(lambda waiting, now: [*waiting, *waiting], name="twice")
        async with Scheduler.bounded(1, policy=broken) as scheduler:
            with pytest.raises(PolicyError, match="twice"):
                await scheduler.submit(50, int)
            assert balanced(scheduler.stats())

    run_virtual(main())


def test_a_policy_that_never_offers_anyone_can_still_be_shut_down():
    class Never(Policy):
        shortcut = False

        def pick(self, admit, now):
            return None

    async def main():
        scheduler = Scheduler.bounded(1, policy=Never())
        future = scheduler.spawn(50, double(1))
        await scheduler.shutdown("abort")
        with pytest.raises(Exception, match="shut down"):
            future.result()
        assert balanced(scheduler.stats())

    run_virtual(main())


def test_a_policy_that_admits_and_is_told_to_stop_asks_nobody_else():
    asked = []

    class Curious(LastComeFirstServed):
        def pick(self, admit, now):
            for ticket in reversed(self.stack):
                refusal = admit(ticket)
                asked.append(refusal)
                if refusal is None:
                    self.stack.remove(ticket)
                    return ticket
                if refusal is STOP:
                    break
            return None

    async def main():
        async with Scheduler.bounded(1, policy=Curious()) as scheduler:
            busy = Busy(scheduler)
            for _ in range(5):
                scheduler.spawn(50, int)
            await busy.release()

    run_virtual(main())
    assert asked.count(None) == 5
