"""Strategies: the numbers of the specification, and responses to steps."""

from math import isfinite, nan

import pytest

from fairlead.flows import controllers as module
from fairlead.flows.controllers import (
    AIAD,
    AIMD,
    PID,
    Controller,
    Gradient,
    RangeDriven,
    Strategy,
    Threshold,
)


def steps(strategy: Strategy, signals: list[float], observed: float = 1.0) -> list[float | None]:
    controller = Controller(strategy)
    return [
        controller.step(signal, observed, 10.0 * number).load_multiplier
        for number, signal in enumerate(signals)
    ]


# The gradient


def test_the_gradient_numbers_of_the_specification():
    gradient = Gradient(-1, min_gradient=0.1, max_gradient=1.0)
    assert [gradient.output(signal, 1.0, 1.0) for signal in (1.25, 2, 20)] == [0.8, 0.5, 0.1]
    assert gradient.output(0.5, 1.0, 1.0) == 1.0
    assert gradient.output(500.0, 250.0, 0.6) == 0.3


def test_without_bounds_a_gradient_goes_as_far_as_the_signal():
    assert Gradient(-1).output(20.0, 1.0, 1.0) == 0.05
    assert Gradient(-1).output(0.25, 1.0, 1.0) == 4.0
    assert Gradient(1).output(0.25, 1.0, 1.0) == 0.25
    assert Gradient(-0.8).output(2.0, 1.0, 1.0) == pytest.approx(0.5743, abs=1e-4)


def test_a_gradients_output_has_bounds_of_its_own():
    gradient = Gradient(-1, min_output=0.4, max_output=1.5)
    assert [gradient.output(signal, 1.0, 1.0) for signal in (0.1, 1, 9)] == [1.5, 1.0, 0.4]


def test_a_gradient_of_what_is_not_known_is_not_known():
    gradient = Gradient(-1, min_gradient=0.1, max_gradient=1.0)
    for inputs in [(None, 1, 1), (1, None, 1), (1, 1, None), (1, 0, 1), (nan, 1, 1), (1, nan, 1)]:
        assert gradient.output(*inputs) is None
    assert gradient.output(1.0, 1.0, nan) is None
    assert Gradient(-0.5).output(-1.0, 1.0, 1.0) is None  # no real root
    assert gradient.output(0.0, 1.0, 1.0) == 1.0  # 0 to the power of −1 is as large as can be
    assert Gradient(-1).output(0.0, 1.0, 0.0) is None  # ∞ · 0
    assert Gradient(-300, max_gradient=1.0).output(1e-9, 1.0, 1.0) == 1.0


# AIMD


def test_aimd_starts_by_passing_everything_through():
    assert steps(AIMD(1.0), [0.5, 1.0]) == [None, None]


@pytest.mark.parametrize(("signal", "expected"), [(1.25, 0.8), (2.0, 0.5), (20.0, 0.1)])
def test_aimd_throttles_by_the_numbers_of_the_specification(signal: float, expected: float):
    assert steps(AIMD(1.0), [signal]) == [expected]
    assert steps(AIMD(250.0), [250 * signal]) == [expected]
    assert steps(AIMD(1.0), [signal], observed=0.5) == [expected / 2]


def test_aimd_with_a_slope_above_0_throttles_when_the_signal_falls():
    falling = AIMD(1.0, slope=1.0)
    assert steps(falling, [1.5, 0.5, 0.05]) == [None, 0.5, 0.1]


def test_aimd_recovers_in_forty_steps():
    recovery = steps(AIMD(1.0), [1.25, *[0.9] * 40])
    assert recovery[0] == 0.8
    assert recovery[1:40] == pytest.approx([1 + 0.025 * number for number in range(1, 40)])
    assert recovery[40] is None
    assert all(multiplier is not None for multiplier in recovery[:40])


