"""A reload at the door: whoever waits keeps its place and its patience, and new settings hold at once."""

import asyncio
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.flows.blocking import SyncFlowScheduler
from fairlead.flows.loading import load
from fairlead.flows.scheduler import FlowScheduler
from tests.flows.door import (
    POINT,
    ask,
    balanced,
    concurrency,
    config,
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

BEFORE: dict[str, Any] = {"concurrency": concurrency(1)}
# From one slot to settings of every kind under which there is still one slot, and nothing else is short.
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": BEFORE,
    "an expiry": {"concurrency": concurrency(1, max_inflight_duration="100d")},
    "a first workload (other shape)": {
        "scheduler": {"workloads": [{"name": "x", "exists": ["x"], "priority": 5}]}
    },
    "a queue limit": {"scheduler": {"max_queue": 1}},
    "a margin": {"scheduler": {"decision_deadline_margin": "1s"}},
    "tokens": {"scheduler": {"tokens_label_key": "t", "workload_latency_based_tokens": True}},
    "a priority label (other shape)": {"scheduler": {"priority_label_key": "priority"}},
    "users (other shape)": {"scheduler": {"fairness_label_key": "user"}},
    "tenants (other shape)": {"scheduler": {"tenant_label_key": "tenant"}},
    "a quota (other shape)": {"quota": quota(100, 1)},
    "load (other shape)": {"load": {"signal": "posted"}},
}


@pytest.mark.parametrize("how", [how for how in CHANGES if "other shape" not in how])
def test_waiters_are_kept_in_their_order(how):
    async def main():
        flows = scheduler(**BEFORE)
        holder = await flows.start_flow("p")
        waiters = [await waiting(flows) for _ in range(5)]
        before = point_of(flows)
        flows.retune(loaded(**BEFORE | CHANGES[how]))
        await ticks()
        assert point_of(flows) is before
        holder.end()
        for number, waiter in enumerate(waiters):
            flow = await granted(waiter)
            assert sum(other.done() for other in waiters) == number + 1
            assert flow.arrived_at == 0
            flow.end()
        balanced(flows)

    run(main())


def test_a_further_workload_is_no_other_shape():
    async def main():
        named = [{"name": name, "exists": [name], "priority": 5} for name in "xy"]
        flows = scheduler(**BEFORE, scheduler={"workloads": named[:1]})
        holder = await flows.start_flow("p")
        waiters = [await waiting(flows) for _ in range(2)]
        before = point_of(flows)
        flows.retune(loaded(**BEFORE, scheduler={"workloads": named}))
        assert point_of(flows) is before
        late = await waiting(flows, {"y": "1"})
        holder.end()
        for waiter in (late, *waiters):
            (await granted(waiter)).end()
        balanced(flows)

    run(main())


@pytest.mark.parametrize("how", [how for how in CHANGES if "other shape" in how])
def test_waiters_ask_again_at_a_new_gate_in_their_order(how):
    async def main():
        flows = scheduler(**BEFORE)
        holder = await flows.start_flow("p")
        waiters = [await waiting(flows) for _ in range(5)]
        flows.retune(loaded(**BEFORE | CHANGES[how]))
        assert holder.end()
        for number, waiter in enumerate(waiters):
            flow = await granted(waiter)
            assert sum(other.done() for other in waiters) == number + 1
            assert flow.arrived_at == 0
            assert flow.point is point_of(flows)
            flow.end()
        balanced(flows)

    run(main())


