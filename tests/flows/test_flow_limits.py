"""Limits at the door: concurrency, quota, keys and queue lengths, alone and stacked; ceilings at every instant."""

import asyncio
from typing import Any

import pytest

from fairlead.errors import NeverFits
from fairlead.flows.scheduler import FlowScheduler
from tests.flows.door import (
    ask,
    balanced,
    concurrency,
    granted,
    level,
    loaded,
    now,
    point_of,
    quota,
    run,
    scheduler,
    ticks,
    until,
    used,
    waiting,
)

BY_TOKENS = {"tokens_label_key": "tokens"}


async def workers(flows: FlowScheduler, count: int, work: float, seconds: float, *, ends: bool):
    """Have workers ask, work and ask again; tell how many were accepted, and the most at work at once."""
    inside = most = accepted = 0

    async def worker() -> None:
        nonlocal inside, most, accepted
        while now() < seconds:
            flow = await flows.start_flow("p", timeout=1.0)
            if not flow.should_run():
                continue
            accepted += 1
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(work)
            inside -= 1
            if ends:
                assert flow.end()

    await asyncio.gather(*(worker() for _ in range(count)))
    return accepted, most


class TestConcurrency:
    def test_scenario_8_with_returns(self):
        async def main():
            flows = scheduler(concurrency=concurrency(10))
            accepted, most = await workers(flows, 30, 0.1, 10.0, ends=True)
            balanced(flows)
            return accepted, most

        accepted, most = run(main())
        assert most == 10
        # Those who wait at the end are let in as the last ones end.
        assert 1000 <= accepted <= 1030

    def test_scenario_8_without_returns(self):
        """A holder that is never heard of again makes room after max_inflight_duration."""

        async def main():
            flows = scheduler(concurrency=concurrency(10, max_inflight_duration="100ms"))
            accepted, _ = await workers(flows, 30, 0.1, 10.0, ends=False)
            assert point_of(flows).gate.active <= 10
            await asyncio.sleep(0.1)
            balanced(flows)
            return accepted

        assert 1000 <= run(main()) <= 1030

    @pytest.mark.parametrize("timeout", [None, 0.0, 0.01, 0.5, 0.510000001, 0.52])
    def test_scenario_9_granted_once_or_refused_without_a_leak(self, timeout):
        """Upstream refuses without a deadline, though the slot was granted, and leaks it."""

        async def main():
            flows = scheduler(concurrency=concurrency(1))
            holder = await flows.start_flow("p")
            task = ask(flows, timeout=timeout)
            await until(0.5)
            holder.end()
            await ticks()
            flow = task.result()
            assert flow.should_run() is (timeout is None or timeout > 0.5)
            assert used(flows) == flow.should_run()
            assert flow.end() is flow.should_run()
            balanced(flows)

        run(main())

    def test_scenario_36_lowered_below_what_is_in_flight(self):
        async def main():
            flows = scheduler(concurrency=concurrency(4))
            held = [await flows.start_flow("p") for _ in range(4)]
            waiters = [await waiting(flows) for _ in range(3)]
            flows.retune(loaded(concurrency=concurrency(2)))
            for flow, active in zip(held, (3, 2), strict=False):
                flow.end()
                await ticks()
                assert point_of(flows).gate.active == active
                assert not any(waiter.done() for waiter in waiters)
            held[2].end()
            first = await granted(waiters[0])
            assert not waiters[1].done()
            assert used(flows) == 2
            for flow in (held[3], first):
                flow.end()
            for waiter in waiters[1:]:
                (await granted(waiter)).end()
            balanced(flows)

        run(main())

    def test_scenario_36_raised_wakes_waiters_at_once(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            held = [await flows.start_flow("p")]
            waiters = [await waiting(flows) for _ in range(3)]
            flows.retune(loaded(concurrency=concurrency(3)))
            held += [await granted(waiter) for waiter in waiters[:2]]
            assert not waiters[2].done()
            for flow in held:
                flow.end()
            (await granted(waiters[2])).end()
            balanced(flows)

        run(main())

    def test_scenario_26_tokens_fill_it_exactly_and_no_more(self):
        async def main():
            flows = scheduler(concurrency=concurrency(10), scheduler=BY_TOKENS)
            first = await flows.start_flow("p", {"tokens": "9.5"})
            second = await flows.start_flow("p", {"tokens": "0.5"}, timeout=0)
            assert second.should_run()
            assert not (await flows.start_flow("p", {"tokens": "0.001"}, timeout=0)).should_run()
            first.end()
            assert not (await flows.start_flow("p", {"tokens": "9.51"}, timeout=0)).should_run()
            second.end()
            balanced(flows)

        run(main())

    def test_scenario_26_larger_than_the_limit_goes_alone(self):
        async def main():
            flows = scheduler(concurrency=concurrency(10), scheduler=BY_TOKENS)
            small = await flows.start_flow("p")
            large = await waiting(flows, {"tokens": "50"})
            behind = await waiting(flows)
            small.end()
            flow = await granted(large)
            assert not behind.done()
            flow.end()
            (await granted(behind)).end()
            balanced(flows)

        run(main())

    def test_by_key_a_full_key_does_not_block_another(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1, limit_by_label_key="key"))
            held = await flows.start_flow("p", {"key": "a"})
            first, second = await waiting(flows, {"key": "a"}), await waiting(flows, {"key": "a"})
            other = await flows.start_flow("p", {"key": "b"}, timeout=0)
            free, freer = [await flows.start_flow("p", {}, timeout=0) for _ in range(2)]
            assert other.should_run()
            assert free.should_run()
            assert freer.should_run()
            assert used(flows, "a") == used(flows, "b") == 1
            held.end()
            flow = await granted(first)
            assert not second.done()
            for one in (other, free, freer, flow):
                one.end()
            (await granted(second)).end()
            balanced(flows)

        run(main())


