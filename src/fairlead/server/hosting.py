"""What the server asks of every door it hosts: to begin and end, to follow a new configuration, and to be looked at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fairlead.core import Change
from fairlead.server.overrides import Override

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from prometheus_client import Metric

    from fairlead.observe.channel import Channel
    from fairlead.observe.passed import Passed
    from fairlead.server.loading import Loaded
    from fairlead.serving.auditing import Audit

SHRUNK = "slots were taken away while work ran; nothing starts until enough of it has ended"
State = Literal["starting", "running", "failed", "stopped"]


@dataclass(frozen=True)
class Reserve:
    """What a class can count on, how much of that it uses, and how much is kept free for it now.

    `lent_in` is the seconds until others may use what is kept, if no request of the class comes; None while it has any.
    """

    cls: str
    held: int
    used: int
    kept: int = 0
    lent_in: float | None = None


@dataclass(frozen=True)
class View:
    """One gate, to look at and to adjust; everything is read at the moment it is asked for.

    `now` is the gate's own clock.  `lock` is held while the gate itself is looked at; the channel needs none.
    """

    id: str
    door: str
    channel: Channel
    now: Callable[[], float]
    total: Callable[[], float | None]
    # An operator's, where slots follow something else.
    ceiling: Callable[[], int | None] = lambda: None
    reserved: Callable[[], list[Reserve]] = list
    # Why it admits less than it should, or nothing; and what works for it elsewhere.
    degraded: Callable[[], str | None] = lambda: None
    backends: Callable[[], list[dict[str, Any]]] = list
    # Why more runs than there are slots, if it does.
    overfull: Callable[[], str] = lambda: SHRUNK
    # Why slots are free while work waits, beside those that are kept for a class.
    idle: Callable[[], str | None] | None = None
    weight_of: Callable[[Hashable], float] = lambda tenant: 1.0
    adjust: Callable[[Change], Any] | None = None
    # What an operator may change: the part, the verb, and how its arguments are read.
    adjustable: dict[tuple[str, str], Callable[[list[Any]], tuple[Any, ...]]] = field(
        default_factory=dict
    )
    # What `adjustable` has in force now, by its arguments.
    values: Callable[[str, str, tuple[Any, ...]], Any] = lambda part, verb, args: None
    overrides: Callable[[], list[Override]] = list
    lock: Callable[[], AbstractContextManager[Any]] = nullcontext

    def value(self, part: str, verb: str, args: tuple[Any, ...]) -> Any:
        """Return what an adjustment would change."""
        return self.values(part, verb, args)

    def resized(self, part: str, configured: float, ends: str) -> list[Override]:
        """Find whether the room is another than it is configured to be."""
        total = self.total()
        if total == configured or self.adjust is None:
            return []
        adjust, change = self.adjust, Change(part, "resize", (configured,))
        return [
            Override(
                f"{self.id}:resize",
                self.id,
                "the number of slots",
                configured,
                total,
                ends,
                lambda: adjust(change),
            )
        ]

    def why_idle(self, free: float, waiting: int) -> str | None:
        """Explain why slots are free while work waits; None if there is nothing to explain."""
        if not (free and waiting):
            return None
        kept = [one for one in self.reserved() if one.kept]
        if kept:
            number = min(free, sum(one.kept for one in kept))
            total = self.total()
            names = ", ".join(f"{one.kept} for {one.cls}{_until(one)}" for one in kept)
            are = "is" if number == 1 else "are"
            return f"{number:g} of {total:g} slots {are} kept free: {names}"
        if self.idle is not None:
            return self.idle()
        with self.lock():
            gate, first = self.channel.gate, self.channel.first_waiting(1)
            return gate.explain(first[0], self.now()).text if gate and first else None

    def over(self, used: int) -> str | None:
        """Explain why more runs than there are slots; None if it does not."""
        total = self.total()
        if total is None or used <= total:
            return None
        return f"{used} run, and there are {total:g} slots: {self.overfull()}"


def _until(one: Reserve) -> str:
    if one.lent_in is None:
        return ", which has requests now"
    return f", for {one.lent_in:.1f} s more unless a request comes"


class Hosted(ABC):
    """A door in the server's process."""

    name: str
    kind: str
    state: State = "starting"
    detail = ""

    @abstractmethod
    async def start(self) -> None:
        """Begin; an address that cannot be had is an OSError, a setting that cannot be a ConfigError."""

    @abstractmethod
    async def stop(self, grace: float) -> None:
        """Accept no more, finish what runs within the grace, and end."""

    def hurry(self) -> None:  # noqa: B027 - there may be nothing to wait for
        """Wait for nothing any more."""

    def left(self) -> str:
        """Say what would be left undone if the process ended now."""
        return "nothing"

    @property
    def settings(self) -> Any:
        """The settings in force, whatever a configuration has said since; None if no section need keep the door."""
        return self

    @abstractmethod
    def retune(self, loaded: Loaded) -> list[str]:
        """Follow another configuration; tell what of it needs a new start."""

    @abstractmethod
    def views(self) -> list[View]:
        """The gates there are now."""

    def links(self) -> dict[str, str]:
        """Where it can be reached, by what is there."""
        return {}

    def unready(self) -> str | None:
        """Say why it does not welcome traffic, if it does not."""
        return self.detail if self.state == "failed" else None

    def degraded(self) -> str | None:
        """Say why it does less than it should, if it does."""
        return self.unready()

    @property
    def standing(self) -> str:
        """How it stands: its state, or degraded if it runs and does less than it should."""
        return "degraded" if self.state == "running" and self.degraded() else self.state

    @abstractmethod
    def policy(self, gate: str) -> dict[str, Any] | None:
        """The policy of a gate as the simulator reads it; None if it knows no such, or a ConfigError that says why."""

    @property
    def planners(self) -> Mapping[str, Any]:
        """The planners of its app, which that policy may name."""
        return {}

    @abstractmethod
    async def recorded(self, rows: Sequence[Passed]) -> Iterable[dict[str, Any]]:
        """What passed one of its gates, as the simulator reads it."""

    def record_in(self, audit: Audit) -> None:  # noqa: B027 - it may have no port of its own
        """Record what its own operators' port changes."""

    async def overrides(self) -> list[Override]:
        """List what is in force by hand."""
        return [one for view in self.views() for one in view.overrides()]

    def summary(self) -> dict[str, Any] | None:
        """What a snapshot tells of this door beside its gates."""
        return None

    async def refresh(self) -> None:  # noqa: B027 - most know everything
        """Bring up to date what `families` tells, if that takes asking somebody."""

    def families(self) -> Iterable[Metric]:
        """The metrics of this door, beside those of its gates."""
        return ()


def resize_to(args: list[Any]) -> tuple[Any, ...]:
    """Read the arguments of `resize`: a whole number."""
    if len(args) != 1 or type(args[0]) is not int or not 0 <= args[0] <= 1_000_000:
        raise ValueError("resize takes one whole number, 0 to 1000000")
    return tuple(args)


def ceiling_of(args: list[Any]) -> tuple[Any, ...]:
    """Read the arguments of a `resize` that stays: a whole number, or null to end it."""
    return (None,) if args == [None] else resize_to(args)


def weight_for(args: list[Any]) -> tuple[Any, ...]:
    """Read the arguments of `set_weight`: whose, and the weight."""
    good = len(args) == 2 and isinstance(args[0], str) and len(args[0]) <= 400
    if not good or type(args[1]) not in (int, float) or not 0 < args[1] <= 1_000_000:
        raise ValueError("set_weight takes a tenant and a number above 0, at most 1000000")
    return args[0], float(args[1])
