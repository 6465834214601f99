"""FairQueue beside scopes: whom a wake is for."""

from fairlead.capacities import Both, Pools, TokenBucket
from fairlead.core import Ticket
from fairlead.policies import FairQueue
from fairlead.testing import CheckedGate


def test_a_wake_stays_with_the_flow_it_was_for_when_a_stop_ends_the_asking():
    """Passed on instead, it brought another flow to the head, and nobody was woken in time for that one."""

    def starts(*looks: float) -> dict[object, float]:
        policy = FairQueue("workload", inside=lambda key: FairQueue("tenant"))
        capacity = Both(Pools({"ocr": 2, "gpu": 2}), TokenBucket(1.0, burst=4))
        gate = CheckedGate(policy, capacity, reserve_after=3.0)
        first = Ticket("first", cost=3, tenant="a", pool="gpu", workload="y")
        tickets = [
            first,
            Ticket("second", cost=2, tenant="a", pool="gpu", workload="y"),
            Ticket("third", cost=3, tenant="a", pool="gpu", workload="x"),
            Ticket("fourth", cost=1, tenant="b", pool="gpu", workload="y"),
            Ticket("fifth", cost=1, tenant="a", pool="gpu"),
            Ticket("sixth", cost=1, tenant="a", pool="ocr"),
        ]
        for ticket in tickets:
            gate.offer(ticket, 0.0)
        gate.finish(first, 0.0)
        for look in looks:
            gate.advance(look)
        gate.advance(7.0)
        return {ticket.key: ticket.started_at for ticket in tickets}

    assert starts() == starts(3.5)
