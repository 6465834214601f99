"""Quota on a virtual clock: the refill numbers of the specification, delays, idle keys, changes at run time."""

import random
from typing import Any

import pytest

from fairlead.capacities import TokenBucket
from fairlead.core import NEVER, STOP, Capacity, Change, State, Ticket
from fairlead.errors import ConfigError
from fairlead.policies import FIFO, FairQueue
from fairlead.testing import CapacityContract, CheckedGate


def took(bucket: Capacity, now: float, cost: float = 1, **fields) -> bool:
    ticket = Ticket(cost=cost, **fields)
    if bucket.refusal(ticket, now) is not None:
        return False
    bucket.take(ticket, now)
    return True


def tenant(ticket: Ticket) -> object:
    return ticket.tenant


MATRIX = [(None, False, 129), (None, True, 99), (1.0, False, 120), (1.0, True, 100)]


@pytest.mark.parametrize(("interval", "delay", "accepted"), MATRIX)
@pytest.mark.parametrize("start", [0.0, 0.1, 1.7e6])
def test_the_refill_matrix(interval: float | None, delay: bool, accepted: int, start: float):
    """Bucket 30, fill 10/s, 500 requests per second for 9.9 s."""
    bucket = TokenBucket(10, burst=30, interval=interval, delay_initial_fill=delay)
    count = sum(took(bucket, start + number / 500) for number in range(4951))
    assert count == accepted or (start and abs(count - accepted) <= 1)


@pytest.mark.parametrize(("interval", "delay", "accepted"), MATRIX)
def test_the_refill_matrix_with_waiters_and_a_punctual_timer(interval, delay, accepted):
    bucket = TokenBucket(10, burst=30, interval=interval, delay_initial_fill=delay)
    gate = CheckedGate(FIFO(), bucket)
    for number in range(200):
        gate.offer(Ticket(number), 0.0)
    while (at := gate.next_wakeup(gate.now)) <= 9.9:
        gate.advance(at)
    assert gate.active == accepted


def test_a_delay_counts_again_whenever_a_draw_finds_the_bucket_full():
    bucket = TokenBucket(10, burst=30, delay_initial_fill=True)
    assert took(bucket, 0.0, 30)
    assert bucket.ready_at(Ticket(cost=10), 0.0, STOP) == 4.0
    assert bucket.level(6.0) == 30  # three seconds of delay, three of filling
    assert took(bucket, 6.0)
    assert bucket.level(9.0) == 29
    assert bucket.ready_at(Ticket(cost=30), 6.0, STOP) == pytest.approx(9.1)


def test_a_draw_from_a_bucket_not_quite_full_is_not_delayed():
    bucket = TokenBucket(10, burst=30, delay_initial_fill=True)
    assert took(bucket, 0.0, 30)
    assert took(bucket, 5.9, 29)
    assert bucket.level(6.0) == pytest.approx(1.0)


def test_a_refund_does_not_bring_a_delay():
    bucket = TokenBucket(10, burst=30, delay_initial_fill=True)
    ticket = Ticket(cost=1)
    bucket.take(ticket, 0.0)
    bucket.refund(ticket, 1, 0.0)
    assert bucket.level(0.0) == 30


@pytest.mark.parametrize("interval", [None, 0.7])
def test_with_a_delay_room_comes_exactly_when_promised(interval: float | None):
    class Delayed(CapacityContract):
        def make(self) -> Capacity:
            return TokenBucket(1.0, burst=4, interval=interval, delay_initial_fill=True)

    for case in dir(Delayed):
        if case.startswith("test_"):
            getattr(Delayed(), case)()


def test_an_idle_bucket_counts_as_full_and_its_waiters_are_told():
    bucket = TokenBucket(0.01, burst=10, by=tenant, max_idle_time=5.0)
    gate = CheckedGate(FairQueue("tenant"), bucket)
    gate.offer(Ticket(cost=10, tenant="a"), 0.0)
    waiting = Ticket(cost=3, tenant="a")
    gate.offer(waiting, 1.0)
    assert gate.next_wakeup(1.0) == 5.0
    assert gate.advance(5.0) == [waiting]
    assert bucket.level(5.0, "a") == 7


def test_idle_keys_are_dropped_long_before_they_are_full():
    bucket = TokenBucket(1e-6, burst=5, by=tenant, max_idle_time=10.0)
    for number in range(20_000):
        assert took(bucket, number * 0.1, tenant=number)
    assert bucket.keys < 110


