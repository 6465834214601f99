"""A policy that may withhold is asked also where it stands inside another, and also when nobody waits."""

import pytest

from fairlead.capacities import Slots, TokenBucket
from fairlead.core import Gate, State, Ticket
from fairlead.policies import FIFO, Classes, FairQueue, Level, Planner


def withholding(*_):
    return Planner(lambda waiting, now: [])


@pytest.mark.parametrize(
    "policy",
    [
        withholding(),
        Classes(Level("only", inside=withholding)),
        FairQueue("tenant", inside=withholding),
        Classes(Level("only", inside=lambda: FairQueue("tenant", inside=withholding))),
    ],
    ids=["alone", "classes", "fair", "classes of fair"],
)
def test_a_planner_that_leaves_everything_out_starts_nothing(policy):
    gate = Gate(policy, Slots(4))
    ticket = Ticket("a", tenant="t")
    gate.offer(ticket, 0.0)
    assert ticket.state is State.WAITING


def test_a_flow_whose_queue_withholds_keeps_nobody_else_from_being_asked():
    def inside(tenant):
        return withholding() if tenant == "first" else FIFO()

    gate = Gate(FairQueue("tenant", inside=inside), TokenBucket(1.0, burst=1))
    withheld, other = Ticket("a", tenant="first"), Ticket("b", tenant="second")
    gate.offer(withheld, 0.0)
    gate.offer(other, 0.0)
    assert (withheld.state, other.state) == (State.WAITING, State.RUNNING)


def test_a_limit_set_to_none_leaves_the_limits_inside():
    policy = Classes(Level("only", queue_limit=0))
    policy.limit = None
    gate = Gate(policy, Slots(0))
    ticket = Ticket("a")
    gate.offer(ticket, 0.0)
    assert ticket.state is State.REFUSED
