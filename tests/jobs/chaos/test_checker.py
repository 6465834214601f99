"""The judge of the storms is judged: it says nothing of what is right, and names each thing that is wrong."""

from collections.abc import Callable
from itertools import count

import pytest

from tests.jobs.chaos import ledger
from tests.jobs.chaos.checker import Change, Counted, Database, Job, check, rescues
from tests.jobs.chaos.ledger import Line

NEEDS: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["a", "b"]}
RESULTS = {"a": 1, "b": 2, "c": 4}


class Story:
    """A storm as it could have been, told by hand; tests spoil a part of it."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.clock = count(1)
        self.runs = {"r": "completed"}
        self.jobs = [Job("r", node, "completed", RESULTS[node]) for node in NEEDS]
        self.changes: list[Change] = []
        self.counted = [Counted("r", "b", 1, 0), Counted("r", "c", 2, 1), Counted("r", "c", 1, 0)]
        self.say(ledger.UP, 10, role="worker", slots={"near": 1})
        self.say(ledger.UP, 20, role="worker", slots={"near": 1})
        self.say(ledger.INTENT, 1, needs=NEEDS, ends={})
        self.say(ledger.ACK, 1, id="17")

    def say(self, what: str, pid: int, **more: object) -> None:
        now = float(next(self.clock))
        self.lines.append(Line(what, pid, now, now, {"run": "r", "executor": "near", **more}))

    def completes(self, node: str) -> None:
        self.changes.append(Change("r", node, "active", "completed", float(next(self.clock)), 1))

    def runs_well(self, node: str, pid: int) -> None:
        self.say(ledger.START, pid, node=node, fence=1)
        self.say(ledger.END, pid, node=node, fence=1)
        self.completes(node)

    @property
    def told(self) -> list[str]:
        return check(self.lines, Database(self.runs, self.jobs, self.changes, self.counted))


@pytest.fixture
def story() -> Story:
    one = Story()
    one.runs_well("a", 10)
    one.say(ledger.START, 10, node="b", fence=2)  # dies with its process, and is done again
    one.say(ledger.KILLED, 0, victim=10)
    one.runs_well("b", 20)
    one.runs_well("c", 20)
    one.say(ledger.OUTCOME, 1, state="completed")
    return one


def test_a_good_storm_has_no_complaint(story):
    assert story.told == []


def test_rescues_are_timed_from_the_kill(story):
    (rescue,) = rescues(story.lines)
    assert (rescue.run, rescue.node, rescue.seconds, rescue.victim) == ("r", "b", 1.0, 10)


def lost_ack(story: Story) -> None:
    story.runs, story.jobs = {}, []


def lost_job(story: Story) -> None:
    del story.jobs[1]


def another_id(story: Story) -> None:
    story.say(ledger.ACK, 1, id="18")


def half_stored(story: Story) -> None:
    """Of a run that was never acknowledged, all or nothing may be there."""
    story.say(ledger.INTENT, 1, run="half", needs=NEEDS, ends={})
    story.runs["half"] = "completed"
    story.jobs.append(Job("half", "a", "completed", 1))


def never_ended(story: Story) -> None:
    story.jobs[2] = Job("r", "c", "retry")
    story.runs["r"] = "active"


def wrongly_failed(story: Story) -> None:
    story.jobs[2] = Job("r", "c", "failed")


def wrong_result(story: Story) -> None:
    story.jobs[2] = Job("r", "c", "completed", 3)


def run_not_as_its_jobs(story: Story) -> None:
    story.runs["r"] = "failed"


def client_told_wrong(story: Story) -> None:
    story.say(ledger.OUTCOME, 1, state="failed")


def completed_twice(story: Story) -> None:
    story.completes("b")


def came_back_from_its_end(story: Story) -> None:
    story.changes.append(Change("r", "b", "completed", "retry"))


def released_twice(story: Story) -> None:
    story.counted += [Counted("r", "c", 1, 0)]


def waits_for_less_than_nothing(story: Story) -> None:
    story.counted += [Counted("r", "a", 0, -1)]


def completed_by_nobody(story: Story) -> None:
    b = next(n for n, change in enumerate(story.changes) if change.node == "b")
    story.changes[b] = story.changes[b]._replace(fence=2)  # of the one that died


def started_too_early(story: Story) -> None:
    starts = [n for n, line in enumerate(story.lines) if line.what == ledger.START]
    early = story.lines.pop(starts[-1])
    story.lines.insert(starts[1], early)


def started_before_the_commit(story: Story) -> None:
    b = next(n for n, change in enumerate(story.changes) if change.node == "b")
    story.changes[b] = story.changes[b]._replace(wall=99.0)


def ran_at_once(story: Story) -> None:
    """Robbed: the first one lives."""
    story.lines = [line for line in story.lines if line.what != ledger.KILLED]


def more_than_its_slots(story: Story) -> None:
    story.say(ledger.INTENT, 1, run="q", needs={"x": [], "y": []}, ends={})
    story.say(ledger.START, 20, run="q", node="x", fence=7)
    story.say(ledger.START, 20, run="q", node="y", fence=8)


WRONGS: dict[Callable[[Story], None], str] = {
    lost_ack: "lost: run r was acknowledged and is not in the database",
    lost_job: "lost: run r was acknowledged and lacks ['b']",
    another_id: "lost: run r was acknowledged as ['17', '18'], though one key is one run",
    half_stored: "lost: run half is in the database with only 1 jobs",
    never_ended: "stuck: run r is active",
    wrongly_failed: "stuck: job r c is failed and must be completed",
    wrong_result: "stuck: job r c gave 3, not what its DAG gives",
    run_not_as_its_jobs: "stuck: run r ended failed, not as its jobs",
    client_told_wrong: "stuck: run r was told to be failed, and is completed",
    completed_twice: "twice: job r b ended 2 times",
    came_back_from_its_end: "twice: job r b went from completed to retry",
    released_twice: "twice: job r c was released 3 times",
    waits_for_less_than_nothing: "twice: job r a waits for -1 after 0",
    completed_by_nobody: "accepted: job r b was completed with a fence that no body ended with",
    started_too_early: "order: job r c started before b ended",
    started_before_the_commit: "order: job r c started before b was completed",
    ran_at_once: "overlap: job r b runs in [10] and starts in 20",
    more_than_its_slots: "ceilings: 2 bodies in 20 for near, which has 1 slots",
}


@pytest.mark.parametrize("spoil", WRONGS, ids=lambda spoil: spoil.__name__)
def test_each_wrong_is_named(story, spoil):
    spoil(story)
    assert WRONGS[spoil] in story.told


def test_a_zombie_is_no_overlap(story):
    at = next(n for n, line in enumerate(story.lines) if line.what == ledger.KILLED)
    story.lines[at] = story.lines[at]._replace(what=ledger.FROZEN)
    story.say(ledger.END, 10, node="b", fence=2)  # it wakes, ends, and nobody listens
    assert story.told == []
