"""Load at a control point: a controller that watches a signal and moves a bucket, and a limit that learns."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from fairlead.capacities.learned import Gradient2, LearnedLimit, Vegas
from fairlead.capacities.load import LoadBucket
from fairlead.errors import ConfigError
from fairlead.flows.conditions import holds
from fairlead.flows.controllers import AIAD, AIMD, PID, Controller, RangeDriven, Strategy, Threshold
from fairlead.flows.signals import (
    CpuUtilization,
    Latency,
    Learned,
    PostedSignals,
    Reading,
    Signal,
    percentile_of,
)
from fairlead.flows.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead.core import Change
    from fairlead.flows.controllers import Decision
    from fairlead.flows.settings import Load

SAME = 1e-6  # seconds that sums of periods, and the timers of a loop, may be off by
LEARNERS: dict[str, Callable[[], LearnedLimit]] = {"vegas": Vegas, "gradient2": Gradient2}


class LoadControl:
    """Counts what comes and goes at a point, and steps its controller every period."""

    def __init__(
        self, settings: Load, posted: PostedSignals, queue_length: Callable[[], float]
    ) -> None:
        self.bucket = LoadBucket()
        self.throttle = Throttle()
        self.latencies: list[Latency] = []  # the signal, its confirmation, or both
        self.decision: Decision | None = None
        self.queue_length = queue_length
        signal = self._source(settings.signal, posted)
        setpoint = settings.setpoint
        if setpoint == "learned":
            setpoint = 1.0
            if settings.controller != "range":  # which knows what its signal means
                signal = Learned(signal)
        self._signal = signal
        self._confirmation: Signal | None = None
        if settings.confirmation is not None:
            self._confirmation = self._source(settings.confirmation, posted)
        self._confirmed_above = settings.confirmation_above or 0.0
        strategy = _strategy(settings, float(setpoint))
        self.controller = Controller(strategy, period=settings.period, dry_run=settings.dry_run)
        self._next_step = -inf
        self._resolve_timeout = settings.alerter.resolve_timeout
        self._alerts_until = -inf

    def _source(self, name: str, posted: PostedSignals) -> Signal:
        share = percentile_of(name)
        if share is not None:
            self.latencies.append(Latency(share))
            return self.latencies[-1]
        if name == "cpu":
            return CpuUtilization()
        if name == "queue_length":
            return Reading(lambda: self.queue_length())  # of whichever point it is at
        return posted.named(name)

    def take_over(self, other: LoadControl, now: float) -> None:
        """Go on with what was learned and decided at the point that another was made for."""
        other.bucket.inherit(self.bucket, now)
        self.bucket, self.queue_length = other.bucket, other.queue_length

    def arrived(self, tokens: float, now: float) -> Sequence[Change]:
        """A flow asks; tell what that changes."""
        return self.throttle.arrived(tokens, now)

    def ended(self, latency: float, now: float) -> None:
        """A flow's work is done."""
        for one in self.latencies:
            one.add(latency, now)

    def step(self, now: float) -> Sequence[Change]:
        """Step the controller, if its period is over; tell what that changes."""
        if now < self._next_step - SAME:
            return ()
        period = self.controller.period
        self._next_step += period  # not of now, or each step would be late by what the others were
        if self._next_step <= now:
            self._next_step = now + period  # steps that were missed are not made up for
        confirmed = None
        if self._confirmation is not None:
            value = self._confirmation.read(now)
            confirmed = None if value is None else holds(value, "gt", self._confirmed_above)
        observed = self.throttle.observed(now)
        self.decision = self.controller.step(self._signal.read(now), observed, now, confirmed)
        if self.decision.alerts:
            self._alerts_until = inf
        elif self._alerts_until == inf:
            self._alerts_until = now + self._resolve_timeout
        return self.throttle.decide(self.decision, now)

    def alerts(self, now: float) -> bool:
        """Tell whether less than the recent load passes, or would in a dry run, or did a moment ago."""
        return now < self._alerts_until


def _strategy(settings: Load, setpoint: float) -> Strategy:
    if settings.controller == "aimd":
        return AIMD(
            setpoint,
            slope=settings.gradient.slope,
            min_gradient=settings.gradient.min_gradient,
            max_gradient=settings.gradient.max_gradient,
            max_load_multiplier=settings.max_load_multiplier,
            load_multiplier_linear_increment=settings.load_multiplier_linear_increment,
        )
    if settings.controller == "aiad":
        return AIAD(
            setpoint,
            overload_condition=settings.overload_condition,
            min_load_multiplier=settings.min_load_multiplier,
            max_load_multiplier=settings.max_load_multiplier,
            load_multiplier_linear_increment=settings.load_multiplier_linear_increment,
            load_multiplier_linear_decrement=settings.load_multiplier_linear_decrement,
        )
    if settings.controller == "pid":
        gains = settings.pid
        return PID(
            setpoint,
            kp=gains.kp,
            ki=gains.ki,
            kd=gains.kd,
            overload_condition=settings.overload_condition,
            min_load_multiplier=settings.min_load_multiplier,
            max_load_multiplier=settings.max_load_multiplier,
        )
    low, high = settings.low_throttle_threshold, settings.high_throttle_threshold
    if low is None or high is None:
        raise ConfigError("controller: range needs both thresholds")
    return RangeDriven(
        Threshold(low.signal_value, low.load_multiplier),
        Threshold(high.signal_value, high.load_multiplier),
        degree=settings.degree,
    )
