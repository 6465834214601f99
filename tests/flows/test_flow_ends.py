"""Leaving a flow: what it hands to `async with`, and whom a policy that fails just then concerns."""

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

from fairlead.errors import PolicyError
from fairlead.flows.blocking import SyncFlowScheduler
from tests.flows.door import (
    balanced,
    concurrency,
    config,
    granted,
    now,
    point_of,
    run,
    scheduler,
    used,
    waiting,
)


def failing(*_: Any) -> Any:
    raise ZeroDivisionError


def test_leaving_can_be_awaited_in_any_way():
    async def main():
        flows = scheduler(concurrency=concurrency(10))
        async with AsyncExitStack() as stack:
            for _ in range(3):
                flow = await stack.enter_async_context(flows.flow("p"))
                assert flow.should_run()
            assert used(flows) == 3
        assert used(flows) == 0
        flow = await flows.start_flow("p")
        left = flow.__aexit__(None, None, None)
        assert used(flows) == 0
        await left
        await left
        flow = await flows.start_flow("p")
        await asyncio.wait_for(flow.__aexit__(None, None, None), 1.0)
        assert point_of(flows).counts.ended_flows == 5
        balanced(flows)

    run(main())


def test_the_error_of_the_work_is_not_swallowed():
    async def main():
        flows = scheduler(concurrency=concurrency(1))
        try:
            async with flows.flow("p"):
                raise KeyError
        except KeyError:
            assert point_of(flows).counts.failed_flows == 1
            balanced(flows)
            return
        raise AssertionError

    run(main())


def test_a_policy_that_fails_as_a_flow_ends_fails_for_those_who_wait(monkeypatch):
    async def main():
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: told.append(said))
        flows = scheduler(concurrency=concurrency(1))
        point = point_of(flows)
        holder = await flows.start_flow("p")
        waiter = await waiting(flows)
        monkeypatch.setattr(point.policy, "pick", failing)
        assert holder.end()
        assert [type(said["exception"]) for said in told] == [PolicyError]
        assert (used(flows), point.counts.ended_flows, point.gate.waiting) == (0, 1, 1)
        monkeypatch.undo()
        point.runtime.after(point.gate.advance(now()))
        (await granted(waiter)).end()
        balanced(flows)

    run(main())


def test_between_threads_it_is_logged(monkeypatch, caplog):
    flows = SyncFlowScheduler.from_config(config(concurrency=concurrency(1)))
    point = point_of(flows)
    entered = threading.Event()
    waits = point.waits

    def noted(flow: Any) -> bool:
        answer = waits(flow)
        entered.set()
        return answer

    monkeypatch.setattr(point, "waits", noted)

    def work() -> None:
        with flows.flow("p") as flow:
            assert flow.should_run()

    holder = flows.start_flow("p")
    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(30.0)
    monkeypatch.setattr(point.policy, "pick", failing)
    assert holder.end()
    assert "ZeroDivisionError" in caplog.text
    assert (used(flows), point.counts.ended_flows) == (0, 1)
    monkeypatch.undo()
    assert point.runtime.rouse()
    thread.join(30.0)
    assert point.counts.ended_flows == 2
    flows.close()
    point.runtime.rest()
    balanced(flows)
