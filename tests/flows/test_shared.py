"""The door on a real Valkey: schedulers of one name share limits, on loops and between threads."""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.flows import FlowScheduler, SyncFlowScheduler, load
from tests.engines import Valkey, external, valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as running:
        yield running


@pytest.fixture
def point() -> str:
    """A control point of this test alone: what others left in the ledger is not its."""
    return f"point-{uuid.uuid4().hex}"


@pytest.fixture
def config(server: Valkey, point: str) -> dict[str, Any]:
    return {
        "redis": external() or server.url,
        "control_points": {point: {"concurrency": {"max_concurrency": 5}}},
    }


def test_two_schedulers_share_one_limit_without_waiting(config, point):
    async def main() -> list[bool]:
        one, two = FlowScheduler.from_config(config), FlowScheduler.from_config(config)
        await one.start()  # who would not wait does not wait for a connection either
        await two.start()
        flows = [await one.start_flow(point, timeout=0) for _ in range(3)]
        # What one has borrowed and does not use comes over, but not always in one round trip.
        flows += [await two.start_flow(point, timeout=5) for _ in range(2)]
        flows.append(await two.start_flow(point, timeout=0))
        ran = [flow.should_run() for flow in flows]
        assert flows[-1].retry_after is not None
        assert flows[0].end()
        assert not flows[0].end()
        again = await two.start_flow(point, timeout=5)  # what one gave back comes to the other
        assert again.should_run()
        await one.close()
        await two.close()
        return ran

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [True] * 5 + [False]


def test_never_more_than_the_limit_in_flight(config, point):
    """Ten callers on each of two schedulers; who is in flight is counted outside of them."""

    async def main() -> tuple[int, int]:
        now = most = served = 0

        async def call(flows: FlowScheduler) -> None:
            nonlocal now, most, served
            for _ in range(20):
                async with flows.flow(point, timeout=20) as flow:
                    assert flow.should_run()
                    now += 1
                    most = max(most, now)
                    await asyncio.sleep(0)
                    now -= 1
                    served += 1

        pair = [FlowScheduler.from_config(config) for _ in range(2)]
        await asyncio.gather(*(call(flows) for flows in pair for _ in range(10)))
        for flows in pair:
            await flows.close()
        return most, served

    most, served = asyncio.run(asyncio.wait_for(main(), 60))
    assert served == 400
    assert 1 <= most <= 5


def test_what_a_scheduler_holds_comes_back_when_it_closes(config, point):
    async def main() -> bool:
        first = FlowScheduler.from_config(config)
        for flow in [await first.start_flow(point, timeout=0) for _ in range(5)]:
            flow.end()
        await first.close()
        second = FlowScheduler.from_config(config)
        flows = [await second.start_flow(point, timeout=0) for _ in range(5)]
        await second.close()
        return all(flow.should_run() for flow in flows)

    assert asyncio.run(asyncio.wait_for(main(), 30))


def test_a_bucket_unused_for_its_idle_time_is_full_again(config, point):
    quota = {"bucket_capacity": 5, "fill_amount": 1, "interval": "24h", "max_idle_time": "0.5s"}
    config["control_points"][point] = {"quota": quota}

    async def main() -> list[bool]:
        flows = FlowScheduler.from_config(config)
        got = [await flows.start_flow(point, timeout=5) for _ in range(10)]
        await flows.close()
        return [flow.should_run() for flow in got]

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [True] * 10


def test_a_thread_and_a_loop_share_one_limit(config, point):
    threads = SyncFlowScheduler.from_config(config)
    held = [threads.start_flow(point, timeout=0) for _ in range(3)]
    assert all(flow.should_run() for flow in held)

    async def main() -> list[bool]:
        flows = FlowScheduler.from_config(config)
        got = [await flows.start_flow(point, timeout=5) for _ in range(2)]
        got.append(await flows.start_flow(point, timeout=0))
        await flows.close()
        return [flow.should_run() for flow in got]

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [True, True, False]
    for flow in held:
        flow.end()
    threads.close()
    assert threads._ticker is not None
    assert not threads._ticker.is_alive()