def test_a_new_overload_begins_the_recovery_anew():
    seen = steps(AIMD(1.0), [2.0, 0.9, 0.9, 2.0, 0.9])
    assert seen == pytest.approx([0.5, 1.025, 1.05, 0.5, 1.025])


def test_aimd_passes_from_its_largest_multiplier_on():
    assert steps(AIMD(1.0, max_load_multiplier=1.05), [2.0, 0.9, 0.9]) == [0.5, 1.025, None]


def test_aimd_passes_when_nothing_was_asked_for():
    controller = Controller(AIMD(1.0))
    for observed in (None, nan, -1.0):
        decision = controller.step(2.0, observed, 0.0)
        assert decision.load_multiplier is None
        assert decision.overloaded


# AIAD


def test_the_aiad_numbers_of_the_specification():
    seen = steps(AIAD(1.0), [0.5, 2, 2, 2, 0.5, 0.5, 0.5])
    assert seen == [None, 0.95, 0.90, 0.85, 0.875, 0.90, 0.925]


def test_aiad_stays_above_its_least_and_recovers_to_passing_through():
    seen = steps(AIAD(1.0, min_load_multiplier=0.3), [2.0] * 30 + [0.5] * 80)
    assert seen[29] == 0.3
    assert seen[30] == 0.325
    assert seen[30 + 67 - 1] == 1.975
    assert seen[30 + 68 - 1] is None  # (2 − 0.3) / 0.025 steps, to the step


@pytest.mark.parametrize(
    ("condition", "overloads"),
    [("gt", {1.1}), ("gte", {1.0, 1.1}), ("lt", {0.9}), ("lte", {0.9, 1.0})],
)
def test_aiad_is_overloaded_as_its_condition_says(condition, overloads):
    for signal in (0.9, 1.0, 1.1):
        advice = AIAD(1.0, overload_condition=condition).step(signal, None, 0.0)
        assert advice.overloaded is (signal in overloads)


# Range


def specified() -> RangeDriven:
    return RangeDriven(Threshold(0.8, 1.0), Threshold(1.0, 0.2), degree=2)


def test_the_range_numbers_of_the_specification():
    seen = steps(specified(), [0.85, 0.9, 0.95, 1.0])
    assert seen == pytest.approx([0.95, 0.8, 0.55, 0.2])
    assert steps(specified(), [0.0, 0.79, 0.8, 1.01, 9.0]) == [None, None, None, 0.2, 0.2]


def test_a_mirrored_range_throttles_below():
    strategy = RangeDriven(Threshold(10, 0.2), Threshold(50, 1.0), degree=1)
    seen = steps(strategy, [0, 10, 30, 49, 50, 60])
    assert seen == [0.2, 0.2, pytest.approx(0.6), pytest.approx(0.98), None, None]


def test_before_a_low_threshold_that_throttles_nothing_is_throttled():
    strategy = RangeDriven(Threshold(0.8, 0.9), Threshold(1.0, 0.2), degree=1)
    assert steps(strategy, [0.79, 0.8]) == [None, 0.9]


# PID


def test_the_first_sample_of_a_pid_is_a_number():
    for signal in (0.5, 1.5):
        advice = PID(1.0, kp=0.5, ki=0.1, kd=1.0).step(signal, None, 0.0)
        assert advice.load_multiplier is None or isfinite(advice.load_multiplier)
    assert PID(1.0, kp=0.5, ki=0.1, kd=1.0).step(1.5, None, 0.0) == (0.75, True)


def test_a_rising_signal_lowers_what_a_pid_admits_by_its_derivative():
    plain, damped = (PID(1.0, kp=0.5, ki=0.0, kd=kd) for kd in (0.0, 1.0))
    plain_seen, damped_seen = (steps(pid, [1.1, 1.4, 1.2]) for pid in (plain, damped))
    assert plain_seen == pytest.approx([0.95, 0.8, 0.9])
    assert damped_seen == pytest.approx([0.95, 0.8 - 0.03, 0.9 + 0.02])