@pytest.mark.parametrize("deeper", [{}, {"tenant_label_key": "tenant"}], ids=["in place", "moved"])
def test_a_shorter_queue_drops_nobody_who_waits(deeper):
    """It is for those who come: they are refused until as few wait as may."""

    async def main():
        flows = scheduler(**BEFORE, scheduler={"max_queue": 5})
        holder = await flows.start_flow("p")
        waiters = [await waiting(flows) for _ in range(5)]
        flows.retune(loaded(**BEFORE, scheduler={"max_queue": 2, **deeper}))
        await ticks()
        assert point_of(flows).gate.waiting == 5
        assert (await flows.start_flow("p")).reject_reason == "queue_full"
        holder.end()
        for waiter in waiters[:4]:
            (await granted(waiter)).end()
        last = await granted(waiters[4])
        late = [await waiting(flows) for _ in range(2)]
        assert (await flows.start_flow("p")).reject_reason == "queue_full"
        last.end()
        for waiter in late:
            (await granted(waiter)).end()
        balanced(flows)

    run(main())


def workload(name: str, priority: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "match_labels": {"tier": "paid"}, "priority": priority, **more}


@pytest.mark.parametrize(
    "after",
    [
        {"workloads": [workload("paid", 10)]},
        {"workloads": [workload("gold", 1)]},
        {"workloads": []},
        {"workloads": [workload("paid", 0)]},
        {"workloads": [workload("paid", 10)], "workload_label_key": "tier"},
    ],
    ids=["priority", "name", "none any more", "priority 0", "named by a label"],
)
def test_nobody_new_passes_those_whose_workload_changed(after):
    async def main():
        flows = scheduler(**BEFORE, scheduler={"workloads": [workload("paid", 1)]})
        holder = await flows.start_flow("p")
        labels = {"tier": "paid"}
        waiters = [await waiting(flows, labels) for _ in range(3)]
        flows.retune(loaded(**BEFORE, scheduler=after))
        waiters += [await waiting(flows, labels) for _ in range(3)]
        assert holder.end()
        for number, waiter in enumerate(waiters):
            flow = await granted(waiter)
            assert sum(other.done() for other in waiters) == number + 1
            flow.end()
        balanced(flows)

    run(main())


def test_who_moves_asks_in_the_order_it_came():
    """Not user by user, though the old gate had kept them so."""

    async def main():
        flows = scheduler(**BEFORE, scheduler={"fairness_label_key": "user"})
        holder = await flows.start_flow("p")
        waiters = [await waiting(flows, {"user": user}) for user in "aabbaabb"]
        flows.retune(loaded(**BEFORE))
        assert holder.end()
        for number, waiter in enumerate(waiters):
            flow = await granted(waiter)
            assert sum(other.done() for other in waiters) == number + 1
            flow.end()
        balanced(flows)

    run(main())


@pytest.mark.parametrize("how", [how for how in CHANGES if "other shape" in how])
def test_the_ceiling_holds_through_a_reload(how):
    """P5: nothing is admitted while as many hold as may, also during a reload."""

    async def main():
        flows = scheduler(**BEFORE)
        await flows.start_flow("p")
        waiter = await waiting(flows)
        flows.retune(loaded(**BEFORE | CHANGES[how]))
        await ticks()
        assert not waiter.done()

    run(main())


@pytest.mark.parametrize("how", CHANGES)
def test_a_timeout_counts_from_when_it_came(how):
    """Not from the reload: the caller's own timeout would pass before the answer."""

    async def main():
        flows = scheduler(**BEFORE)
        await flows.start_flow("p")
        if "other shape" in how:
            ask(flows)  # takes the slot of the new gate
        waiter = ask(flows, timeout=10.0)
        await until(8.0)
        flows.retune(loaded(**BEFORE | CHANGES[how]))
        assert not (await waiter).should_run()
        assert now() == pytest.approx(9.99)

    run(main())


def test_a_queue_timeout_that_is_gone_is_gone_for_who_is_moved():
    async def main():
        said = {"default_workload": {"queue_timeout": "5s"}, "priority_label_key": "priority"}
        flows = scheduler(concurrency=concurrency(1), scheduler=said)
        holder = await flows.start_flow("p")
        waiter = await waiting(flows, {"priority": "0"})
        flows.retune(loaded(concurrency=concurrency(1)))
        holder.end()
        first = await granted(waiter)
        second = await waiting(flows)
        flows.retune(loaded(concurrency=concurrency(1), scheduler={"fairness_label_key": "user"}))
        assert first.wait_until == float("inf")
        assert first.rank == 1
        first.end()
        (await granted(second)).end()

    run(main())


