"""Every door makes its gate with what it is given: watched, it tells a feed of each piece of work."""

import asyncio
from typing import Any

import pytest

from fairlead import Scheduler, ThreadScheduler
from fairlead.flows import FlowScheduler, SyncFlowScheduler
from fairlead.gateway.settings import CLASSES
from fairlead.jobs import Dag, Jobs
from fairlead.observe import Feed
from fairlead.streams import Consumer
from tests.gateway.rig import HEALTHY, Backend, configured, fetch, run, until
from tests.streams.staging import app_on, filled, running

POINT = {"control_points": {"checkout": {"concurrency": {"max_concurrency": 2}}}}


def states(feed: Feed, gate: str) -> list[str]:
    return [row.state for row in feed.rows(gate)]


def test_tasks():
    feed = Feed()

    async def main():
        async with Scheduler.bounded(1, gate=feed.gate("tasks/loop")) as scheduler:
            await asyncio.gather(*(scheduler.submit(50, asyncio.sleep, 0) for _ in range(3)))

    run(main())
    assert states(feed, "tasks/loop") == ["done"] * 3
    with ThreadScheduler.bounded(1, gate=feed.gate("tasks/threads")) as scheduler:
        assert scheduler.submit(50, int) == 0
    assert states(feed, "tasks/threads") == ["done"]


def test_flows():
    feed = Feed()

    async def main():
        flows = FlowScheduler.from_config(POINT, feed.gates("flows", lambda one: one.workload[0]))  # type: ignore[index]
        async with flows.flow("checkout") as flow:
            assert flow.accepted
        await flows.close()

    run(main())
    (row,) = feed.rows("flows/checkout")
    assert (row.state, row.cls) == ("done", "default")
    flows = SyncFlowScheduler.from_config(POINT, feed.gates("blocking"))
    with flows.flow("checkout") as flow:
        assert flow.accepted
    flows.close()
    assert states(feed, "blocking/checkout") == ["done"]


def test_how_long_a_flow_would_wait_is_told_without_what_its_control_point_makes_of_it():
    feed = Feed()
    workload = {"name": "all", "match_labels": {"plan": "paid"}, "queue_timeout": "1s"}
    point = {"concurrency": {"max_concurrency": 1}, "scheduler": {"workloads": [workload]}}
    settings = {"control_points": {"checkout": point}}
    flows = SyncFlowScheduler.from_config(settings, feed.gates("flows"))
    paid = {"plan": "paid"}
    with flows.flow("checkout", paid, timeout=20), flows.flow("checkout", paid, timeout=0) as other:
        assert not other.accepted
    with flows.flow("checkout", paid) as flow:
        assert flow.accepted
    flows.close()
    rows = [(row.state, row.patience) for row in feed.rows("flows/checkout")]
    assert rows == [("expired", 0.0), ("done", 20.0), ("done", None)]


def test_how_long_a_task_would_wait_is_told():
    feed = Feed()
    with ThreadScheduler.bounded(1, gate=feed.gate("tasks/threads")) as scheduler:
        with scheduler.turn(timeout=20):
            pass
        assert scheduler.submit(50, int) == 0
    limited, patient = feed.rows("tasks/threads")
    assert limited.patience == pytest.approx(20.0, abs=1.0)
    assert patient.patience is None


def test_the_gateway():
    from fairlead.gateway import load
    from fairlead.gateway.serving import Gateway

    feed = Feed()

    async def main():
        async with Backend(auto=True) as backend:
            config = configured({"url": backend.url, "capacity": 1, **HEALTHY})
            watched = feed.gates("gateway", lambda ticket: CLASSES[ticket.rank])
            async with Gateway(load(config), watched) as gateway:
                head, _ = await fetch(gateway.data_listener.url, "GET", "/x")
                assert head.status == 200
                limit = [("x-request-timeout", "20")]
                head, _ = await fetch(gateway.data_listener.url, "GET", "/x", limit)
                assert head.status == 200
                await until(lambda: states(feed, "gateway/default") == ["done"] * 2)

    run(main())
    assert feed.rows("gateway/default")[0].cls == "default"
    assert [row.patience for row in feed.rows("gateway/default")] == [None, 20.0]


def test_jobs(tmp_path):
    feed = Feed()

    async def main():
        jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db", poll="100ms")
        jobs.make_gate = feed.gate("jobs/leader")

        @jobs.task()
        async def double(number: int) -> int:
            return 2 * number

        async with jobs:
            dag = Dag("one")
            dag.add(double, 3).options(name="six")
            outcome = await jobs.wait(await jobs.submit(dag))
            assert outcome.results["six"] == 6

    run(main())
    assert states(feed, "jobs/leader") == ["done"]


def test_streams():
    feed = Feed()
    seen: list[Any] = []

    class Taken(Consumer):
        async def consume(self, messages: Any) -> None:
            seen.extend(messages)

    app = app_on(filled({"orders": 1}, 3), concurrency=2)
    app.make_gate = feed.gate("streams/workers")
    app.topic("orders", Taken)
    with running(app):
        run(until(lambda: len(seen) == 3))
    assert set(states(feed, "streams/workers")) == {"done"}
