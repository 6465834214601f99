"""Token buckets: rate and burst, continuous or by interval, exact at every edge."""

import random
from math import inf, nan
from typing import Any

import pytest

from fairlead.capacities import TokenBucket
from fairlead.core import NEVER, STOP, Change, Outcome, State, Ticket
from fairlead.errors import ConfigError
from fairlead.policies import FIFO
from fairlead.testing import CheckedGate


def took(bucket: TokenBucket, now: float, cost: float = 1, **fields) -> bool:
    ticket = Ticket(cost=cost, **fields)
    if bucket.refusal(ticket, now) is not None:
        return False
    bucket.take(ticket, now)
    return True


def tenant(ticket: Ticket) -> object:
    return ticket.tenant


@pytest.mark.parametrize(("interval", "accepted"), [(None, 129), (1.0, 120)])
def test_the_refill_numbers_of_the_specification(interval: float | None, accepted: int):
    """Bucket 30, fill 10/s, 500 requests per second for 9.9 s."""
    bucket = TokenBucket(10, burst=30, interval=interval)
    assert sum(took(bucket, number / 500) for number in range(4951)) == accepted


@pytest.mark.parametrize("interval", [None, 1.0])
def test_a_burst_fits_exactly_whatever_the_hour(interval: float | None):
    rng = random.Random(1)
    for _ in range(200):
        now = rng.choice((rng.random(), rng.uniform(0, 1e6), 1.7e9 + rng.random()))
        bucket = TokenBucket(rng.choice((0.1, 3, 7.5, 1000)), burst=30, interval=interval)
        assert sum(took(bucket, now) for _ in range(40)) == 30
        assert bucket.level(now) == 0


def test_room_comes_exactly_when_promised_and_not_before():
    rng = random.Random(2)
    for interval in (None, 0.7):
        bucket = TokenBucket(3.3, burst=7, interval=interval)
        now = 0.1
        for _ in range(500):
            ticket = Ticket(cost=rng.choice((1, 2.5, 7)))
            at = bucket.ready_at(ticket, now, STOP)
            if at > now:
                assert bucket.refusal(ticket, (now + at) / 2) is STOP or (now + at) / 2 in (now, at)
                assert bucket.refusal(ticket, at) is None
                now = at
            bucket.take(ticket, now)
            assert bucket.level(now) > -1e-9


def test_an_idle_bucket_banks_no_more_than_its_burst():
    bucket = TokenBucket(10, burst=5)
    assert took(bucket, 0.0, 5)
    assert bucket.level(1000.0) == 5
    assert not took(bucket, 1000.0, 5.1)
    assert took(bucket, 1000.0, 5)
    assert not took(bucket, 1000.0)


def test_a_cost_above_the_burst_can_never_be_paid():
    bucket = TokenBucket(10, burst=5)
    assert bucket.refusal(Ticket(cost=5.5), 0.0) is NEVER


def test_with_the_debt_rule_it_is_paid_from_a_full_bucket_and_waited_out():
    bucket = TokenBucket(1.0, burst=5, oversize="debt")
    assert took(bucket, 0.0, 8)
    assert bucket.level(0.0) == -3
    assert bucket.ready_at(Ticket(cost=1), 0.0, STOP) == 4.0
    assert bucket.ready_at(Ticket(cost=9), 0.0, STOP) == 8.0
    assert not took(bucket, 7.999, 9)
    assert took(bucket, 8.0, 9)


def test_intervals_are_counted_from_the_first_use():
    bucket = TokenBucket(1.0, burst=2, interval=2.0)
    assert took(bucket, 3.0, 2)
    assert not took(bucket, 4.999)
    assert took(bucket, 5.0, 2)
    assert bucket.ready_at(Ticket(cost=1), 5.5, STOP) == 7.0


def test_what_is_larger_than_one_fill_waits_for_several():
    bucket = TokenBucket(1.0, burst=6, interval=2.0)
    assert took(bucket, 0.0, 6)
    assert bucket.ready_at(Ticket(cost=5), 0.0, STOP) == 6.0


def test_each_label_has_its_own_bucket_and_none_bypasses():
    bucket = TokenBucket(1.0, burst=1, by=tenant)
    assert took(bucket, 0.0, tenant="a")
    assert not took(bucket, 0.0, tenant="a")
    assert took(bucket, 0.0, tenant="b")
    assert bucket.refusal(Ticket(tenant="a"), 0.0) == ("tokens", "a")
    assert all(took(bucket, 0.0, cost=99) for _ in range(5))
    assert bucket.scopes(Ticket()) == ()


