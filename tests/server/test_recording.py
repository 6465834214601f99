"""What passed a gate, recorded and replayed: jobs wait for what they need, batches are taken apart into records."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.capacities import Slots
from fairlead.core import Ticket
from fairlead.errors import ConfigError
from fairlead.jobs import Dag, Jobs
from fairlead.observe.passed import Passed
from fairlead.observe.watched import Feed
from fairlead.policies import FIFO
from fairlead.server.hosted_jobs import LEADER, HostedJobs
from fairlead.server.hosted_streams import WORKERS, HostedStreams
from fairlead.server.recording import job_lines, line_of, lines_of
from fairlead.server.settings import JobsSettings
from fairlead.server.whatif import _count_from, _replayed
from fairlead.sim import Scenario, read_policy, read_scenario, simulate
from fairlead.sim.records import arrivals_of
from fairlead.testing.streams import MemoryBroker
from tests.server.rig import run
from tests.streams.staging import Book, app_on, filled, until, wait_committed, writing

# What each job needs: three ways through, one of them long, and an end that waits for all.
NEEDS = {
    "fetch": [],
    "parse": ["fetch"],
    "check": ["parse"],
    "load": [],
    "join": ["check", "load"],
    "tidy": [],
    "mail": ["fetch", "tidy"],
    "report": ["join", "mail"],
}

Recorded = tuple[list[dict[str, Any]], dict[str, Any]]


def recorded(tmp_path: Path) -> Recorded:
    """Run the graph on one slot of a real service; tell the lines of its recording, and its policy."""
    ran: list[str] = []

    def prepare(jobs: Jobs) -> None:
        for number, name in enumerate(sorted(NEEDS)):

            @jobs.task(name=name, estimate=f"{number + 1}s")
            async def work(name: str = name) -> None:
                ran.append(name)

    async def live() -> Recorded:
        settings = JobsSettings(database=f"sqlite:///{tmp_path}/jobs.db", executors={"default": 1})
        feed = Feed()
        door = HostedJobs(settings, feed, grace=5.0, prepare=prepare)
        dag = Dag("nightly")
        for name, needs in NEEDS.items():
            dag.add(name).options(name=name, after=needs)
        submitted = await door.jobs.submit(dag)
        await door.start()
        try:
            outcome = await door.jobs.wait(submitted.id)
            assert outcome.state == "completed"
            await asyncio.to_thread(until, lambda: len(feed.rows(LEADER)) == len(NEEDS))
            lines = list(await door.recorded(feed.rows(LEADER)))
            policy = door.policy(LEADER)
        finally:
            await door.stop(5.0)
        assert policy is not None
        order = sorted(lines, key=lambda line: line["started"])
        assert [list(NEEDS)[int(line["id"].partition(".")[2])] for line in order] == ran
        return lines, policy

    found: Recorded = run(live)
    return found


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return recorded(tmp_path_factory.mktemp("jobs"))


def replayed(lines: list[dict[str, Any]], policy: dict[str, Any], **changes: Any) -> Any:
    began = min(line["t"] for line in lines)
    lines = [dict(line) for line in lines]
    for line in lines:
        _count_from(line, began)
    spec = read_policy(policy).with_settings(changes)
    return simulate(Scenario.of(arrivals_of(lines)), spec, 0)


def early(lines: list[dict[str, Any]], result: Any) -> list[str]:
    """Tell the jobs that began before what they need had ended."""
    rows = {row.key: row for row in result.tickets}
    ids = {name: next(x["id"] for x in lines if x["id"].endswith(f".{number}"))
           for number, name in enumerate(NEEDS)}  # fmt: skip
    return [
        name
        for name, needs in NEEDS.items()
        if any(rows[ids[name]].started < rows[ids[need]].ended for need in needs)
    ]


def test_a_replay_under_the_same_policy_gives_the_same_order(nightly):
    lines, policy = nightly
    result = replayed(lines, policy)
    then = [line["id"] for line in sorted(lines, key=lambda line: line["started"])]
    assert [row.key for row in sorted(result.tickets, key=lambda row: row.started)] == then
    assert result.totals["done"] == len(NEEDS)
    assert early(lines, result) == []


def test_no_job_is_replayed_before_what_it_needs(nightly):
    lines, policy = nightly
    twice = {"executors": {"default": 2}}
    result = replayed(lines, policy, **twice)
    assert early(lines, result) == []
    assert result.horizon < replayed(lines, policy).horizon
    apart = [line | {"deps": []} for line in lines]
    assert early(lines, replayed(apart, policy, **twice))


def test_what_if_replays_the_graph(nightly):
    lines, policy = nightly
    told = [dict(line) for line in lines]
    found = _replayed(told, policy, {"executors.default": 2}, 1, lambda part: None)
    before, after = (found[side]["groups"]["all"]["all"] for side in ("before", "after"))
    assert before["done"] == after["done"] == len(NEEDS)
    assert before["dags"] == 1
    assert after["dag.max"] < before["dag.max"]


def passed(key: str, arrived: float, ended: float, state: str = "done") -> Passed:
    started = None if state == "withdrawn" else arrived + 1.0
    fixed = ("default", 0, "acme", 7, 1, 0, None)
    return Passed(LEADER, 1, key, *fixed, arrived, started, ended, state, None, False, 2.0)


def test_a_further_try_waits_for_the_one_before_it_and_what_follows_for_the_last():
    rows = [
        passed("7.0", 10.0, 12.0),
        passed("7.0", 15.0, 17.0),
        passed("7.1", 17.0, 18.5, "lost"),
        passed("7.1", 17.0, 19.0),
    ]
    lines = list(job_lines(rows, {(7, 0): (), (7, 1): (0,)}))
    assert [(line.get("id"), line["deps"], line["t"]) for line in lines] == [
        ("7.0", [], 10.0),
        ("7.0#2", ["7.0"], 15.0),
        (None, [], 17.0),
        ("7.1", ["7.0#2"], 15.0),
    ]
    assert [line["ready"] for line in lines] == [10.0, 15.0, 17.0, 17.0]
    assert {line["estimate_ms"] for line in lines} == {2000.0}
    assert len(arrivals_of(lines)) == 3


def test_what_came_at_the_same_instant_is_told_as_it_came():
    """A loop counts milliseconds, and rows are kept as they ended: the last to come ended first here."""
    first, second, third = (
        passed(f"{number}.0", 10.0, 20.0 - number)._replace(seq=number) for number in (1, 2, 3)
    )
    for lines in (lines_of([third, second, first]), job_lines([third, second, first], {})):
        assert [line["key"] for line in lines] == ["1.0", "2.0", "3.0"]


def test_a_wait_that_began_again_is_told_once():
    rows = [
        passed("7.0", 10.0, 10.5, "withdrawn"),
        passed("7.0", 10.0, 12.0),
        passed("8.0", 11.0, 11.5, "withdrawn"),
    ]
    lines = list(job_lines(rows, {}))
    assert [(line["id"], line["state"]) for line in lines] == [
        ("7.0", "done"),
        ("8.0", "withdrawn"),
    ]


def test_what_ended_before_the_recording_is_not_waited_for():
    rows = [passed("7.1", 10.0, 12.0), passed("7.2", 30.0, 32.0)]
    first, second = job_lines(rows, {(7, 1): (0,), (7, 2): (0, 1)})
    assert (first["deps"], first["t"]) == ([], 10.0)
    assert (second["deps"], second["t"]) == (["7.1"], 30.0)


def test_who_would_wait_no_longer_does_not_in_a_replay_either():
    feed = Feed(wall=lambda: 0.0)
    gate = feed.gate("tasks/slow")(FIFO(), Slots(1))
    tickets = [Ticket(str(at), wait_until=at + 2.5) for at in range(5)]
    patient = Ticket("5")
    for at, ticket in enumerate(tickets[:2]):
        gate.offer(ticket, float(at))
    gate.finish(tickets[0], 2.0)
    for at in (2, 3):
        gate.offer(tickets[at], float(at))
    gate.finish(tickets[1], 4.0)
    gate.offer(tickets[4], 4.0)
    gate.offer(patient, 5.0)
    gate.advance(5.5)
    for ticket, ended in ((tickets[2], 6.0), (tickets[4], 8.0), (patient, 10.0)):
        gate.finish(ticket, ended)
    lines = [line_of(row) for row in feed.rows("tasks/slow")]
    states = {line["key"]: line["state"] for line in lines}
    assert states == dict.fromkeys("01245", "done") | {"3": "expired"}
    policy = {"policy": "fifo", "capacity": {"slots": 1}}
    result = replayed([line | {"id": line["key"]} for line in lines], policy)
    assert {row.key: row.state for row in result.tickets} == states
    assert result.horizon == 10.0


def test_batches_become_records_of_which_as_many_stay_together_as_must():
    batch = {"t": 3.0, "class": "orders", "tokens": 10, "service_ms": 5000, "partition": 2}
    single = arrivals_of([batch])
    assert len(single) == 10
    assert all((one.at, one.service, one.cost) == (3.0, 0.5, 1.0) for one in single)
    assert single[0].labels == {"partition": "2"}
    assert [one.cost for one in arrivals_of([batch], most=4)] == [4.0, 4.0, 2.0]
    assert sum(one.service for one in arrivals_of([batch], most=4)) == pytest.approx(5.0)


def consumed() -> tuple[HostedStreams, list[dict[str, Any]], dict[str, Any]]:
    """Consume two topics with one worker; tell the lines of the recording, and the policy."""
    broker = filled({"orders": 2, "audit": 1}, 6)
    app = app_on(broker, concurrency=1)
    app.topic("orders", writing(Book()), priority=80, batch_size=2)
    app.topic("audit", writing(Book()), batch_size=3, weight=2.0)
    feed = Feed()
    door = HostedStreams(app, feed)

    async def live() -> Any:
        await door.start()
        await asyncio.to_thread(wait_committed, broker, 18)
        await asyncio.to_thread(until, lambda: len(feed.rows(WORKERS)) == 8)
        lines = list(await door.recorded(feed.rows(WORKERS)))
        policy = door.policy(WORKERS)
        await door.stop(5.0)
        return lines, policy

    return door, *run(live)


def test_what_if_replays_a_stream_app():
    _, lines, policy = consumed()
    topics = {
        "orders": {"priority": 80, "weight": 1.0, "batch_size": 2, "partitions": 2},
        "audit": {"priority": 50, "weight": 2.0, "batch_size": 3, "partitions": 1},
    }
    topics = {name: one | {"by_key": False} for name, one in topics.items()}
    assert policy == {"preset": "streams", "concurrency": 1, "topics": topics}
    assert sum(line["tokens"] for line in lines) == 18
    changes = {"concurrency": 3, "topics.orders.batch_size": 1}
    found = _replayed(lines, policy, changes, 1, lambda part: None)
    before, after = (found[side]["groups"]["all"]["all"] for side in ("before", "after"))
    assert before["done"] == after["done"] == 18
    assert after["wait.p95"] <= before["wait.p95"]


def recorded_app(app: Any, records: int, batches: int) -> tuple[list[Any], dict[str, Any]]:
    """Consume so many records in so many batches; tell the lines of the recording, and the policy."""
    feed = Feed()
    door = HostedStreams(app, feed)

    async def live() -> Any:
        await door.start()
        try:
            await asyncio.to_thread(wait_committed, app.broker, records)
            await asyncio.to_thread(until, lambda: len(feed.rows(WORKERS)) >= batches)
            return list(await door.recorded(feed.rows(WORKERS))), door.policy(WORKERS)
        finally:
            await door.stop(5.0)

    found: tuple[list[Any], dict[str, Any]] = run(live)
    return found


def test_records_by_key_are_replayed_beside_each_other_and_in_the_order_of_their_key():
    broker = MemoryBroker({"orders": 1})
    for number in range(12):
        broker.write("orders", b"", key=b"abc"[number % 3 : number % 3 + 1], partition=0)
    app = app_on(broker, concurrency=1)
    app.topic("orders", writing(Book()), batch_size=12, parallel_by=lambda message: message.key)
    lines, policy = recorded_app(app, 12, 1)
    assert policy["topics"]["orders"]["by_key"] is True
    told: dict[str, int] = {}
    for line in lines:
        assert sum(line["keys"].values()) == line["tokens"]
        for key, count in line["keys"].items():
            told[key] = told.get(key, 0) + count
    assert sorted(told.values()) == [4, 4, 4]
    assert not {"a", "b", "c"} & set(told)  # whose they are is not told
    lines = [line | {"service_ms": 1000.0 * line["tokens"]} for line in lines]
    alone = replayed(lines, policy)
    beside = replayed(lines, policy, concurrency=3)
    assert alone.horizon == pytest.approx(12.0, abs=0.5)
    assert beside.horizon == pytest.approx(4.0, abs=0.5)
    without = [{name: line[name] for name in line if name != "keys"} for line in lines]
    assert replayed(without, policy, concurrency=3).horizon == pytest.approx(12.0, abs=0.5)
    nobodys = [line | {"tenant": None} for line in without]
    with pytest.raises(ConfigError, match="orders is by key, and its records do not tell theirs"):
        replayed(nobodys, policy)


def test_what_a_consumer_says_its_batches_cost_decides_in_a_replay_too():
    broker = filled({"cheap": 1, "dear": 1}, 8)
    app = app_on(broker, concurrency=1)
    own = {
        "cost": lambda self, messages: 9.0 * len(messages),
        "tenant": lambda self, messages: "acme",
        "deadline": lambda self, messages: 1.0,
    }
    app.topic("cheap", writing(Book()), batch_size=1)
    app.topic("dear", writing(Book(), **own), batch_size=1)
    lines, policy = recorded_app(app, 16, 16)
    by_topic = {line["class"]: line for line in lines}
    assert "batch_cost" not in by_topic["cheap"]
    dear = by_topic["dear"]
    assert (dear["tokens"], dear["batch_cost"], dear["tenant"]) == (1, 9.0, "acme")
    assert dear["deadline"] is None
    began = min(line["t"] for line in lines)
    lines = [line | {"t": began, "service_ms": 1000.0} for line in lines]
    # All are there at once, and their priorities age alike: who goes next is by weight and cost alone.
    first = sorted(replayed(lines, policy).tickets, key=lambda row: row.started)[:9]
    assert sum(row.workload == "cheap" for row in first) >= 7
    same = [{name: line[name] for name in line if name != "batch_cost"} for line in lines]
    first = sorted(replayed(same, policy).tickets, key=lambda row: row.started)[:9]
    assert sum(row.workload == "cheap" for row in first) <= 5


@pytest.mark.parametrize(
    "wrong", [{"keys": {"a": 2}}, {"keys": ["a"]}, {"keys": {"a": 3, "b": 0}}, {"batch_cost": -1}]
)
def test_a_batch_that_does_not_add_up_is_refused(wrong):
    line = {"t": 0.0, "class": "orders", "tokens": 3, "service_ms": 1, "partition": 0}
    with pytest.raises(ConfigError, match=r"keys must tell|batch_cost must be"):
        arrivals_of([line | wrong])


@pytest.mark.parametrize("keys", ["abc", ["a", "b"], {"a": 2}, {"a": "x"}])
def test_keys_of_what_is_no_batch_are_refused(keys, tmp_path):
    line = {"t": 0.0, "tokens": 5, "service_ms": 1, "keys": keys}
    with pytest.raises(ConfigError, match="keys are those of a batch"):
        arrivals_of([line])
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps(line))
    with pytest.raises(ConfigError, match="keys are those of a batch"):
        read_scenario({"arrivals": [{"kind": "trace", "file": str(trace)}]})


@pytest.mark.parametrize("keys", [{}, {"keys": {"x": 6, "y": 4}}])
def test_what_needs_a_batch_waits_for_all_of_it(keys):
    batch = {"t": 0.0, "id": "b", "service_ms": 10_000, "tokens": 10, "partition": 0}
    after = {"t": 0.0, "id": "j", "service_ms": 1000, "partition": 1, "tenant": "z", "deps": ["b"]}
    lines = [one | {"class": "orders"} for one in (batch | keys, after)]
    topic = {"partitions": 2, "by_key": bool(keys), "batch_size": 4}
    policy = {"preset": "streams", "concurrency": 4, "topics": {"orders": topic}}
    tickets: list[Any] = simulate(Scenario.of(arrivals_of(lines)), read_policy(policy), 0).tickets
    *parts, last = tickets
    assert len(parts) == 10
    assert last.started == max(part.ended for part in parts) > 1.0


def test_a_batch_is_taken_apart_beside_jobs_that_wait_for_each_other():
    batch = {"t": 0.0, "class": "orders", "tokens": 3, "service_ms": 30, "partition": 0}
    jobs = [
        {"t": 0.0, "id": "a", "service_ms": 1},
        {"t": 0.0, "id": "b", "service_ms": 1, "deps": ["a"]},
    ]
    found = arrivals_of([batch, *jobs])
    assert [one.cost for one in found] == [1.0] * 5
    assert [one.deps for one in found] == [(), (), (), (), (3,)]


def test_a_stream_app_with_a_policy_of_its_own_cannot_be_replayed_and_says_why():
    app = app_on(filled({"orders": 1}, 1), policy=FIFO())
    app.topic("orders", writing(Book()))
    door = HostedStreams(app, Feed())

    async def live() -> None:
        await door.start()
        try:
            with pytest.raises(ConfigError, match="neither the policy nor the capacity"):
                door.policy(WORKERS)
        finally:
            await door.stop(5.0)

    run(live)
