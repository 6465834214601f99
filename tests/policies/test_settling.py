"""What work really cost is settled at its end: a correction of what was done, not another start."""

import pytest

from fairlead.capacities import Slots, TokenBucket
from fairlead.core import Ticket
from fairlead.policies import Classes, FairQueue, Level
from fairlead.policies.elders import Elders
from fairlead.testing import CheckedGate


@pytest.mark.parametrize("spent", [1, 1.001, 2])
def test_a_debt_of_one_flow_outlives_what_another_settles(spent: float):
    gate = CheckedGate(FairQueue("tenant"), TokenBucket(1.0, burst=10))
    first, second = Ticket(tenant="a"), Ticket(tenant="b")
    gate.offer(first, 0.0)
    gate.offer(second, 0.0)
    gate.finish(first, 0.0, spent=50)  # the bucket is in debt, and so is its tenant
    gate.finish(second, 0.0, spent=spent)
    for tenant in "ab" * 20:
        gate.offer(Ticket(tenant=tenant), 0.0)
    started: list[object] = []
    now = 0.0
    while len(started) < 20:
        now = gate.next_wakeup(now)
        started += [ticket.tenant for ticket in gate.advance(now)]
    assert started == ["b"] * 20


@pytest.mark.parametrize("spent", [None, 0.5, 1, 2])
@pytest.mark.parametrize("kind", ["classes", "elders"])
def test_settling_upwards_buys_no_promotions(kind: str, spent: float | None):
    levels = Level("bulk", starvation=1.0), Level("system")
    policy = (
        Classes(*levels, budget=4)
        if kind == "classes"
        else Elders(Classes(Level("bulk"), Level("system")), 1.0, budget=4)
    )
    gate = CheckedGate(policy, Slots(1))
    running = Ticket(rank=1)
    gate.offer(running, 0.0)
    for rank in (0, 1):
        for _ in range(100):
            gate.offer(Ticket(rank=rank), 0.0)
    promoted = 0
    for _ in range(80):
        (running,) = gate.finish(running, 100.0, spent=spent)
        promoted += running.rank == 0
    assert promoted == 20
