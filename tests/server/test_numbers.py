"""Each number has one source: snapshot, `/metrics`, dashboard and `top` of one instant agree, under random load.

Two ways to compare, for what two ways can be wrong.  Within one turn of the loop a snapshot and a scrape are of one
instant, so all of it must be equal, tolerance 0.  Over HTTP no two answers are of one instant: a counter of a scrape
must lie between those of the snapshots around it, and each answer must agree with itself.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.observe.channel import Channel
from fairlead.server.hosted_gateway import HostedGateway
from fairlead.server.hosted_jobs import HostedJobs
from tests.gateway.rig import fetch, until
from tests.server.rig import Client, configured, run, served

FLOW = {"control_point": "checkout", "timeout": 2.0}
ENDS = ("completed", "failed", "disconnected", "lost")
Numbers = dict[tuple[str, ...], float]


def of_snapshot(snapshot: dict[str, Any]) -> Numbers:
    """Read a snapshot as numbers by what they are of."""
    found: Numbers = {}
    for gate in snapshot["gates"]:
        name = gate["id"]
        if gate["slots"]["total"] is not None:
            found["slots", name] = gate["slots"]["total"]
        for one in gate["classes"]:
            found["waiting", name, one["name"]] = one["waiting"]
            found["running", name, one["name"]] = one["running"]
        found |= {("total", name, what): count for what, count in gate["totals"].items()}
        found["used", name] = gate["slots"]["used"]
    if snapshot["jobs"]:
        found["used", "jobs/leader"] = snapshot["jobs"]["running"]
    return found


FAMILIES = {
    "fairlead_gate_slots": ("slots", "gate"),
    "fairlead_gate_waiting": ("waiting", "gate", "class"),
    "fairlead_gate_running": ("running", "gate", "class"),
    "fairlead_gate_decisions_total": ("total", "gate", "outcome"),
}


def of_scrape(samples: Any) -> Numbers:
    """Read a scrape the same way."""
    found: Numbers = {}
    for name, labels, value in samples:
        if name in FAMILIES:
            kind, *parts = FAMILIES[name]
            found[(kind, *(labels[part] for part in parts))] = value
            if kind == "running":
                key = ("used", labels["gate"])
                found[key] = found.get(key, 0) + value
    return found


def common(one: Numbers, other: Numbers) -> Numbers:
    return {key: number for key, number in one.items() if key in other}


def at_once(client: Client) -> tuple[Numbers, Numbers, float]:
    """Take a snapshot and a scrape in one turn of the loop; and what the gateway says is in flight."""
    server = client.server
    scraped = [
        (one.name, one.labels, one.value)
        for family in server.families.collect()
        for one in family.samples
    ]
    snapshot = server._snapshots.take(server.doors, 1)
    inflight = sum(value for name, _, value in scraped if name == "fairlead_gateway_inflight")
    return of_snapshot(snapshot), of_scrape(scraped), inflight


def wrong_with_itself(found: Numbers) -> list[str]:
    """Find what no single instant can show: what started is running or has ended."""
    wrong = []
    for (kind, gate, *_), used in list(found.items()):
        if kind == "used" and ("total", gate, "admitted") in found and gate != "jobs/leader":
            total = {what: found["total", gate, what] for what in ("admitted", "evicted", *ENDS)}
            left = total["admitted"] - sum(total[one] for one in ENDS)
            # A preempted request is counted as evicted at once, and runs until its work has ended.
            if not left - total["evicted"] <= used <= left:
                wrong.append(f"{gate}: {used} run, {left} were admitted and did not end")
    return wrong


async def traffic(client: Client, seed: int, ended: asyncio.Event) -> None:
    """Come to each door at random until told to end."""
    rng = random.Random(seed)
    gateway = client.server.door(HostedGateway).gateway.data_listener.url
    (flows,) = [door.links()["http"] for door in client.server.doors if door.name == "flows"]
    jobs = client.server.door(HostedJobs).jobs

    async def ask() -> None:
        headers = [("x-fairlead-priority", rng.choice(("bulk", "default", "interactive")))]
        while not ended.is_set():
            await fetch(gateway, "GET", "/report", headers)
            await asyncio.sleep(rng.random() * 0.005)

    async def check() -> None:
        while not ended.is_set():
            async with client.session.post(f"{flows}/v1/flows/check", json=FLOW) as answer:
                said = await answer.json()
            await asyncio.sleep(rng.random() * 0.02)
            if said.get("flow_id"):
                async with client.session.post(
                    f"{flows}/v1/flows/end", json={"flow_id": said["flow_id"]}
                ):
                    pass

    async def submit() -> None:
        from fairlead.jobs.graph import Dag

        while not ended.is_set():
            dag = Dag("load")
            first = dag.add("wait", 0.01)
            dag.add("wait", first)
            await jobs.submit(dag)
            await asyncio.sleep(rng.random() * 0.02)

    async with asyncio.TaskGroup() as group:
        for _ in range(12):
            group.create_task(ask())
        for _ in range(3):
            group.create_task(check())
        group.create_task(submit())


def settings(tmp_path: Path) -> dict[str, Any]:
    jobs = {"app": "tests.server.load_app:jobs", "database": f"sqlite:///{tmp_path}/jobs.db"}
    return configured(tmp_path, jobs=jobs)


@asynccontextmanager
async def loaded(client: Client, seed: int) -> AsyncIterator[None]:
    """Send traffic; inside, every door has started something, and jobs are led."""

    def ready() -> bool:
        found = of_snapshot(client.server._snapshots.take(client.server.doors, 1))
        gates = ("gateway/default", "flows/checkout", "jobs/leader")
        return all(found.get(("total", gate, "admitted"), 0) > 5 for gate in gates)

    ended = asyncio.Event()
    load = asyncio.create_task(traffic(client, seed, ended))
    try:
        await until(lambda: load.done() or ready())
        yield
    finally:
        ended.set()
        await load


@pytest.mark.parametrize("seed", range(2))
def test_a_snapshot_and_a_scrape_of_one_instant_are_equal(tmp_path, seed):
    async def main() -> None:
        async with served(settings(tmp_path)) as client:
            busy = 0
            async with loaded(client, seed):
                for _ in range(150):
                    await asyncio.sleep(0.003)
                    shown, scraped, inflight = at_once(client)
                    assert common(shown, scraped) == common(scraped, shown)
                    assert not {key for key in shown if key[0] != "used"} - scraped.keys()
                    assert not wrong_with_itself(shown)
                    assert inflight == shown["used", "gateway/default"]
                    busy += min(shown["used", "gateway/default"], shown["used", "jobs/leader"]) > 0
            assert busy > 10

    run(main)


def test_over_http_a_scrape_lies_between_the_snapshots_around_it_and_all_are_equal_at_rest(
    tmp_path,
):
    async def main() -> None:
        async with served(settings(tmp_path)) as client:

            async def shown() -> Numbers:
                client.server.sample()
                history = await client.get("/api/v1/history?minutes=1")
                return of_snapshot(history["snapshots"][-1])

            async def scraped() -> Numbers:
                text = (await client.get("/metrics")).decode()
                families = text_string_to_metric_families(text)
                return of_scrape(
                    (one.name, one.labels, one.value) for each in families for one in each.samples
                )

            async with loaded(client, 7):
                for _ in range(10):
                    before, between, after = await shown(), await scraped(), await shown()
                    for key, count in between.items():
                        if key[0] == "total" and key in before:
                            assert before[key] <= count <= after[key], key
                    for one in (before, between, after):
                        assert not wrong_with_itself(one)
            gates = [view.channel for door in client.server.doors for view in door.views()]
            await until(
                lambda: not any(one.waiting or one.running for c in gates for one in c.standing())
            )
            last, scrape = await shown(), await scraped()
            assert common(last, scrape) == common(scrape, last)

    run(main)


def test_two_readings_in_place_of_one_are_caught(monkeypatch):
    """Without one lock around all of it, another thread's ticket comes between the numbers."""
    from fairlead.capacities import Slots
    from fairlead.core.ticket import Ticket
    from fairlead.observe.watched import Feed
    from fairlead.policies import FIFO

    feed = Feed()
    gate = feed.gate("g")(FIFO(), Slots(5))
    channel = feed.channels["g"]
    whole = Channel.totals

    def totals(self: Channel) -> dict[str, int]:
        gate.offer(Ticket("other"), now=0.0)
        return whole(self)

    monkeypatch.setattr(Channel, "totals", totals)
    gate.offer(Ticket("one"), now=0.0)

    def numbers(running: float, total: dict[str, int]) -> Numbers:
        return {("used", "g"): running} | {("total", "g", k): float(v) for k, v in total.items()}

    reading = channel.reading()
    assert not wrong_with_itself(numbers(reading.running, reading.totals))
    apart = sum(one.running for one in channel.standing()), channel.totals()
    assert wrong_with_itself(numbers(*apart))


