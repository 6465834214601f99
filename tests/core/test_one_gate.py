"""A policy and a capacity have one gate each: room given back at one would wake nobody at another."""

from typing import Any

import pytest

from fairlead import Scheduler, SharedPool
from fairlead.capacities import Both, InFlight, Pools, Slots, TokenBucket
from fairlead.core import Gate, Ticket
from fairlead.errors import ConfigError
from fairlead.policies import FIFO
from fairlead.policies.elders import Elders
from fairlead.runtime import GatePool


def test_a_policy_and_a_capacity_have_one_gate_each() -> None:
    policy, slots = FIFO(), Slots(1)
    Gate(policy, slots)
    with pytest.raises(ConfigError, match="SharedPool"):
        Gate(FIFO(), slots)
    with pytest.raises(ConfigError, match="FIFO has a gate already"):
        Gate(policy, Slots(1))


def within(slots: Slots, depth: int) -> Any:
    whole: Any = slots
    for level in range(depth):
        whole = Both(whole, TokenBucket(1.0, burst=9), name=f"level {level}")
    return whole


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1, 2])
def test_a_part_of_a_capacity_has_one_gate(first: int, second: int) -> None:
    slots = Slots(1)
    Gate(FIFO(), within(slots, first))
    with pytest.raises(ConfigError, match="Slots has a gate already"):
        Gate(FIFO(), within(slots, second))


def test_a_gate_that_is_not_made_has_taken_nothing() -> None:
    policy, slots, held = FIFO(), Slots(1), InFlight(1)
    Gate(FIFO(), held)
    both = Both(Both(slots, Pools({}), name="inner"), held)
    with pytest.raises(ConfigError, match="InFlight has a gate already"):
        Gate(policy, both)
    gate = Gate(policy, Both(slots, InFlight(1)))
    ticket = Ticket("a")
    gate.offer(ticket, 0.0)
    assert ticket in gate.holders


def test_a_member_of_a_pool_has_its_parts_to_itself() -> None:
    pool, slots = GatePool(4), Slots(2, name="own")
    Scheduler.bounded(gate=pool.member("one"), capacity=Both(slots, InFlight(1)))
    with pytest.raises(ConfigError, match="Slots has a gate already"):
        Scheduler.bounded(gate=pool.member("other"), capacity=slots)
    with pytest.raises(ConfigError, match="Slots has a gate already"):
        Gate(FIFO(), slots)


def test_a_policy_stands_in_one_place() -> None:
    policy = FIFO()
    Elders(policy, 1.0)
    with pytest.raises(ConfigError, match="FIFO has a gate already"):
        Elders(policy, 1.0)
    with pytest.raises(ConfigError, match="FIFO has a gate already"):
        Gate(policy, Slots(1))


def test_a_policy_has_one_member_of_a_shared_pool() -> None:
    pool, policy = SharedPool(2), FIFO()
    pool.scheduler(policy=policy)
    with pytest.raises(ConfigError, match="FIFO has a gate already"):
        pool.scheduler(policy=policy)
