"""The load controller: what holds whatever the strategy."""

from collections.abc import Callable
from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.flows.conditions import Decider
from fairlead.flows.controllers import (
    AIAD,
    AIMD,
    PID,
    Controller,
    Decision,
    RangeDriven,
    Strategy,
    Threshold,
)

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "aimd": lambda: AIMD(1.0),
    "aiad": lambda: AIAD(1.0),
    "range": lambda: RangeDriven(Threshold(0.8, 1.0), Threshold(1.0, 0.2), degree=2),
    "pid": lambda: PID(1.0),
}
each_strategy = pytest.mark.parametrize("name", STRATEGIES)


# What the controller does for all


@each_strategy
def test_a_signal_that_is_missing_passes_everything_through(name: str):
    for missing in (None, nan, inf, -inf):
        controller = Controller(STRATEGIES[name]())
        assert controller.step(1.5, 1.0, 0.0).load_multiplier is not None
        decision = controller.step(missing, 1.0, 10.0)
        assert decision == Decision(None, False, None, 60.0)


@each_strategy
def test_scenario_38_an_overload_that_is_not_confirmed_throttles_nobody(name: str):
    controller = Controller(STRATEGIES[name]())
    assert controller.step(1.5, 1.0, 0.0, False) == Decision(None, False, None, 50.0)
    assert controller.step(1.5, 1.0, 10.0, True).load_multiplier is not None
    assert controller.step(1.5, 1.0, 20.0, False).load_multiplier is None


@each_strategy
def test_a_confirmation_that_is_not_known_counts_as_given(name: str):
    assert Controller(STRATEGIES[name]()).step(1.5, 1.0, 0.0, None).load_multiplier is not None


@each_strategy
def test_a_dry_run_passes_everything_through_and_tells_what_it_would_do(name: str):
    dry, wet = Controller(STRATEGIES[name](), dry_run=True), Controller(STRATEGIES[name]())
    for number, signal in enumerate((0.5, 1.5, 2.5, 0.5, 0.5)):
        would, does = (one.step(signal, 1.0, 10.0 * number) for one in (dry, wet))
        assert would.load_multiplier is None
        assert would.wanted == does.wanted == does.load_multiplier
        assert (would.overloaded, would.alerts) == (does.overloaded, does.alerts)


@each_strategy
def test_decisions_hold_for_five_periods(name: str):
    assert Controller(STRATEGIES[name]()).step(1.5, 1.0, 100.0).valid_until == 150.0
    assert Controller(STRATEGIES[name](), period=0.1).step(1.5, 1.0, 1.0).valid_until == 1.5


def test_an_alert_is_for_less_than_the_recent_load():
    assert not Decision(None, False, None, 0.0).alerts
    assert not Decision(1.5, False, 1.5, 0.0).alerts
    assert Decision(None, True, 0.9, 0.0).alerts


def test_while_the_signal_is_missing_the_recovery_goes_on():
    controller = Controller(AIAD(1.0))
    for number, signal in enumerate((2.0, 2.0, None, None)):
        controller.step(signal, 1.0, 10.0 * number)
    assert controller.step(0.5, 1.0, 40.0).load_multiplier == 0.975
    controller = Controller(AIMD(1.0))
    for number, signal in enumerate((2.0, None, None)):
        controller.step(signal, 1.0, 10.0 * number)
    assert controller.step(0.5, 1.0, 30.0).load_multiplier == 1.075


def test_a_pid_whose_answer_was_not_used_starts_again_from_passing_through():
    for signal, confirmed, later in ((None, None, 20.0), (3.0, False, 20.0), (3.0, None, 900.0)):
        controller = Controller(PID(1.0, kp=0.5, ki=0.01))
        for number in range(2):
            controller.step(3.0, 1.0, 10.0 * number)
        if later < 900:
            controller.step(signal, 1.0, later, confirmed)
        assert controller.step(1.5, 1.0, later + 10).load_multiplier == 0.75


