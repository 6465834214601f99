"""Judges a stream storm: from its ledger, what was written and what the broker stores at the end, and nothing else.

Nothing here imports Fairlead.  What must hold:

- *skipped*: every record written was consumed to its end, by somebody;
- *stored*: at the end everything is committed, and no more;
- *beyond*: a commit never passes a record that its member was given in that generation and has not finished, nor one
  that nobody has finished by then;
- *late*: nobody commits a partition that it does not hold, nor what it finished in an earlier generation;
- *back*: what is stored never goes back;
- *again*: what was stored when a partition was assigned is not delivered any more;
- *twice*: in one generation a record is run again only after its call has failed;
- *duplicates*: runs beyond a record's first one are no more than what was in flight when generations ended: begun,
  and not committed;
- *order*: in a generation, records of a partition, or of a key where there are keys, begin in order, and not before
  those before them have ended.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.streams.chaos.ledger import (
    ASSIGNED,
    COMMITTED,
    COMMITTING,
    DELIVERED,
    END,
    FAILED,
    GONE,
    KILLED,
    SEEN,
    START,
    Line,
)

TOGETHER = 0.5  # seconds: what members are told within this time is one rebalance


class Generation:
    """One assignment of one partition to one process."""

    def __init__(self, at: str, pid: int, number: int, stored: int) -> None:
        self.at = at
        self.pid = pid
        self.number = number
        self.stored = stored  # was known to be committed when it began
        self.given: list[int] = []  # delivered, not yet part of the prefix
        self.next = -1  # the prefix that has ended; -1: nothing has been delivered
        self.ended: set[int] = set()
        self.begun: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.last_begun: dict[Any, int] = {}
        self.open: dict[Any, int] = {}  # key -> calls that run
        self.stored_after: int | None = None  # was known to be committed when it ended
        self.offered = -1  # the last that it tried to commit

    def prefix(self) -> int:
        """The offset after the last of the first records that have all ended."""
        while self.given and self.given[0] in self.ended:
            self.next = self.given.pop(0) + 1
        return self.next

    def close(self, stored: int) -> None:
        if self.stored_after is None:
            self.stored_after = stored

    @property
    def in_flight(self) -> int:
        """How many records were begun, at last, and not committed when it ended."""
        return sum(offset >= (self.stored_after or 0) for offset in self.begun)

    @property
    def refused(self) -> int:
        """How many of these had finished and been offered for commit, in vain."""
        return sum((self.stored_after or 0) <= offset < self.offered for offset in self.begun)

    def __str__(self) -> str:
        return f"{self.at} in generation {self.number} of {self.pid}"


class Call(NamedTuple):
    """A consumer's call."""

    generation: Generation
    offsets: list[int]
    keys: list[Any]


class Figures(NamedTuple):
    """What a storm was like."""

    records: int
    runs: int
    duplicates: int
    in_flight: int  # begun, and not committed, when generations ended
    refused_in_flight: int  # of these, finished, and the broker had refused to store it
    rebalances: int
    generations: int
    commits: int
    refused: int
    failures: int
    late: int  # calls that ended after their partition had gone
    kills: int


