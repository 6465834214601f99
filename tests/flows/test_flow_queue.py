"""Who waits at the door: in what order, how many at most, and what those are told who may not."""

import asyncio
from itertools import pairwise

import pytest

from fairlead.core.ticket import QueueLimit, State
from fairlead.errors import QueueFull, WaitedTooLong
from tests.flows.door import (
    backlog,
    balanced,
    concurrency,
    granted,
    now,
    point_of,
    quota,
    run,
    scheduler,
    until,
    waiting,
)

BY_TOKENS = {"tokens_label_key": "tokens"}


class TestQueue:
    def test_scenario_44_a_full_queue_refuses_at_once(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1), scheduler={"max_queue": 2})
            holder = await flows.start_flow("p")
            waiters = [await waiting(flows) for _ in range(2)]
            flow = await flows.start_flow("p")  # though it would wait for ever
            assert now() == 0
            assert (flow.state, flow.reject_reason) == (State.REFUSED, "queue_full")
            assert isinstance(flow.reason, QueueLimit)
            assert flow.retry_after is not None
            assert flow.retry_after > 0
            error = flow.refusal()
            assert isinstance(error, QueueFull)
            assert (error.current, error.maximum, error.retry_after) == (2, 2, flow.retry_after)
            holder.end()
            (await granted(waiters[0])).end()
            (await granted(waiters[1])).end()
            balanced(flows)

        run(main())

    def test_a_queue_of_none_still_admits_what_has_room(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1), scheduler={"max_queue": 0})
            async with flows.flow("p") as flow:
                assert flow.should_run()
                assert (await flows.start_flow("p")).reject_reason == "queue_full"
            balanced(flows)

        run(main())

    def test_scenario_33_without_a_fairness_key_it_is_first_in_first_out(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1), scheduler={"fairness_label_key": "user"})
            order = [
                who for who, _ in await backlog(flows, [(number, {}) for number in range(200)])
            ]
            assert point_of(flows).resolver.missing_labels == {"user": 201}
            return order

        assert all(first < second for first, second in pairwise(run(main())))

    @pytest.mark.parametrize("limits", [{"quota": quota(10, 1)}, {"concurrency": concurrency(10)}])
    def test_a_newcomer_never_passes_a_waiter_of_its_own_workload(self, limits):
        """Not even a small one that would fit where the large one before it does not."""

        async def main():
            flows = scheduler(**limits, scheduler=BY_TOKENS)
            holder = await flows.start_flow("p", {"tokens": "9"})
            large = await waiting(flows, {"tokens": "5"})
            small = await flows.start_flow("p", {"tokens": "1"}, timeout=0)
            assert not small.should_run()
            behind = await waiting(flows, {"tokens": "1"})
            if "concurrency" in limits:
                holder.end()
            flow = await large
            flow.end()
            (await behind).end()
            holder.end()
            balanced(flows)

        run(main())

    def test_the_retry_after_of_a_queue_counts_what_waits(self):
        """By what ended lately: four tokens per second, three wait and this is the fourth."""

        async def main():
            flows = scheduler(concurrency=concurrency(1), scheduler={"max_queue": 3})
            for number in range(9):
                await until(number * 0.25)
                (await flows.start_flow("p")).end()
            holder = await flows.start_flow("p")
            waiters = [await waiting(flows) for _ in range(3)]
            flow = await flows.start_flow("p")
            assert flow.retry_after == pytest.approx(4 / 4.5)
            holder.end()
            for waiter in waiters:
                (await granted(waiter)).end()

        run(main())

    def test_the_retry_after_of_a_quota_is_when_its_tokens_are_there(self):
        async def main():
            flows = scheduler(quota=quota(10, 2), scheduler=BY_TOKENS)
            await flows.start_flow("p", {"tokens": "10"})
            flow = await flows.start_flow("p", {"tokens": "5"}, timeout=0)
            assert flow.retry_after == pytest.approx(2.5)
            assert isinstance(flow.refusal(), WaitedTooLong)
            await asyncio.sleep(flow.retry_after or 0.0)
            assert (await flows.start_flow("p", {"tokens": "5"}, timeout=0)).should_run()

        run(main())
