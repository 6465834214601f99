"""A lost ledger, seen from the door: whatever the policy, nobody waits longer for it than a quarter of a second."""

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.flows import FlowScheduler, SyncFlowScheduler, load
from fairlead.flows.flow import Flow
from fairlead.ledger.ledger import RETRY
from tests.engines import Valkey, external, valkey

LONGEST = 0.25  # seconds that a decision may take in a loss
POLICIES = ("local", "closed", "open")
ROUNDS = 12  # more than it takes to notice the loss
pytestmark = pytest.mark.skipif(external() is not None, reason="only its own server is frozen")


@pytest.fixture
def server() -> Iterator[Valkey]:
    with valkey() as running:
        yield running


def config(server: Valkey, policy: str) -> dict[str, Any]:
    """Two points of this test alone; their quota and room are never used up."""
    name = uuid.uuid4().hex
    quota = {"bucket_capacity": 1000, "fill_amount": 1000, "interval": "1s"}
    limits: dict[str, dict[str, Any]] = {
        "quota": quota,
        "concurrency": {"max_concurrency": 1000},
    }
    return {
        "redis": server.url,
        "control_points": {
            f"{kind} {name}": {kind: said | {"on_redis_loss": policy}}
            for kind, said in limits.items()
        },
    }


def judged(policy: str, flow: Flow, took: float) -> None:
    assert took <= LONGEST, f"{policy}: a decision of {flow.control_point} took {took:.3f} s"
    if policy == "closed":
        assert not flow.should_run()
        assert flow.retry_after is not None
        assert flow.retry_after > 0
    else:
        assert flow.should_run()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("before", [True, False])
def test_who_would_not_wait_is_answered_in_time(server: Valkey, policy: str, before: bool):
    """Frozen is the case that timeouts miss; also if the very first flow meets it."""
    said = config(server, policy)

    async def main() -> None:
        flows = FlowScheduler.from_config(said)
        if before:
            server.freeze()
        else:
            await flows.start()
            server.freeze()
        for _ in range(ROUNDS):
            for point in said["control_points"]:
                started = time.monotonic()
                flow = await flows.start_flow(point, timeout=0)
                judged(policy, flow, time.monotonic() - started)
                flow.end()
        server.thaw()
        await flows.close()

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("policy", POLICIES)
def test_between_threads_too(server: Valkey, policy: str):
    said = config(server, policy)
    flows = SyncFlowScheduler.from_config(said)
    server.freeze()
    for _ in range(ROUNDS):
        for point in said["control_points"]:
            started = time.monotonic()
            flow = flows.start_flow(point, timeout=0)
            judged(policy, flow, time.monotonic() - started)
            flow.end()
    server.thaw()
    flows.close()


def test_a_closed_limit_refuses_at_once_who_would_wait(server: Valkey):
    """Nobody knows when the ledger comes back: to wait for it is for the caller to decide."""
    said = config(server, "closed")

    async def main() -> None:
        flows = FlowScheduler.from_config(said)
        await flows.start()
        server.kill()
        ledger = flows.ledger
        assert ledger is not None
        while ledger.describe()["state"] == "connected":
            await ledger.answered()
        for point in said["control_points"]:
            for timeout in (None, 20.0):
                started = time.monotonic()
                flow = await flows.start_flow(point, timeout=timeout)
                judged("closed", flow, time.monotonic() - started)
                assert flow.retry_after is not None
                assert flow.retry_after >= RETRY
                assert "ledger" in (flow.message or "")
        server.start()
        while ledger.describe()["state"] == "lost":
            await ledger.answered()
        for point in said["control_points"]:
            assert (await flows.start_flow(point, timeout=20.0)).should_run()
        await flows.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_who_would_not_wait_and_meets_a_reload_asks_at_the_new_limit(server: Valkey):
    """What it asked the ledger for was the old limit's; the answer is to be the new one's."""
    said = config(server, "local")
    point = next(iter(said["control_points"]))
    changed = {**said, "control_points": {point: {"concurrency": {"max_concurrency": 5}}}}

    async def main() -> bool:
        flows = FlowScheduler.from_config(said)
        asking = asyncio.create_task(flows.start_flow(point, timeout=0))
        await asyncio.sleep(0)  # it takes its first step, and waits for the ledger
        assert flows.points[point].gate.waiting
        flows.retune(load(changed))
        flow = await asking
        await flows.close()
        return flow.should_run()

    assert asyncio.run(asyncio.wait_for(main(), 30))


