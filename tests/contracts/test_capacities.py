"""The capacity contract over every capacity, alone and nested, and over one that a user would write."""

import random
from collections.abc import Callable, Hashable

import pytest

from fairlead.capacities import Slots, TokenBucket
from fairlead.core import STOP, Capacity, Ticket
from fairlead.testing import CapacityContract
from tests.properties.shapes import CAPACITIES, limiting


class Evens(Capacity):
    """At most two at once, and they start on even seconds only."""

    def __init__(self) -> None:
        self.used = 0

    def refusal(self, ticket: Ticket, now: float, without: Ticket | None = None) -> Hashable | None:
        used = self.used - (without is not None)
        return None if used < 2 and now % 2 == 0 else STOP

    def ready_at(self, ticket: Ticket, now: float, scope: Hashable) -> float:
        return now - now % 2 + 2 if self.used < 2 else float("inf")

    def take(self, ticket: Ticket, now: float) -> None:
        self.used += 1

    def give(self, ticket: Ticket, now: float) -> None:
        self.used -= 1


SHAPES: dict[str, Callable[[], Capacity]] = {
    **CAPACITIES,
    "load bucket whose rate ends": lambda: limiting(0.5, until=9.7),
    "a user's": Evens,
}
CASES = [name for name in dir(CapacityContract) if name.startswith("test_")]


class Shape(CapacityContract):
    def __init__(self, make: Callable[[], Capacity]) -> None:
        self._make = make

    def make(self) -> Capacity:
        return self._make()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_capacity(shape: str, case: str):
    getattr(Shape(SHAPES[shape]), case)()


class TestAsAUserWritesIt(CapacityContract):
    def make(self) -> Capacity:
        return Slots(3)

    def ticket(self, number: int, rng: random.Random) -> Ticket:
        return Ticket(number)


class Late(TokenBucket):
    """Promises room later than it comes."""

    def ready_at(self, ticket, now, scope):
        return super().ready_at(ticket, now, scope) + 5


def test_room_promised_too_late_is_found():
    with pytest.raises(AssertionError, match="there is room at"):
        Shape(lambda: Late(1, burst=4)).test_room_comes_exactly_when_promised()
