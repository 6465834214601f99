"""Policies and capacities as documents: what may be said, and what is made of it.

A policy is one word or one key, with what stands inside it:  `fifo`, `aging`, `fair`, `classes`, `order`.
A capacity is one key or several, all of which must have room:  `slots`, `reserved`, `bucket`, `inflight`, `pools`.
"""

from __future__ import annotations

from difflib import get_close_matches
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fairlead.capacities import Both, InFlight, Pools, Reserved, Slots, TokenBucket, Unlimited
from fairlead.config import shown
from fairlead.core.policy import Policy
from fairlead.documents.values import Duration, DurationOrZero, Flag, Model
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fairlead.core.capacity import Capacity
    from fairlead.core.ticket import Ticket

Limit = Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)]
Whole = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
By = Literal["tenant", "workload", "pool", "key", "class"]
Key = Literal["service", "deadline", "cost", "priority"]
KINDS = ("fifo", "aging", "fair", "classes", "order")


class Fifo(Model):
    """In order of arrival."""

    limit: Limit | None = None


class AgingSettings(Model):
    """By priority, which grows while a ticket waits."""

    starvation_timeout: Duration = 30.0
    rate: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    ceiling: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 100
    limit: Limit | None = None

    def made(self) -> Aging:
        """Make the policy."""
        rate = 60.0 / self.starvation_timeout if self.rate is None else self.rate
        return Aging(rate, self.ceiling, limit=self.limit)


class OrderSettings(Model):
    """By one number of the ticket, smallest first (of priority, largest)."""

    by: Key
    limit: Limit | None = None


class Ordered(Policy):
    """By the known service time, the deadline, the cost or the priority."""

    def __init__(self, by: Key, limit: int | None = None) -> None:
        self._by = by
        self.limit = limit
        self.steady = True

    def key(self, ticket: Ticket) -> float:
        if self._by == "service":
            return inf if ticket.estimate is None else ticket.estimate
        if self._by == "deadline":
            return ticket.deadline
        return ticket.cost if self._by == "cost" else -ticket.priority


class Node(Model):
    """One policy, with what stands inside it."""

    fifo: Fifo | None = None
    aging: AgingSettings | None = None
    fair: Fair | None = None
    classes: dict[str, LevelSettings] | None = None
    order: OrderSettings | None = None
    budget: Whole = 4

    @model_validator(mode="before")
    @classmethod
    def _words(cls, data: Any) -> Any:
        if isinstance(data, str):
            if data not in KINDS:
                near = get_close_matches(data, KINDS, n=1)
                meant = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"must be one of {', '.join(KINDS)}; got {shown(data)}{meant}")
            return {data: {}}
        if isinstance(data, dict):  # a key without a value is a word too
            return {
                key: {} if value is None and key in KINDS else value for key, value in data.items()
            }
        return data

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"needs one of {', '.join(KINDS)}; got {' and '.join(given)}")
        if not given and not isinstance(self, LevelSettings):
            raise ValueError(f"needs one of {', '.join(KINDS)}")
        if self.classes is not None and not self.classes:
            raise ValueError("classes must name at least one class, lowest first")
        if self.classes is not None and isinstance(self, LevelSettings):
            raise ValueError("classes may stand at the top only")
        return self

    def made(self, ranks: tuple[str, ...]) -> Policy:
        """Make the policy."""
        if self.aging is not None:
            return self.aging.made()
        if self.fair is not None:
            return self.fair.made(ranks)
        if self.order is not None:
            return Ordered(self.order.by, self.order.limit)
        if self.classes is not None:
            levels = [
                Level(
                    name,
                    _maker(level, ranks),
                    level.queue_limit,
                    inf if level.wait_limit is None else level.wait_limit,
                    inf if level.starvation is None else level.starvation,
                )
                for name, level in self.classes.items()
            ]
            return Classes(*levels, budget=self.budget, name="classes")
        return FIFO(limit=None if self.fifo is None else self.fifo.limit)


def _maker(node: Node, ranks: tuple[str, ...]) -> Callable[[], Policy]:
    return lambda: node.made(ranks)


class LevelSettings(Node):
    """One class: its limits, and the order inside it (fifo unless it says)."""

    queue_limit: Limit | None = None
    wait_limit: Duration | None = None
    starvation: Duration | None = None
    can_preempt: Flag = False


