"""Windows of what happened lately: rates, shares, means and percentiles against a plain count."""

import random
from math import ceil, floor, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.flows.window import AcceptedShare, IncomingWindow, Percentile, Ring, WindowMean


def fed(window: IncomingWindow, until: float, tokens: float = 2.0) -> IncomingWindow:
    for number in range(round(until * 4)):
        window.count(tokens, number / 4)
    return window


# Incoming tokens


def test_it_bootstraps_until_the_ring_of_31_has_wrapped():
    window = fed(IncomingWindow(), 31.0)
    assert IncomingWindow().rate(1000.0) is None
    assert window.rate(30.99) is None
    assert window.rate(31.0) == 8.0


def test_the_rate_is_that_of_the_30_complete_slots():
    window = fed(IncomingWindow(), 40.0)
    window.count(1000.0, 40.5)  # the current slot does not count yet
    assert window.rate(40.9) == 8.0
    assert window.rate(41.0) == (29 * 8 + 1000) / 30
    assert window.rate(70.0) == 1000 / 30
    assert window.rate(70.99) == 1000 / 30


def test_the_first_slot_may_be_a_part_of_one_and_is_never_counted_as_whole():
    window = IncomingWindow()
    for number in range(301):
        window.count(1.0, 100.95 + number / 10)
    assert window.rate(130.99) is None
    assert window.rate(131.0) == pytest.approx(10.0, rel=0.01)


def test_a_gap_of_the_whole_ring_bootstraps_again():
    window = fed(IncomingWindow(), 40.0)  # the last slot is 39
    assert window.rate(69.99) == 8 / 30
    assert window.rate(70.0) is None
    window.count(1.0, 69.99)
    assert window.rate(70.0) is not None  # 30 empty slots: not yet a whole ring
    window = fed(IncomingWindow(), 40.0)
    window.count(1.0, 70.0)
    assert [window.bootstrapping(now) for now in (70.0, 100.99)] == [True, True]
    window.count(1.0, 100.5)
    assert window.rate(101.0) == 1 / 30


def test_reading_changes_nothing():
    silent, asked = fed(IncomingWindow(), 40.0), fed(IncomingWindow(), 40.0)
    for second in range(40, 120):
        asked.rate(float(second))
    for window in (silent, asked):
        window.count(1.0, 120.0)
    assert silent.bootstrapping(120.0)
    assert asked.bootstrapping(120.0)


def test_a_clock_that_steps_back_stands_still():
    window = fed(IncomingWindow(), 40.0)
    window.count(5.0, 3.0)
    assert window.rate(40.0) == (30 * 8 + 5) / 30


ARRIVALS = st.lists(
    st.tuples(st.sampled_from((0.0, 0.1, 0.5, 1.0, 3.0, 4.0, 9.0)), st.integers(0, 5)), max_size=60
)


@given(ARRIVALS, st.sampled_from((0.0, 0.4, 2.0, 5.0)))
def test_a_window_equals_a_plain_count(arrivals, after):
    check_against_a_plain_count(IncomingWindow, arrivals, after)


def check_against_a_plain_count(make, arrivals, after) -> None:
    window, now = make(4, 0.5), 0.0
    seen: list[tuple[int, float]] = []
    first = None
    for step, tokens in arrivals:
        now += step
        tick = floor(now / 0.5)
        if first is None or tick - seen[-1][0] >= 5:
            first = tick
        window.count(tokens, now)
        seen.append((tick, tokens))
    tick = floor((now + after) / 0.5)
    if first is None or tick - first < 5 or tick - seen[-1][0] >= 5:
        assert window.rate(now + after) is None
    else:
        expected = sum(tokens for at, tokens in seen if tick - 4 <= at < tick) / 2
        assert window.rate(now + after) == pytest.approx(expected)
    assert len(window._ring._kept) <= 5


# Shares, means, percentiles


def test_the_observed_share_is_of_the_last_30_seconds():
    share = AcceptedShare()
    assert share.read(0.0) is None
    share.rejected(9, 0.0)
    assert share.read(0.0) == 0.0
    share.accepted(3, 5.0)
    share.rejected(1, 6.0)
    assert share.read(29.9) == 3 / 13
    assert share.read(31.0) == 3 / 4
    assert share.read(36.0) == 0.0
    assert share.read(37.0) is None


def test_a_mean_moves_when_a_slot_is_complete():
    mean = WindowMean(1800, 30)
    mean.add(1.0, 0.0)
    mean.add(2.0, 10.0)
    mean.add(9.0, 30.0)
    assert mean.read(29.9) is None
    assert mean.read(30.0) == mean.read(59.9) == 1.5
    assert mean.read(60.0) == 4.0
    assert mean.read(1800.0) == 4.0
    assert mean.read(1830.0) == 9.0
    assert mean.read(1860.0) is None


