"""FairQueue beside scopes: whom a wake is for."""

from itertools import count

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


def test_who_waited_for_a_scope_before_is_not_woken_before_who_ranks_first():
    queue = FairQueue()
    numbers = count()
    here: tuple[str, ...] = ("here",)

    def push(tenant: str, cost: float, scopes: tuple[str, ...] = ()) -> Ticket:
        ticket = Ticket(tenant, cost=cost, tenant=tenant)
        ticket.scopes, ticket.seq = scopes, next(numbers)
        queue.push(ticket, 0.0)
        return ticket

    def pick(*, closed: bool = True) -> object:
        picked = queue.pick(lambda ticket: "here" if closed and ticket.scopes else None, 0.0)
        return None if picked is None else picked.key

    push("a", 10)
    left = push("a", 1, here)
    push("b", 20)
    push("b", 1, here)
    assert [pick(), pick(), pick()] == ["a", "b", None]
    queue.remove(left, 0.0)  # its flow, at 10, waits for nothing any more; that of b waits at 20
    push("a", 30)
    push("a", 1, here)
    assert [pick(), pick()] == ["a", None]
    queue.open("here", 0.0)
    assert [pick(closed=False), pick(closed=False)] == ["b", "a"]
