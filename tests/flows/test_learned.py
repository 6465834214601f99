"""Learned limits: their arithmetic by hand, and at a simulated server under steps of load."""

from collections.abc import Callable
from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.capacities.learned import AIMDLimit, Gradient2, LearnedLimit, Mean, Vegas
from fairlead.errors import ConfigError


def window(
    limit: LearnedLimit, latency: float, inflight: float = inf, dropped: bool = False
) -> float:
    """Feed one whole window and tell the limit, before it is made a whole number."""
    at = getattr(limit, "tests_at", 0.0)
    for number in range(11):
        busy = limit.limit if inflight == inf else inflight
        limit.sample(latency, busy, at + number / 10, dropped=dropped and number == 5)
    limit.tests_at = at + 1.0  # type: ignore[attr-defined]
    return limit._limit


LIMITS: dict[str, Callable[[], LearnedLimit]] = {
    "vegas": Vegas,
    "gradient2": Gradient2,
    "aimd": lambda: AIMDLimit(initial=30),
}
each_limit = pytest.mark.parametrize("name", LIMITS)


# Windows


def test_a_window_takes_ten_samples_and_a_second():
    limit = AIMDLimit()
    assert [limit.sample(0.1, 20, now / 10) for now in range(10)] == [20] * 10
    assert limit.sample(0.1, 20, 1.0) == 21  # the eleventh, a second after the first
    slow = AIMDLimit()
    assert [slow.sample(0.1, 20, float(now)) for now in range(9)] == [20] * 9
    assert slow.sample(0.1, 20, 9.0) == 21  # the tenth


def test_what_took_less_than_100_microseconds_is_left_out():
    limit = AIMDLimit()
    for number in range(1000):
        limit.sample(99e-6, 20, number / 10)
        limit.sample(nan, 20, number / 10)
        limit.sample(inf, 20, number / 10)
    assert limit.limit == 20
    for number in range(11):
        limit.sample(101e-6, 20, 200 + number / 10)
    assert limit.limit == 21


def test_a_drop_counts_however_fast_it_was():
    limit = AIMDLimit()
    for number in range(11):
        limit.sample(0.0, 20, number / 10, dropped=True)
    assert limit.limit == 18


def test_a_drop_that_began_before_the_limit_was_lowered_is_no_news():
    limit = AIMDLimit()
    for number in range(11):
        limit.sample(0.05, 20, number / 10, dropped=True)
    assert limit.limit == 18
    for number in range(30):
        limit.sample(1.05, 20, 1.0 + number / 29, dropped=True)  # all of them began before 1.0
    assert limit.limit == 18
    for number in range(12):
        limit.sample(0.05, 20, 2.1 + number / 10, dropped=True)
    assert limit.limit == 16


def test_a_clock_that_steps_back_begins_a_new_window():
    limit = AIMDLimit()
    for number in range(10):
        limit.sample(0.1, 20, 100.0 + number / 10)
    assert limit.sample(0.1, 20, 50.0) == 20
    assert limit.sample(0.1, 20, 51.0) == 20


# The arithmetic


def test_vegas_by_hand():
    limit = Vegas()
    assert window(limit, 0.100) == 20  # the fastest so far: nothing to compare with
    assert window(limit, 0.100) == 26  # no queue (≤ 1): +β = 6
    assert window(limit, 0.105) == 27  # ⌈26·(1 − 100/105)⌉ = 2 < α = 3: +1
    assert window(limit, 0.115) == 27  # ⌈27·(1 − 100/115)⌉ = 4, within [3, 6]: stays
    assert window(limit, 0.140) == 26  # 8 > β = 6: −1
    assert window(limit, 0.105, dropped=True) == 25
    assert window(limit, 0.100, inflight=12) == 25  # less than half in use: stays
    assert window(limit, 0.100, inflight=13) == 31


def test_vegas_steps_by_the_logarithm_of_its_limit():
    limit = Vegas(initial=200)
    window(limit, 0.100)
    assert window(limit, 0.100) == 212  # g = 2: +6·2
    assert window(limit, 0.107) == 210  # ⌈212·(1 − 100/107)⌉ = 14 > β = 12: −2
    assert window(limit, 0.150) == 181  # 70: −(70 − 12)/2


def test_vegas_takes_all_drops_for_a_drop():
    limit = Vegas()
    for number in range(11):
        limit.sample(0.0, 20, number / 10, dropped=True)
    assert limit.limit == 19


def test_vegas_forgets_the_fastest_and_measures_it_at_half_the_limit():
    limit = Vegas(floor=20, ceiling=20)
    halves = [number for number in range(2000) if window(limit, 0.1) and limit.limit == 10]
    assert halves == []  # never below its floor
    limit = Vegas(initial=40, floor=2, ceiling=40)
    seen = []
    for _ in range(6000):
        window(limit, 0.1)
        seen.append(limit.limit)
    assert min(seen) == 20
    times = [number for number in range(1, 6000) if seen[number] == 20 and seen[number - 1] == 40]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(600 <= gap <= 1203 for gap in gaps)  # 30·40, times a share in [0.5, 1]
    assert len(set(gaps)) == len(gaps) >= 4