def test_one_loop_after_another_without_a_close_between(server: Valkey):
    """What was lent on the loop before is counted as this process's still, so it may wait for it."""
    said = config(server, "closed")
    flows = FlowScheduler.from_config(said)

    async def turn() -> bool:
        ran = [await flows.start_flow(point, timeout=10) for point in said["control_points"]]
        return all(flow.should_run() and flow.end() for flow in ran)

    async def last() -> bool:
        ran = await turn()
        await flows.close()
        return ran

    assert [asyncio.run(turn()), asyncio.run(turn()), asyncio.run(last())] == [True] * 3


def test_a_reload_in_a_loss_brings_no_tokens_and_its_policy_holds_at_once(server: Valkey):
    point = uuid.uuid4().hex

    def said(capacity: float, policy: str, fill: float = 1) -> dict[str, Any]:
        quota = {"bucket_capacity": capacity, "fill_amount": fill, "interval": "1h"}
        limits = {"quota": quota | {"on_redis_loss": policy}}
        return {"redis": server.url, "control_points": {point: limits}}

    async def main() -> None:
        flows = FlowScheduler.from_config(said(10, "local"))

        async def admitted() -> int:
            asked = [await flows.start_flow(point, timeout=0) for _ in range(12)]
            return sum(flow.should_run() for flow in asked)

        assert await admitted() == 10
        server.kill()
        ledger = flows.ledger
        assert ledger is not None
        while ledger.describe()["state"] == "connected":
            await ledger.answered()
        assert await admitted() == 0
        for capacity in (11, 12, 5):
            flows.retune(load(said(capacity, "local")))
            assert await admitted() == 0
        flows.retune(load(said(10, "open")))
        assert await admitted() == 12
        flows.retune(load(said(10, "closed")))
        assert await admitted() == 0
        flows.retune(load(said(10, "local", 3600 * 5000)))
        assert (await flows.start_flow(point, timeout=20)).should_run()  # it fills as it says now
        await flows.close()

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("how", ["freeze", "kill"])
def test_who_waits_at_a_closed_limit_when_the_loss_is_noticed_is_told(server: Valkey, how: str):
    """Its timeout would be waited out in vain: here there is none."""
    said = config(server, "closed")

    async def main() -> None:
        flows = FlowScheduler.from_config(said)
        await flows.start()
        getattr(server, how)()
        asked = await asyncio.gather(*(flows.start_flow(point) for point in said["control_points"]))
        for flow in asked:
            assert (flow.should_run(), flow.reject_reason) == (False, "timeout")
            assert "ledger" in (flow.message or "")
            assert flow.point is not None
            assert (flow.point.gate.waiting, flow.point.queued) == (0, 0)
        if how == "freeze":
            server.thaw()
        await flows.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_and_so_is_a_thread(server: Valkey):
    said = config(server, "closed")
    flows = SyncFlowScheduler.from_config(said)
    flows.start()
    connected = flows.answered()
    assert connected is not None
    assert connected.result(30)
    server.freeze()
    answered: list[Flow] = []

    def ask(point: str) -> None:
        answered.append(flows.start_flow(point))

    threads = [
        threading.Thread(target=ask, args=(point,), daemon=True) for point in said["control_points"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answered) == 2
    for flow in answered:
        assert not flow.should_run()
        assert "ledger" in (flow.message or "")
        assert flow.retry_after is not None
    server.thaw()
    flows.close()
