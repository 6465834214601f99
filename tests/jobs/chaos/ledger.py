"""The ledger of a storm: an append-only file that is no part of the system under test.

Whoever does something writes a line about it itself: the submitter what it is about to submit and what was
acknowledged, a job's body when it starts and ends, the storm whom it killed.  A line is one write to a file opened for
appending, so lines of different processes never mix and their order in the file is the order of the writes.  A process
may be killed between two pages of its write; what it wrote is then no line, as if it had been killed before.
"""

import json
import os
from pathlib import Path
from time import monotonic, time  # bound now: a storm may play with its processes' clocks
from typing import Any, NamedTuple

INTENT = "intent"  # run, needs: {node: [nodes]}, ends: {node: state}: about to be submitted
ACK = "ack"  # run, id: submit() has returned
OUTCOME = "outcome"  # run, state, results: wait() has returned
START = "start"  # run, node, fence: a job's body begins
END = "end"  # run, node, fence: it is about to return
STOPPED = "stopped"  # run, node, fence: it was cancelled, or raised
UP = "up"  # role: a process begins to serve
KILLED = "killed"  # victim, role: it is dead, for its parent has buried it
FROZEN = "frozen"  # victim: it was stopped, and goes on later
NOTE = "note"


class Line(NamedTuple):
    """One line: what was done, by which process, when by a clock that all processes share, and more."""

    what: str
    pid: int
    at: float  # CLOCK_MONOTONIC, one for the machine
    wall: float
    more: dict[str, Any]

    @property
    def run(self) -> str:
        return str(self.more["run"])

    @property
    def node(self) -> str:
        return str(self.more["node"])


class Ledger:
    """Writes lines; one per process, opened after a fork or before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def write(self, what: str, **more: Any) -> None:
        """Append a line."""
        told = [what, os.getpid(), monotonic(), time(), more]
        # A newline on both sides: a line that was cut short does not spoil the next.
        line = b"\n" + json.dumps(told, separators=(",", ":")).encode() + b"\n"
        written = os.write(self._file, line)
        assert written == len(line), "a line is written whole or not at all"

    def close(self) -> None:
        os.close(self._file)


class Tail:
    """Reads what was written since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> list[Line]:
        with self._path.open("rb") as file:
            file.seek(self._at)
            fresh = file.read()
        end = fresh.rfind(b"\n") + 1
        self._at += end
        return parsed(fresh[:end])


def read(path: Path) -> list[Line]:
    """Read all lines, in the order in which they were written."""
    return parsed(path.read_bytes())


def parsed(written: bytes) -> list[Line]:
    found = []
    for line in written.split(b"\n"):
        if line:
            try:
                found.append(Line(*json.loads(line)))
            except ValueError:
                assert not line.endswith(b"]"), f"a line that is neither whole nor cut: {line!r}"
    return found
