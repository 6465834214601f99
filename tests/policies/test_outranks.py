"""A newcomer that ranks before everybody who waits is asked at once; nobody else is."""

from collections.abc import Callable

from fairlead.capacities import Both, Reserved, Slots, TokenBucket
from fairlead.core import Gate, State, Ticket
from fairlead.policies import Classes, FairQueue, Level

BULK, DEFAULT, TOP = range(3)


class Counting(Classes):
    """Counts how often it is asked to pick."""

    picks = 0

    def pick(self, admit, now):
        self.picks += 1
        return super().pick(admit, now)


def gate_with_bulk_waiting(policy: type[Classes] = Counting) -> Gate:
    """Four slots, one of them held for the top class; bulk has three and wants a fourth."""
    classes = policy(
        Level("bulk", FairQueue, starvation=10.0), Level("default"), Level("top", FairQueue)
    )
    gate = Gate(classes, Reserved(4, floors=(0, 0, 1), lend=False))
    for number in range(4):
        gate.offer(Ticket(f"bulk {number}", rank=BULK, tenant="b"), 0.0)
    assert (gate.active, gate.waiting) == (3, 1)
    return gate


def test_it_starts_without_a_pick():
    gate = gate_with_bulk_waiting()
    before = gate.policy.picks  # type: ignore[attr-defined]
    first = Ticket("top", rank=TOP, tenant="t")
    assert gate.offer(first, 1.0) == []
    assert first.state is State.RUNNING
    assert gate.policy.picks == before  # type: ignore[attr-defined]


def test_not_past_one_of_its_own_class():
    gate = gate_with_bulk_waiting()
    for number in range(2):
        gate.offer(Ticket(f"top {number}", rank=TOP, tenant="t"), 1.0)
    assert gate.waiting == 2
    late = Ticket("late", rank=TOP, tenant="t")
    gate.offer(late, 2.0)
    assert late.state is State.WAITING


def test_not_past_one_of_a_higher_class():
    gate = gate_with_bulk_waiting()
    for number in range(2):
        gate.offer(Ticket(f"top {number}", rank=TOP, tenant="t"), 1.0)
    middle = Ticket("middle", rank=DEFAULT)
    gate.offer(middle, 2.0)
    assert middle.state is State.WAITING


def test_not_past_one_whose_promotion_is_due():
    gate = gate_with_bulk_waiting()
    top = Ticket("top", rank=TOP, tenant="t")
    changed = gate.offer(top, 11.0)  # bulk has starved for a second: its promotion took the slot
    assert [ticket.key for ticket in changed] == ["bulk 3"]
    assert top.state is State.WAITING


def small_after_large(policy: type[Classes], by: Callable[[Ticket], object] | None) -> Ticket:
    """Three tokens are left: the first of a class wants five and waits, the second would be content with one."""
    gate = Gate(policy(Level("only")), Both(Slots(9), TokenBucket(1.0, burst=6, by=by)))
    gate.offer(Ticket("first", cost=3, tenant="t"), 0.0)
    gate.offer(Ticket("large", cost=5, tenant="t"), 0.0)
    small = Ticket("small", cost=1, tenant="t")
    gate.offer(small, 0.5)
    return small


def test_not_past_one_that_waits_for_more_of_the_same():
    assert small_after_large(Classes, by=None).state is State.WAITING
    assert small_after_large(Classes, by=lambda ticket: ticket.tenant).state is State.WAITING


def test_that_test_catches_a_policy_that_lets_everybody_pass():
    """Where a scope is closed, the gate does not even ask the policy."""

    class Pushy(Classes):
        def outranks(self, ticket, now):
            return True

    assert small_after_large(Pushy, by=None).state is State.RUNNING
    assert small_after_large(Pushy, by=lambda ticket: ticket.tenant).state is State.WAITING