def test_a_cancelled_first_ask_leaves_nothing(config, point):
    async def main() -> None:
        flows = FlowScheduler.from_config(config)
        await flows.start()
        asks = [asyncio.ensure_future(flows.start_flow(point, timeout=0)) for _ in range(5)]
        for _ in range(3):
            await asyncio.sleep(0)
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        gate = flows.points[point].gate
        assert (gate.waiting, gate.active) == (0, 0)
        again = [await flows.start_flow(point, timeout=5) for _ in range(5)]
        assert all(flow.should_run() for flow in again)
        await flows.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_changed_limit_is_followed_by_who_waits(config, point):
    async def main() -> None:
        flows = FlowScheduler.from_config(config)
        held = [await flows.start_flow(point, timeout=5) for _ in range(5)]
        waiting = asyncio.ensure_future(flows.start_flow(point, timeout=20))
        await asyncio.sleep(0)  # it runs as far as it can: all slots are taken
        assert flows.points[point].gate.waiting == 1
        config["control_points"][point]["concurrency"]["max_concurrency"] = 6
        flows.retune(load(config))
        assert (await waiting).should_run()
        assert all(flow.end() for flow in held)
        await flows.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_another_server_needs_another_scheduler(config):
    async def main() -> None:
        flows = FlowScheduler.from_config(config)
        other = load({**config, "redis": "redis://127.0.0.1:1/0"})
        with pytest.raises(ConfigError, match="starts anew"):
            flows.retune(other)

    asyncio.run(main())


def test_the_ledger_shows_in_the_metrics(config, point):
    async def main() -> str:
        flows = FlowScheduler.from_config(config)
        flow = await flows.start_flow(point, timeout=5)
        assert flow.should_run()
        text = flows.metrics()[0].decode()
        await flows.close()
        return text

    lines = asyncio.run(asyncio.wait_for(main(), 30)).splitlines()
    assert "fairlead_flows_ledger_connected 1.0" in lines
    granted = [line for line in lines if line.startswith("fairlead_flows_ledger_granted_total{")]
    assert len(granted) == 1
    assert f'limit="{point}.concurrency"' in granted[0]
    assert float(granted[0].split()[-1]) >= 1


CHANGES: dict[str, dict[str, Any]] = {
    "a fill": {"quota": {"bucket_capacity": 90, "fill_amount": 20, "interval": "2s"}},
    "a way to fill": {"quota": {"continuous_fill": False}},
    "a policy for a loss": {"concurrency": {"on_redis_loss": "closed"}},
    "how long it may hold": {"concurrency": {"max_inflight_duration": "50s"}},
    "nothing": {},
    "tenants (another gate)": {"scheduler": {"tenant_label_key": "tenant"}},
    "users, and a fill (another gate)": {
        "scheduler": {"fairness_label_key": "user"},
        "quota": {"fill_amount": 20},
    },
    "whose quota (another gate)": {"quota": {"limit_by_label_key": "user"}},
    "load (another gate)": {"load": {"signal": "posted"}},
}


def changed(config: dict[str, Any], point: str, change: dict[str, Any]) -> dict[str, Any]:
    """The configuration, with some of the settings of its point changed."""
    before = config["control_points"][point]
    after = {key: said | change.get(key, {}) for key, said in before.items()}
    return {**config, "control_points": {point: change | after}}


@pytest.fixture
def both(config: dict[str, Any], point: str) -> dict[str, Any]:
    """Two at once, of plenty."""
    plenty = {"bucket_capacity": 100, "fill_amount": 10, "interval": "1s"}
    limits = {"concurrency": {"max_concurrency": 2}, "quota": plenty}
    return {**config, "control_points": {point: limits}}