@pytest.mark.parametrize("interval", [None, 1.0])
def test_a_refund_is_worth_what_it_says_and_no_more_than_the_burst(interval: float | None):
    bucket = TokenBucket(0.001, burst=5, interval=interval)
    ticket = Ticket(cost=4)
    bucket.take(ticket, 0.0)
    bucket.refund(ticket, 3, 0.0)
    assert bucket.level(0.0) == 4
    bucket.refund(ticket, 100, 0.0)
    assert bucket.level(0.0) == 5
    bucket.refund(ticket, -7, 0.0)
    assert bucket.level(0.0) == -2


def test_a_refund_lets_the_next_one_go():
    gate = CheckedGate(FIFO(), TokenBucket(0.001, burst=1, by=tenant))
    a, b = Ticket("a", tenant="t"), Ticket("b", tenant="t")
    gate.offer(a, 0.0)
    gate.offer(b, 0.0)
    assert gate.finish(a, 0.0, Outcome.OK) == []
    assert gate.finish(a, 0.0, Outcome.LOST) == []  # the second finish of one ticket
    assert b.state is State.WAITING
    c = Ticket("c", tenant="u")
    gate.offer(c, 0.0)
    d = Ticket("d", tenant="u")
    gate.offer(d, 0.0)
    assert gate.finish(c, 0.0, Outcome.LOST) == [d]


@pytest.mark.parametrize("interval", [None, 1.0])
def test_a_top_up_counts_at_once(interval: float | None):
    gate = CheckedGate(FIFO(), TokenBucket(0.001, burst=3, by=tenant, interval=interval))
    for _ in range(3):
        gate.offer(Ticket(tenant="t"), 0.0)
    waiting = Ticket("waiting", tenant="t", cost=2)
    gate.offer(waiting, 0.0)
    assert gate.adjust(Change("tokens", "top_up", (1, "t")), 1.0) == []
    assert gate.adjust(Change("tokens", "top_up", (1, "t")), 2.0) == [waiting]


@pytest.mark.parametrize("amount", [nan, inf, -1])
def test_a_bad_top_up_changes_nothing(amount: float):
    bucket = TokenBucket(1.0, burst=3)
    took(bucket, 0.0, 2)
    with pytest.raises(ConfigError):
        bucket.top_up(amount)
    assert bucket.level(0.0) == 1


def test_full_buckets_are_dropped():
    bucket = TokenBucket(1.0, burst=1, by=tenant)
    for number in range(10_000):
        took(bucket, number * 0.5, tenant=number)
    assert len(bucket._buckets) < 10


@pytest.mark.parametrize(
    "settings",
    [
        {"rate": 0},
        {"rate": -1},
        {"rate": nan},
        {"rate": inf},
        {"burst": 0},
        {"burst": nan},
        {"burst": inf},
        {"interval": 0.0},
        {"interval": nan},
        {"oversize": "perhaps"},
        {"rate": "1"},
        {"burst": "1"},
        {"interval": "1s"},
        {"max_idle_time": "1h"},
        {"max_keys": "many"},
        {"max_keys": nan},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        TokenBucket(**{"rate": 1.0, "burst": 1, **settings})


class Stepwise(TokenBucket):
    """Asked in two steps, as the contract has it, for it has an `admit` of its own no more."""


@pytest.mark.parametrize("oversize", ["refuse", "debt"])
@pytest.mark.parametrize("idle", [inf, 0.7])
@pytest.mark.parametrize("by", [None, "tenant"])
def test_one_step_decides_as_two_do(oversize: Any, idle: float, by: str | None):
    rng = random.Random(5)
    refused = passed = 0
    for _ in range(60):
        said: dict[str, Any] = {"by": by, "oversize": oversize, "max_idle_time": idle}
        rate, burst, now = rng.choice((0.3, 1, 7.5)), rng.choice((1, 3, 7.5)), 0.0
        one, two = (kind(rate, burst=burst, **said) for kind in (TokenBucket, Stepwise))
        for _ in range(60):
            ticket = Ticket(cost=rng.choice((0, 0.5, 1, 1, 2, 8)), tenant=rng.choice("ab"))
            answer = one.admit(ticket, now)
            assert answer == two.admit(ticket, now)
            assert one._buckets == two._buckets
            if answer is not None and answer is not NEVER:
                ready = one.ready_at(ticket, now, answer)
                assert one.ends_at == ready == two.ready_at(ticket, now, answer) > now
                assert not two.foretells
                refused += 1
                now = rng.choice((now, ready, ready))
            else:
                passed += 1
                now += rng.choice((0, 0, 0.1, 0.5, 2))
            if not rng.randrange(9):
                for bucket in (one, two):
                    bucket.refund(ticket, 0.5, now)
            if not rng.randrange(30):
                rate, interval = rate * 1.5, rng.choice((None, 1.0))
                for bucket in (one, two):
                    bucket.retune(rate, burst, interval, now)
    assert refused > 100
    assert passed > 100
