"""Several schedulers on one gate: they share its room by weight, each with a policy of its own inside."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fairlead.capacities import Slots
from fairlead.config import whole
from fairlead.core import Change, Gate
from fairlead.core.part import claim
from fairlead.errors import ConfigError, Misuse
from fairlead.policies import FairQueue
from fairlead.runtime import LoopGate
from fairlead.tasks.door import DEFAULT_SLOTS, aging_or, positive, slots_or
from fairlead.tasks.scheduler import Scheduler
from fairlead.tasks.work import Workers

if TYPE_CHECKING:
    from fairlead.core import Capacity, Policy
    from fairlead.runtime import MakeGate


class SharedPool:
    """One capacity for several schedulers.

    Two gates on one capacity would starve each other, so there is one gate, with a fair queue over the members.

    >>> pool = SharedPool(max_concurrency=16)
    >>> api, reports = pool.scheduler(weight=3), pool.scheduler(weight=1)
    """

    def __init__(
        self,
        max_concurrency: int = DEFAULT_SLOTS,
        *,
        capacity: Capacity | None = None,
        gate: MakeGate = Gate,
    ) -> None:
        self._members = FairQueue(
            "door.number",
            weights=attrgetter("weight"),
            inside=attrgetter("policy"),
            name="members",
        )
        self._made = 0
        self._gate = LoopGate(gate(self._members, slots_or(capacity, max_concurrency)))
        self._workers = Workers(self._gate)

    def scheduler(
        self,
        *,
        weight: float = 1.0,
        max_queue_size: int = 0,
        starvation_timeout: Any = "30s",
        policy: Policy | None = None,
    ) -> Scheduler:
        """Make a member; under load it gets room in proportion to its weight."""
        weight = positive(weight, "weight")
        policy = aging_or(policy, max_queue_size, starvation_timeout)
        claim(policy)
        member = _Member(self._gate, self._workers, policy)
        self._made += 1
        member.number = _Number(self._made)
        member.number.policy, member.number.weight = policy, weight
        return member

    def set_weight(self, member: Scheduler, weight: float) -> None:
        """Change the weight of a member; it counts from the next start on."""
        if not isinstance(member, _Member) or member._gate is not self._gate:
            raise ConfigError(
                "that scheduler is not a member of this pool; make it with pool.scheduler()"
            )
        weight = positive(weight, "weight")
        if self._gate.loop is not None and self._gate.loop.is_running():
            self._gate.enter("set_weight")
        self._gate.adjust(Change(self._members.name, "set_weight", (int(member.number), weight)))

    def resize(self, max_concurrency: int) -> None:
        """Change the number of slots all members share."""
        total = whole(max_concurrency, "max_concurrency", 1)
        capacity = self._gate.gate.capacity
        if not isinstance(capacity, Slots):
            raise Misuse(f"resize() needs slots, and this pool has {type(capacity).__name__}")
        self._gate.enter("resize")
        self._gate.adjust(Change(capacity.name, "resize", (total,)))


class _Number(int):
    """What the queue knows a member by: a plain value for a recording, and no hold on a member that was dropped."""

    policy: Policy
    weight: float  # until it is changed


class _Member(Scheduler):
    number: _Number

    def resize(self, max_concurrency: int) -> None:
        raise Misuse("the slots belong to the pool; call resize() on the SharedPool")