def test_a_point_that_is_removed_lets_its_waiters_go():
    async def main():
        flows = scheduler(**BEFORE)
        holder = await flows.start_flow("p")
        waiters = [await waiting(flows) for _ in range(3)]
        flows.retune(load({"control_points": {}}))
        for waiter in waiters:
            flow = await granted(waiter)
            assert flow.end()
            assert not flow.end()
        assert holder.end()
        assert flows.points == {}
        assert (await flows.start_flow("p")).should_run()

    run(main())


@pytest.mark.parametrize("kind", ["quota", "concurrency"])
def test_a_limit_in_pass_through_lets_everything_go_until_it_is_in_force_again(kind):
    async def main():
        limit = quota(1, 0.001) if kind == "quota" else concurrency(1)
        flows = scheduler(**{kind: limit})
        holder = await flows.start_flow("p")
        waiters = [await waiting(flows) for _ in range(3)]
        flows.retune(loaded(**{kind: {**limit, "pass_through": True}}))
        held = [await granted(waiter) for waiter in waiters]
        held += [await flows.start_flow("p", timeout=0) for _ in range(100)]
        assert all(flow.should_run() for flow in held)
        for flow in (holder, *held):
            assert flow.end()
        flows.retune(loaded(**{kind: limit}))
        assert (await flows.start_flow("p", timeout=0)).should_run()
        assert not (await flows.start_flow("p", timeout=0)).should_run()

    run(main())


def test_a_point_that_is_added_limits_from_then_on():
    async def main():
        flows = scheduler(**BEFORE)
        free = await flows.start_flow("new")
        both = config(**BEFORE)
        both["control_points"]["new"] = {"concurrency": concurrency(1)}
        flows.retune(load(both))
        first = await flows.start_flow("new")
        assert not (await flows.start_flow("new", timeout=0)).should_run()
        assert free.end()
        assert not (await flows.start_flow("new", timeout=0)).should_run()
        assert first.end()
        balanced(flows)

    run(main())


def test_a_flow_made_before_and_entered_after_is_limited_by_the_new_settings():
    async def main():
        flows = scheduler(**BEFORE)
        made = [flows.flow(POINT, timeout=0) for _ in range(2)]
        flows.retune(loaded(**BEFORE, quota=quota(1, 1e-6)))
        assert [(await flow.__aenter__()).should_run() for flow in made] == [True, False]
        made[0].end()
        balanced(flows)

    run(main())


def test_a_larger_bucket_and_a_faster_fill_hold_at_once():
    async def main():
        flows = scheduler(quota=quota(10, 1e-6), scheduler={"tokens_label_key": "tokens"})
        await flows.start_flow("p", {"tokens": "10"})
        waiter = await waiting(flows, {"tokens": "10"})
        flows.retune(loaded(quota=quota(20, 5), scheduler={"tokens_label_key": "tokens"}))
        await waiter
        assert now() == pytest.approx(2.0)
        assert (await flows.start_flow("p", {"tokens": "20"})).should_run()
        assert now() == pytest.approx(6.0)

    run(main())


def test_a_smaller_bucket_keeps_no_more_than_it_holds():
    async def main():
        flows = scheduler(quota=quota(100, 1e-6), scheduler={"tokens_label_key": "tokens"})
        await flows.start_flow("p", {"tokens": "10"})
        flows.retune(loaded(quota=quota(5, 1e-6), scheduler={"tokens_label_key": "tokens"}))
        assert level(flows) == pytest.approx(5)

    run(main())


