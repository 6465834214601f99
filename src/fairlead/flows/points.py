"""All control points of one scheduler: made from settings, followed through reloads."""

from __future__ import annotations

import os
import time
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

from fairlead.config import shown
from fairlead.core.ticket import WITHDRAWN
from fairlead.documents.losses import losses
from fairlead.documents.watching import Watch
from fairlead.errors import ConfigError
from fairlead.flows.loading import load, load_content
from fairlead.flows.order import policy_of
from fairlead.flows.parts import Parts
from fairlead.flows.point import Point
from fairlead.flows.settings import KEEPS, Settings
from fairlead.flows.signals import PostedSignals
from fairlead.flows.workloads import Resolver, canonical
from fairlead.runtime import plain_gates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from fairlead.core import Gate
    from fairlead.documents.losses import Loss
    from fairlead.flows.flow import Flow
    from fairlead.flows.loading import Loaded
    from fairlead.flows.settings import ControlPoint
    from fairlead.ledger.leases import Lease
    from fairlead.ledger.ledger import Ledger
    from fairlead.runtime import MakeGates

TICK = 1.0  # seconds between two looks at what is due now and then, at most


def tick_of(points: Iterable[Point]) -> float:
    """Tell how often to look after points: a decision on load must not lapse before the next is made."""
    periods = [point.load.controller.period for point in points if point.load is not None]
    return min([TICK, *periods])


def try_out(settings: ControlPoint, *, shared: bool) -> None:
    """Raise what would be raised on the way to a control point of these settings."""
    Parts(settings, PostedSignals(), float, shared=shared).capacity()
    policy_of(settings.scheduler)
    Resolver(settings.scheduler)


