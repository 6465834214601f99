"""The ledger of held bytes over random uploads: its bounds, which uploads are cut, and that all of it is given back."""

import random
from math import inf
from typing import Any

import pytest

from fairlead.gateway.held import HeldBytes, Upload

CAUGHT = (AssertionError, KeyError, RuntimeError, StopIteration, ValueError)


class One(Upload):
    """An upload that notes what befalls it."""

    __slots__ = ("fate", "number", "said")

    holder: str

    def __init__(self, number: int, holder: str, now: float, said: list["One"]) -> None:
        super().__init__(holder, now)
        self.number, self.said = number, said
        self.fate = "comes in"

    def cut(self) -> None:
        assert self.fate == "comes in", "only what may be cut is cut, and once"
        self.fate = "cut"
        self.said.append(self)

    def drop(self) -> None:
        assert self.fate == "spare"
        self.fate = "dropped"
        self.said.append(self)


class Books:
    """What is held according to the test."""

    def __init__(self, bound: int, ledger: Any = HeldBytes) -> None:
        self.ledger = ledger(bound)
        self.uploads: list[One] = []
        self.held: dict[One, int] = {}
        self.said: list[One] = []
        self.now = 0.0

    def of(self, holder: str) -> int:
        return sum(size for one, size in self.held.items() if one.holder == holder)

    def open(self, holder: str) -> One:
        one = One(len(self.uploads), holder, self.now, self.said)
        self.uploads.append(one)
        return one

    def speed(self, one: One, more: int = 0) -> tuple[bool, float]:
        took = min(one.ended_at, self.now) - one.began_at
        return one.ended_at < inf, (self.held.get(one, 0) + more) / took if took else inf

    def take(self, one: One, size: int) -> None:
        """Take bytes, and compare with the rule written down in full."""
        self.said.clear()
        expected = self.expected(one, size)
        self._settle(one, size)
        if expected is not None:
            assert [each.number for each in self.said] == [each.number for each in expected]

    def expected(self, one: One, size: int) -> list[One] | None:
        """Say which uploads have to go; None where two have the same claim to."""
        left = {**self.held}
        left.setdefault(one, 0)
        gone: list[One] = []
        bound = self.ledger.bound
        share = bound // 4
        if left[one] + size > share:
            return [one]
        while True:
            sums: dict[str, int] = {one.holder: size}
            for each, held in left.items():
                sums[each.holder] = sums.get(each.holder, 0) + held
            if sums[one.holder] > share:
                largest = [one.holder]
            elif sum(sums.values()) > bound:
                loose = {each.holder for each in left if each.fate in {"comes in", "spare"}}
                most = max(sums[holder] for holder in loose)
                largest = [holder for holder in loose if sums[holder] == most]
            else:
                return gone
            mine = [each for each in left if each.holder in largest]
            spare = [each for each in mine if each.fate == "spare"]
            coming = [each for each in mine if each.fate == "comes in"]
            speeds = [self.speed(each, size if each is one else 0) for each in coming]
            slowest = [each for each, s in zip(coming, speeds, strict=True) if s == min(speeds)]
            if len(largest) > 1 or len(spare) > 1 or (not spare and len(slowest) > 1):
                return None
            victim = (spare or slowest)[0]
            gone.append(victim)
            if victim is one:
                return gone
            del left[victim]

    def _settle(self, one: One, size: int) -> None:
        taken = self.ledger.take(one, size, self.now)
        for each in self.said:
            self.held.pop(each, None)
        assert taken == (one.fate != "cut")
        if taken:
            self.held[one] = self.held.get(one, 0) + size

    def check(self) -> None:
        ledger = self.ledger
        assert ledger.held == sum(self.held.values()) <= ledger.bound
        for holder in {one.holder for one in self.uploads}:
            account = ledger.accounts.get(holder)
            assert self.of(holder) == (0 if account is None else account.held) <= ledger.share
        for one in self.uploads:
            assert one.held == self.held.get(one, 0)