class Fair(Model):
    """Shares by weight."""

    by: By = "tenant"
    weights: dict[str, Weight] = Field(default_factory=dict)
    default_weight: Weight = 1.0
    limit: Limit | None = None
    then: Node | None = None

    @field_validator("then")
    @classmethod
    def _no_classes(cls, given: Node | None) -> Node | None:
        if given is not None and given.classes is not None:
            raise ValueError("classes may stand at the top only")
        return given

    def made(self, ranks: tuple[str, ...]) -> FairQueue:
        """Make the policy."""
        then = self.then
        weights: dict[Hashable, float] = dict(self.weights.items())

        def inside(key: Hashable) -> Policy:
            return FIFO() if then is None else then.made(ranks)

        return FairQueue(
            keyed(self.by, ranks),
            weights=weights,
            default_weight=self.default_weight,
            inside=FIFO if then is None else inside,
            limit=self.limit,
        )


def keyed(by: str, ranks: tuple[str, ...]) -> Callable[[Ticket], Hashable]:
    """Make the function from a ticket to what tells sharers apart."""
    if by == "class":
        return lambda ticket: ranks[ticket.rank] if ticket.rank < len(ranks) else ticket.rank
    return attrgetter(by)


class ReservedSettings(Model):
    """Slots of which classes have a part to themselves."""

    slots: Whole
    floors: dict[str, Count] = Field(default_factory=dict)
    shares: dict[str, Share] = Field(default_factory=dict)
    linger: DurationOrZero = 0.0
    lend: Flag = True


class BucketSettings(Model):
    """Tokens per second, with bursts."""

    rate: Positive
    burst: Positive
    interval: Duration | None = None
    by: By | None = None
    delay_initial_fill: Flag = False
    oversize: Literal["refuse", "debt"] = "refuse"


class InFlightSettings(Model):
    """Tokens in flight, in all or by a key."""

    limit: Positive
    by: By | None = None
    expire_after: Duration | None = None


class CapacitySettings(Model):
    """What must have room; of several, all."""

    slots: Whole | None = None
    reserved: ReservedSettings | None = None
    bucket: BucketSettings | None = None
    inflight: InFlightSettings | None = None
    pools: dict[str, Whole] | None = None
    unlimited: Flag = False

    @model_validator(mode="after")
    def _some(self) -> Self:
        parts = [name for name in PARTS if getattr(self, name) is not None]
        if self.unlimited and parts:
            raise ValueError(f"unlimited cannot be together with {', '.join(parts)}")
        if not self.unlimited and not parts:
            raise ValueError(f"needs one of {', '.join(PARTS)}, or unlimited: true")
        if self.slots is not None and self.reserved is not None:
            raise ValueError("needs slots or reserved, and not both")
        return self

    @property
    def total(self) -> float | None:
        """The number of slots, if that is what it is."""
        if self.slots is not None:
            return self.slots
        if self.reserved is not None:
            return self.reserved.slots
        if self.pools is not None:
            return sum(self.pools.values())
        return None if self.inflight is None or self.inflight.by else self.inflight.limit

    def strangers(self, ranks: tuple[str, ...]) -> list[tuple[str, str]]:
        """Tell the classes it reserves for that there are not: where, and which."""
        said = self.reserved
        if said is None:
            return []
        named = [("floors", name) for name in said.floors] + [
            ("shares", name) for name in said.shares
        ]
        return [(where, name) for where, name in named if name not in ranks]

    def made(self, ranks: tuple[str, ...]) -> Capacity:
        """Make the capacity."""
        parts: list[Capacity] = []
        if self.slots is not None:
            parts.append(Slots(self.slots))
        if (kept := self.reserved) is not None:
            floors = [kept.floors.get(name, 0) for name in ranks] or [0]
            shares = [kept.shares.get(name, 0.0) for name in ranks] or [0.0]
            parts.append(Reserved(kept.slots, floors, shares, linger=kept.linger, lend=kept.lend))
        if (said := self.bucket) is not None:
            parts.append(
                TokenBucket(
                    said.rate,
                    said.burst,
                    by=None if said.by is None else keyed(said.by, ranks),
                    interval=said.interval,
                    delay_initial_fill=said.delay_initial_fill,
                    oversize=said.oversize,
                )
            )
        if (held := self.inflight) is not None:
            by = None if held.by is None else keyed(held.by, ranks)
            expiry = inf if held.expire_after is None else held.expire_after
            parts.append(InFlight(held.limit, by=by, expire_after=expiry))
        if self.pools is not None:
            parts.append(Pools(self.pools))
        if not parts:
            return Unlimited()
        return parts[0] if len(parts) == 1 else Both(*parts)


PARTS = ("slots", "reserved", "bucket", "inflight", "pools")


class GateSettings(Model):
    """A policy and a capacity."""

    policy: Node
    capacity: CapacitySettings


Node.model_rebuild()
LevelSettings.model_rebuild()
Fair.model_rebuild()
GateSettings.model_rebuild()