def test_a_waiter_that_can_never_fit_any_more_is_refused():
    async def main():
        said = {"tokens_label_key": "tokens"}
        flows = scheduler(quota=quota(100, 1e-6), scheduler=said)
        (await flows.start_flow("p", {"tokens": "100"})).end()
        small = await waiting(flows)
        waiter = await waiting(flows, {"tokens": "50"})
        flows.retune(loaded(quota=quota(10, 1e-6), scheduler=said))
        await ticks()
        flow = waiter.result()
        assert (flow.reject_reason, flow.retry_after) == ("never_fits", None)
        small.cancel()
        await ticks()
        balanced(flows)

    run(main())


def test_an_expiry_holds_for_those_who_start_from_then_on():
    async def main():
        flows = scheduler(concurrency=concurrency(2))
        await flows.start_flow("p")
        flows.retune(loaded(concurrency=concurrency(2, max_inflight_duration="5s")))
        await flows.start_flow("p")
        await until(100.0)
        assert used(flows) == 1

    run(main())


@pytest.mark.parametrize("key", ["default_max_priority", "tenants"])
def test_other_ceilings_are_other_shares(key):
    async def main():
        said: dict[str, Any] = {
            "tenant_label_key": "tenant",
            "priority_label_key": "priority",
            "default_max_priority": 1,
            "tenants": {"a": {"max_priority": 1}},
        }
        changed = {"default_max_priority": 3, "tenants": {"b": {"max_priority": 3}}}
        flows = scheduler(concurrency=concurrency(1), scheduler=said)
        flows.retune(loaded(concurrency=concurrency(1), scheduler=said | {key: changed[key]}))
        holder = await flows.start_flow("p", {"tenant": "x"})
        order = []

        async def one(tenant):
            flow = await flows.start_flow("p", {"tenant": tenant})
            order.append(tenant)
            flow.end()

        tasks = [asyncio.ensure_future(one(tenant)) for tenant in "ab" * 100]
        await ticks(2)
        holder.end()
        await asyncio.gather(*tasks)
        return order[:100]

    assert run(main()).count("b") == pytest.approx(75, abs=1)


@pytest.mark.parametrize("how", ["a margin", "users (other shape)"])
def test_what_was_counted_stays_counted(how):
    async def main():
        said = {"tokens_label_key": "tokens"}
        limit = concurrency(1, max_inflight_duration="1s")
        flows = scheduler(concurrency=limit, scheduler=said)
        async with flows.flow("p", {"tokens": "nan"}) as flow:
            assert flow.ignored == ("tokens",)
        late = await flows.start_flow("p")
        await until(2.0)
        assert not late.end()
        change = CHANGES[how]["scheduler"]
        flows.retune(loaded(concurrency=limit, scheduler=said | change))
        text, _ = flows.metrics()
        assert b'fairlead_flows_bad_labels_total{control_point="p"} 1.0' in text
        assert b'fairlead_flows_ends_total{control_point="p"} 2.0' in text
        assert b'fairlead_flows_late_ends_total{control_point="p"} 1.0' in text

    run(main())


def test_a_waiter_granted_in_the_course_of_the_reload_is_not_asked_twice():
    """The reload comes later than the timer that was due: what was to happen before has happened."""

    async def main():
        flows = scheduler(quota=quota(1, 1))
        await flows.start_flow("p")
        task = ask(flows)
        await ticks()
        point = point_of(flows)
        clock = point.runtime.clock
        point.runtime.clock = lambda: clock() + 5.0  # the loop was busy for that long
        flows.retune(loaded(quota=quota(1, 1e-6), scheduler={"fairness_label_key": "user"}))
        point.runtime.clock = clock
        flow = await granted(task)
        assert flow.point is not point  # who holds tokens there holds them here
        assert flow.end()
        assert point.gate.active == 0
        assert point_of(flows).gate.active == 1

    run(main())