@pytest.mark.parametrize(
    "make",
    [
        lambda: Controller(AIMD(1.0), period=0.09),
        lambda: Controller(AIMD(1.0), period=inf),
        lambda: AIMD(nan),
        lambda: AIMD(1.0, slope=0.0),
        lambda: AIMD(1.0, slope=nan),
        lambda: AIMD(1.0, min_gradient=1.0, max_gradient=0.1),
        lambda: AIMD(1.0, max_load_multiplier=0.0),
        lambda: AIMD(1.0, load_multiplier_linear_increment=-0.1),
        lambda: AIAD(1.0, load_multiplier_linear_decrement=nan),
        lambda: AIAD(1.0, min_load_multiplier=2.0),
        lambda: AIAD(1.0, overload_condition="over"),  # type: ignore[arg-type]
        lambda: RangeDriven(Threshold(1, 1), Threshold(1, 0), degree=1),
        lambda: RangeDriven(Threshold(1, 1.1), Threshold(2, 0), degree=1),
        lambda: RangeDriven(Threshold(1, 1), Threshold(2, 0), degree=0),
        lambda: PID(0.0),
        lambda: PID(1.0, kp=-1.0),
        lambda: Decider("gt", true_for=-1.0),
        lambda: Decider("above"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], object]):
    with pytest.raises(ConfigError):
        make()


ANY = st.one_of(st.none(), st.floats())


@each_strategy
@given(data=st.data())
def test_whatever_comes_a_multiplier_is_a_sane_number_or_none(name: str, data):
    controller = Controller(STRATEGIES[name]())
    now = 0.0
    for _ in range(data.draw(st.integers(1, 20))):
        now += data.draw(st.sampled_from((0.0, 10.0, 60.0)))
        confirmed = data.draw(st.sampled_from((None, True, False)))
        decision = controller.step(data.draw(ANY), data.draw(ANY), now, confirmed)
        if decision.load_multiplier is not None:
            assert decision.load_multiplier >= 0
            assert confirmed is not False
    assert controller.step(None, 1.0, now).load_multiplier is None


@each_strategy
@given(
    before=st.lists(st.floats(0, 5), max_size=8),
    low=st.floats(1.01, 5),
    more=st.floats(0, 3),
    observed=st.floats(0, 1),
)
def test_a_worse_overload_never_admits_more(name, before, low, more, observed):
    answers = []
    for signal in (low, low + more):
        controller = Controller(STRATEGIES[name]())
        for number, earlier in enumerate(before):
            controller.step(earlier, observed, 10.0 * number)
        answers.append(controller.step(signal, observed, 10.0 * len(before)).load_multiplier)
    first, second = (inf if answer is None else answer for answer in answers)
    assert second <= first + 1e-9


# Each promise can be broken, and is caught


class Gripping(Controller):
    """Holds on to its last answer when the signal is missing."""

    last = 1.0

    def step(self, signal, observed, now, confirmed=None):
        if signal is None or not isfinite(signal):
            signal = self.last
        self.last = signal
        return super().step(signal, observed, now, confirmed)


class Unconfirmed(Controller):
    def step(self, signal, observed, now, confirmed=None):
        return super().step(signal, observed, now)


class Sceptical(Controller):
    """Takes a confirmation that is not known for a denial."""

    def step(self, signal, observed, now, confirmed=None):
        return super().step(signal, observed, now, bool(confirmed))


class Wet(Controller):
    """Is never dry."""

    def step(self, signal, observed, now, confirmed=None):
        decision = super().step(signal, observed, now, confirmed)
        return decision._replace(load_multiplier=decision.wanted)


class Undying(Controller):
    def step(self, signal, observed, now, confirmed=None):
        return super().step(signal, observed, now, confirmed)._replace(valid_until=inf)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (Gripping, test_a_signal_that_is_missing_passes_everything_through),
        (Unconfirmed, test_scenario_38_an_overload_that_is_not_confirmed_throttles_nobody),
        (Sceptical, test_a_confirmation_that_is_not_known_counts_as_given),
        (Wet, test_a_dry_run_passes_everything_through_and_tells_what_it_would_do),
        (Undying, test_decisions_hold_for_five_periods),
    ],
)
@each_strategy
def test_a_broken_controller_is_caught(mutant, test, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "Controller", mutant)
    with pytest.raises(AssertionError):
        test(name)