def test_a_pid_for_a_signal_that_falls_with_load():
    assert steps(PID(1.0, kp=0.5, ki=0.0, overload_condition="lt"), [1.5, 0.5]) == [None, 0.75]


def test_a_pid_does_not_wind_up():
    """However long it stood at either end, it turns at once."""
    pid = PID(1.0, kp=0.5, ki=0.01)
    assert steps(pid, [0.1] * 1000 + [1.5])[-1] == pytest.approx(1 - 0.25 - 0.05)
    pid = PID(1.0, kp=0.5, ki=0.01)
    deep = steps(pid, [3.0] * 1000 + [0.5])
    assert deep[-2] == 0.0
    assert deep[-1] is not None
    assert deep[-1] > 0.25


def test_a_pid_brings_a_server_to_its_setpoint_and_holds_it():
    """Signal = what is admitted / what the server can do; the load is half too much, then threefold."""
    controller = Controller(PID(0.8))
    multiplier, seen = 1.0, []
    for number in range(200):
        load = 1.5 if number < 100 else 3.0
        decision = controller.step(load * multiplier, multiplier, 10.0 * number)
        multiplier = 1.0 if decision.load_multiplier is None else decision.load_multiplier
        seen.append(load * multiplier)
    for settled in (seen[50:100], seen[150:]):
        assert settled == pytest.approx([0.8] * 50, rel=0.02)


# Each promise can be broken, and is caught


class Forgetful(AIMD):
    """Goes on with the old recovery after an overload."""

    def step(self, signal, observed, now):
        before = self._recovery
        advice = super().step(signal, observed, now)
        if advice.overloaded:
            self._recovery = before
        return advice


class Started(AIMD):
    """Starts in recovery."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._recovery = 0.0


class SlowToFall(AIAD):
    """Comes down from 2 by decrements."""

    def step(self, signal, observed, now):
        before = self._sum
        advice = super().step(signal, observed, now)
        if advice.overloaded:
            self._sum = before - self._decrement
        return advice._replace(load_multiplier=self._sum)


class Blind(RangeDriven):
    """Does not bend."""

    def __init__(self, low, high, *, degree):
        super().__init__(low, high, degree=1)


class Winding(PID):
    def step(self, signal, observed, now):
        before = self._integral, self._before
        advice = super().step(signal, observed, now)
        if before[1] is not None:
            self._integral = before[0] + self._ki * (self.setpoint - signal) * (now - before[1][1])
        return advice


class Jumping(PID):
    """Does not integrate while it stands at an end, so it leaps back from one to the other."""

    def step(self, signal, observed, now):
        before = self._integral
        advice = super().step(signal, observed, now)
        if advice.load_multiplier in (None, self._least):
            self._integral = before
        return advice


class Spurred(PID):
    """Adds the derivative with the wrong sign."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._kd = -self._kd


@pytest.mark.parametrize(
    ("strategy", "mutant", "test"),
    [
        ("AIMD", Forgetful, test_a_new_overload_begins_the_recovery_anew),
        ("AIMD", Started, test_aimd_starts_by_passing_everything_through),
        ("AIAD", SlowToFall, test_the_aiad_numbers_of_the_specification),
        ("RangeDriven", Blind, test_the_range_numbers_of_the_specification),
        ("PID", Winding, test_a_pid_does_not_wind_up),
        ("PID", Jumping, test_a_pid_does_not_wind_up),
        ("PID", Spurred, test_a_rising_signal_lowers_what_a_pid_admits_by_its_derivative),
    ],
)
def test_a_broken_strategy_is_caught(strategy, mutant, test, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), strategy, mutant)
    with pytest.raises(AssertionError):
        test()


def test_sums_that_are_not_rounded_are_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "DIGITS", 17)
    with pytest.raises(AssertionError):
        test_aiad_stays_above_its_least_and_recovers_to_passing_through()
