"""Learned limits at a simulated server: under steps of load, under a lasting overload, and when they measure."""

import heapq
import random
from collections.abc import Callable
from math import floor, inf, log10

import pytest

from fairlead.capacities.learned import LearnedLimit, Vegas
from tests.flows.test_learned import LIMITS, each_limit, window


class Server:
    """Runs `width` calls at once, each about `mean` seconds; sheds what it has queued more than `queue` of."""

    def __init__(
        self, limit: LearnedLimit, *, queue: float = inf, seed: int = 1, width: int = 20
    ) -> None:
        self.limit = limit
        self.width, self.mean, self.queue = width, 0.1, queue
        self.rng = random.Random(seed)
        self.now = 0.0
        self.free = [0.0] * self.width  # when each of its workers is free
        self.ends: list[tuple[float, float, float, bool]] = []
        self.inflight = 0
        self.served = 0

    def run(self, rate: float, windows: int) -> list[float]:
        """Offer calls at `rate` per second and tell the limit at the end of each second."""
        seen = []
        for _ in range(windows):
            end = self.now + 1.0
            while True:
                at = self.now + self.rng.expovariate(rate)
                self.finish(min(at, end))
                self.now = min(at, end)
                if at >= end:
                    break
                if self.inflight < self.limit.limit:
                    self.start()
            seen.append(float(self.limit.limit))
        return seen

    def start(self) -> None:
        self.inflight += 1
        if self.inflight > self.width + self.queue:
            heapq.heappush(self.ends, (self.now + 0.001, 0.001, self.inflight, True))
            return
        began = max(self.now, heapq.heappop(self.free))
        end = began + self.mean * self.rng.uniform(0.8, 1.2)
        heapq.heappush(self.free, end)
        heapq.heappush(self.ends, (end, end - self.now, self.inflight, False))

    def finish(self, until: float) -> None:
        while self.ends and self.ends[0][0] <= until:
            at, latency, _, dropped = heapq.heappop(self.ends)
            self.limit.sample(latency, self.inflight, at, dropped=dropped)
            self.inflight -= 1
            self.served += not dropped


def settles(seen: list[float], within: int = 10) -> None:
    """After `within` windows the limit stays within 10 % (or one) of where it rests."""
    rest = sum(seen[within:]) / len(seen[within:])
    for number, limit in enumerate(seen[within:]):
        assert abs(limit - rest) <= max(0.1 * rest, 1) + 0.5, f"{limit} in {number}, not {rest}"


def swings(seen: list[float]) -> int:
    """Count the turns after a way of more than 20 %, which is ±10 %."""
    turns, upwards = 0, True
    extreme = seen[0]
    for limit in seen:
        if (limit > extreme) == upwards:
            extreme = limit
        elif abs(limit - extreme) > 0.2 * max(limit, extreme):
            turns, upwards, extreme = turns + 1, not upwards, limit
    return turns


def test_swings_are_counted():
    assert swings([20, 21, 20, 22, 30, 40]) == 0
    assert swings([20, 30, 20, 30, 20]) == 3


@pytest.mark.parametrize("seed", range(8))
@each_limit
def test_it_settles_after_steps_of_load(name: str, seed: int):
    check_steps(LIMITS[name], seed, queue=10 if name == "aimd" else inf)


def test_vegas_settles_at_a_large_server_too():
    check_steps(lambda: Vegas(initial=300), seed=1, width=200)


def check_steps(
    make: Callable[[], LearnedLimit], seed: int = 1, *, queue: float = inf, width: int = 20
) -> None:
    """A server for 10 calls a second and worker; a load of three quarters, then half more, then half less."""
    limit = make()
    server = Server(limit, queue=queue, seed=seed, width=width)
    most = 10.0 * width
    server.run(0.75 * most, 40)
    for _ in range(3):
        overload = server.run(1.125 * most, 40)
        settles(overload)
        # Below what the server can do the limit does not bind: it may grow, but not to and fro.
        below = server.run(0.5625 * most, 40)
        assert swings(below) == 0
        assert min(overload + below) >= limit.floor
    served = server.served
    server.run(1.125 * most, 20)
    assert server.served - served >= 0.95 * most * 20, "it keeps a server idle that has work"


@pytest.mark.parametrize("name", ["vegas", "gradient2"])
def test_the_queue_at_an_overloaded_server_stays_short(name: str):
    server = Server(LIMITS[name]())
    server.run(150.0, 40)
    assert 20 <= sum(server.run(600.0, 60)[10:]) / 50 <= 32


def test_the_limit_of_vegas_does_not_climb_by_measuring():
    check_no_climb(Vegas)


def check_no_climb(make: Callable[[], LearnedLimit]) -> None:
    """Twenty measurements under a lasting overload leave it where it was."""
    limit = make()
    for _ in range(10):
        window(limit, 0.1, inflight=limit.limit)
    for _ in range(12_000):
        window(limit, 0.1 * max(1.0, limit.limit / 20))
    assert limit._limit <= 30


# Each promise can be broken, and is caught


class Jumpy(Vegas):
    """Steps by a quarter of the limit."""

    def _moved(self, limit, mean, most, dropped):
        moved = super()._moved(limit, mean, most, dropped)
        return limit + (moved > limit) * limit / 4 - (moved < limit) * limit / 4


class Measuring(Vegas):
    """Measures the fastest in passing, as the original does."""

    @property
    def limit(self):
        return int(self._limit)


class Slow(Vegas):
    """Falls by g only, as the original does."""

    def _moved(self, limit, mean, most, dropped):
        return max(limit - max(1, floor(log10(limit))), super()._moved(limit, mean, most, dropped))


class Timid(Vegas):
    """Falls whenever there is any queue at all."""

    def _moved(self, limit, mean, most, dropped):
        return limit - 1 if mean is not None and mean > self._fastest else limit


@pytest.mark.parametrize("mutant", [Jumpy, Slow, Timid])
def test_a_limit_that_does_not_settle_is_caught(mutant: type[LearnedLimit]):
    with pytest.raises(AssertionError):
        check_steps(mutant)


def test_a_limit_that_climbs_by_measuring_is_caught():
    with pytest.raises(AssertionError):
        check_no_climb(Measuring)