@pytest.mark.parametrize(
    "bad",
    [
        {"quota": quota(1, 5e-324, interval="366d"), "load": {"signal": "x"}},
        {"quota": quota(1, 5e-324, interval="366d")},
    ],
    ids=["of another shape", "in place"],
)
def test_a_change_that_is_bad_at_one_point_changes_none(bad):
    async def main():
        def said(limit: int, middle: dict[str, Any]) -> dict[str, Any]:
            around = {"concurrency": concurrency(limit)}
            return {"control_points": {"a": around, "b": middle, "c": around, "d": around}}

        flows = FlowScheduler.from_config(said(1, {"quota": quota(1, 1)}))
        before = dict(flows.points)
        changed = said(7, bad)
        assert not load(changed).problems  # it shows only when the limits are made
        del changed["control_points"]["d"]
        with pytest.raises(ConfigError):
            flows.retune(load(changed))
        assert flows.points == before
        assert [point.retired for point in before.values()] == [False] * 4
        limits = [point.settings.concurrency for name, point in before.items() if name != "b"]
        assert [limit and limit.max_concurrency for limit in limits] == [1, 1, 1]
        assert flows.settings.control_points["a"] == before["a"].settings

    run(main())


@pytest.mark.parametrize("how", [how for how in CHANGES if "other shape" in how])
def test_nobody_new_passes_those_who_move(how):
    async def main():
        flows = scheduler(**BEFORE)
        holder = await flows.start_flow("p")
        waiters = [await waiting(flows) for _ in range(2)]
        flows.retune(loaded(**BEFORE | CHANGES[how] | {"concurrency": concurrency(2)}))
        assert not (await flows.start_flow("p", timeout=0)).should_run()
        first = await granted(waiters[0])
        assert not waiters[1].done()
        last = await waiting(flows)
        assert holder.end()
        second = await granted(waiters[1])
        assert not last.done()
        assert first.end()
        (await granted(last)).end()
        second.end()
        balanced(flows)

    run(main())


def test_who_moves_and_leaves_before_it_wakes_leaves_nothing():
    """Granted, refused or in line at the new gate by then."""

    async def main():
        said = {"tokens_label_key": "tokens"}
        flows = scheduler(concurrency=concurrency(3), scheduler=said)
        holder = await flows.start_flow("p", {"tokens": "3"})
        waiters = [await waiting(flows, {"tokens": tokens}) for tokens in "1311"]
        flows.retune(loaded(concurrency=concurrency(4), quota=quota(2, 1e-6), scheduler=said))
        assert point_of(flows).gate.waiting == 2  # one may go, and one never fits
        for waiter in waiters:
            waiter.cancel()
        await ticks()
        assert all(waiter.cancelled() for waiter in waiters)
        assert holder.end()
        balanced(flows)

    run(main())


def test_two_reloads_before_anybody_wakes():
    async def main():
        flows = scheduler(concurrency=concurrency(1))
        holder = await flows.start_flow("p")
        waiters = [await waiting(flows) for _ in range(3)]
        holder.end()
        for said in ({"fairness_label_key": "user"}, {}, {"tenant_label_key": "tenant"}):
            flows.retune(loaded(concurrency=concurrency(1), scheduler=said))
        for waiter in waiters:
            (await granted(waiter)).end()
        balanced(flows)
        assert sum(one.accepted_flows for one in point_of(flows).counts.workloads.values()) == 4

    run(main())


def test_what_could_not_be_read_is_not_followed():
    async def main():
        flows = scheduler(**BEFORE)
        with pytest.raises(ConfigError, match="max_concurrency"):
            flows.retune(load(config(concurrency={})))
        assert list(flows.points) == [POINT]

    run(main())


USERS = {"scheduler": {"fairness_label_key": "user"}}  # takes another gate


async def drawn(flows: FlowScheduler) -> int:
    """Take as many as there are."""
    count = 0
    while (await flows.start_flow("p", timeout=0)).should_run():
        count += 1
    return count


