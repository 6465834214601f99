"""Groups in play: whoever belongs to one may go, a new one waits for a place."""

import pytest

from fairlead.capacities import Both, Slots
from fairlead.capacities.groups import Groups
from fairlead.capacities.quotas import Quotas
from fairlead.core import Change, Outcome, Policy, State, Ticket
from fairlead.errors import ConfigError
from fairlead.testing import CapacityContract, CheckedGate


class TestGroups(CapacityContract):
    def make(self) -> Groups:
        return Groups(2, "tenant")


class TestQuotasAndGroups(CapacityContract):
    def make(self) -> Both:
        return Both(Quotas("tenant", {"a": 1}), Groups(1, "tenant"), Slots(3))


def offered(gate: CheckedGate, *tenants: str, now: float = 0.0) -> list[Ticket]:
    tickets = [Ticket(number, tenant=tenant) for number, tenant in enumerate(tenants)]
    for ticket in tickets:
        gate.offer(ticket, now)
    return tickets


def states(tickets: list[Ticket]) -> list[str]:
    return [ticket.state.value for ticket in tickets]


def test_a_group_keeps_its_place_until_told() -> None:
    gate = CheckedGate(Policy(), Groups(1, "tenant", until_told=True))
    first, other = offered(gate, "a", "b")
    gate.finish(first, 1.0)
    again = Ticket("again", tenant="a")
    gate.offer(again, 2.0)
    assert states([again, other]) == ["running", "waiting"]
    gate.adjust(Change("groups", "end", (["a"],)), 3.0)
    assert states([other]) == ["waiting"]  # something of it still runs
    gate.finish(again, 4.0)
    assert states([other]) == ["running"]


def test_a_start_that_never_was_takes_no_place() -> None:
    gate = CheckedGate(Policy(), Groups(1, "tenant", until_told=True))
    first, other = offered(gate, "a", "b")
    gate.finish(first, 1.0, Outcome.LOST)
    assert other.state is State.RUNNING


def test_groups_that_began_elsewhere_may_stand_above_the_limit() -> None:
    gate = CheckedGate(Policy(), Groups(1, "tenant", until_told=True))
    gate.adjust(Change("groups", "begin", (["x", "y"], 0.0)), 0.0)
    assert states(offered(gate, "x", "y", "z")) == ["running", "running", "waiting"]
    assert gate.capacity.room() == {"groups": 0}


def test_nothing_is_left_of_groups_that_came_and_went() -> None:
    told: list[tuple[object, float | None]] = []
    groups = Groups(3, "tenant", told=lambda group, since: told.append((group, since)))
    gate = CheckedGate(Policy(), groups)
    for number in range(50):
        (ticket,) = offered(gate, f"tenant {number}", now=float(number))
        gate.finish(ticket, number + 0.5)
    assert not groups.active
    assert not groups._running
    assert told[-2:] == [("tenant 49", 49.0), ("tenant 49", None)]


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_a_limit_that_is_none(limit: int) -> None:
    with pytest.raises(ConfigError, match="number of groups"):
        Groups(limit)


def test_quotas_count_everybody_so_that_a_limit_set_later_holds() -> None:
    gate = CheckedGate(Policy(), Quotas("tenant", name="tenant"))
    first, second = offered(gate, "a", "a")
    gate.adjust(Change("tenant", "replace", ({"a": 1},)), 1.0)
    (third,) = offered(gate, "a", now=1.0)
    assert states([third]) == ["waiting"]
    gate.finish(first, 2.0)
    assert states([third]) == ["waiting"]
    gate.finish(second, 3.0)
    assert states([third]) == ["running"]
    gate.adjust(Change("tenant", "replace", ({"a": 2},)), 4.0)
    assert states(offered(gate, "a", "a", now=4.0)) == ["running", "waiting"]


def test_a_quota_that_is_no_number() -> None:
    with pytest.raises(ConfigError, match="limit of 'a'"):
        Quotas("tenant", {"a": -1})
