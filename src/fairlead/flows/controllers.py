"""Load controllers: from a signal to a load multiplier, the share of the recent load to admit.  No clock, no I/O.

A *strategy* (AIMD, AIAD, range-driven, PID) answers one signal with one multiplier.  The `Controller` around it holds
what is the same for all of them, in one place, so that no strategy can forget it:

- A signal that is missing or no finite number: everything passes.
- A confirmation that is False: everything passes.  None (missing, not known) counts as True.
- Dry run: everything passes, and the decision tells what it would have been.
- A decision holds for five periods (50 s).  After that everything passes: a controller that died throttles nobody.

Steps are counted, not timed: increments are per step, so a shorter period recovers sooner.  None is *pass through* in
every multiplier here.  A strategy whose answer was not used hears `rest()`: AIMD and AIAD recover by a step, PID starts
again from passing through (its integral follows what was really applied).
"""

from __future__ import annotations

from math import inf, isfinite, isnan
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fairlead.errors import ConfigError
from fairlead.flows.conditions import check_condition, holds

if TYPE_CHECKING:
    from fairlead.flows.conditions import Condition

PERIODS_VALID = 5
SHORTEST_PERIOD = 0.1
DIGITS = 9  # sums of increments are rounded to this, so that forty times 0.025 is 1


class Advice(NamedTuple):
    """What a strategy makes of one signal."""

    load_multiplier: float | None
    overloaded: bool


class Decision(NamedTuple):
    """What to admit until `valid_until`, and what it would be if this were not a dry run."""

    load_multiplier: float | None
    overloaded: bool
    wanted: float | None
    valid_until: float

    @property
    def alerts(self) -> bool:
        """Tell whether it throttles, or in a dry run would: less than the recent load is wanted."""
        return self.wanted is not None and self.wanted < 1


class Strategy(Protocol):
    """One way to answer a signal."""

    def step(self, signal: float, observed: float | None, now: float) -> Advice:
        """Answer a finite signal; `observed` is the share accepted of late, None if nothing was asked."""

    def rest(self) -> None:
        """Pass over a step in which the answer could not be used."""


class Controller:
    """Step a strategy every `period` seconds.

    >>> controller = Controller(AIMD(setpoint=0.25))
    >>> controller.step(0.2, observed=1.0, now=0.0).load_multiplier
    >>> controller.step(0.5, observed=1.0, now=10.0)
    Decision(load_multiplier=0.5, overloaded=True, wanted=0.5, valid_until=60.0)
    """

    def __init__(self, strategy: Strategy, *, period: float = 10.0, dry_run: bool = False) -> None:
        if not SHORTEST_PERIOD <= period < inf:
            raise ConfigError(
                f"period must be {SHORTEST_PERIOD:g} seconds or more, and finite; got {period!r}"
            )
        self.strategy = strategy
        self.period = period
        self.dry_run = dry_run
        self._valid_until = -inf

    def step(
        self,
        signal: float | None,
        observed: float | None,
        now: float,
        confirmed: bool | None = None,
    ) -> Decision:
        """Decide for the next period."""
        if now >= self._valid_until:
            self.strategy.rest()  # the last decision, if there was one, has ended by itself
        self._valid_until = now + PERIODS_VALID * self.period
        if signal is None or not isfinite(signal) or confirmed is False:
            self.strategy.rest()
            return Decision(None, False, None, self._valid_until)
        known = observed is not None and isfinite(observed) and observed >= 0
        wanted, overloaded = self.strategy.step(signal, observed if known else None, now)
        if wanted is not None:
            wanted = max(0.0, wanted)
        applied = None if self.dry_run else wanted
        return Decision(applied, overloaded, wanted, self._valid_until)


class Gradient:
    """output = control · g,  g = clamp((signal/setpoint)^slope, min_gradient, max_gradient).

    None if an input is not known or is NaN, the setpoint is 0, or the power is no real number.

    >>> gradient = Gradient(slope=-1, min_gradient=0.1, max_gradient=1.0)
    >>> [gradient.output(signal, 1.0, control=1.0) for signal in (1.25, 2, 20)]
    [0.8, 0.5, 0.1]
    """

    def __init__(
        self,
        slope: float,
        *,
        min_gradient: float = -inf,
        max_gradient: float = inf,
        min_output: float = -inf,
        max_output: float = inf,
    ) -> None:
        if not isfinite(slope):
            raise ConfigError(f"slope must be a finite number; got {slope!r}")
        if not (min_gradient <= max_gradient and min_output <= max_output):
            raise ConfigError("the least gradient and output must not be above the largest")
        self.slope = slope
        self._bounds = min_gradient, max_gradient
        self._outputs = min_output, max_output

    def output(
        self, signal: float | None, setpoint: float | None, control: float | None
    ) -> float | None:
        """Scale `control`, or tell None."""
        if signal is None or setpoint is None or control is None or setpoint == 0:
            return None
        gradient = _power(signal / setpoint, self.slope)
        if isnan(gradient) or isnan(control):
            return None
        output = control * _clamp(gradient, *self._bounds)
        return None if isnan(output) else _clamp(output, *self._outputs)


