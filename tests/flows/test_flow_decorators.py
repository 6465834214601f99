"""The decorator on a loop: each call a flow, ended however the call ends; what is refused does not run."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fairlead import Misuse
from fairlead.errors import NeverFits, QueueFull, Refused, WaitedTooLong
from fairlead.flows import SyncFlowScheduler
from tests.flows.door import (
    balanced,
    concurrency,
    config,
    now,
    point_of,
    quota,
    run,
    scheduler,
    ticks,
    used,
)


def test_a_call_is_a_flow():
    async def main():
        flows = scheduler(concurrency=concurrency(1))

        @flows.decorate("p")
        async def work(first: int, *, second: int = 0) -> int:
            """Add."""
            assert used(flows) == 1
            await asyncio.sleep(1)
            return first + second

        assert (work.__name__, work.__doc__) == ("work", "Add.")
        assert inspect.iscoroutinefunction(work)
        assert list(await asyncio.gather(work(1), work(2, second=3))) == [1, 5]
        assert now() == pytest.approx(2)
        balanced(flows)
        assert point_of(flows).counts.failed_flows == 0

    run(main())


def test_labels_are_given_or_made_of_the_arguments():
    async def main():
        flows = scheduler(
            quota=quota(100, 1e-6),
            scheduler={"tokens_label_key": "tokens", "workload_label_key": "who"},
        )

        @flows.decorate("p", labels={"who": "fixed", "tokens": "2"})
        async def fixed() -> None: ...

        @flows.decorate("p", labels=lambda who, tokens=1: {"who": who, "tokens": str(tokens)})
        async def made(who: str, tokens: int = 1) -> None: ...

        await fixed()
        await made("a", tokens=3)
        await made("b")
        workloads = point_of(flows).counts.workloads.values()
        return {one.name: one.accepted_tokens for one in workloads}

    assert run(main()) == {"fixed": 2, "a": 3, "b": 1}


def test_labels_that_fail_ask_for_nothing():
    async def main():
        flows = scheduler(concurrency=concurrency(1))

        def labels():
            raise KeyError("user")

        @flows.decorate("p", labels=labels)
        async def work() -> None:
            pytest.fail("it ran")

        with pytest.raises(KeyError, match="user"):
            await work()
        balanced(flows)
        assert not point_of(flows).counts.workloads

    run(main())


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, KeyError])
def test_exceptions_propagate_and_end_the_flow(kind):
    async def main():
        flows = scheduler(concurrency=concurrency(1))

        @flows.decorate("p")
        async def work() -> None:
            raise kind("mine")

        for _ in range(3):
            with pytest.raises(kind, match="mine"):
                await work()
            assert used(flows) == 0
        balanced(flows)
        counts = point_of(flows).counts
        assert (counts.ended_flows, counts.failed_flows) == (3, 3)

    run(main())


@pytest.mark.parametrize("after", range(6))
def test_a_cancelled_call_ends_its_flow(after):
    """Waiting, just granted, running: wherever it is after so many steps."""

    async def main():
        flows = scheduler(concurrency=concurrency(1))

        @flows.decorate("p")
        async def work() -> None:
            await asyncio.sleep(1)

        holder = await flows.start_flow("p")
        task = asyncio.ensure_future(work())
        await ticks(2)
        holder.end()
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        balanced(flows)
        assert (await flows.start_flow("p", timeout=0)).should_run()

    run(main())


class TestRefusals:
    """`on_reject()` answers, sync or async, or a `Refused` of its own kind is raised; the function does not run."""

    async def refused(self, on_reject: Any = None, **limits: Any) -> Any:
        said = {"tokens_label_key": "tokens"} | limits.pop("scheduler", {})
        labels = limits.pop("labels", None)
        flows = scheduler(concurrency=concurrency(1), scheduler=said, **limits)
        holder = await flows.start_flow("p")

        @flows.decorate("p", labels=labels, timeout=0.5, on_reject=on_reject)
        async def work() -> None:
            pytest.fail("it ran")

        try:
            return await work()
        finally:
            holder.end()
            balanced(flows)

    @pytest.mark.parametrize(
        ("kind", "status", "limits"),
        [
            (WaitedTooLong, 408, {}),
            (QueueFull, 429, {"scheduler": {"max_queue": 0}}),
        ],
    )
    def test_raised_with_retry_after(self, kind, status, limits):
        async def main():
            with pytest.raises(kind) as caught:
                await self.refused(**limits)
            assert isinstance(caught.value, Refused)
            error: Any = caught.value
            assert error.status_hint == status
            assert error.retry_after > 0
            assert error.ticket.retry_after == error.retry_after
            assert "p" in str(error)

        run(main())

    def test_raised_without_where_it_can_never_fit(self):
        async def main():
            with pytest.raises(NeverFits, match="larger than bucket 10") as caught:
                await self.refused(quota=quota(10, 1), labels={"tokens": "11"})
            assert caught.value.retry_after is None
            assert caught.value.status_hint == 422
            assert now() == 0

        run(main())

    def test_answered(self):
        assert run(self.refused(lambda: "busy")) == "busy"
        assert run(self.refused(lambda: None)) is None

    def test_answered_by_a_coroutine(self):
        async def busy() -> str:
            await asyncio.sleep(1)
            return "busy"

        assert run(self.refused(busy)) == "busy"

    def test_an_answer_that_fails_is_told(self):
        def broken() -> None:
            raise ZeroDivisionError

        async def main():
            with pytest.raises(ZeroDivisionError):
                await self.refused(broken)

        run(main())


def test_what_cannot_wait_on_a_loop_is_told_at_once():
    flows = scheduler(concurrency=concurrency(1))

    def sync() -> None: ...

    with pytest.raises(Misuse, match=r"sync is not a coroutine function.*SyncFlowScheduler"):
        flows.decorate("p")(sync)


def test_generators_are_refused_for_their_bodies_run_after_the_call():
    def values() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    twin = SyncFlowScheduler.from_config(config(concurrency=concurrency(1)))
    for flows in (scheduler(concurrency=concurrency(1)), twin):
        for function in (values, later):
            with pytest.raises(Misuse, match=rf"{function.__name__} is a generator function"):
                flows.decorate("p")(function)


def test_a_callable_without_a_name_is_told_at_once_too():
    class Work:
        def __call__(self) -> None: ...

    with pytest.raises(Misuse, match=r"Work object .* is not a coroutine function"):
        scheduler(concurrency=concurrency(1)).decorate("p")(Work())


class TestObjects:
    """What an object does when it is called says its class's `__call__`."""

    class Work:
        def __init__(self, inside: Callable[[], float]) -> None:
            self.inside = inside

        async def __call__(self) -> float:
            await asyncio.sleep(0)
            return self.inside()

    class Values:
        def __call__(self) -> Iterator[int]:
            yield 1

    @pytest.mark.parametrize("made", [lambda work: work, functools.partial])
    def test_whose_call_is_a_coroutine_function_work_inside_the_flow(self, made):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            work = made(self.Work(lambda: used(flows)))
            assert await flows.decorate("p")(work)() == 1
            balanced(flows)
            twin = SyncFlowScheduler.from_config(config(concurrency=concurrency(1)))
            with pytest.raises(Misuse, match=r"is a coroutine function.*FlowScheduler"):
                twin.decorate("p")(work)

        run(main())

    def test_whose_call_is_a_generator_function_are_refused(self):
        twin = SyncFlowScheduler.from_config(config(concurrency=concurrency(1)))
        for flows in (scheduler(concurrency=concurrency(1)), twin):
            with pytest.raises(Misuse, match="is a generator function"):
                flows.decorate("p")(self.Values())