def history(seed: int, ledger: Any = HeldBytes) -> Books:
    """Random uploads of random holders, to a random bound, to their end."""
    chance = random.Random(seed)
    books = Books(chance.choice((40, 400, 4000)), ledger)
    holders = "abcdefg"[: chance.randint(1, 7)]
    for _ in range(chance.randint(1, 120)):
        books.now += chance.choice((0.0, 0.1, 1.0, chance.random()))
        loose = [one for one in books.uploads if one.fate == "comes in"]
        deed = chance.random()
        if not loose or deed < 0.25:
            books.open(chance.choice(holders))
            continue
        one = chance.choice(loose)
        if deed < 0.75:
            if one.ended_at == inf:
                books.take(one, chance.randint(1, books.ledger.bound // 6))
        elif deed < 0.82:
            books.ledger.complete(one, books.now)
        elif deed < 0.88:
            books.ledger.admit(one)
            one.fate = "settled"
        elif deed < 0.94 and one.account is not None:
            books.ledger.keep(one)
            one.fate = "spare"
        else:
            end(books, one)
        books.check()
    for one in books.uploads:
        end(books, one)
        books.check()
    assert not books.ledger.accounts, "nothing is kept of those who left"
    return books


def end(books: Books, one: One) -> None:
    books.ledger.release(one)
    books.held.pop(one, None)
    if one.fate in {"comes in", "spare", "settled"}:
        one.fate = "over"


def test_over_random_uploads_the_bounds_hold_and_the_slowest_of_the_largest_is_cut():
    cut = dropped = 0
    for seed in range(1500):
        books = history(seed)
        cut += sum(one.fate == "cut" for one in books.uploads)
        dropped += sum(one.fate == "dropped" for one in books.uploads)
    assert cut > 1000
    assert dropped > 50


def test_a_body_that_no_room_can_be_made_for_costs_no_other_its_own():
    books = Books(400)
    small, large = books.open("a"), books.open("a")
    books.now = 1.0
    books.take(small, 10)
    books.take(large, 101)
    assert (small.fate, large.fate) == ("comes in", "cut")


def test_a_holder_at_its_bound_costs_no_other_holder_anything():
    books = Books(400)
    other = books.open("b")
    books.take(other, 1)
    books.now = 100.0
    flood = [books.open("a") for _ in range(20)]
    for one in flood:
        books.now += 1
        books.take(one, 50)
    assert other.fate == "comes in"
    assert sum(one.fate == "cut" for one in flood) == 18


def test_a_lower_bound_holds_from_the_next_byte():
    books = Books(4000)
    for number, holder in enumerate("abcde"):
        books.now = float(number)
        books.take(books.open(holder), 700)
    books.ledger.bound = 400
    books.now = 10.0
    books.take(books.open("f"), 10)
    books.check()


class TestMutants:
    """The history notices a ledger that is wrong."""

    def caught(self, ledger: Any) -> None:
        with pytest.raises(CAUGHT):
            for seed in range(200):
                history(seed, ledger)

    def test_a_share_that_is_not_kept(self):
        class Wide(HeldBytes):
            @property
            def share(self) -> int:
                return self.bound

        self.caught(Wide)

    def test_a_bound_that_is_passed_by_one(self):
        class Lax(HeldBytes):
            def take(self, upload: Upload, size: int, now: float) -> bool:
                return super().take(upload, max(1, size - 1), now)

        self.caught(Lax)

    def test_the_fastest_cut(self, monkeypatch):
        slowness = Upload.slowness
        monkeypatch.setattr(
            Upload, "slowness", lambda self, now: (slowness(self, now)[0], -slowness(self, now)[1])
        )
        self.caught(HeldBytes)

    def test_bytes_that_stay_on_the_books(self):
        class Forgetful(HeldBytes):
            def release(self, upload: Upload) -> None:
                held = upload.held
                super().release(upload)
                self.held += held % 2

        self.caught(Forgetful)