@pytest.mark.parametrize(
    ("said", "reloaded_at", "expected"),
    [
        (quota(30, 10, delay_initial_fill=True), 0.1, {1: 0, 2: 0, 3: 0, 4: 10}),
        (quota(30, 10, delay_initial_fill=True, continuous_fill=False), 0.1, {2.9: 0, 3: 10}),
        (quota(10, 10, interval="60s", continuous_fill=False), 59.0, {60: 10, 119: 0, 120: 10}),
        (quota(10, 10, interval="60s", continuous_fill=False), 90.0, {119: 10, 120: 10}),
    ],
    ids=["delayed", "delayed intervals", "intervals", "intervals, full"],
)
def test_a_bucket_fills_at_a_new_gate_when_it_would_have(said, reloaded_at, expected):
    async def main():
        flows = scheduler(quota=said)
        assert await drawn(flows) == said["bucket_capacity"]
        await until(reloaded_at)
        before = point_of(flows)
        flows.retune(loaded(quota=said, **USERS))
        assert point_of(flows) is not before
        for at, tokens in expected.items():
            await until(at)
            assert (at, await drawn(flows)) == (at, tokens)

    run(main())


def test_a_bucket_whose_delay_is_gone_fills_from_then_on():
    async def main():
        flows = scheduler(quota=quota(30, 10, delay_initial_fill=True))
        assert await drawn(flows) == 30
        flows.retune(loaded(quota=quota(30, 10)))
        await until(1.0)
        assert await drawn(flows) == 10

    run(main())


def test_a_bucket_is_idle_at_a_new_gate_since_it_was_used():
    async def main():
        said = quota(10, 1e-6, max_idle_time="60s")
        flows = scheduler(quota=said)
        assert await drawn(flows) == 10
        await until(59.0)
        flows.retune(loaded(quota=said, **USERS))
        assert level(flows) < 1
        await until(60.0)
        assert level(flows) == 10

    run(main())


async def press(flows: FlowScheduler, seconds: float, rate: float = 20.0) -> None:
    """Ask at a rate, with a signal that says: too much."""
    for number in range(int(seconds * rate)):
        if number % rate == 0:
            flows.post_signal("x", 2.0)
        (await flows.start_flow("p", timeout=0)).end()
        await asyncio.sleep(1 / rate)


@pytest.mark.parametrize("signal", ["x", "queue_length"])
def test_load_control_goes_on_at_a_new_gate(signal):
    async def main():
        load_said = {"controller": "aiad", "signal": signal, "setpoint": 1.0, "period": "10s"}
        limits = {"load": load_said | {"load_multiplier_linear_decrement": 0.1}}
        flows = scheduler(**limits, concurrency=concurrency(1000))
        held = await flows.start_flow("p")  # from before anything was limited
        point = point_of(flows)
        if signal == "queue_length":
            assert point.load is not None
            point.load.queue_length = lambda: 2.0
        await press(flows, 60.0)
        before = point.load
        assert before is not None
        bucket, decision = before.bucket, before.decision
        assert decision is not None
        assert not bucket.passes(now())
        books = (bucket.rate, bucket.level(now()))
        flows.retune(loaded(**limits, concurrency=concurrency(1000), **USERS))
        after = point_of(flows).load
        assert point_of(flows) is not point
        assert after is before
        assert after.decision is decision
        assert after.bucket is not bucket
        assert (after.bucket.rate, after.bucket.level(now())) == books
        assert point_of(flows).capacity.part("load") is after.bucket
        assert after.queue_length() == point_of(flows).gate.waiting == 0
        rate = after.bucket.rate
        await press(flows, 20.0)
        assert after.bucket.rate != rate  # its controller moves the bucket of the new gate
        other = {"load": load_said | {"setpoint": 3.0}}
        flows.retune(loaded(**other, concurrency=concurrency(1000), **USERS))
        fresh = point_of(flows).load
        assert fresh is not after
        assert fresh is not None
        assert fresh.bucket.passes(now())
        assert held.end()

    run(main())