def test_vegas_learns_that_a_server_has_become_slower_for_good():
    limit = Vegas(initial=40)
    for _ in range(10):
        window(limit, 0.1)
    for _ in range(2000):
        window(limit, 0.2)
    assert limit._fastest == pytest.approx(0.2)
    assert limit.limit > 100


def test_gradient2_by_hand():
    limit = Gradient2()
    assert window(limit, 0.100) == pytest.approx(20.8)  # 0.8·20 + 0.2·(20 + 4)
    # long = (100 + 150)/2 = 125, g = 125/150
    assert window(limit, 0.150) == pytest.approx(0.8 * 20.8 + 0.2 * (20.8 * 125 / 150 + 4))
    assert window(Gradient2(initial=100), 0.1, inflight=49) == 100
    steep = Gradient2(initial=100)
    for _ in range(10):
        window(steep, 0.1)
    before = steep._limit
    assert window(steep, 9.0) == pytest.approx(0.8 * before + 0.2 * (0.5 * before + 4))


def test_gradient2_comes_back_from_an_overload():
    limit = Gradient2()
    for _ in range(20):
        window(limit, 1.0)
    for _ in range(10):
        window(limit, 0.1)
    assert limit._long.value < 0.4


def test_a_mean_of_600_with_ten_to_warm_up():
    mean = Mean(600, 10)
    assert [mean.add(value) for value in (1.0, 2.0, 6.0)] == [1.0, 1.5, 3.0]
    for _ in range(7):
        mean.add(3.0)
    assert mean.value == pytest.approx(3.0)
    assert mean.add(304.0) == pytest.approx(3.0 + 301 * 2 / 601)


def test_aimd_by_hand():
    limit = AIMDLimit(floor=1, initial=20)
    assert window(limit, 0.1) == 21
    assert window(limit, 0.1, inflight=10) == 21
    assert window(limit, 0.1, inflight=11) == 22
    assert window(limit, 0.1, dropped=True) == pytest.approx(19.8)
    assert window(limit, 5.1) == pytest.approx(17.82)
    assert window(AIMDLimit(initial=3), 5.1) == 2  # at least one


@each_limit
@given(
    samples=st.lists(
        st.tuples(st.floats(0, 20), st.integers(0, 300), st.floats(0, 0.4), st.booleans()),
        max_size=200,
    )
)
def test_it_never_leaves_its_bounds(name: str, samples):
    limit = LIMITS[name]()
    now = 0.0
    for latency, inflight, step, dropped in samples:
        now += step
        told = limit.sample(latency, inflight, now, dropped=dropped)
        assert told == limit.limit
        assert limit.floor <= told <= limit.ceiling


@pytest.mark.parametrize("kind", [Vegas, Gradient2, AIMDLimit])
def test_settings_that_make_no_sense_are_refused(kind: type):
    for bad in (
        {"initial": 0},
        {"initial": 5, "floor": 6},
        {"initial": 30, "ceiling": 25},
        {"ceiling": inf},
        {"floor": nan},
        {"window": 0.0},
        {"fewest": 0},
    ):
        with pytest.raises(ConfigError):
            kind(**bad)
    with pytest.raises(ConfigError):
        AIMDLimit(timeout=0.0)


# Each promise can be broken, and is caught


class Deaf(AIMDLimit):
    """Takes old drops for news."""

    def sample(self, latency, inflight, now, *, dropped=False):
        self._cut_at = -inf
        return super().sample(latency, inflight, now, dropped=dropped)


def test_a_limit_that_is_lowered_twice_for_one_overload_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "AIMDLimit", Deaf)
    with pytest.raises(AssertionError):
        test_a_drop_that_began_before_the_limit_was_lowered_is_no_news()


def test_a_limit_without_windows_or_bounds_is_caught(monkeypatch: pytest.MonkeyPatch):
    class Hasty(AIMDLimit):
        def sample(self, latency, inflight, now, *, dropped=False):
            self._most = inflight
            self._close(now)
            return super().sample(latency, inflight, now, dropped=dropped)

    monkeypatch.setitem(globals(), "AIMDLimit", Hasty)
    for test in (
        test_a_window_takes_ten_samples_and_a_second,
        test_what_took_less_than_100_microseconds_is_left_out,
    ):
        with pytest.raises(AssertionError):
            test()


def test_a_limit_that_goes_below_its_floor_is_caught(monkeypatch: pytest.MonkeyPatch):
    class Falling(AIMDLimit):
        def _close(self, now):
            self._limit = self._moved(self._limit, 9.0, 0, True)

    monkeypatch.setitem(LIMITS, "falling", Falling)
    inner = test_it_never_leaves_its_bounds.hypothesis.inner_test
    with pytest.raises(AssertionError):
        inner("falling", [(1.0, 20, 0.4, True)] * 200)