class Points:
    """What the twins share; `runtime_of` makes a gate usable on a loop or between threads."""

    runtime_of: Callable[[Gate], Any]

    def __init__(self, settings: Settings, gates: MakeGates = plain_gates) -> None:
        if not isinstance(settings, Settings):
            raise ConfigError(
                f"{type(self).__name__} takes settings; a file or a mapping is read by "
                f"{type(self).__name__}.from_config(...); got {shown(settings)}"
            )
        self._gates = gates
        self.settings = settings
        self.signals = PostedSignals()
        self.unknown: Counter[str] = Counter()  # flows at control points nothing is said of
        self.ledger: Ledger | None = None
        self._watch: Watch[Loaded] | None = None
        self._look_at = 0.0
        if settings.redis is not None:
            from fairlead.ledger.ledger import Ledger  # redis-py takes its time to load

            self.ledger = Ledger(settings.redis, clock=self.now)
        self.points: dict[str, Point] = {}
        for name, said in settings.control_points.items():
            self._add(name, said)

    @classmethod
    def from_config(cls, config: Any, gates: MakeGates = plain_gates) -> Self:
        """Make a scheduler of a mapping, settings or a YAML file, which from the first flow on is followed.

        Everything wrong with it is said at once.
        """
        loaded = load(config)
        if loaded.problems:
            raise ConfigError("\n".join(loaded.lines))
        made = cls(loaded.settings, gates)
        if isinstance(config, str | os.PathLike):
            made._watch = Watch(config, load_content, made.retune, losses=made.losses, since=loaded)
        return made

    def _point(self, name: str, said: ControlPoint) -> Point:
        gate = self._gates(name)
        shared = self.ledger is not None
        return Point(name, said, type(self).runtime_of, self.signals, gate, shared=shared)

    def _add(self, name: str, said: ControlPoint) -> None:
        point = self.points[name] = self._point(name, said)
        if self.ledger is not None:
            point.join(self.ledger)

    def place(self, flow: Flow, timeout: float | None) -> None:
        """Bring a flow to its control point; where there is none, nothing limits it."""
        given: Any = timeout
        if given is not None:
            if not (isinstance(given, int | float) and given >= 0):
                raise ConfigError(
                    f"timeout must be a number of seconds, 0 or more; got {timeout!r}"
                )
            flow.timeout = timeout
        flow.point = point = self.points.get(flow.control_point)
        if point is None:
            name = canonical(flow.control_point)
            known = name in self.unknown or len(self.unknown) < 100
            self.unknown[name if known else "other"] += 1

    def post_signal(self, name: str, value: float) -> bool:
        """Take a value of a signal; False if no controller listens to it."""
        return self.signals.post(name, value, self.now())

    def now(self) -> float:
        """Read the clock the gates go by."""
        return time.monotonic()

    def losses(self, loaded: Loaded) -> tuple[Loss, ...]:
        """Find what other settings would lose that these have."""
        return losses(self.settings, loaded.settings, KEEPS)

    def retune(self, loaded: Loaded) -> None:
        """Follow other settings; whoever waits goes on waiting, at a new gate where the old one cannot be changed."""
        if loaded.problems:
            raise ConfigError("\n".join(loaded.lines))
        if loaded.settings.redis != self.settings.redis:
            raise ConfigError("redis changes only when the scheduler starts anew")
        for said in loaded.settings.control_points.values():
            try_out(said, shared=self.ledger is not None)  # what is wrong changes nothing
        self.settings = loaded.settings
        now = self.now()
        for name, said in loaded.settings.control_points.items():
            point = self.points.get(name)
            if point is None:
                self._add(name, said)
                continue
            with self.guard(point):
                if point.retune(said, now):
                    continue
                successor = self._point(name, said)
                waiters = self._take_out(point)  # it may let somebody start, who then holds tokens
                # Under its lock too: who ends meanwhile belongs to it before its gate holds them.
                with self.guard(successor):
                    if waiters or point.in_flight:
                        successor.runtime.enter("retune")
                    successor.succeed(point, now)
                    if self.ledger is not None:
                        successor.join(self.ledger, point, now)
                    self._send_on(waiters, successor)
                self.points[name] = successor
            self._retire(point)
        for name in [name for name in self.points if name not in loaded.settings.control_points]:
            point = self.points.pop(name)
            with self.guard(point):
                self._send_on(self._take_out(point), None)
            self._retire(point)

    def guard(self, point: Point) -> AbstractContextManager[Any]:
        """Keep other threads from a point's gate meanwhile."""
        lock: AbstractContextManager[Any] = point.runtime.lock
        return lock

    def _take_out(self, point: Point) -> list[Flow]:
        """Retire a point; return those who wait there, in the order they came."""
        point.retire()
        waiters: list[Any] = sorted(point.gate.waiters(), key=attrgetter("seq"))
        point.runtime.withdraw(waiters)
        return [flow for flow in waiters if flow.state is WITHDRAWN]  # not answered on the way

    def _send_on(self, waiters: list[Flow], successor: Point | None) -> None:
        """Line them up at the successor before anybody new comes, or let them go, if nothing limits them any more."""
        for flow in waiters:
            if successor is not None and flow.queued_ahead >= 0:
                successor.receive(flow)
            else:  # who waits for one answer of the ledger only has no place to lose
                flow.moved = True
                flow.told()

    def _retire(self, point: Point) -> None:
        """Put away what belongs to a point that nobody comes to any more.  The lock is not held."""
        for lease in point.parts.leases:
            self._unshare(lease)
        point.runtime.rest()

    def _unshare(self, lease: Lease) -> None:
        """Stop keeping a limit in common with other processes."""
        raise NotImplementedError

    def until_tick(self) -> float:
        """Tell how long to wait for the next `tick`; a reload may change that."""
        return tick_of(list(self.points.values()))

    def tick(self) -> None:
        """Do what is due now and then at each point, and look at the file these settings come from."""
        now = self.now()
        if self._watch is not None and now >= self._look_at:
            self._look_at = now + TICK / 2  # a change counts once two looks agree
            self._watch.look()
        for point in list(self.points.values()):
            with self.guard(point):
                point.tick(now)

    def metrics(self) -> tuple[bytes, str]:
        """Write what was counted in Prometheus' text format."""
        from fairlead.flows.metrics import render

        return render(self)