class TestQuota:
    def test_scenario_26_an_exact_fit_and_no_more(self):
        async def main():
            flows = scheduler(quota=quota(10, 1e-6), scheduler=BY_TOKENS)
            assert (await flows.start_flow("p", {"tokens": "10"}, timeout=0)).should_run()
            assert not (await flows.start_flow("p", {"tokens": "0.1"}, timeout=0)).should_run()

        run(main())

    @pytest.mark.parametrize("timeout", [None, 0, 5.0])
    @pytest.mark.parametrize("busy", [False, True])
    def test_scenario_26_more_than_the_bucket_holds_is_refused_at_once(self, timeout, busy):
        async def main():
            flows = scheduler(quota=quota(10, 1), concurrency=concurrency(1), scheduler=BY_TOKENS)
            held = [await flows.start_flow("p")] if busy else []
            before = level(flows)
            flow = await flows.start_flow("p", {"tokens": "10.5"}, timeout)
            assert now() == 0
            assert (flow.reject_reason, flow.retry_after) == ("never_fits", None)
            assert "its cost 10.5 is larger than bucket 10: it can never be admitted" in str(
                flow.message
            )
            assert isinstance(flow.refusal(), NeverFits)
            assert level(flows) == before
            for one in held:
                one.end()
            balanced(flows)

        run(main())

    @pytest.mark.parametrize("timeout", [None, 5.0])
    def test_scenario_26_also_behind_others_who_wait(self, timeout):
        async def main():
            flows = scheduler(quota=quota(10, 1e-6), scheduler=BY_TOKENS)
            (await flows.start_flow("p", {"tokens": "10"})).end()
            first = await waiting(flows)
            flow = await flows.start_flow("p", {"tokens": "11"}, timeout)
            assert now() == 0
            assert (flow.reject_reason, flow.retry_after) == ("never_fits", None)
            assert "its cost 11 is larger than bucket 10" in str(flow.message)
            behind = await waiting(flows)
            for task in (first, behind):
                task.cancel()
            await ticks()
            balanced(flows)

        run(main())

    def test_scenario_27_a_small_one_after_a_refused_large_one(self):
        async def main():
            flows = scheduler(quota=quota(10, 1e-6), scheduler=BY_TOKENS)
            assert (await flows.start_flow("p", {"tokens": "5"})).should_run()
            large = await flows.start_flow("p", {"tokens": "8"}, timeout=0)
            assert not large.should_run()
            assert large.retry_after == pytest.approx(3e6, rel=0.01)
            small = await flows.start_flow("p", {"tokens": "5"}, timeout=0)
            assert small.should_run()
            assert level(flows) == pytest.approx(0, abs=1e-3)

        run(main())

    def test_an_exhausted_key_never_blocks_another(self):
        async def main():
            flows = scheduler(quota=quota(2, 1, limit_by_label_key="key"), scheduler=BY_TOKENS)
            await flows.start_flow("p", {"key": "a", "tokens": "2"})
            first, second = await waiting(flows, {"key": "a"}), await waiting(flows, {"key": "a"})
            for _ in range(2):
                assert (await flows.start_flow("p", {"key": "b"}, timeout=0)).should_run()
            assert not (await flows.start_flow("p", {"key": "b"}, timeout=0)).should_run()
            for _ in range(100):  # without the label nothing limits it
                assert (await flows.start_flow("p", {}, timeout=0)).should_run()
            assert now() == 0
            await first
            assert now() == pytest.approx(1)
            await second
            assert now() == pytest.approx(2)

        run(main())

    def test_the_rate_is_kept_and_nothing_waits_longer_than_it_must(self):
        async def main():
            flows = scheduler(quota=quota(30, 10))
            times = []

            async def one():
                (await flows.start_flow("p")).end()
                times.append(now())

            await asyncio.gather(*(one() for _ in range(200)))
            balanced(flows)
            return times

        times = run(main())
        expected = [0.0] * 30 + [number / 10 for number in range(1, 171)]
        assert times == pytest.approx(expected, abs=1e-6)


