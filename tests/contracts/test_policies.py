"""The policy contract over every policy, alone and nested, and over one that a user would write."""

import random
from collections.abc import Callable

import pytest

from fairlead.core import Policy, Ticket
from fairlead.testing import PolicyContract
from tests.properties.shapes import POLICIES


class TenLines(Policy):
    """Cheap work first, but nothing waits behind more than ten newer tickets."""

    def key(self, ticket: Ticket) -> tuple[int, float]:
        return ticket.seq // 10, ticket.cost


SHAPES: dict[str, Callable[[], Policy]] = {
    **{name: make for name, make in POLICIES.items() if "limit" not in name},
    "a user's": TenLines,
}


class Shape(PolicyContract):
    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make

    def make(self) -> Policy:
        return self._make()

    def ticket(self, number: int, rng: random.Random) -> Ticket:
        ticket = super().ticket(number, rng)
        ticket.rank = rng.randrange(3)
        return ticket


CASES = [name for name in dir(PolicyContract) if name.startswith("test_")]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_policy(shape: str, case: str):
    getattr(Shape(SHAPES[shape]), case)()


class TestAsAUserWritesIt(PolicyContract):
    def make(self) -> Policy:
        return TenLines()


class AsksOn(Policy):
    """Asks others though one was answered with STOP."""

    def pick(self, admit, now):
        for ticket in sorted(self, key=self.key):
            if admit(ticket) is None:
                self.remove(ticket, now)
                return ticket
        return None


class Rotates(Policy):
    """Sends whoever was refused to the end."""

    def pick(self, admit, now):
        ticket, head = super().pick(admit, now), self.head(now)
        if ticket is None and head is not None:
            self.remove(head, now)
            self._insert(head, head.scopes, 1000 + head.seq)
        return ticket


class Barges(Policy):
    """Says of every newcomer that it goes first, and lets it wait its turn."""

    def outranks(self, ticket, now):
        return True


@pytest.mark.parametrize("broken", [AsksOn, Rotates, Barges])
def test_a_broken_policy_is_found(broken: type[Policy]):
    with pytest.raises(AssertionError):
        for case in CASES:
            getattr(Shape(broken), case)()