def test_the_number_of_keys_is_bounded_and_who_waits_for_one_given_up_is_woken():
    bucket = TokenBucket(1e-6, burst=1, by=tenant, max_keys=40)
    gate = CheckedGate(FairQueue("tenant"), bucket)
    gate.offer(Ticket(tenant="first"), 0.0)
    waiting = Ticket(tenant="first")
    gate.offer(waiting, 0.0)
    told: list[Ticket] = []
    for number in range(200):
        told += gate.offer(Ticket(tenant=number), 1.0)
    assert bucket.keys <= 40
    assert waiting in told


def test_keys_that_are_many_do_not_make_a_use_dear():
    """Each use looks at two keys, whatever their number: counted, not timed."""
    looked = 0

    class Counting(TokenBucket):
        def _filled(self, bucket, now):
            nonlocal looked
            looked += 1
            return super()._filled(bucket, now)

    bucket = Counting(1e-6, burst=5, by=tenant)
    for number in range(10_000):
        took(bucket, number * 0.1, tenant=number)
    assert looked <= 3 * 10_000


@pytest.mark.parametrize("interval", [None, 1.0])
def test_a_bucket_keeps_what_it_holds_when_its_rate_changes(interval: float | None):
    bucket = TokenBucket(10, burst=30, interval=interval)
    gate = CheckedGate(FIFO(), bucket)
    gate.offer(Ticket(cost=30), 0.0)
    gate.adjust(Change("tokens", "retune", (1, 30, interval, 2.0)), 2.0)
    assert bucket.level(2.0) == 20  # two seconds at the old rate
    assert bucket.level(5.0) == 23  # three at the new one
    gate.adjust(Change("tokens", "retune", (1, 8, interval, 5.0)), 5.0)
    assert bucket.level(5.0) == 8
    gate.adjust(Change("tokens", "retune", (1, 100, interval, 5.0)), 5.0)
    assert bucket.level(5.0) == 8 or bucket.level(5.0) == 100  # it was full, and full it is
    assert bucket.refusal(Ticket(cost=101), 5.0) is NEVER


def test_a_waiter_goes_as_soon_as_the_new_rate_lets_it():
    bucket = TokenBucket(0.001, burst=10)
    gate = CheckedGate(FIFO(), bucket)
    gate.offer(Ticket(cost=10), 0.0)
    waiting = Ticket(cost=5)
    gate.offer(waiting, 0.0)
    gate.adjust(Change("tokens", "retune", (5.0, 10, None, 1.0)), 1.0)
    assert gate.next_wakeup(1.0) == pytest.approx(2.0, abs=0.01)
    gate.advance(2.0)
    assert waiting.state is State.RUNNING


def test_what_can_never_fit_any_more_is_refused_when_the_burst_shrinks():
    bucket = TokenBucket(0.001, burst=10)
    gate = CheckedGate(FIFO(), bucket)
    gate.offer(Ticket(cost=10), 0.0)
    waiting = Ticket(cost=5)
    gate.offer(waiting, 0.0)
    gate.adjust(Change("tokens", "retune", (0.001, 4, None, 1.0)), 1.0)
    assert waiting.state is State.REFUSED


@pytest.mark.parametrize("bad", [(0, 1, None), (1, 0, None), (1, 1, 0), (float("nan"), 1, None)])
def test_bad_new_settings_change_nothing(bad: Any):
    bucket = TokenBucket(1, burst=10)
    took(bucket, 0.0, 4)
    with pytest.raises(ConfigError):
        bucket.retune(bad[0], bad[1], bad[2], 0.0)
    assert (bucket.rate, bucket.burst, bucket.level(0.0)) == (1, 10, 6)


def test_a_small_request_is_not_refused_because_a_big_one_was():
    gate = CheckedGate(FIFO(), TokenBucket(1.0, burst=10))
    gate.offer(Ticket(cost=8), 0.0)
    big = Ticket("big", cost=5, wait_until=0.0)
    gate.offer(big, 0.0)
    small = Ticket("small", cost=2)
    gate.offer(small, 0.0)
    assert big.state is State.EXPIRED
    assert small.state is State.RUNNING


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("interval", [None, 0.5])
def test_never_more_than_the_burst_and_what_the_time_brought(interval, delay):
    rng = random.Random(4)
    for _ in range(50):
        bucket = TokenBucket(7.3, burst=11, interval=interval, delay_initial_fill=delay)
        now = drawn = 0.0
        for _ in range(200):
            now += rng.choice((0.0, 0.01, 0.2, 3.0))
            cost = rng.choice((0.5, 1, 4))
            if took(bucket, now, cost):
                drawn += cost
            assert drawn <= 11 + 7.3 * now + 1e-6
