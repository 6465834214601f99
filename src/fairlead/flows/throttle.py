"""What arrives and what a controller decides, made into changes of a `LoadBucket`: rate = recent rate × multiplier.

The door hands each arrival and each decision to a `Throttle` and the changes it returns to `Gate.adjust`, before it
offers the arrival.  While the window bootstraps, or a decision says so, or none is valid, everything passes.  The rate
is computed at each decision and when bootstrapping ends; with `continuous` also whenever a slot is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.gate import Change
from fairlead.errors import ConfigError
from fairlead.flows.window import AcceptedShare, IncomingWindow

if TYPE_CHECKING:
    from fairlead.flows.controllers import Decision


class Throttle:
    """Tell how to move the load bucket called `name`.

    >>> from fairlead.flows.controllers import Decision
    >>> throttle = Throttle(slots=2)
    >>> [throttle.arrived(10.0, now=float(second)) for second in range(4)]
    [[], [], [], []]
    >>> throttle.decide(Decision(0.5, True, 0.5, valid_until=53.0), now=3.0)
    [Change(part='load', verb='set_rate', args=(5.0, 3.0, 53.0))]
    """

    def __init__(
        self, name: str = "load", *, slots: int = 30, width: float = 1.0, continuous: bool = False
    ) -> None:
        self._name = name
        self._incoming = IncomingWindow(slots, width)
        self._width = width
        self._shares = AcceptedShare(slots, width)
        self._continuous = continuous
        self._decision: Decision | None = None
        self._passing = True  # what the bucket was told last
        self._bootstrapping = True
        self._look_at = 0.0  # the slot after the last arrival begins

    def arrived(self, tokens: float, now: float) -> list[Change]:
        """Count tokens that ask for admission."""
        self._incoming.count(tokens, now)
        if now < self._look_at:
            return []
        self._look_at = (now // self._width + 1) * self._width
        bootstrapping = self._incoming.bootstrapping(now)
        if bootstrapping is self._bootstrapping and not self._continuous:
            return []
        return self._changes(now)

    def answered(self, tokens: float, accepted: bool, now: float) -> None:
        """Count tokens that were admitted, or were not."""
        (self._shares.accepted if accepted else self._shares.rejected)(tokens, now)

    def observed(self, now: float) -> float | None:
        """Tell the share of tokens accepted of late, for the controller's next step."""
        return self._shares.read(now)

    def decide(self, decision: Decision, now: float) -> list[Change]:
        """Follow a decision."""
        multiplier = decision.load_multiplier
        if multiplier is not None and not multiplier >= 0:
            raise ConfigError(f"a load multiplier must be 0 or more; got {multiplier!r}")
        self._decision = decision
        return self._changes(now)

    def _changes(self, now: float) -> list[Change]:
        rate, decision = self._incoming.rate(now), self._decision
        self._bootstrapping = rate is None
        if rate is None or decision is None or now >= decision.valid_until:
            multiplier = None
        else:
            multiplier = decision.load_multiplier
        passing, self._passing = self._passing, multiplier is None
        if rate is not None and decision is not None and multiplier is not None:
            args = (rate * multiplier, now, decision.valid_until)
            return [Change(self._name, "set_rate", args)]
        return [] if passing else [Change(self._name, "pass_through")]
