"""The load bucket: passing and limiting, exact at every edge, and under random verbs."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.capacities import Both, Slots
from fairlead.capacities.load import LoadBucket
from fairlead.core import STOP, Change, Gate, Outcome, Recorder, State, Ticket
from fairlead.errors import ConfigError
from fairlead.policies import FIFO
from fairlead.testing import CheckedGate
from tests.properties.machine import Punctual, Restless, replayed, verdict


def took(bucket: LoadBucket, now: float, cost: float = 1) -> bool:
    ticket = Ticket(cost=cost)
    if bucket.refusal(ticket, now) is not None:
        return False
    bucket.take(ticket, now)
    return True


def limiting(rate: float, now: float = 0.0, until: float = inf) -> LoadBucket:
    bucket = LoadBucket()
    bucket.set_rate(rate, now, until)
    return bucket


def test_it_starts_by_passing_everything():
    bucket = LoadBucket()
    assert all(took(bucket, 0.0, 1e9) for _ in range(100))


def test_it_is_filled_with_one_second_of_rate_when_it_begins_to_limit():
    bucket = LoadBucket()
    assert took(bucket, 0.0, 1e9)
    bucket.set_rate(5.0, 100.0)
    assert bucket.level(100.0) == 5
    assert sum(took(bucket, 100.0) for _ in range(9)) == 5


def test_a_burst_is_one_second_of_rate():
    bucket = limiting(5.0)
    assert took(bucket, 0.0, 5)
    assert bucket.level(0.2) == pytest.approx(1)
    assert bucket.level(1000.0) == 5


def test_an_exact_fit_is_taken_and_a_hair_more_waits():
    bucket = limiting(4.0)
    assert bucket.refusal(Ticket(cost=4), 0.0) is None
    assert took(bucket, 0.0, 3)
    assert bucket.refusal(Ticket(cost=1), 0.0) is None
    assert bucket.refusal(Ticket(cost=1.001), 0.0) is STOP
    assert bucket.ready_at(Ticket(cost=2), 0.0, STOP) == 0.25
    assert bucket.refusal(Ticket(cost=2), 0.25) is None


def test_a_rate_of_0_refuses_without_hope_but_for_what_costs_nothing():
    bucket = limiting(0.0)
    assert bucket.refusal(Ticket(), 5.0) is STOP
    assert bucket.ready_at(Ticket(), 5.0, STOP) == inf
    assert bucket.refusal(Ticket(cost=0), 5.0) is None
    assert bucket.describe(Ticket(), 5.0, STOP) == "load control admits nothing just now"


def test_a_rate_ends_by_itself():
    for rate in (0.0, 0.001):
        bucket = limiting(rate, until=50.0)
        took(bucket, 0.0)
        assert bucket.refusal(Ticket(cost=9), 49.999) is STOP
        assert bucket.ready_at(Ticket(cost=9), 0.0, STOP) == 50.0
        assert took(bucket, 50.0, 9)
        assert took(bucket, 50.0, 9)


def test_a_change_of_rate_keeps_the_level_up_to_the_new_burst():
    bucket = limiting(10.0)
    assert took(bucket, 0.0, 10)
    bucket.set_rate(100.0, 0.5)  # five tokens have come by now, at the old rate
    assert bucket.level(0.5) == pytest.approx(5)
    assert bucket.level(0.6) == pytest.approx(15)
    bucket.set_rate(2.0, 0.6)
    assert bucket.level(0.6) == 2


def test_a_debt_is_kept_too():
    bucket = limiting(2.0)
    assert took(bucket, 0.0, 6)
    bucket.set_rate(1.0, 1.0)
    assert bucket.level(1.0) == pytest.approx(-2)
    assert bucket.ready_at(Ticket(), 1.0, STOP) == pytest.approx(4.0)


def test_passing_again_draws_nothing():
    bucket = limiting(2.0)
    bucket.pass_through()
    assert bucket.passes(0.0)
    assert all(took(bucket, 0.0, 9) for _ in range(9))
    bucket.set_rate(3.0, 1.0)
    assert bucket.level(1.0) == 3


def test_what_drew_nothing_gets_nothing_back():
    gate = CheckedGate(FIFO(), LoadBucket())
    before, after = Ticket(cost=3), Ticket(cost=3)
    gate.offer(before, 0.0)
    gate.adjust(Change("load", "set_rate", (4.0, 1.0)), 1.0)
    gate.offer(after, 1.25)
    bucket: Any = gate.capacity
    assert bucket.level(1.25) == 1
    gate.finish(before, 1.25, Outcome.LOST)
    assert bucket.level(1.25) == 1
    gate.finish(after, 1.25, Outcome.LOST)
    assert bucket.level(1.25) == 4


@pytest.mark.parametrize("rate", [-0.1, nan, inf])
def test_a_rate_that_is_none_is_refused_and_changes_nothing(rate: float):
    bucket = limiting(2.0)
    with pytest.raises(ConfigError, match="rate must be"):
        bucket.set_rate(rate, 1.0)
    with pytest.raises(ConfigError, match="until a later one"):
        bucket.set_rate(1.0, 1.0, until=0.5)
    assert bucket.rate == bucket.level(1.0) == 2


def test_waiters_start_when_a_rate_is_raised_and_when_it_ends():
    gate = CheckedGate(FIFO(), Both(Slots(9), LoadBucket()))
    gate.adjust(Change("load", "set_rate", (0.0, 0.0, 50.0)), 0.0)
    first, second = Ticket(cost=2), Ticket(cost=2)
    gate.offer(first, 1.0)
    gate.offer(second, 1.0)
    assert gate.next_wakeup(1.0) == 50.0
    gate.adjust(Change("load", "set_rate", (1.0, 10.0, 60.0)), 10.0)
    # Larger than a burst: it goes once the bucket is full, and its debt is waited out.
    assert gate.next_wakeup(10.0) == 11.0
    assert list(gate.advance(11.0)) == [first]
    gate.adjust(Change("load", "pass_through"), 11.5)
    assert second.state is State.RUNNING


# Random verbs

RATES = st.sampled_from((None, 0.0, 0.3, 1.0, 2.5, 10.0))
COSTS = st.sampled_from((0, 0.5, 1, 2, 5))
STEPS = st.sampled_from((0.0, 0.0, 0.1, 0.7, 3.0, 20.0))
DEEDS = st.lists(
    st.tuples(
        STEPS,
        st.one_of(
            st.tuples(st.just("offer"), COSTS),
            st.tuples(st.just("rate"), RATES),
            st.tuples(st.just("ending"), RATES),
            st.tuples(st.just("lost"), st.integers(0, 99)),
        ),
    ),
    max_size=60,
)


class CheckedRecorder(Recorder, CheckedGate):
    pass


def run(deeds: list[tuple[float, tuple[str, Any]]], make: Callable[[], LoadBucket]) -> None:
    """Never more is granted in a stretch of limiting than its first burst, what the time brought, and one debt."""
    gate = CheckedRecorder(FIFO(), make())
    tickets: list[Ticket] = []
    now, spells = 0.0, [(0.0, -inf, 0.0)]  # (from, until, rate) of each setting
    for step, (deed, value) in deeds:
        now += step
        if deed == "offer":
            tickets.append(Ticket(len(tickets), cost=value))
            gate.offer(tickets[-1], now)
        elif deed == "lost" and gate.holders:
            gate.finish(list(gate.holders)[value % len(gate.holders)], now, Outcome.OK)
        elif deed in ("rate", "ending"):
            until = now + 7.0 if deed == "ending" else inf
            if value is None:
                gate.adjust(Change("load", "pass_through"), now)
                spells.append((now, -inf, 0.0))
            else:
                gate.adjust(Change("load", "set_rate", (value, now, until)), now)
                spells.append((now, until, value))
    gate.adjust(Change("load", "pass_through"), now)
    for ticket in tickets:
        assert ticket.state is not State.WAITING, "everything passes, and it waits"
    check_grants(tickets, spells, now)
    told = {ticket.key: verdict(ticket) for ticket in tickets}
    for other in (Gate, Punctual, Restless):
        assert replayed(gate.entries, other(FIFO(), make())) == told


def check_grants(tickets: list[Ticket], spells: list[tuple[float, float, float]], end: float):
    began = allowed = 0.0
    passing = True
    edges = [begin for begin, _, _ in spells[1:]] + [end]
    for (begin, until, rate), edge in zip(spells, edges, strict=True):
        if passing:
            began, allowed = begin, rate
        stop = min(until, edge)
        passing = until <= edge
        for ticket in tickets if passing and until > begin else ():
            assert ticket.started_at <= max(until, ticket.arrived_at) or ticket.arrived_at > edge
        if stop < begin:
            continue
        # A stretch that is paid for is one without an instant at which everything passes.
        paid = [
            ticket
            for ticket in tickets
            if ticket.cost > 0 and began < ticket.started_at < stop and rate > 0
        ]
        allowed += rate * (stop - begin)
        last = max((ticket.cost for ticket in paid), default=0.0)
        assert sum(ticket.cost for ticket in paid) <= allowed + last + 1e-6
        if rate == 0:
            idle = [ticket for ticket in tickets if begin < ticket.started_at < stop]
            assert all(ticket.cost == 0 for ticket in idle), f"{idle} started at a rate of 0"


@given(DEEDS)
def test_tokens_are_conserved_whatever_is_set(deeds):
    run(deeds, LoadBucket)


# Each promise can be broken, and is caught


class Empty(LoadBucket):
    """Begins to limit with nothing in it."""

    def set_rate(self, rate, now, until=inf):
        passing = self.passes(now)
        super().set_rate(rate, now, until)
        if passing:
            self.set_level(0.0, now)


class Strict(LoadBucket):
    """Needs more than it takes."""

    def _possible_at(self, key, cost, now):
        return super()._possible_at(key, cost + 1e-6 if cost else cost, now)


class Eternal(LoadBucket):
    """Never lets a rate end."""

    def set_rate(self, rate, now, until=inf):
        super().set_rate(rate, now)


class Refilling(LoadBucket):
    """Fills up at every change of rate."""

    def set_rate(self, rate, now, until=inf):
        super().set_rate(rate, now, until)
        self.set_level(rate, now)


class Backdating(LoadBucket):
    """Counts the time before a change at the new rate."""

    def set_rate(self, rate, now, until=inf):
        if not self.passes(now):
            self.rate = self.burst = rate
        super().set_rate(rate, now, until)


class Charging(LoadBucket):
    """Draws while everything passes."""

    def take(self, ticket, now):
        self._draw(self.name, ticket.cost, now)

    def set_rate(self, rate, now, until=inf):
        level = self.level(now)
        super().set_rate(rate, now, until)
        self.set_level(min(level, rate), now)


class Generous(LoadBucket):
    """Gives back what was never drawn."""

    def refund(self, ticket, amount, now):
        self._draw(self.name, -amount, now)


class Hopeful(LoadBucket):
    """Says that a rate of 0 will do in a second."""

    def _possible_at(self, key, cost, now):
        at = super()._possible_at(key, cost, now)
        return now + 1 if at == inf else at


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (Empty, test_it_is_filled_with_one_second_of_rate_when_it_begins_to_limit),
        (Strict, test_an_exact_fit_is_taken_and_a_hair_more_waits),
        (Eternal, test_a_rate_ends_by_itself),
        (Refilling, test_a_change_of_rate_keeps_the_level_up_to_the_new_burst),
        (Backdating, test_a_change_of_rate_keeps_the_level_up_to_the_new_burst),
        (Charging, test_passing_again_draws_nothing),
        (Generous, test_what_drew_nothing_gets_nothing_back),
        (Hopeful, test_a_rate_of_0_refuses_without_hope_but_for_what_costs_nothing),
    ],
)
def test_a_broken_bucket_is_caught(mutant, test, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "LoadBucket", mutant)
    with pytest.raises(AssertionError):
        test()


@pytest.mark.parametrize("mutant", [Refilling, Eternal])
def test_a_bucket_that_makes_tokens_or_stays_shut_is_caught_by_random_verbs(mutant):
    busy = [(0.0, ("offer", 1))] * 4
    deeds = [
        (0.0, ("ending", 1.0)),
        *busy,
        *[(0.1, ("rate", 1.0)), *busy] * 6,
    ]
    ending = [
        (0.0, ("ending", 0.0)),
        (0.1, ("offer", 1)),
        (20.0, ("offer", 1)),
        (0.1, ("rate", 0.0)),
    ]
    with pytest.raises(AssertionError):
        run(deeds if mutant is Refilling else ending, mutant)