def exact(values: list[float], share: float) -> float:
    return sorted(values)[ceil(share * len(values)) - 1]


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200),
    st.sampled_from((0.01, 0.5, 0.9, 0.95, 0.99, 1.0)),
)
def test_a_percentile_is_within_1_percent_of_the_exact_one(values, share):
    check_percentile(Percentile, values, share)


def check_percentile(make, values, share) -> None:
    percentile = make(share)
    for value in values:
        percentile.add(value, 0.0)
    assert percentile.read(0.0) == pytest.approx(exact(values, share), rel=0.01)


def test_a_percentile_forgets_what_is_old():
    percentile = Percentile(0.5, window=30.0)
    assert percentile.read(0.0) is None
    for second in range(60):
        percentile.add(1.0 if second < 30 else 5.0, float(second))
    assert percentile.read(59.0) == pytest.approx(5.0, rel=0.01)
    assert percentile.read(88.0) == pytest.approx(5.0, rel=0.01)
    assert percentile.read(93.0) is None


def test_a_percentile_has_a_bounded_memory_and_no_poison():
    percentile = Percentile(0.95)
    rng = random.Random(1)
    for number in range(20_000):
        percentile.add(10 ** rng.uniform(-12, 12), number / 100)
    for poison in (nan, inf, -inf):
        percentile.add(poison, 200.0)
    percentile.add(0.0, 200.0)
    percentile.add(-1.0, 200.0)
    kept = percentile._ring._kept
    assert len(kept) <= 11
    assert max(len(bins) for _, bins in kept) <= 1400
    value = percentile.read(200.0)
    assert value is not None
    assert 1e-6 < value <= 1e6 * 1.01


@pytest.mark.parametrize(
    "make",
    [
        lambda: IncomingWindow(0),
        lambda: IncomingWindow(30, 0.0),
        lambda: IncomingWindow(30, inf),
        lambda: WindowMean(10, 30),
        lambda: Percentile(0.0),
        lambda: Percentile(95),
    ],
)
def test_settings_that_make_no_sense_are_refused(make):
    with pytest.raises(ConfigError):
        make()


# Each promise can be broken, and is caught


class Eager(IncomingWindow):
    """Ends its bootstrapping a slot too soon."""

    def bootstrapping(self, now):
        return super().bootstrapping(now) and super().bootstrapping(now + self._ring.width)


class Current(IncomingWindow):
    """Counts the current slot as a whole one."""

    def rate(self, now):
        rate = super().rate(now)
        total = sum(slot[0] for slot in self._ring.recent(now))
        return None if rate is None else total / (self._ring.slots * self._ring.width)


class Unforgetting(IncomingWindow):
    """Never bootstraps again."""

    def count(self, tokens, now):
        first = self._first
        super().count(tokens, now)
        self._first = self._first if first is None else first

    def bootstrapping(self, now):
        return self._first is None or self._ring.tick(now) - self._first <= self._ring.slots


class Stirring(IncomingWindow):
    """Takes being read for a sign of life."""

    def rate(self, now):
        self.count(0.0, now)
        return super().rate(now)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (Eager, test_it_bootstraps_until_the_ring_of_31_has_wrapped),
        (Current, test_the_rate_is_that_of_the_30_complete_slots),
        (Unforgetting, test_a_gap_of_the_whole_ring_bootstraps_again),
        (Stirring, test_reading_changes_nothing),
    ],
)
def test_a_broken_window_is_caught(mutant, test, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "IncomingWindow", mutant)
    with pytest.raises(AssertionError):
        test()


def test_a_ring_that_keeps_everything_is_caught(monkeypatch: pytest.MonkeyPatch):
    class Hoarding(Ring[list[float]]):
        def __init__(self, slots, width, empty):
            super().__init__(10_000, width, empty)
            self.slots = slots

    monkeypatch.setattr("fairlead.flows.window.Ring", Hoarding)
    with pytest.raises(AssertionError):
        check_against_a_plain_count(IncomingWindow, [(1.0, 1)] * 60, 0.0)
    with pytest.raises(AssertionError):
        test_a_percentile_has_a_bounded_memory_and_no_poison()


def test_a_percentile_of_the_wrong_rank_is_caught():
    class Low(Percentile):
        def __init__(self, share):
            super().__init__(share * 0.97)

    with pytest.raises(AssertionError):
        check_percentile(Low, [float(number) for number in range(1, 101)], 0.95)


def test_a_coarse_percentile_is_caught():
    class Coarse(Percentile):
        GROWTH = 1.1

    with pytest.raises(AssertionError):
        check_percentile(Coarse, [1.11], 0.5)
