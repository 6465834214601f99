"""Queues come and go with their tenants: one that is dropped is freed at once, not left to the garbage collector."""

import gc
import weakref
from collections.abc import Callable

import pytest

from fairlead.capacities import Slots
from fairlead.core import Gate, Policy, Ticket
from fairlead.policies import FIFO, Aging, FairQueue

INSIDE: dict[str, Callable[[], Policy]] = {
    "fifo": FIFO,
    "aging": Aging,
    "fair": lambda: FairQueue("workload"),
}


@pytest.mark.parametrize("inside", INSIDE)
def test_the_queue_of_a_tenant_that_left_is_gone(inside: str) -> None:
    made: list[weakref.ref[Policy]] = []

    def queue(tenant: object) -> Policy:
        one = INSIDE[inside]()
        made.append(weakref.ref(one))
        return one

    gate = Gate(FairQueue("tenant", inside=queue), Slots(1))
    gc.disable()
    try:
        for number in range(40):  # one after another, each with somebody who waits
            for work in ("first", "second"):
                gate.offer(Ticket(f"{work} {number}", tenant=number, workload=work), float(number))
            while gate.holders:
                gate.finish(next(iter(gate.holders)), number + 0.5)
        left = [one for one in made if one() is not None]
    finally:
        gc.enable()
    assert len(made) >= 40
    assert len(left) <= 2, "only the last may be kept"