def test_a_flow_that_moves_is_one_arrival():
    async def main():
        limits = {"load": {"signal": "x", "setpoint": 1.0}, "concurrency": concurrency(1)}
        flows = scheduler(**limits)
        await flows.start_flow("p")
        await waiting(flows)
        control = point_of(flows).load
        assert control is not None
        arrived: list[float] = []

        def noted(tokens: float, now: float) -> tuple[()]:
            arrived.append(tokens)
            return ()

        control.arrived = noted  # type: ignore[method-assign]
        flows.retune(loaded(**limits, **USERS))
        assert point_of(flows).load is control
        assert point_of(flows).gate.waiting == 1
        assert arrived == []

    run(main())


@pytest.mark.parametrize("kind", ["vegas", "gradient2"])
def test_a_learned_limit_goes_on_at_a_new_gate(kind):
    async def main():
        flows = scheduler(concurrency={"max_concurrency": kind})
        point = point_of(flows)
        assert point.learner is not None
        first = point.learner.limit
        for _ in range(20):
            held = [await flows.start_flow("p", timeout=0) for _ in range(first)]
            await asyncio.sleep(0.3)
            for flow in held:
                flow.end()
        learned = point.learner.limit
        assert learned != first
        flows.retune(loaded(concurrency={"max_concurrency": kind}, **USERS))
        assert point_of(flows) is not point
        assert point_of(flows).learner is point.learner
        part: Any = point_of(flows).parts.concurrency
        assert part.limit == learned
        other = {"vegas": "gradient2", "gradient2": "vegas"}[kind]
        flows.retune(loaded(concurrency={"max_concurrency": other}, **USERS))
        fresh = point_of(flows).learner
        assert fresh is not None
        assert type(fresh) is not type(point.learner)

    run(main())


def test_learned_costs_are_kept_at_a_new_gate():
    async def main():
        said: dict[str, Any] = {"workload_latency_based_tokens": True}
        flows = scheduler(**BEFORE, scheduler=said)
        for _ in range(200):
            async with flows.flow("p"):
                await asyncio.sleep(0.25)
        cost = (await flows.start_flow("p")).tokens
        assert cost == pytest.approx(250.0)
        flows.retune(loaded(concurrency=concurrency(1000), scheduler=said | USERS["scheduler"]))
        assert (await flows.start_flow("p")).tokens == pytest.approx(250.0)

    run(main())


def text_of(slots: Any) -> str:
    return f"control_points: {{p: {{concurrency: {{max_concurrency: {slots}}}}}}}\n"


def test_a_file_is_followed_from_the_first_flow_on_and_a_bad_one_changes_nothing(tmp_path, caplog):
    async def main():
        file = tmp_path / "flows.yaml"
        file.write_text(text_of(1))
        flows = FlowScheduler.from_config(file)
        holder = await flows.start_flow("p")
        waiters = [await waiting(flows) for _ in range(3)]
        file.write_text(text_of("oops"))
        await asyncio.sleep(3)
        assert not any(waiter.done() for waiter in waiters)
        file.write_text(text_of(3))
        await asyncio.sleep(3)
        started = [await granted(waiter) for waiter in waiters[:2]]
        assert not waiters[2].done()
        assert holder.end()
        for flow in (*started, await granted(waiters[2])):
            assert flow.end()
        balanced(flows)
        await flows.close()

    run(main())
    assert "max_concurrency" in caplog.text
    assert "the old configuration stays" in caplog.text


def test_the_twin_in_threads_follows_its_file_too(tmp_path):
    file = tmp_path / "flows.yaml"
    file.write_text(text_of(1))
    flows = SyncFlowScheduler.from_config(str(file))
    try:
        assert flows.start_flow("p").should_run()
        file.write_text(text_of(2))
        assert flows.start_flow("p", timeout=5).should_run()
        assert not flows.start_flow("p", timeout=0).should_run()
    finally:
        flows.close()
