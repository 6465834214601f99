"""When to come back, what a controller hears, and labels that a caller goes on using."""

import asyncio
from typing import Any

import pytest

from fairlead.core.ticket import Outcome
from fairlead.flows import FlowScheduler, SyncFlowScheduler, load
from fairlead.flows.controllers import Decision
from fairlead.flows.load import LoadControl
from fairlead.flows.settings import Load
from fairlead.flows.signals import PostedSignals
from tests.flows.door import POINT, concurrency, config, point_of, quota, run, scheduler, ticks

HOUR = 3600.0


class TestRetryAfter:
    def test_of_a_quota_after_a_quiet_hour_is_when_its_tokens_are_there(self):
        """Two flows an hour ago tell nothing of how fast things go now."""

        async def main() -> float | None:
            flows = scheduler(quota=quota(30, 10))
            for _ in range(2):
                (await flows.start_flow(POINT)).end()
            await asyncio.sleep(HOUR)
            for _ in range(30):
                (await flows.start_flow(POINT, timeout=0)).end()
            refused = await flows.start_flow(POINT, timeout=0)
            assert not refused.should_run()
            return refused.retry_after

        assert run(main()) == pytest.approx(0.1)

    @pytest.mark.parametrize("waiters", [0, 5])
    def test_of_a_quota_counts_those_who_wait_for_it(self, waiters: int):
        """Who comes back sooner finds them before it."""

        async def main() -> float | None:
            flows = scheduler(quota=quota(1, 1))
            await flows.start_flow(POINT)
            waits = [asyncio.ensure_future(flows.start_flow(POINT)) for _ in range(waiters)]
            await ticks()
            refused = await flows.start_flow(POINT, timeout=0)
            for task in waits:
                await task
            return refused.retry_after

        assert run(main()) == pytest.approx(waiters + 1)

    def test_of_a_slot_after_a_quiet_hour_is_short(self):
        async def main() -> float | None:
            flows = scheduler(concurrency=concurrency(1))
            for _ in range(3):
                (await flows.start_flow(POINT)).end()
            await asyncio.sleep(HOUR)
            async with flows.flow(POINT):
                refused = await flows.start_flow(POINT, timeout=0)
            return refused.retry_after

        found = run(main())
        assert found is not None
        assert 0 < found < 1