class AIMD:
    """Multiplicative decrease by the gradient, additive recovery.

        overload:  LM = observed · g,  I = 0          normal:  I += increment,  LM = observed + I

    With a slope below 0 the signal rises with load, and a signal above the setpoint is overload; with a slope above 0
    it falls.  From max_load_multiplier on everything passes; I starts there.

    >>> aimd = AIMD(setpoint=1.0)
    >>> aimd.step(1.25, 1.0, now=0.0)
    Advice(load_multiplier=0.8, overloaded=True)
    """

    def __init__(
        self,
        setpoint: float,
        *,
        slope: float = -1.0,
        min_gradient: float = 0.1,
        max_gradient: float = 1.0,
        max_load_multiplier: float = 2.0,
        load_multiplier_linear_increment: float = 0.025,
    ) -> None:
        if slope == 0:
            raise ConfigError(
                "slope must be below 0 (the signal rises with load) or above 0; got 0"
            )
        _check(setpoint=setpoint, load_multiplier_linear_increment=load_multiplier_linear_increment)
        _check_largest(max_load_multiplier)
        self.setpoint = setpoint
        self._gradient = Gradient(slope, min_gradient=min_gradient, max_gradient=max_gradient)
        self._most = max_load_multiplier
        self._increment = load_multiplier_linear_increment
        self._recovery = max_load_multiplier

    def step(self, signal: float, observed: float | None, now: float) -> Advice:
        rises = self._gradient.slope < 0
        if signal > self.setpoint if rises else signal < self.setpoint:
            self._recovery = 0.0
            return Advice(self._gradient.output(signal, self.setpoint, observed), True)
        self.rest()
        if observed is None:
            return Advice(None, False)
        wanted = round(observed + self._recovery, DIGITS)
        return Advice(wanted if wanted < self._most else None, False)

    def rest(self) -> None:
        self._recovery = min(self._most, round(self._recovery + self._increment, DIGITS))


class AIAD:
    """One sum: less a decrement in overload, more an increment otherwise.

        overload:  LM = max(least, min(LM − decrement, 1 − decrement))          normal:  LM += increment

    From max_load_multiplier on, where it starts, everything passes.

    >>> aiad = AIAD(setpoint=1.0)
    >>> [aiad.step(signal, None, now=0.0).load_multiplier for signal in (2, 2, 2, 0, 0, 0)]
    [0.95, 0.9, 0.85, 0.875, 0.9, 0.925]
    """

    def __init__(
        self,
        setpoint: float,
        *,
        overload_condition: Condition = "gt",
        min_load_multiplier: float = 0.0,
        max_load_multiplier: float = 2.0,
        load_multiplier_linear_increment: float = 0.025,
        load_multiplier_linear_decrement: float = 0.05,
    ) -> None:
        _check(
            setpoint=setpoint,
            min_load_multiplier=min_load_multiplier,
            load_multiplier_linear_increment=load_multiplier_linear_increment,
            load_multiplier_linear_decrement=load_multiplier_linear_decrement,
        )
        _check_largest(max_load_multiplier, min_load_multiplier)
        check_condition(overload_condition)
        self.setpoint = setpoint
        self._condition = overload_condition
        self._least, self._most = min_load_multiplier, max_load_multiplier
        self._increment = load_multiplier_linear_increment
        self._decrement = load_multiplier_linear_decrement
        self._sum = max_load_multiplier

    def step(self, signal: float, observed: float | None, now: float) -> Advice:
        overloaded = holds(signal, self._condition, self.setpoint)
        if overloaded:
            lower = min(round(self._sum - self._decrement, DIGITS), 1 - self._decrement)
            self._sum = max(self._least, lower)
        else:
            self.rest()
        return Advice(self._sum if self._sum < self._most else None, overloaded)

    def rest(self) -> None:
        self._sum = min(self._most, round(self._sum + self._increment, DIGITS))


class Threshold(NamedTuple):
    """A signal, and the load multiplier there."""

    signal_value: float
    load_multiplier: float


