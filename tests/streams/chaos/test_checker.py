"""The judge of the stream storms is judged: it says nothing of what is right, and names each thing that is wrong."""

import os
from collections.abc import Callable
from itertools import count

import pytest

from tests.streams.chaos import ledger
from tests.streams.chaos.checker import check, rebalances
from tests.streams.chaos.ledger import Line
from tests.streams.chaos.storm import Storm, storm

A, B, STORM = 10, 20, 1
AT = "t:0"


class Story:
    """A storm as it could have been, told by hand; tests spoil a part of it."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.clock = count(1)
        self.calls = count(1)
        self.numbers = count(1)
        self.stored = 6

    def say(self, what: str, pid: int, **more: object) -> None:
        now = float(next(self.clock))
        self.lines.append(Line(what, pid, now, now, more))

    def given(self, pid: int, generation: int, *offsets: int) -> None:
        self.say(ledger.ASSIGNED, pid, at={AT: generation})
        self.say(ledger.DELIVERED, pid, at=AT, generation=generation, offsets=list(offsets))

    def begins(self, pid: int, generation: int, *offsets: int, keys: str = "") -> int:
        call = next(self.calls)
        more = {"at": AT, "generation": generation, "offsets": list(offsets), "call": call}
        self.say(ledger.START, pid, **more, keys=list(keys) or None)
        return call

    def ends(self, pid: int, call: int) -> None:
        self.say(ledger.END, pid, call=call)

    def runs(self, pid: int, generation: int, *offsets: int, keys: str = "") -> None:
        self.ends(pid, self.begins(pid, generation, *offsets, keys=keys))

    def commits(self, pid: int, generation: int | None, offset: int, stored: bool = True) -> None:
        number = next(self.numbers)
        more = {"offsets": {AT: offset}, "generations": {AT: generation}}
        self.say(ledger.COMMITTING, pid, number=number, **more)
        if stored:
            self.say(ledger.COMMITTED, pid, number=number)

    def sees(self, offset: int) -> None:
        self.say(ledger.SEEN, STORM, offsets={AT: offset})

    @property
    def told(self) -> list[str]:
        return check(self.lines, {AT: 6}, {AT: self.stored})[0]


@pytest.fixture
def story() -> Story:
    """A begins, its call of 2 and 3 is still running when B is given the partition, and its result reaches nobody."""
    one = Story()
    one.given(A, 1, 0, 1, 2, 3)
    one.runs(A, 1, 0, 1)
    one.commits(A, 1, 2)
    one.sees(2)
    late = one.begins(A, 1, 2, 3)
    one.say(ledger.GONE, A, at={AT: 1}, how="revoked")
    one.given(B, 1, 2, 3, 4, 5)
    one.ends(A, late)
    failing = one.begins(B, 1, 2, 3)
    one.say(ledger.FAILED, B, call=failing)
    one.runs(B, 1, 2)
    one.runs(B, 1, 3)
    one.commits(B, 1, 4)
    one.runs(B, 1, 4, 5)
    one.commits(B, 1, 6)
    one.sees(6)
    return one


def test_a_good_storm_has_no_complaint_and_is_counted(story):
    complaints, figures = check(story.lines, {AT: 6}, {AT: 6})
    assert complaints == []
    assert (figures.duplicates, figures.in_flight, figures.late) == (2, 2, 1)
    assert (figures.generations, figures.commits, figures.refused) == (2, 3, 0)


def skips(story: Story) -> None:
    story.lines = [line for line in story.lines if line.more.get("call") != 6]


def not_stored(story: Story) -> None:
    story.stored = 4


def beyond_what_runs(story: Story) -> None:
    story.given(A, 2, 6, 7, 8)
    story.begins(A, 2, 6)
    story.runs(A, 2, 7)
    story.commits(A, 2, 8, stored=False)


def stored_before_it_is_done(story: Story) -> None:
    story.sees(7)


def holds_it_no_more(story: Story) -> None:
    story.commits(A, None, 4)


def finished_in_another_generation(story: Story) -> None:
    story.given(A, 2, 6, 7)
    late = story.begins(A, 2, 6)
    story.say(ledger.GONE, A, at={AT: 2}, how="lost")
    story.given(A, 3, 6, 7)
    story.ends(A, late)
    story.commits(A, 3, 7, stored=False)


def goes_back(story: Story) -> None:
    story.sees(4)


def comes_again(story: Story) -> None:
    story.given(A, 2, 5)


def runs_again(story: Story) -> None:
    story.runs(B, 1, 5)


def out_of_order(story: Story) -> None:
    story.given(A, 2, 6, 7)
    story.runs(A, 2, 7)
    story.runs(A, 2, 6)


def beside_each_other(story: Story) -> None:
    story.given(A, 2, 6, 7)
    story.begins(A, 2, 6, keys="k")
    story.begins(A, 2, 7, keys="k")


WRONGS: dict[Callable[[Story], None], str] = {
    skips: "skipped: 2 records of t:0, the first 4",
    not_stored: "stored: 4 of t:0, and 6 were written",
    beyond_what_runs: "beyond: t:0 in generation 2 of 10 commits 8, and has finished what is before 6",
    stored_before_it_is_done: "beyond: 7 of t:0 is stored, and nobody has finished 6",
    holds_it_no_more: "late: 10 commits 4 of t:0, which it does not hold",
    finished_in_another_generation: (
        "beyond: t:0 in generation 3 of 10 commits 7, and has finished what is before 6"
    ),
    goes_back: "back: 4 of t:0 is stored, and it was 6",
    comes_again: "again: t:0 in generation 2 of 10 was given 5, and 6 was stored",
    runs_again: "twice: t:0 in generation 1 of 20 began 5 again, and it had not failed",
    out_of_order: "order: t:0 in generation 2 of 10 began 6 of None after a later one",
    beside_each_other: "order: t:0 in generation 2 of 10 began 7 while another call of k runs",
}


@pytest.mark.parametrize("spoil", WRONGS, ids=lambda spoil: spoil.__name__)
def test_what_is_wrong_is_named(story, spoil):
    spoil(story)
    assert WRONGS[spoil] in story.told


def test_more_duplicates_than_were_in_flight_are_told(story):
    story.given(A, 2, 4, 5)
    story.runs(A, 2, 4, 5)
    assert "duplicates: 4, and 2 were in flight" in story.told


def test_what_members_are_told_within_a_moment_is_one_rebalance():
    assert list(rebalances([1.0, 1.1, 1.2, 2.0, 2.4, 3.0])) == [1.0, 2.0, 3.0]


# And the whole of it, on Fairlead broken on purpose


def keys_overtake(one: Storm) -> None:
    one.start(broken="highest", work=(0.0, 0.3))


def committed_when_handed_out(one: Storm) -> None:
    one.start(broken="at_once")


def batches_are_dropped(one: Storm) -> None:
    one.start(broken="drops", work=(0.0, 0.01))


def results_come_late(one: Storm) -> None:
    """A second member takes half of the partitions while calls of the first one run."""
    one.start(broken="unfenced", work=(0.8, 1.2))
    one.wait(lambda: any(line.what == ledger.START for line in one.lines))
    one.start(broken="unfenced", work=(0.8, 1.2))


BROKEN: dict[Callable[[Storm], None], str] = {
    keys_overtake: "beyond: ",
    committed_when_handed_out: "beyond: ",
    batches_are_dropped: "beyond: ",
    results_come_late: "late: ",
}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="storms need fork")
@pytest.mark.parametrize("spoil", BROKEN, ids=lambda spoil: spoil.__name__)
def test_a_broken_fairlead_is_found_out(tmp_path, spoil):
    with storm(tmp_path, 1, partitions=2, unlucky=0.0, commit_interval="50ms", batch_size=5) as one:
        one.load(2000, over=0.1)
        one.watch()
        spoil(one)
        one.wait(lambda: any(told.startswith(BROKEN[spoil]) for told in one.complaints()[0]))