class TestSignals:
    def test_a_latency_confirmed_by_another_latency_throttles(self):
        """Both are fed: the signal is not forgotten for the confirmation."""

        async def main() -> float | None:
            flows = scheduler(
                load={
                    "signal": "latency_p95",
                    "setpoint": "100ms",
                    "confirmation": "latency_p50",
                    "confirmation_above": 0.05,
                }
            )
            for _ in range(400):
                async with flows.flow(POINT, timeout=0) as flow:
                    await asyncio.sleep(0.2 if flow.should_run() else 0.1)
            control = point_of(flows).load
            assert control is not None
            assert control.decision is not None
            return control.decision.load_multiplier

        found = run(main())
        assert found is not None
        assert found < 1

    @pytest.mark.parametrize("period", [0.1, 0.5, 1.0, 1.5, 10.0])
    def test_a_controller_steps_once_a_period_and_throttles_between_its_steps(self, period: float):
        """However short the period is, and beside another: no decision lapses before the next is made."""

        async def main() -> tuple[int, list[float | None], int]:
            load = {"controller": "aiad", "signal": "gpu", "setpoint": 10}
            points = {POINT: {"load": load | {"period": period}}, "other": {"load": load}}
            flows = FlowScheduler.from_config({"control_points": points})
            control = point_of(flows).load
            assert control is not None
            loop, admitted = asyncio.get_running_loop(), 0
            decisions: list[Decision | None] = []
            end = 40 * period + 60
            while loop.time() < end - 0.05:
                flows.post_signal("gpu", 100.0)
                if not decisions or decisions[-1] is not control.decision:
                    decisions.append(control.decision)
                async with flows.flow(POINT, timeout=0) as flow:
                    admitted += flow.should_run() and loop.time() > end - 10
                await asyncio.sleep(0.05)
            falls = [None if one is None else one.load_multiplier for one in decisions[1:5]]
            return len(decisions), falls, admitted

        steps, falls, admitted = run(main())
        assert abs(steps - (40 * period + 60) / period) <= 2
        assert falls == [0.95, 0.9, 0.85, 0.8]
        assert admitted == 0  # its multiplier is 0 by then

    def test_a_controller_that_was_not_looked_after_does_not_make_up_for_it(self):
        control = LoadControl(Load(signal="gpu", setpoint=1.0), PostedSignals(), lambda: 0.0)
        decisions = set()
        for second in (0, 10, *range(60, 71)):  # every ten seconds
            control.step(float(second))
            decisions.add(control.decision)
        assert len(decisions) == 4

    def test_a_flow_that_nobody_ends_teaches_nothing(self):
        """Whoever does not say when its work ends is ended at once: that is no latency, and no failure."""

        async def main() -> tuple[float | None, int]:
            flows = scheduler(load={"signal": "latency_p95", "setpoint": "100ms"})
            point = point_of(flows)
            flow = await flows.start_flow(POINT)
            flow.ended = True
            point.end(flow, Outcome.IGNORED, None)
            assert point.load is not None
            assert point.load.latencies
            now = asyncio.get_running_loop().time()
            return point.load.latencies[0].read(now + 1), point.counts.failed_flows

        assert run(main()) == (None, 0)

    @pytest.mark.parametrize("section", ["load", "scheduler"])
    def test_latency_based_tokens_are_asked_for_in_either_place(self, section: str):
        """Aperture has the key beside the load's; it is about the scheduler's workloads."""
        sections: dict[str, Any] = {"load": {"signal": "queue_length"}, "scheduler": {}}
        sections[section]["workload_latency_based_tokens"] = True

        async def main() -> float:
            flows = scheduler(**sections)
            for _ in range(10):
                async with flows.flow(POINT):
                    await asyncio.sleep(0.2)
            await asyncio.sleep(60.0)
            async with flows.flow(POINT) as flow:
                return flow.tokens

        assert run(main()) == pytest.approx(200.0)


class TestLabels:
    def test_a_caller_that_changes_its_labels_changes_nothing_for_a_flow_that_runs(self):
        """Room is given back where it was taken."""

        async def main() -> bool:
            flows = scheduler(concurrency=concurrency(1, limit_by_label_key="user"))
            labels = {"user": "a"}
            async with flows.flow(POINT, labels):
                labels["user"] = "b"
            async with flows.flow(POINT, {"user": "a"}, timeout=0) as again:
                return again.should_run()

        assert run(main())

    def test_between_threads_too(self):
        flows = SyncFlowScheduler.from_config(
            config(concurrency=concurrency(1, limit_by_label_key="user"))
        )
        labels = {"user": "a"}
        with flows.flow(POINT, labels):
            labels["user"] = "b"
        with flows.flow(POINT, {"user": "a"}, timeout=0) as again:
            assert again.should_run()
        flows.close()


def test_faults_of_parts_and_of_the_whole_are_told_at_once():
    """A name that is taken is told although another workload is wrong by itself."""
    said = load(
        config(
            scheduler={
                "workloads": [
                    {"name": "a", "priority": -1},
                    {"name": "a"},
                    {"name": "default"},
                ]
            },
            load={"controller": "range", "degree": -1},
        )
    )
    lines = "\n".join(said.lines)
    for expected in (
        "workloads[0].priority",
        "workloads[1].name: each workload needs a name of its own; 'a' is taken",
        "workloads[2].name: each workload needs a name of its own; 'default' is taken",
        "load.degree",
        "load: needs low_throttle_threshold",
    ):
        assert expected in lines, lines