class Judge:
    """Reads a ledger line by line."""

    def __init__(self, written: Mapping[str, int]) -> None:
        self.written = written
        self.complaints: list[str] = []
        self.held: dict[tuple[int, str], Generation] = {}
        self.generations: dict[tuple[int, str, int], Generation] = {}
        self.calls: dict[tuple[int, int], Call] = {}
        self.commits: dict[tuple[int, int], dict[str, int]] = {}
        self.stored: defaultdict[str, int] = defaultdict(int)  # known to be
        self.seen: defaultdict[str, int] = defaultdict(int)  # by the onlooker
        self.ended: dict[str, set[int]] = {at: set() for at in written}
        self.done: defaultdict[str, int] = defaultdict(int)  # everything before has ended
        self.runs: dict[str, Counter[int]] = {at: Counter() for at in written}
        self.retries = 0
        self.late = 0
        self.counted: Counter[str] = Counter()
        self.changes: list[float] = []

    def read(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self.counted[line.what] += 1
            deed = getattr(self, f"_{line.what}", None)
            if deed is not None:
                deed(line)

    def say(self, text: str) -> None:
        self.complaints.append(text)

    # What members are told

    def _assigned(self, line: Line) -> None:
        self.changes.append(line.at)
        for at, number in line.more["at"].items():
            for other in [one for one in self.held.values() if one.at == at]:
                other.close(self.stored[at])
            made = Generation(at, line.pid, number, self.stored[at])
            self.held[line.pid, at] = self.generations[line.pid, at, number] = made

    def _gone(self, line: Line) -> None:
        if line.more["how"] != "closed":
            self.changes.append(line.at)
        for at, number in line.more["at"].items():
            self.generations[line.pid, at, number].close(self.stored[at])
            self.held.pop((line.pid, at), None)

    def _killed(self, line: Line) -> None:
        for pid, at in [key for key in self.held if key[0] == line.more["victim"]]:
            self.held.pop((pid, at)).close(self.stored[at])

    def _delivered(self, line: Line) -> None:
        at = line.more["at"]
        generation = self.generations[line.pid, at, line.more["generation"]]
        offsets = line.more["offsets"]
        if offsets[0] < generation.stored:
            self.say(
                f"again: {generation} was given {offsets[0]}, and {generation.stored} was stored"
            )
        if generation.next < 0:
            generation.next = offsets[0]
        generation.given += offsets

    # What consumers do

    def _start(self, line: Line) -> None:
        at, offsets = line.more["at"], line.more["offsets"]
        generation = self.generations[line.pid, at, line.more["generation"]]
        keys = line.more["keys"] or [None] * len(offsets)
        for offset, key in zip(offsets, keys, strict=True):
            if generation.begun[offset] > generation.failed[offset]:
                self.say(f"twice: {generation} began {offset} again, and it had not failed")
            retried = generation.begun[offset] > 0
            if offset < generation.last_begun.get(key, -1) and not retried:
                self.say(f"order: {generation} began {offset} of {key} after a later one")
            generation.last_begun[key] = max(offset, generation.last_begun.get(key, -1))
            generation.begun[offset] += 1
            self.retries += retried
            self.runs[at][offset] += 1
        for key in set(keys):
            if generation.open.get(key):
                self.say(f"order: {generation} began {offsets[0]} while another call of {key} runs")
            generation.open[key] = generation.open.get(key, 0) + 1
        self.calls[line.pid, line.more["call"]] = Call(generation, offsets, keys)

    def _close(self, line: Line) -> Call:
        call = self.calls[line.pid, line.more["call"]]
        for key in set(call.keys):
            call.generation.open[key] -= 1
        self.late += self.held.get((line.pid, call.generation.at)) is not call.generation
        return call

    def _end(self, line: Line) -> None:
        call = self._close(line)
        call.generation.ended.update(call.offsets)
        self.ended[call.generation.at].update(call.offsets)

    def _failed(self, line: Line) -> None:
        call = self._close(line)
        call.generation.failed.update(call.offsets)

    # What is committed

    def _committing(self, line: Line) -> None:
        self.commits[line.pid, line.more["number"]] = line.more["offsets"]
        for at, offset in line.more["offsets"].items():
            number = line.more["generations"][at]
            if number is None:
                self.say(f"late: {line.pid} commits {offset} of {at}, which it does not hold")
                continue
            generation = self.generations[line.pid, at, number]
            generation.offered = offset
            if offset > generation.prefix():
                self.say(
                    f"beyond: {generation} commits {offset}, and has finished what is before {generation.next}"
                )

    def _committed(self, line: Line) -> None:
        for at, offset in self.commits[line.pid, line.more["number"]].items():
            self.stored[at] = max(self.stored[at], offset)

    def _seen(self, line: Line) -> None:
        for at, offset in line.more["offsets"].items():
            if offset < self.seen[at]:
                self.say(f"back: {offset} of {at} is stored, and it was {self.seen[at]}")
            while self.done[at] in self.ended[at]:
                self.done[at] += 1
            if offset > self.done[at]:
                self.say(
                    f"beyond: {offset} of {at} is stored, and nobody has finished {self.done[at]}"
                )
            self.seen[at] = offset

    # The end

    def conclude(self, stored: Mapping[str, int]) -> Figures:
        for at, number in self.written.items():
            missing = set(range(number)) - self.ended[at]
            if missing:
                self.say(f"skipped: {len(missing)} records of {at}, the first {min(missing)}")
            if stored.get(at, 0) != number:
                self.say(f"stored: {stored.get(at)} of {at}, and {number} were written")
        for generation in self.generations.values():
            generation.close(self.stored[generation.at])
        figures = self.figures()
        if figures.duplicates > figures.in_flight:
            self.say(f"duplicates: {figures.duplicates}, and {figures.in_flight} were in flight")
        return figures

    def figures(self) -> Figures:
        runs = sum(sum(runs.values()) for runs in self.runs.values())
        first = sum(len(runs) for runs in self.runs.values())
        return Figures(
            records=sum(self.written.values()),
            runs=runs,
            duplicates=runs - first - self.retries,
            in_flight=sum(one.in_flight for one in self.generations.values()),
            refused_in_flight=sum(one.refused for one in self.generations.values()),
            rebalances=len(list(rebalances(self.changes))),
            generations=len(self.generations),
            commits=self.counted[COMMITTED],
            refused=self.counted[COMMITTING] - self.counted[COMMITTED],
            failures=self.counted[FAILED],
            late=self.late,
            kills=self.counted[KILLED],
        )


def rebalances(changes: Sequence[float]) -> Iterator[float]:
    """When the group changed: what members were told within a moment is one change."""
    last = float("-inf")
    for at in changes:
        if at - last > TOGETHER:
            yield at
            last = at


def check(
    lines: Sequence[Line], written: Mapping[str, int], stored: Mapping[str, int]
) -> tuple[list[str], Figures]:
    """Tell everything that is wrong, and what the storm was like."""
    judge = Judge(written)
    judge.read(lines)
    figures = judge.conclude(stored)
    return judge.complaints, figures


__all__ = [
    "ASSIGNED",
    "DELIVERED",
    "END",
    "GONE",
    "SEEN",
    "START",
    "Figures",
    "check",
    "rebalances",
]