@pytest.mark.parametrize("how", CHANGES)
def test_who_holds_is_counted_after_a_reload(both, point, how):
    """In this process and in another that shares the limit."""

    async def main() -> None:
        one, two = FlowScheduler.from_config(both), FlowScheduler.from_config(both)
        held = [await one.start_flow(point, timeout=5) for _ in range(2)]
        assert [flow.should_run() for flow in held] == [True, True]
        for flows in (one, two):
            flows.retune(load(changed(both, point, CHANGES[how])))
        for _ in range(5):
            for flows in (one, two):
                assert flows.ledger is not None
                await flows.ledger.answered()
                assert not (await flows.start_flow(point, timeout=0)).should_run()
        assert [flow.end() for flow in held] == [True, True]
        after = [await two.start_flow(point, timeout=20) for _ in range(2)]
        assert [flow.should_run() for flow in after] == [True, True]
        assert not (await one.start_flow(point, timeout=0)).should_run()
        await one.close()
        await two.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("how", ["a policy for a loss", "tenants (another gate)"])
def test_who_holds_is_counted_after_a_reload_between_threads(both, point, how):
    flows = SyncFlowScheduler.from_config(both)
    held = [flows.start_flow(point, timeout=5) for _ in range(2)]
    flows.retune(load(changed(both, point, CHANGES[how])))
    for _ in range(5):
        assert not flows.start_flow(point, timeout=0).should_run()
    assert [flow.end() for flow in held] == [True, True]
    assert flows.start_flow(point, timeout=20).should_run()
    flows.close()


@pytest.mark.parametrize("more", [{}, {"tenant_label_key": "tenant"}], ids=["in place", "moved"])
def test_a_changed_bucket_is_the_same_bucket(config, point, more):
    """What was drawn from it is gone, and what a flow settles goes back into it."""

    def said(capacity: float, **more: str) -> dict[str, Any]:
        quota = {"bucket_capacity": capacity, "fill_amount": 1, "interval": "1h"}
        limits = {"quota": quota, "scheduler": {"tokens_label_key": "tokens"} | more}
        return {**config, "control_points": {point: limits}}

    async def main() -> list[bool]:
        flows = FlowScheduler.from_config(said(100))
        first = await flows.start_flow(point, {"tokens": "90"}, timeout=5)
        flows.retune(load(said(101, **more)))
        asked = [await flows.start_flow(point, {"tokens": "20"}, timeout=0)]
        assert first.end(tokens=50)
        asked.append(await flows.start_flow(point, {"tokens": "45"}, timeout=5))
        asked.append(await flows.start_flow(point, {"tokens": "10"}, timeout=0))
        await flows.close()
        return [flow.should_run() for flow in asked]

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [False, True, False]


LIMITS: dict[str, dict[str, Any]] = {
    "quota": {"quota": {"bucket_capacity": 10, "fill_amount": 1, "interval": "1h"}},
    "concurrency": {"concurrency": {"max_concurrency": 10}},
}


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("most", [0, 2])
def test_who_waits_for_the_ledgers_answer_only_is_not_in_the_queue(config, point, kind, most):
    """A full queue refuses who would have to wait, and nobody for whom the ledger has tokens."""
    limits = LIMITS[kind] | {"scheduler": {"max_queue": most}}
    said = {**config, "control_points": {point: limits}}

    async def main() -> None:
        flows = FlowScheduler.from_config(said)
        asked = [flows.start_flow(point, timeout=timeout) for timeout in (None, 20.0, 0, 20.0, 0)]
        ran = await asyncio.gather(*asked)
        ran += [await flows.start_flow(point, timeout=timeout) for timeout in (None, 20.0, 0) * 2]
        assert [flow.should_run() for flow in ran].count(True) == 10
        assert not ran[-1].should_run()
        waiting = [asyncio.ensure_future(flows.start_flow(point)) for _ in range(most)]
        await asyncio.sleep(0)
        assert flows.points[point].gate.waiting == most
        flow = await flows.start_flow(point, timeout=20.0)
        assert flow.reject_reason == "queue_full"
        assert f"the limit is {most}" in (flow.message or "")
        assert flow.retry_after is not None
        assert flows.points[point].gate.waiting == most
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert flows.points[point].queued == 0
        await flows.close()

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("kind", LIMITS)
def test_nor_between_threads(config, point, kind):
    limits = LIMITS[kind] | {"scheduler": {"max_queue": 0}}
    flows = SyncFlowScheduler.from_config({**config, "control_points": {point: limits}})
    ran = [flows.start_flow(point, timeout=timeout) for timeout in (None, 20.0, 0.0) * 3]
    ran.append(flows.start_flow(point))
    assert all(flow.should_run() for flow in ran)
    assert flows.start_flow(point, timeout=20.0).reject_reason == "queue_full"
    flows.close()


