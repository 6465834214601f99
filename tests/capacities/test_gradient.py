"""The gradient limiter: bounded whatever it is told, and at rest where the server's queue is short."""

from heapq import heappop, heappush, heapreplace
from itertools import pairwise
from math import inf, isfinite, nan

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead.capacities.gradient import Gradient
from fairlead.errors import ConfigError


class Server:
    """Run `width` calls at once, `service` seconds each; the rest wait in line.  As many call as the limit allows."""

    def __init__(self, limiter: Gradient, width: int, service: float = 0.1) -> None:
        self.limiter, self.width, self.service = limiter, width, service
        self.now = 0.0
        self.inside: list[tuple[float, float]] = []  # when each will be done, and when it came
        self.free = [0.0] * width  # a heap: when each place is free

    def run(self, calls: int, offered: float = inf) -> list[int]:
        """Answer calls; return the limits after each."""
        limits = []
        for _ in range(calls):
            while len(self.inside) < min(self.limiter.limit, offered):
                self._take()
            done, came = heappop(self.inside)
            self.now = max(self.now, done)
            self.limiter.sample(self.now - came, len(self.inside) + 1, self.now)
            limits.append(self.limiter.limit)
        return limits

    def _take(self) -> None:
        done = max(self.free[0], self.now) + self.service
        heapreplace(self.free, done)
        heappush(self.inside, (done, self.now))


@given(
    st.lists(
        st.tuples(
            st.floats() | st.floats(0.0001, 10),
            st.integers(-5, 5000),
            st.floats() | st.floats(0, 1000),
        ),
        max_size=200,
    ),
    st.integers(1, 20),
    st.integers(20, 100),
)
def test_the_limit_stays_within_its_bounds_whatever_it_is_told(samples, floor, ceiling):
    limiter = Gradient(floor=floor, initial=floor, ceiling=ceiling, fewest=1, period=0.001)
    for latency, inflight, now in samples:
        limiter.sample(latency, inflight, now)
        assert floor <= limiter.limit <= ceiling
        assert limiter.unloaded is None or (isfinite(limiter.unloaded) and limiter.unloaded > 0)


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(8, 200), st.floats(0.01, 2.0))
@example(initial=1, width=171, service=0.01)
def test_it_finds_the_width_of_a_server_and_a_short_queue(initial, width, service):
    limiter = Gradient(initial=max(3, initial))
    # A step takes a period, however many calls that is: where calls are short, more of them until it rests.
    limits = Server(limiter, width, service).run(12_000 + int(300 / service))
    steady = sorted(limits[-2000:])
    assert width <= steady[len(steady) // 2] <= 2.2 * width + 4
    assert limiter.unloaded == pytest.approx(service, rel=0.1)


def test_a_narrow_server_is_never_given_more_than_a_little():
    limits = Server(Gradient(), width=2).run(20_000)
    assert max(limits[-5000:]) <= 20


def test_it_follows_a_server_that_slows_down_and_recovers():
    limiter = Gradient(remeasure=5.0)
    server = Server(limiter, width=100)
    before = server.run(8000)[-1]
    assert before >= 100
    server.width, server.free = 10, server.free[:10]
    narrow = sorted(server.run(3000)[-500:])[250]
    assert narrow < 40
    server.width, server.free = 100, server.free + [server.now] * 90
    assert max(server.run(20_000)[-2000:]) >= 100


def test_no_measurement_makes_it_drift_upwards():
    limiter = Gradient(remeasure=2.0)
    server = Server(limiter, width=50)
    server.run(4000)
    maxima = [max(server.run(4000)) for _ in range(6)]
    assert max(maxima) <= 2.2 * 50 + 4
    assert all(after <= before * 1.2 for before, after in pairwise(maxima))


def test_a_limit_that_is_not_used_does_not_grow():
    limiter = Gradient(initial=20)
    limits = Server(limiter, width=100).run(3000, offered=5)
    assert max(limits) <= 20


def test_samples_that_cannot_be_are_ignored():
    limiter = Gradient(fewest=1)
    for latency in (nan, inf, -1.0, 0.0):
        limiter.sample(latency, 1, 1.0)
    limiter.sample(0.1, 1, nan)
    assert limiter.unloaded is None
    assert limiter.limit == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"floor": 0},
        {"floor": 5, "initial": 4},
        {"ceiling": 10, "initial": 11},
        {"ceiling": inf},
        {"tolerance": 0.5},
        {"tolerance": nan},
        {"period": 0},
        {"fewest": 0},
        {"remeasure": -1},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError):
        Gradient(**wrong)