class TestStacked:
    """Scenario 11: all or none; what one limit granted is not spent when another refuses."""

    SAID: Any = staticmethod(
        lambda: {
            "quota": quota(3, 1e-6, limit_by_label_key="key"),
            "concurrency": concurrency(2),
        }
    )

    def test_a_refusal_of_one_costs_nothing_at_the_other(self):
        async def main():
            flows = scheduler(**self.SAID())
            for _ in range(3):
                (await flows.start_flow("p", {"key": "a"})).end()
            refused = await flows.start_flow("p", {"key": "a"}, timeout=0.5)
            assert not refused.should_run()
            assert used(flows) == 0
            held = [await flows.start_flow("p", {"key": "b"}) for _ in range(2)]
            refused = await flows.start_flow("p", {"key": "b"}, timeout=0.5)
            assert not refused.should_run()
            assert level(flows, "b") == pytest.approx(1, abs=1e-3)
            for flow in held:
                flow.end()
            balanced(flows)

        run(main())

    def test_who_waits_for_its_quota_holds_no_slot(self):
        async def main():
            flows = scheduler(**self.SAID())
            for _ in range(3):
                (await flows.start_flow("p", {"key": "a"})).end()
            stuck = [await waiting(flows, {"key": "a"}) for _ in range(5)]
            held = [await flows.start_flow("p", {"key": "b"}, timeout=0) for _ in range(2)]
            assert all(flow.should_run() for flow in held)
            free = await waiting(flows)
            held[0].end()
            (await granted(free)).end()
            held[1].end()
            for task in stuck:
                task.cancel()
            await ticks()
            balanced(flows)

        run(main())

    def test_without_the_label_only_the_other_limit_counts(self):
        async def main():
            flows = scheduler(**self.SAID())
            for _ in range(20):
                assert (await flows.start_flow("p")).end()
            held = [await flows.start_flow("p") for _ in range(2)]
            assert not (await flows.start_flow("p", timeout=0)).should_run()
            for flow in held:
                flow.end()
            balanced(flows)

        run(main())


@pytest.mark.parametrize("kind", ["vegas", "gradient2"])
@pytest.mark.parametrize(
    ("clients", "tokens", "users", "grows"),
    [
        (20, "1", 1, True),
        (2, "10", 1, True),
        (1, "5", 1, False),
        (40, "1", 20, False),
        (40, "1", 2, True),
    ],
)
def test_a_learned_limit_grows_if_half_of_its_tokens_are_used(kind, clients, tokens, users, grows):
    """Of one key's, where each has a limit of its own: of how many flows they are does not matter."""

    async def main():
        said = {"max_concurrency": kind, "limit_by_label_key": "user"}
        flows = scheduler(concurrency=said, scheduler={"tokens_label_key": "tokens"})

        async def client(user: str) -> None:
            for _ in range(200):
                async with flows.flow("p", {"user": user, "tokens": tokens}):
                    await asyncio.sleep(0.1)

        await asyncio.gather(*(client(f"u{number % users}") for number in range(clients)))
        learner = point_of(flows).learner
        assert learner is not None
        return learner.limit

    assert (run(main()) > 20) is grows