class RangeDriven:
    """Between two thresholds, with t = (s − low.s)/(high.s − low.s):  LM = low.m + t^degree · (high.m − low.m).

    Before the low one nothing is throttled, beyond the high one it stays at high.m; if low.m < high.m the other way
    round (low.m before, nothing throttled beyond).  LM ≥ 1: everything passes; LM < 1 is overload.  It has no memory.

    >>> strategy = RangeDriven(Threshold(0.8, 1.0), Threshold(1.0, 0.2), degree=2)
    >>> [round(strategy.step(s, None, now=0.0).load_multiplier, 6) for s in (0.85, 0.9, 0.95, 1)]
    [0.95, 0.8, 0.55, 0.2]
    """

    def __init__(self, low: Threshold, high: Threshold, *, degree: float) -> None:
        for signal, multiplier in (low, high):
            if not (isfinite(signal) and 0 <= multiplier <= 1):
                raise ConfigError(
                    "a threshold needs a finite signal_value and a load_multiplier from 0 to 1; "
                    f"got {signal!r}, {multiplier!r}"
                )
        if low.signal_value == high.signal_value:
            raise ConfigError(f"the two thresholds need different signals; both are {low[0]!r}")
        if not 0 < degree < inf:
            raise ConfigError(f"degree must be a finite number above 0; got {degree!r}")
        self._low, self._high, self._degree = low, high, degree
        mirrored = low.load_multiplier < high.load_multiplier
        self._before = low.load_multiplier if mirrored else 1.0
        self._beyond = 1.0 if mirrored else high.load_multiplier

    def step(self, signal: float, observed: float | None, now: float) -> Advice:
        (start, first), (end, last) = self._low, self._high
        t = (signal - start) / (end - start)
        wanted = self._before if t < 0 else self._beyond
        if 0 <= t <= 1:
            wanted = first + t**self._degree * (last - first)
        return Advice(wanted, True) if wanted < 1 else Advice(None, False)

    def rest(self) -> None:
        pass


class PID:
    """LM = kp·e + I + kd·ė on the relative error e = ±(setpoint − signal)/|setpoint|, above 0 when there is room.

    I starts at max_load_multiplier and grows by ki·e·dt; ki is per second, kd in seconds.  The derivative is that of
    the signal alone, so that a moved setpoint gives no kick; a signal that rises with load lowers LM by rising.  The
    first sample has neither a derivative nor a dt.  I is kept within [least, most] (anti-windup): it is what LM rests
    at, so it has no business elsewhere, and turns as soon as e does.

    Let the signal be in proportion to what is admitted, a·LM setpoints of it, T the period and kd = 0.  Then the loop
    has z² + (A + B − 1)·z − A = 0 with A = a·kp, B = a·ki·T, and settles if 2·A + B < 2: the defaults do for a < 4.

    >>> pid = PID(setpoint=100.0, kp=0.4, ki=0.01)
    >>> pid.step(90.0, None, now=0.0)
    Advice(load_multiplier=None, overloaded=False)
    >>> pid.step(150.0, None, now=10.0)
    Advice(load_multiplier=0.75, overloaded=True)
    """

    def __init__(
        self,
        setpoint: float,
        *,
        kp: float = 0.2,
        ki: float = 0.01,
        kd: float = 0.0,
        overload_condition: Condition = "gt",
        min_load_multiplier: float = 0.0,
        max_load_multiplier: float = 1.0,
    ) -> None:
        _check(kp=kp, ki=ki, kd=kd, min_load_multiplier=min_load_multiplier)
        if setpoint == 0 or not isfinite(setpoint):
            raise ConfigError(f"setpoint must be a finite number, and not 0; got {setpoint!r}")
        _check_largest(max_load_multiplier, min_load_multiplier)
        check_condition(overload_condition)
        self.setpoint = setpoint
        self._kp, self._ki, self._kd = kp, ki, kd
        self._condition = overload_condition
        self._sign = 1 if overload_condition in ("gt", "gte") else -1
        self._least, self._most = min_load_multiplier, max_load_multiplier
        self._integral = max_load_multiplier
        self._before: tuple[float, float] | None = None  # the last signal and its instant

    def step(self, signal: float, observed: float | None, now: float) -> Advice:
        scale = self._sign / abs(self.setpoint)
        error = scale * (self.setpoint - signal)
        slope = dt = 0.0
        if self._before is not None and now > self._before[1]:
            dt = now - self._before[1]
            slope = scale * (self._before[0] - signal) / dt
        self._before = signal, now
        self._integral = _clamp(self._integral + self._ki * error * dt, self._least, self._most)
        wanted = self._kp * error + self._integral + self._kd * slope
        wanted = _clamp(wanted, self._least, self._most)
        overloaded = holds(signal, self._condition, self.setpoint)
        return Advice(wanted if wanted < self._most else None, overloaded)

    def rest(self) -> None:
        self._integral = self._most
        self._before = None


def _power(base: float, exponent: float) -> float:
    """A real power: NaN where there is none, inf where it is too large or the base is 0."""
    try:
        power = base**exponent
    except (OverflowError, ZeroDivisionError):
        return inf
    return power if isinstance(power, float) else float("nan")


def _clamp(value: float, least: float, most: float) -> float:
    return max(least, min(most, value))


def _check(setpoint: float = 0.0, **amounts: float) -> None:
    if not isfinite(setpoint):
        raise ConfigError(f"setpoint must be a finite number; got {setpoint!r}")
    for name, value in amounts.items():
        if not 0 <= value < inf:
            raise ConfigError(f"{name} must be a finite number, 0 or more; got {value!r}")


def _check_largest(most: float, least: float = 0.0) -> None:
    if not 0 < most < inf or least >= most:
        raise ConfigError(
            f"max_load_multiplier must be a finite number above 0 and above the least; got {most!r}"
        )
