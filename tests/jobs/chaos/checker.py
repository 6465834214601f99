"""Judges a storm: from its ledger and from what the database says at the end, and from nothing else.

Nothing here imports Fairlead.  What must hold:

- *lost*: what was acknowledged is in the database, whole;
- *stuck*: at the end everything has ended, and each job as its DAG says it must: completed, or failed if it always
  raises, or skipped if it comes after one that failed; and the client was told the same;
- *twice*: each job reached its end once, and what waits for it was counted down once;
- *accepted*: what was completed was ended by a body that had that very fence;
- *order*: no body starts before every dependency has ended its own body, and has been completed in the database;
- *overlap*: the bodies of one job never run at once in two processes that both live;
- *ceilings*: no process runs more bodies at once than it has slots.

A process that was frozen is a zombie from then on: its bodies go on when it wakes, and what they say must not count.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.jobs.chaos.ledger import (
    ACK,
    END,
    FROZEN,
    INTENT,
    KILLED,
    OUTCOME,
    START,
    STOPPED,
    UP,
    Line,
)

TICK = 0.002  # seconds: SQLite tells no time finer than a millisecond
ENDED = {"completed", "failed", "cancelled", "expired", "skipped"}


class Job(NamedTuple):
    """A job as the database has it at the end."""

    run: str  # its run's key
    node: str
    state: str
    result: Any = None


class Change(NamedTuple):
    """What a trigger noted: a job's state changed, in a transaction that was committed."""

    run: str
    node: str
    before: str
    after: str
    wall: float = 0.0  # when it was written, a moment before it was committed
    fence: int | None = None


class Counted(NamedTuple):
    """What a trigger noted: how many dependencies a job still waits for."""

    run: str
    node: str
    before: int
    after: int


class Database(NamedTuple):
    """What the database says when all is quiet."""

    runs: Mapping[str, str]  # key -> state
    jobs: Sequence[Job]
    changes: Sequence[Change] = ()
    counted: Sequence[Counted] = ()


def check(lines: Sequence[Line], database: Database) -> list[str]:
    """Tell everything that is wrong; nothing, if the storm was survived."""
    return [
        *lost(lines, database),
        *stuck(lines, database),
        *told(lines, database),
        *twice(lines, database),
        *accepted(lines, database),
        *order(lines, database),
        *overlap(lines),
        *ceilings(lines),
    ]