def test_what_was_held_under_other_keys_comes_back(config, point):
    """By a limit of the whole point, then by one for each user, and back."""
    whole: dict[str, Any] = {"max_concurrency": 2}
    each = whole | {"limit_by_label_key": "user"}

    def said(concurrency: dict[str, Any]) -> dict[str, Any]:
        return {**config, "control_points": {point: {"concurrency": concurrency}}}

    async def main() -> None:
        flows = FlowScheduler.from_config(said(whole))
        ann = {"user": "ann"}
        held = [await flows.start_flow(point, ann, timeout=5) for _ in range(2)]
        flows.retune(load(said(each)))
        assert not (await flows.start_flow(point, ann, timeout=0)).should_run()
        held += [await flows.start_flow(point, {"user": "bob"}, timeout=5) for _ in range(2)]
        assert [flow.end() for flow in held] == [True] * 4
        flows.retune(load(said(whole)))
        ran = [await flows.start_flow(point, ann, timeout=20) for _ in range(2)]
        assert [flow.should_run() for flow in ran] == [True, True]
        assert not (await flows.start_flow(point, ann, timeout=0)).should_run()
        await flows.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_who_waits_and_who_holds_move_to_another_gate(config, point):
    """With what the ledger was asked for: its answer comes to the new gate."""

    def said(**scheduler: str) -> dict[str, Any]:
        limits = {"concurrency": {"max_concurrency": 2}, "scheduler": scheduler}
        return {**config, "control_points": {point: limits}}

    async def main() -> None:
        flows = FlowScheduler.from_config(said())
        held = [await flows.start_flow(point, timeout=5) for _ in range(2)]
        order: list[int] = []

        async def one(number: int) -> None:
            async with flows.flow(point, timeout=20) as flow:
                assert flow.should_run()
                order.append(number)

        waiting = [asyncio.ensure_future(one(number)) for number in range(6)]
        for scheduler in ({"tenant_label_key": "t"}, {}, {"fairness_label_key": "u"}):
            await asyncio.sleep(0)
            flows.retune(load(said(**scheduler)))
            assert flows.points[point].gate.active == 2
            assert flows.points[point].gate.waiting == 6
        assert flows.ledger is not None
        assert len(flows.ledger.leases) == 1
        assert [flow.end() for flow in held] == [True, True]
        await asyncio.gather(*waiting)
        assert order == list(range(6))
        await flows.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_reloads_in_the_midst_of_threads(config, point):
    """Never more than the limit inside, nobody lost, and the ledger's thread at the gate that is used."""

    def said(**scheduler: str) -> dict[str, Any]:
        limits = {"concurrency": {"max_concurrency": 3}, "scheduler": scheduler}
        return {**config, "control_points": {point: limits}}

    flows = SyncFlowScheduler.from_config(said())
    lock = threading.Lock()
    inside = most = served = 0

    def worker(_: int) -> None:
        nonlocal inside, most, served
        for _ in range(30):
            with flows.flow(point, timeout=60) as flow:
                assert flow.should_run()
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1
                    served += 1

    done = threading.Event()

    def reload() -> None:
        while not done.is_set():
            for scheduler in ({"tenant_label_key": "t"}, {}):
                flows.retune(load(said(**scheduler)))

    reloading = threading.Thread(target=reload)
    reloading.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(worker, range(8), timeout=120))
    finally:
        done.set()
        reloading.join()
    assert served == 240
    assert most <= 3
    gate = flows.points[point].gate
    assert (gate.waiting, gate.active) == (0, 0)
    flows.close()
