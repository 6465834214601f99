"""What goes into a simulation and what comes out of it: arrivals, and one row for each.

Times are seconds of virtual time, which begins at 0.  Everything here is plain data, the same byte for byte for the
same seed: no wall clock, no hash order, no address.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_POINTS = 1000  # of a line over time


class Arrival(NamedTuple):
    """One unit of work that will ask for a turn."""

    at: float  # when it comes; with `deps`, the earliest instant at which it may ask
    service: float  # seconds of work once it has started
    cls: str = "default"
    tenant: str = ""
    workload: str = ""
    priority: int = 50
    cost: float = 1.0
    deadline: float | None = None  # the instant by which it should have ended; only counted
    # Seconds it waits at most, then it is told that it waited too long.
    patience: float | None = None
    key: str = ""
    deps: tuple[int, ...] = ()  # the arrivals, by index, that must be done before it asks
    pool: str = ""
    dag: int = -1  # the graph it is part of
    leaves: float | None = None  # seconds after which its caller goes, if it still waits
    commits: float | None = None  # seconds after its start from when on nobody may preempt it
    retries: int = 0  # how often it comes back after it was preempted
    pause: float = 0.0  # seconds until it does
    estimate: float | None = None  # what planners are told of `service`; None: the truth
    labels: Mapping[str, str] | None = None
    door: str = ""  # by which it comes, where several share a pool


class Row:
    """What became of one arrival."""

    __slots__ = (
        "at",
        "started",
        "ended",
        "state",
        "cls",
        "tenant",
        "workload",
        "cost",
        "service",
        "deadline",
        "promoted",
        "preempted",
        "key",
        "priority",
        "pool",
        "dag",
        "reason",
    )

    at: float  # when it asked first
    started: float | None  # the start that counted: after a preemption, that of the next try
    ended: float | None  # when its work ended, or its wait did
    state: str  # done, refused, expired, evicted, withdrawn; waiting or running if time ran out
    cls: str
    tenant: str
    workload: str
    cost: float
    service: float
    deadline: float | None
    promoted: bool
    preempted: int  # how often
    key: str
    priority: int
    pool: str
    dag: int
    reason: str | None

    def __init__(
        self,
        at: float,
        started: float | None = None,
        ended: float | None = None,
        state: str = "waiting",
        cls: str = "default",
        tenant: str = "",
        workload: str = "",
        cost: float = 1.0,
        service: float = 0.0,
        deadline: float | None = None,
        promoted: bool = False,
        preempted: int = 0,
        key: str = "",
        priority: int = 50,
        pool: str = "",
        dag: int = -1,
        reason: str | None = None,
    ) -> None:
        self.at = at
        self.started = started
        self.ended = ended
        self.state = state
        self.cls = cls
        self.tenant = tenant
        self.workload = workload
        self.cost = cost
        self.service = service
        self.deadline = deadline
        self.promoted = promoted
        self.preempted = preempted
        self.key = key
        self.priority = priority
        self.pool = pool
        self.dag = dag
        self.reason = reason

    @property
    def wait(self) -> float | None:
        """Seconds from asking to the start; None if it never started."""
        return None if self.started is None else self.started - self.at

    @property
    def took(self) -> float | None:
        """Seconds from asking to the end of its work; None if it was not done."""
        return self.ended - self.at if self.state == "done" and self.ended is not None else None

    @property
    def late(self) -> bool:
        """Whether it had a deadline and was not done by then."""
        if self.deadline is None:
            return False
        return self.state != "done" or self.ended is None or self.ended > self.deadline

    def plain(self) -> dict[str, Any]:
        """Tell it as JSON would."""
        return {name: getattr(self, name) for name in Row.__slots__}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self.plain() == other.plain()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Row {self.key or self.cls} at {self.at:g} {self.state}>"


@dataclass(slots=True)
class Result:
    """One policy, one seed."""

    policy: str
    seed: int
    horizon: float  # the instant of the last event
    slots: float | None  # None where capacity is no number of slots
    tickets: list[Row]  # in the order of arrival
    utilisation: list[tuple[float, float]] = field(default_factory=list)  # (from, mean in use)
    totals: dict[str, int] = field(default_factory=dict)
    scenario: str = ""
    weighs: bool = False  # whether a ticket took up its cost while it ran, not one slot

    def document(self) -> dict[str, Any]:
        """Tell everything as JSON would."""
        return {
            "scenario": self.scenario,
            "policy": self.policy,
            "seed": self.seed,
            "horizon": self.horizon,
            "slots": self.slots,
            "totals": self.totals,
            "utilisation": [list(point) for point in self.utilisation],
            "tickets": [row.plain() for row in self.tickets],
        }

    def dump(self) -> bytes:
        """Write it; the same scenario, policy and seed give the same bytes."""
        text = json.dumps(self.document(), ensure_ascii=False, separators=(",", ":"))
        return text.encode() + b"\n"


def usage(
    stretches: Iterable[tuple[float, float, float]], horizon: float, most: int = MOST_POINTS
) -> list[tuple[float, float]]:
    """Tell the mean in use in each of `most` equal parts of the time, of (from, to, amount).

    >>> usage([(0.0, 1.0, 1.0), (0.5, 2.0, 1.0)], 2.0, most=4)
    [(0.0, 1.0), (0.5, 2.0), (1.0, 1.0), (1.5, 1.0)]
    """
    if not 0 < horizon < inf:
        return []
    width = horizon / most
    inside = [0.0] * (most + 1)  # amount · seconds of those that begin or end in a part
    through = [0.0] * (most + 1)  # the change of what lasts through whole parts
    for start, end, amount in stretches:
        first, final = int(start / width), int(end / width)
        if first == final:
            inside[first] += (end - start) * amount
        else:
            inside[first] += ((first + 1) * width - start) * amount
            inside[final] += (end - final * width) * amount
            through[first + 1] += amount
            through[final] -= amount
    points, level = [], 0.0
    for part in range(most):
        level += through[part]
        points.append((part * width, max(0.0, round(level + inside[part] / width, 9))))
    return points
