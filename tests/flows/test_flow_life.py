"""The life of a flow: how long it waits, what it leaves when it gives up, what its end gives back."""

import asyncio
from math import inf, nan

import pytest

from fairlead import ConfigError, Misuse
from fairlead.core.ticket import State
from tests.flows.door import (
    ask,
    balanced,
    concurrency,
    granted,
    level,
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

BAD_SPENDING = [-1.0, nan, inf, -0.5]


class TestTimeouts:
    """Scenario 32: the smaller of the caller's timeout, less the margin, and the workload's."""

    @pytest.mark.parametrize(
        ("timeout", "queue_timeout", "waits"),
        [
            (1.0, None, 0.99),
            (1.0, "300ms", 0.3),
            (0.2, "300ms", 0.19),
            (0.31, "300ms", 0.3),
            (None, "2s", 2.0),
            (inf, "2s", 2.0),
            (0.0, None, 0.0),
            (0.0, "2s", 0.0),
            (0.01, None, 0.0),
            (0.005, "2s", 0.0),
            (5.0, 0, 0.0),
            (None, 0, 0.0),
        ],
    )
    @pytest.mark.parametrize("limit", ["concurrency", "quota"])
    def test_how_long_it_waits(self, timeout, queue_timeout, waits, limit):
        limits = {"concurrency": concurrency(1), "quota": quota(1, 1e-6)}

        async def main():
            said = {"default_workload": {"queue_timeout": queue_timeout}}
            flows = scheduler(**{limit: limits[limit]}, scheduler=said)
            holder = await flows.start_flow("p")
            await until(7.0)
            flow = await flows.start_flow("p", timeout=timeout)
            assert now() - 7.0 == pytest.approx(waits, abs=1e-6)
            assert not flow.should_run()
            assert (flow.reject_reason, flow.state) == ("timeout", State.EXPIRED)
            assert flow.retry_after is not None
            assert flow.retry_after > 0
            assert not flow.end()
            holder.end()
            balanced(flows)

        run(main())

    @pytest.mark.parametrize("timeout", [0.0, 0.005, 0.01])
    @pytest.mark.parametrize("queue_timeout", [None, 0, "2s"])
    def test_a_try_succeeds_where_there_is_room(self, timeout, queue_timeout):
        """Never refused only because of the margin."""

        async def main():
            said = {"default_workload": {"queue_timeout": queue_timeout}}
            flows = scheduler(quota=quota(1, 1), concurrency=concurrency(1), scheduler=said)
            async with flows.flow("p", timeout=timeout) as flow:
                assert flow.should_run()
            balanced(flows)

        run(main())

    def test_the_margin_is_configurable(self):
        async def main():
            flows = scheduler(
                concurrency=concurrency(1), scheduler={"decision_deadline_margin": "250ms"}
            )
            await flows.start_flow("p")
            await flows.start_flow("p", timeout=1.0)
            return now()

        assert run(main()) == pytest.approx(0.75)

    @pytest.mark.parametrize("timeout", [None, inf])
    def test_without_any_it_waits(self, timeout):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            holder = await flows.start_flow("p")
            waiter = await waiting(flows, timeout=timeout)
            await until(10_000.0)
            assert not waiter.done()
            holder.end()
            (await granted(waiter)).end()
            balanced(flows)

        run(main())

    @pytest.mark.parametrize("timeout", [-1.0, -1e-9, nan, -inf, "5", "5s", "abc", [], 1j])
    def test_what_is_no_timeout_is_told_and_changes_nothing(self, timeout):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            with pytest.raises(ConfigError, match="timeout must be a number of seconds"):
                flows.flow("p", timeout=timeout)
            balanced(flows)
            assert not point_of(flows).counts.workloads

        run(main())

    def test_room_that_comes_at_the_very_instant_is_granted(self):
        """At one instant: starts first, then expiries."""

        async def main():
            flows = scheduler(quota=quota(1, 1), scheduler={"decision_deadline_margin": 0})
            await flows.start_flow("p")
            flow = await flows.start_flow("p", timeout=1.0)
            assert flow.should_run()
            return now()

        assert run(main()) == pytest.approx(1.0)


class TestCancellation:
    """Scenario 6: nothing is left, tokens come back exactly once, the next one is woken."""

    def test_while_queued(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            holder = await flows.start_flow("p")
            first, second = await waiting(flows), await waiting(flows)
            first.cancel()
            await ticks()
            assert first.cancelled()
            assert point_of(flows).gate.waiting == 1
            holder.end()
            (await granted(second)).end()
            balanced(flows)
            assert point_of(flows).counts.reasons == {"cancelled": 1}

        run(main())

    @pytest.mark.parametrize("woken", [False, True])
    def test_load_control_sees_who_left_as_not_accepted(self, woken):
        async def main():
            said = {"signal": "posted", "setpoint": 1.0}
            flows = scheduler(concurrency=concurrency(1), load=said)
            holder, waiter = await flows.start_flow("p"), await waiting(flows)
            if woken:
                holder.end()
            waiter.cancel()
            await ticks()
            assert waiter.cancelled()
            control = point_of(flows).load
            assert control is not None
            assert control.throttle.observed(now()) == 0.5

        run(main())

    @pytest.mark.parametrize("limits", [{"concurrency": concurrency(1)}, {}], ids=["slot", "both"])
    def test_just_woken(self, limits):
        """Granted in this very step, and not there any more to use it: the next one gets it in the same step."""

        async def main():
            flows = scheduler(**({"concurrency": concurrency(1)} | limits), quota=quota(10, 1e-6))
            holder = await flows.start_flow("p")
            first, second = await waiting(flows), await waiting(flows)
            holder.end()  # the first is granted, and has not taken a step
            assert level(flows) == pytest.approx(8)
            first.cancel()
            await ticks()
            assert first.cancelled()
            flow = await granted(second)
            assert level(flows) == pytest.approx(8)  # its own token, and not the first one's
            assert used(flows) == 1
            flow.end()
            balanced(flows)

        run(main())

    def test_while_it_waits_for_tokens(self):
        """The head of the line owns nothing: the token it waited for goes to the next, at its time."""

        async def main():
            flows = scheduler(quota=quota(5, 1), scheduler={"tokens_label_key": "tokens"})
            (await flows.start_flow("p", {"tokens": "5"})).end()
            big, small = await waiting(flows, {"tokens": "4"}), await waiting(flows)
            await until(0.5)
            big.cancel()
            flow = await small
            assert now() == pytest.approx(1.0)
            assert level(flows) == pytest.approx(0.0)
            flow.end()
            balanced(flows)

        run(main())

    def test_just_woken_with_tokens_gives_them_back_once(self):
        async def main():
            flows = scheduler(quota=quota(3, 1e-6), scheduler={"tokens_label_key": "tokens"})
            first = await flows.start_flow("p", {"tokens": "3"})
            waiter = await waiting(flows, {"tokens": "2"})
            first.end(tokens=1)  # two come back and are granted, and it has not taken a step
            assert level(flows) == pytest.approx(0, abs=1e-3)
            waiter.cancel()
            await ticks()
            assert waiter.cancelled()
            assert level(flows) == pytest.approx(2, abs=1e-3)
            balanced(flows)

        run(main())

    def test_by_a_loop_so_late_that_its_token_is_there_by_now(self, monkeypatch):
        """To leave lets happen first what was due before: that grants it the token, which has to come back."""

        async def main():
            flows = scheduler(quota=quota(1, 1))
            (await flows.start_flow("p")).end()
            waiter = await waiting(flows)
            monkeypatch.setattr(point_of(flows).runtime, "clock", lambda: 5.0)
            waiter.cancel()
            await ticks()
            assert waiter.cancelled()
            assert point_of(flows).gate.active == 0
            balanced(flows)

        run(main())

    def test_who_asks_the_ledger_on_a_late_loop_keeps_what_it_is_granted(self, monkeypatch):
        async def main():
            flows = scheduler(quota=quota(1, 1))
            point = point_of(flows)
            (await flows.start_flow("p")).end()
            flow = await flows.start_flow("p", timeout=0.0)
            assert not flow.should_run()
            told = point.ask_ledger(flow, 10.0)
            monkeypatch.setattr(point.runtime, "clock", lambda: 5.0)
            point.stand_by(told, flow)
            assert flow.state is State.RUNNING
            point.answered(flow, 5.0)
            flow.end()
            balanced(flows)

        run(main())

    def test_a_coroutine_that_is_closed_leaves_nothing_either(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            holder = await flows.start_flow("p")
            coroutine = flows.start_flow("p")
            coroutine.send(None)
            assert point_of(flows).gate.waiting == 1
            coroutine.close()
            assert point_of(flows).gate.waiting == 0
            holder.end()
            balanced(flows)

        run(main())

    def test_inside_the_body(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1))

            async def body():
                async with flows.flow("p"):
                    await asyncio.sleep(1000)

            task = asyncio.ensure_future(body())
            await ticks()
            assert used(flows) == 1
            waiter = await waiting(flows)
            task.cancel()
            (await granted(waiter)).end()
            balanced(flows)
            assert point_of(flows).counts.failed_flows == 1

        run(main())


class TestEnds:
    def test_a_second_end_is_harmless(self):
        async def main():
            flows = scheduler(concurrency=concurrency(2))
            first, second = await flows.start_flow("p"), await flows.start_flow("p")
            assert first.end()
            assert not first.end()
            assert not first.end("error", tokens=7)
            assert used(flows) == 1
            assert second.end()
            balanced(flows)
            counts = point_of(flows).counts
            assert (counts.ended_flows, counts.late_ends, counts.failed_flows) == (2, 0, 0)

        run(main())

    def test_scenario_35_a_late_end_is_counted_and_frees_nothing(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1, max_inflight_duration="10s"))
            lost = await flows.start_flow("p")
            waiter = await waiting(flows)
            await until(9.999)
            assert not waiter.done()
            flow = await waiter
            assert now() == pytest.approx(10.0)
            assert not lost.end()
            assert used(flows) == 1
            assert point_of(flows).counts.late_ends == 1
            assert not lost.end()
            assert point_of(flows).counts.late_ends == 1
            late = ask(flows, timeout=1.0)
            assert not (await late).should_run()
            assert flow.end()
            balanced(flows)

        run(main())

    @pytest.mark.parametrize("tokens", BAD_SPENDING)
    def test_what_cannot_have_been_spent_is_told_and_the_flow_goes_on(self, tokens):
        async def main():
            flows = scheduler(concurrency=concurrency(1), quota=quota(10, 1e-6))
            flow = await flows.start_flow("p")
            with pytest.raises(Misuse, match="spent"):
                flow.end(tokens=tokens)
            assert used(flows) == 1
            assert flow.end()
            balanced(flows)
            assert point_of(flows).counts.ended_flows == 1

        run(main())

    @pytest.mark.parametrize("tokens", BAD_SPENDING)
    def test_in_a_body_too(self, tokens):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            with pytest.raises(Misuse):
                async with flows.flow("p") as flow:
                    flow.end(tokens=tokens)
            balanced(flows)

        run(main())

    def test_a_flow_is_entered_once(self):
        async def main():
            flows = scheduler(concurrency=concurrency(2))
            async with flows.flow("p") as flow:
                with pytest.raises(Misuse):
                    await flow.__aenter__()
                assert flow.should_run()
                assert used(flows) == 1
            balanced(flows)

        run(main())

    def test_an_unknown_control_point_limits_nothing_and_is_counted(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            for _ in range(3):
                flow = await flows.start_flow("elsewhere", {"tokens": "nan"}, timeout=0)
                assert flow.should_run()
                assert flow.retry_after is None
                assert flow.reject_reason is flow.message is None
                assert flow.end()
                assert not flow.end()
            assert flows.unknown == {"elsewhere": 3}

        run(main())

    def test_who_may_hold_for_long_is_not_forgotten_before(self):
        async def main():
            flows = scheduler(concurrency=concurrency(1, max_inflight_duration="2h"))
            holder = await flows.start_flow("p")
            waiter = await waiting(flows)
            await until(7199.0)
            assert not waiter.done()
            assert holder.end()
            (await granted(waiter)).end()
            balanced(flows)

        run(main())

    def test_flows_nobody_ends_are_forgotten_in_the_end(self):
        """A quota needs no end; the door does not remember such flows for ever."""

        async def main():
            flows = scheduler(quota=quota(1000, 1))
            lost = [await flows.start_flow("p") for _ in range(100)]
            await until(3599)
            assert point_of(flows).in_flight == 100
            await until(3602)
            balanced(flows)
            assert point_of(flows).counts.forgotten == 100
            assert not lost[0].end()

        run(main())


def test_one_loop_after_another():
    """Between two runs of asyncio nothing is lost, and what is due now and then goes on being done."""
    flows = scheduler(quota=quota(1000, 1))

    async def main(forgotten, at):
        await flows.start_flow("p")
        await until(at)
        balanced(flows)
        assert point_of(flows).counts.forgotten == forgotten

    run(main(1, 3602.0))
    run(main(2, 7300.0))  # the clock of a virtual loop begins at 0; a gate's never steps back


def test_a_closed_scheduler_that_is_used_again_is_looked_after_again():
    async def main():
        said = {"controller": "aiad", "signal": "posted", "setpoint": 1.0, "period": "1s"}
        flows = scheduler(load=said)
        (await flows.start_flow("p")).end()
        await flows.close()
        await until(5.0)
        control = point_of(flows).load
        assert control is not None
        meanwhile = control.decision
        assert meanwhile is None  # nobody looked
        (await flows.start_flow("p")).end()
        flows.post_signal("posted", 2.0)
        await until(8.0)
        assert control.decision is not None
        assert control.decision.overloaded

    run(main())
