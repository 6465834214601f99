"""What is remembered beside a partition's commit, so that a record that kills its process is noticed.

**The note.** Kafka stores a text beside each committed offset.  While a partition is held it says so; a member that
leaves in order blanks it.  So a member that finds a note knows that the one before it has died, or was cut off.

**What it costs.** While nothing dies: one commit when partitions come, one when they go.  After a death the
partition is *careful* for a while: each call is noted, by a commit, before it starts.  If the process dies again, its
next owner knows which records ran: they are *doubted*, and run alone in the process, one by one.  A record that dies
alone is to blame: the deaths before count as its tries too, and it is buried when they are more than its topic's
retries.  What died in company is never blamed.
"""

from __future__ import annotations

import json
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.errors import FairleadError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.streams.partitions import Partition

CAREFUL = 60.0  # seconds after a death was noticed
MOST = 40  # runs of a note; brokers bound it by offset.metadata.max.bytes, 4096
BESIDE, ALONE, DOUBTED = range(3)  # how records ran, or that they were doubted and did not run


class ProcessDied(FairleadError):
    """A record was run when its process died, too often."""


class Run(NamedTuple):
    """Offsets of one call, how often their first record has failed before, and how they ran."""

    first: int
    last: int
    tries: int
    how: int


class Note(NamedTuple):
    """What a member has left beside its commit."""

    deaths: int
    runs: tuple[Run, ...] = ()


def write_note(deaths: int, runs: Iterable[Run]) -> str:
    """Write a note; of many runs, what they span."""
    kept = [list(run) for run in runs]
    if len(kept) > MOST:
        first, last = min(run[0] for run in kept), max(run[1] for run in kept)
        kept = [[first, last, 0, BESIDE]]
    return json.dumps({"fairlead": 1, "deaths": deaths, "runs": kept}, separators=(",", ":"))


def read_note(text: str) -> Note | None:
    """Read a note; None for what is none of ours."""
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or found.get("fairlead") != 1:
            return None
        runs = tuple(Run(*run) for run in found["runs"])
        numbers = [found["deaths"], *(number for run in runs for number in run)]
        if all(type(number) is int and number >= 0 for number in numbers):
            return Note(found["deaths"], runs)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


class Marks:
    """The notes of one assignment of a partition.  Under the lock of its listener, except `careful`."""

    __slots__ = ("careful", "deaths", "known", "runs", "stored", "until")

    def __init__(self) -> None:
        self.known = False  # what was there has been read, or could not be
        self.stored = ""  # the note that the broker has
        self.deaths = 0  # of processes, in a row
        self.careful = False
        self.until = -inf
        self.runs: dict[Any, Run] = {}  # what runs now, by job

    def found(self, text: str, now: float) -> Note | None:
        """Note what was there; return what a dead process has left."""
        self.known = True
        self.stored = text
        note = read_note(text)
        if note is not None:
            self.deaths = note.deaths + 1
            self.careful = True
            self.until = now + CAREFUL
        return note

    def calm(self, now: float) -> bool:
        """End the care when its time is up; return whether it has ended now."""
        if not self.careful or now < self.until:
            return False
        self.careful = False
        self.deaths = 0
        self.runs.clear()
        return True

    def note(self, partition: Partition) -> str:
        """Return the note to store while the partition is held."""
        return write_note(self.deaths, [*self.runs.values(), *doubts(partition)])


def doubts(partition: Partition) -> list[Run]:
    """Return what is doubted of a partition and does not run, as a note has it."""
    found = [Run(at, at, tries, DOUBTED) for at, tries in partition.tries.items()]
    if partition.doubted_to >= 0:
        start = partition.position if partition.position is not None else 0
        if start <= partition.doubted_to:
            found.append(Run(start, partition.doubted_to, 0, DOUBTED))
    return found


def doubt(partition: Partition, note: Note) -> None:
    """Have a partition doubt what ran when a process died."""
    for run in note.runs:
        partition.doubted_to = max(partition.doubted_to, run.last)
        if run.first == run.last and (run.how == ALONE or run.tries):
            tries = run.tries + (run.how == ALONE)
            partition.tries[run.first] = max(partition.tries.get(run.first, 0), tries)