def intents(lines: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """What each run was to be; a submitter that was killed says it again."""
    return {line.run: line.more for line in lines if line.what == INTENT}


def acknowledged(lines: Sequence[Line]) -> dict[str, set[str]]:
    """The ids that submit() gave for each run."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line.what == ACK:
            found[line.run].add(str(line.more["id"]))
    return found


def lost(lines: Sequence[Line], database: Database) -> Iterator[str]:
    wanted = intents(lines)
    stored: dict[str, set[str]] = defaultdict(set)
    for job in database.jobs:
        stored[job.run].add(job.node)
    for run, ids in acknowledged(lines).items():
        if len(ids) > 1:
            yield f"lost: run {run} was acknowledged as {sorted(ids)}, though one key is one run"
        if run not in database.runs:
            yield f"lost: run {run} was acknowledged and is not in the database"
        elif missing := set(wanted[run]["needs"]) - stored[run]:
            yield f"lost: run {run} was acknowledged and lacks {sorted(missing)}"
    for run in database.runs:
        if run in wanted and stored[run] != set(wanted[run]["needs"]):
            yield f"lost: run {run} is in the database with only {len(stored[run])} jobs"


def stuck(lines: Sequence[Line], database: Database) -> Iterator[str]:
    wanted = intents(lines)
    known: dict[str, dict[str, int]] = {}

    def given(run: str) -> dict[str, int]:
        if run not in known:
            known[run] = results(wanted[run]["needs"])
        return known[run]

    for run, state in database.runs.items():
        if state not in ENDED:
            yield f"stuck: run {run} is {state}"
        elif run in wanted and state != outcome(wanted[run]["ends"].values()):
            yield f"stuck: run {run} ended {state}, not as its jobs"
    for job in database.jobs:
        if job.run not in wanted:
            continue
        must = wanted[job.run]["ends"].get(job.node, "completed")
        if job.state != must:
            yield f"stuck: job {job.run} {job.node} is {job.state} and must be {must}"
        elif must == "completed" and job.result != given(job.run)[job.node]:
            yield f"stuck: job {job.run} {job.node} gave {job.result!r}, not what its DAG gives"


def outcome(ends: Iterable[str]) -> str:
    """The state of a run whose jobs ended so; what is not named completed."""
    return "failed" if {"failed", "expired"} & set(ends) else "completed"


def results(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """What the bodies of a DAG return; nodes stand after what they need."""
    given: dict[str, int] = {}
    for node, wanted in needs.items():
        given[node] = total(given[need] for need in wanted)
    return given


def total(values: Iterable[int]) -> int:
    """What a body makes of the results it was given."""
    return (sum(values) + 1) % 1_000_003


def told(lines: Sequence[Line], database: Database) -> Iterator[str]:
    """What a client heard from wait() was true, and stayed true."""
    for line in lines:
        if line.what == OUTCOME and database.runs.get(line.run) != line.more["state"]:
            yield f"stuck: run {line.run} was told to be {line.more['state']}, and is {database.runs.get(line.run)}"


def twice(lines: Sequence[Line], database: Database) -> Iterator[str]:
    wanted = intents(lines)
    ends = Counter((one.run, one.node) for one in database.changes if one.after in ENDED)
    for (run, node), times in ends.items():
        if times > 1:
            yield f"twice: job {run} {node} ended {times} times"
    for change in database.changes:
        if change.before in ENDED:
            yield f"twice: job {change.run} {change.node} went from {change.before} to {change.after}"
    downs: Counter[tuple[str, str]] = Counter()
    for count in database.counted:
        if count.after > count.before or count.after < 0:
            yield f"twice: job {count.run} {count.node} waits for {count.after} after {count.before}"
        downs[count.run, count.node] += count.before - count.after
    for (run, node), times in downs.items():
        if run in wanted and times > len(wanted[run]["needs"][node]):
            yield f"twice: job {run} {node} was released {times} times"


def accepted(lines: Sequence[Line], database: Database) -> Iterator[str]:
    ended = {(line.run, line.node, line.more.get("fence")) for line in lines if line.what == END}
    for change in database.changes:
        if change.after == "completed" and (change.run, change.node, change.fence) not in ended:
            yield f"accepted: job {change.run} {change.node} was completed with a fence that no body ended with"


def order(lines: Sequence[Line], database: Database) -> Iterator[str]:
    wanted = intents(lines)
    ended: set[tuple[str, str]] = set()
    completed = {(c.run, c.node): c.wall for c in database.changes if c.after == "completed"}
    for line in lines:
        if line.what == START:
            for need in wanted[line.run]["needs"][line.node]:
                if (line.run, need) not in ended:
                    yield f"order: job {line.run} {line.node} started before {need} ended"
                elif database.changes and completed.get((line.run, need), 1e18) > line.wall + TICK:
                    yield f"order: job {line.run} {line.node} started before {need} was completed"
        elif line.what == END:
            ended.add((line.run, line.node))


def overlap(lines: Sequence[Line]) -> Iterator[str]:
    """Bodies of one job in two processes at once; those of the dead and of zombies do not count."""
    inside: dict[tuple[str, str], set[int]] = defaultdict(set)
    for line in lines:
        if line.what == START:
            others = inside[line.run, line.node]
            if others - {line.pid}:
                yield f"overlap: job {line.run} {line.node} runs in {sorted(others)} and starts in {line.pid}"
            elif others:
                yield f"overlap: job {line.run} {line.node} starts in {line.pid} while it runs there"
            others.add(line.pid)
        elif line.what in {END, STOPPED}:
            inside[line.run, line.node].discard(line.pid)
        elif line.what in {KILLED, FROZEN}:
            for others in inside.values():
                others.discard(line.more["victim"])


def ceilings(lines: Sequence[Line]) -> Iterator[str]:
    """Bodies at once per process and executor, against the slots the process said it has."""
    slots: dict[int, dict[str, int]] = {}
    inside: dict[tuple[int, str], set[tuple[str, str, Any]]] = defaultdict(set)
    for line in lines:
        if line.what == UP:
            slots[line.pid] = line.more["slots"]
            for executor in slots[line.pid]:
                inside[line.pid, executor].clear()  # a number that was given to a new process
        elif line.what in {START, END, STOPPED}:
            executor = line.more["executor"]
            running = inside[line.pid, executor]
            if line.what == START:
                running.add((line.run, line.node, line.more.get("fence")))
                most = slots.get(line.pid, {}).get(executor, 0)
                if len(running) > most:
                    yield f"ceilings: {len(running)} bodies in {line.pid} for {executor}, which has {most} slots"
            else:
                running.discard((line.run, line.node, line.more.get("fence")))


def inside(
    lines: Sequence[Line], before: dict[int, set[tuple[str, str]]] | None = None
) -> dict[int, set[tuple[str, str]]]:
    """The bodies that run in each process at the end of these lines, if `before` ran before them."""
    found: dict[int, set[tuple[str, str]]] = defaultdict(set, before or {})
    for line in lines:
        if line.what == START:
            found[line.pid].add((line.run, line.node))
        elif line.what in {END, STOPPED}:
            found[line.pid].discard((line.run, line.node))
        elif line.what == KILLED:
            found.pop(line.more["victim"], None)
    return found


class Rescue(NamedTuple):
    """A body that died with its process, and how long it took until the job was taken up again."""

    run: str
    node: str
    seconds: float
    victim: int


def rescues(lines: Sequence[Line]) -> list[Rescue]:
    """How long it took from each kill until what had run there was started again."""
    inside: dict[int, set[tuple[str, str]]] = defaultdict(set)
    orphaned: dict[tuple[str, str], tuple[float, int]] = {}
    found = []
    for line in lines:
        if line.what == START:
            if (line.run, line.node) in orphaned:
                died, victim = orphaned.pop((line.run, line.node))
                found.append(Rescue(line.run, line.node, line.at - died, victim))
            inside[line.pid].add((line.run, line.node))
        elif line.what in {END, STOPPED}:
            inside[line.pid].discard((line.run, line.node))
        elif line.what in {KILLED, FROZEN}:
            for name in inside.pop(line.more["victim"], set()):
                orphaned[name] = (line.more.get("when", line.at), line.more["victim"])
    return found