def test_an_awaitable_from_a_plain_function_is_refused():
    """Its work would begin when the flow has ended."""

    async def work() -> None:
        pytest.fail("it ran")

    flows = SyncFlowScheduler.from_config(config(concurrency=concurrency(1)))
    try:
        with pytest.raises(Misuse, match=r"returned an awaitable.*FlowScheduler"):
            flows.decorate("p")(lambda: work())()
        balanced(flows)
        assert point_of(flows).counts.failed_flows == 1
    finally:
        flows.close()


def test_a_decorated_function_of_an_unknown_point_runs():
    async def main():
        flows = scheduler(concurrency=concurrency(1))

        @flows.decorate("elsewhere", timeout=0)
        async def work() -> str:
            return "done"

        assert await work() == "done"
        assert flows.unknown == {"elsewhere": 1}

    run(main())


class TestContext:
    def test_a_refused_flow_enters_the_body(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            async with flows.flow("p"), flows.flow("p", timeout=0) as second:
                assert not second.should_run()
                assert second.retry_after is not None
                assert second.retry_after > 0
            balanced(flows)

        run(main())

    def test_exceptions_pass_and_count_as_failures(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            with pytest.raises(ValueError, match="mine"):
                async with flows.flow("p"):
                    raise ValueError("mine")
            balanced(flows)
            assert point_of(flows).counts.failed_flows == 1

        run(main())

    def test_an_end_in_the_body_is_the_end(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            async with flows.flow("p") as flow:
                assert flow.end("error")
                async with flows.flow("p", timeout=0) as second:
                    assert second.should_run()
            balanced(flows)
            counts = point_of(flows).counts
            assert (counts.ended_flows, counts.failed_flows, counts.late_ends) == (2, 1, 0)

        run(main())
