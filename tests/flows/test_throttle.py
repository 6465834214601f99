"""Load control on a real gate and a virtual clock: scenarios 21 and 22 of the specification."""

from math import inf, nan
from typing import Any

import pytest

from fairlead.capacities.load import LoadBucket
from fairlead.core import Change, Gate, State, Ticket
from fairlead.errors import ConfigError
from fairlead.flows.controllers import Decision
from fairlead.flows.throttle import Throttle
from fairlead.policies import FIFO

LM_0, LM_70 = (Decision(lm, True, lm, inf) for lm in (0.0, 0.7))


class Plant:
    """A gate under a steady load of 500 requests a second of 5 tokens, each waiting 50 ms, on a virtual clock."""

    def __init__(self, bucket: LoadBucket, throttle: Throttle) -> None:
        self.gate = Gate(FIFO(), bucket)
        self.throttle = throttle
        self.now = 0.0

    def follow(self, decision: Decision) -> None:
        for change in self.throttle.decide(decision, self.now):
            self.gate.adjust(change, self.now)

    def load(self, seconds: float) -> float:
        """Tell the share that was accepted."""
        accepted = 0
        waiting: list[Ticket] = []
        count = round(seconds * 500)
        for number in range(count):
            now = self.now + number / 500
            for change in self.throttle.arrived(5, now):
                self.gate.adjust(change, now)
            ticket = Ticket(cost=5, wait_until=now + 0.05)
            self.gate.offer(ticket, now)
            waiting.append(ticket)
        self.now += seconds
        self.gate.withdraw(waiting, self.now)
        for ticket in waiting:
            accepted += ticket.state is State.RUNNING
            self.throttle.answered(5, ticket.state is State.RUNNING, self.now)
            self.gate.finish(ticket, self.now)
        return accepted / count


def scenario_21(bucket: LoadBucket, throttle: Throttle) -> None:
    plant = Plant(bucket, throttle)
    for _ in range(2):
        plant.follow(LM_0)
        # Bootstrapping accepts everything for 1.1 of the 2 seconds, then a multiplier of 0 nothing.
        assert plant.load(1.0) == 1.0
        assert plant.load(1.0) == pytest.approx(0.1)
        plant.follow(LM_70)
        assert plant.load(10.0) == pytest.approx(0.7, abs=0.01)  # the original's tests allow 15 %
        plant.now += 5.0
        # Silence: it trains again, and ends with one second of rate in the bucket.
        assert plant.load(1.1) == 1.0
        assert plant.load(10.0) == pytest.approx(0.7 + 0.7 / 10, abs=0.01)
        plant.now += 5.0


def small() -> Throttle:
    return Throttle(slots=10, width=0.1)


def test_scenario_21_the_bucket_trains_limits_and_trains_again_after_silence():
    scenario_21(LoadBucket(), small())
    scenario_21(LoadBucket(), Throttle(slots=10, width=0.1, continuous=True))


def test_scenario_22_a_negative_load_multiplier_raises():
    throttle = small()
    with pytest.raises(ConfigError, match="0 or more"):
        throttle.decide(Decision(-0.1, True, -0.1, inf), 0.0)
    with pytest.raises(ConfigError, match="0 or more"):
        throttle.decide(Decision(nan, True, nan, inf), 0.0)


def test_the_observed_share_is_what_was_accepted():
    plant = Plant(LoadBucket(), small())
    plant.load(2.0)
    plant.follow(LM_70)
    plant.load(3.0)
    plant.load(5.0)
    assert plant.throttle.observed(plant.now) == pytest.approx(0.7, abs=0.02)


def trained(**options: Any) -> Throttle:
    throttle = Throttle(slots=3, **options)
    for second in range(5):
        throttle.arrived(6.0, float(second))
    return throttle


def test_a_decision_gives_a_rate_until_it_expires():
    throttle = trained()
    decision = Decision(0.5, True, 0.5, valid_until=54.0)
    assert throttle.decide(decision, 4.0) == [Change("load", "set_rate", (3.0, 4.0, 54.0))]
    assert throttle.decide(decision._replace(load_multiplier=None), 5.0) == [
        Change("load", "pass_through")
    ]
    assert throttle.decide(decision._replace(load_multiplier=None), 6.0) == []


def test_a_decision_that_has_expired_is_not_followed():
    assert trained().decide(Decision(0.5, True, 0.5, valid_until=4.0), 4.0) == []


def test_the_rate_follows_the_window_only_if_it_should():
    decision = Decision(0.5, True, 0.5, valid_until=54.0)
    steady, following = trained(), trained(continuous=True)
    for throttle in (steady, following):
        throttle.decide(decision, 4.0)
        throttle.arrived(60.0, 5.0)
    assert steady.arrived(1.0, 6.0) == []
    assert following.arrived(1.0, 6.0) == [Change("load", "set_rate", (12.0, 6.0, 54.0))]
    assert following.arrived(1.0, 6.5) == []


# Each promise can be broken, and is caught


class Barred(Throttle):
    """Follows a decision though its window is still bootstrapping."""

    def _changes(self, now):
        return super()._changes(now) or [Change("load", "set_rate", (0.0, now))]


class NeverAgain(Throttle):
    """Does not see that it must train again."""

    def arrived(self, tokens, now):
        return [change for change in super().arrived(tokens, now) if change.verb == "set_rate"]


@pytest.mark.parametrize("mutant", [Barred, NeverAgain])
def test_a_throttle_that_does_not_train_is_caught(mutant: type[Throttle]):
    with pytest.raises(AssertionError):
        scenario_21(LoadBucket(), mutant(slots=10, width=0.1))