def test_more_than_there_are_slots_is_explained(tmp_path):
    async def main() -> None:
        async with served(configured(tmp_path)) as client:
            (flows,) = [
                door.links()["http"] for door in client.server.doors if door.name == "flows"
            ]
            for _ in range(2):
                async with client.session.post(f"{flows}/v1/flows/check", json=FLOW) as answer:
                    assert answer.status == 200
            change = {"part": "concurrency", "verb": "resize", "args": [1]}
            await client.ask("POST", "/api/v1/gates/flows%2Fcheckout/adjust", change)
            client.server.sample()
            snapshot = (await client.get("/api/v1/history?minutes=1"))["snapshots"][-1]
            (gate,) = [one for one in snapshot["gates"] if one["id"] == "flows/checkout"]
            assert (gate["slots"]["used"], gate["slots"]["total"]) == (2, 1)
            assert gate["slots"]["over"].startswith(
                "2 run, and there are 1 slots: slots were taken"
            )

    run(main)


def test_jobs_that_another_process_leads_are_counted_in_the_database_and_said_to_be(
    tmp_path,
):
    async def main() -> None:
        async with served(settings(tmp_path)) as first:
            door = first.server.door(HostedJobs)
            await until(lambda: (door.summary() or {}).get("leading"))
            view = configured(tmp_path) | {"gateway": None, "flows": None}
            async with served({k: v for k, v in view.items() if v is not None}) as second:
                other = second.server.door(HostedJobs)
                await until(lambda: other.summary() is not None)
                said = other.summary()
                assert said["leading"] is False
                assert said["ready"] is None
                assert "only shows what its database holds" in said["reason"]
                assert not other.views()

    run(main)
