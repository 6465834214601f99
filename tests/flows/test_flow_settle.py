"""Reserve and settle: what was charged at admission is corrected at the end."""

import asyncio
from typing import Any

import pytest

from fairlead.errors import ConfigError, Misuse
from fairlead.flows import FlowMiddleware, FlowScheduler, SyncFlowScheduler
from tests.flows.door import (
    balanced,
    concurrency,
    granted,
    level,
    now,
    quota,
    run,
    scheduler,
    ticks,
    waiting,
)


class TestReserveAndSettle:
    """What was charged at admission is corrected at the end."""

    def spent(self, *ends: tuple[str, float | None], fill: float = 1e-9) -> float:
        async def main():
            flows = scheduler(quota=quota(100, fill), scheduler={"tokens_label_key": "tokens"})
            for estimate, tokens in ends:
                flow = await flows.start_flow("p", {"tokens": estimate})
                assert flow.should_run()
                flow.end(tokens=tokens)
                flow.end(tokens=0)
            balanced(flows)
            return 100 - level(flows)

        result: float = run(main())
        return result

    @pytest.mark.parametrize("status", ["eror", "failed", "OK", None, 500, RuntimeError()])
    def test_a_flow_ends_ok_or_with_an_error(self, status: Any):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            flow = await flows.start_flow("p")
            with pytest.raises(Misuse, match='"ok" or "error"'):
                flow.end(status)
            assert flow.end("error"), "the bad end has changed nothing"
            balanced(flows)

        run(main())

    def test_less_is_refunded_and_more_is_charged(self):
        assert self.spent(("10", None)) == pytest.approx(10)
        assert self.spent(("10", 10)) == pytest.approx(10)
        assert self.spent(("10", 4)) == pytest.approx(4)
        assert self.spent(("10", 0)) == pytest.approx(0)
        assert self.spent(("10", 35)) == pytest.approx(35)
        assert self.spent(("10", 4), ("20", 50), ("1", None)) == pytest.approx(55)

    def test_the_balance_may_be_negative_and_later_flows_wait_it_out(self):
        async def main():
            flows = scheduler(quota=quota(10, 1), scheduler={"tokens_label_key": "tokens"})
            flow = await flows.start_flow("p", {"tokens": "10"})
            flow.end(tokens=25)
            assert level(flows) == pytest.approx(-15)
            after = await flows.start_flow("p", {"tokens": "2"})
            assert now() == pytest.approx(17.0)
            after.end()
            balanced(flows)

        run(main())

    def test_a_refund_wakes_who_waits_for_it(self):
        async def main():
            flows = scheduler(quota=quota(10, 1e-6), scheduler={"tokens_label_key": "tokens"})
            first = await flows.start_flow("p", {"tokens": "10"})
            waiter = await waiting(flows, {"tokens": "6"})
            first.end(tokens=4)
            (await granted(waiter)).end()
            assert level(flows) == pytest.approx(0, abs=1e-3)

        run(main())

    def test_a_refund_fills_no_bucket_above_its_size(self):
        assert self.spent(("50", 0), fill=100) == pytest.approx(0)

    @pytest.mark.parametrize("spent", [100, 900])
    @pytest.mark.parametrize("key", [None, "user"])
    @pytest.mark.parametrize("lost", [2.0, 3700.0], ids=["expired", "forgotten"])
    def test_an_end_that_comes_late_is_settled_too(self, spent, key, lost):
        async def main():
            said = {"tokens_label_key": "tokens"}
            limits: dict[str, Any] = {"quota": quota(1000, 1e-9, limit_by_label_key=key)}
            if lost < 3600:
                limits["concurrency"] = concurrency(1, max_inflight_duration=1.0)
            flows = scheduler(**limits, scheduler=said)
            flow = await flows.start_flow("p", {"tokens": "400", "user": "u1"})
            other = await flows.start_flow("p", {"tokens": "10"}) if key else None  # has no bucket
            await asyncio.sleep(lost)
            for _ in range(2):
                assert not flow.end(tokens=spent)
                assert level(flows, key and "u1") == pytest.approx(1000 - spent, abs=1e-3)
            assert other is None or not other.end(tokens=5)
            balanced(flows)

        run(main())

    def test_a_refund_that_comes_late_wakes_who_waits_for_it(self):
        async def main():
            flows = scheduler(
                quota=quota(10, 1e-6),
                concurrency=concurrency(20, max_inflight_duration=1.0),
                scheduler={"tokens_label_key": "tokens"},
            )
            first = await flows.start_flow("p", {"tokens": "10"})
            waiter = await waiting(flows, {"tokens": "6"})
            await asyncio.sleep(2.0)
            first.end(tokens=4)
            (await granted(waiter)).end()
            balanced(flows)

        run(main())

    def test_shares_follow_what_was_really_spent(self):
        """Who says 1 and spends 9 pays for 9 in the order, too."""

        async def main():
            said: dict[str, Any] = {"workload_label_key": "who"}
            flows = scheduler(concurrency=concurrency(1), scheduler=said)
            holder = await flows.start_flow("p")
            order = []

            async def one(who):
                flow = await flows.start_flow("p", {"who": who})
                order.append(who)
                flow.end(tokens=9 if who == "liar" else None)

            tasks = [asyncio.ensure_future(one(who)) for who in ["liar", "honest"] * 100]
            await ticks(2)
            holder.end()
            await asyncio.gather(*tasks)
            return order[:100]

        order = run(main())
        assert order.count("liar") == pytest.approx(10, abs=1)


def test_what_was_given_in_place_of_something_else_is_named():
    config = {"control_points": {"p": {"concurrency": {"max_concurrency": 1}}}}
    for kind in (FlowScheduler, SyncFlowScheduler):
        with pytest.raises(ConfigError, match=rf"{kind.__name__}\.from_config"):
            kind(config)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="FlowScheduler or a FlowClient"):
        FlowMiddleware(lambda *_: None, "flows.yaml", "p")
    flows = FlowScheduler.from_config(config)
    with pytest.raises(ConfigError, match="labels are a mapping"):
        flows.flow("p", ["tier=paid"])  # type: ignore[arg-type]
