"""What the door counts: every metric of the issue, with the right values, and labels that nobody can flood."""

import asyncio
import random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.flows import leavers
from fairlead.flows.points import Points
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
    ticks,
    until,
    waiting,
)


def readings(flows: Points, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one metric as a scrape finds them, by the values of their labels."""
    content, kind = flows.metrics()
    assert kind.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(content.decode()):
        for sample in family.samples:
            if sample.name == f"fairlead_flows_{name}":
                key = tuple(sample.labels.values())
                assert key not in found, "two samples of one name"
                found[key] = sample.value
    return found


def reading(flows: Points, name: str) -> float:
    (value,) = readings(flows, name).values()
    return value


WORKLOADS = {
    "workloads": [{"name": "paid", "match_labels": {"tier": "paid"}, "priority": 3}],
    "tokens_label_key": "tokens",
}


def test_tokens_decisions_and_gauges():
    async def main():
        flows = scheduler(
            concurrency=concurrency(5), quota=quota(50, 1), scheduler=WORKLOADS | {"max_queue": 2}
        )
        paid = await flows.start_flow("p", {"tier": "paid", "tokens": "4"})
        free = await flows.start_flow("p", {"tokens": "1"})
        never = await flows.start_flow("p", {"tier": "paid", "tokens": "51"})
        timed_out = await flows.start_flow("p", {"tokens": "2"}, timeout=0)
        assert not never.should_run()
        assert not timed_out.should_run()
        waiters = [await waiting(flows, {"tokens": "3"}) for _ in range(2)]
        full = await flows.start_flow("p", {"tokens": "1"})
        assert full.reject_reason == "queue_full"
        assert readings(flows, "accepted_tokens_total") == {("p", "paid"): 4, ("p", "default"): 1}
        assert readings(flows, "rejected_tokens_total") == {("p", "paid"): 51, ("p", "default"): 3}
        assert readings(flows, "incoming_tokens_total") == {("p", "paid"): 55, ("p", "default"): 4}
        assert readings(flows, "decisions_total") == {
            ("p", "accepted"): 2,
            ("p", "never_fits"): 1,
            ("p", "timeout"): 1,
            ("p", "queue_full"): 1,
        }
        assert readings(flows, "queue_length") == {("p",): 2}
        assert reading(flows, "queued_tokens") == 6
        assert reading(flows, "in_flight") == 2
        assert reading(flows, "bucket_level") == pytest.approx(45)
        assert reading(flows, "concurrency_limit") == 5
        waiters[0].cancel()
        await ticks()
        assert readings(flows, "decisions_total")["p", "cancelled"] == 1
        paid.end("error")
        (await granted(waiters[1])).end()
        free.end()
        assert (reading(flows, "ends_total"), reading(flows, "failures_total")) == (3, 1)
        assert (reading(flows, "in_flight"), reading(flows, "queue_length")) == (0, 0)
        assert reading(flows, "queued_tokens") == 0
        balanced(flows)

    run(main())


def test_the_level_of_a_bucket_is_that_of_now():
    """Not that of the last flow: an idle bucket fills."""

    async def main():
        flows = scheduler(quota=quota(50, 1), scheduler=WORKLOADS)
        await flows.start_flow("p", {"tokens": "50"})
        await until(10.0)
        assert reading(flows, "bucket_level") == pytest.approx(10)

    run(main())


def test_a_bucket_per_key_has_no_one_level():
    async def main():
        flows = scheduler(quota=quota(50, 1, limit_by_label_key="key"))
        await flows.start_flow("p", {"key": "a"})
        assert readings(flows, "bucket_level") == {}
        assert readings(flows, "concurrency_limit") == {}

    run(main())


def test_the_wait_histogram():
    async def main():
        flows = scheduler(quota=quota(2, 1))
        waits = []

        async def one():
            (await flows.start_flow("p")).end()
            waits.append(now())

        await asyncio.gather(*(one() for _ in range(5)))
        assert waits == pytest.approx([0, 0, 1, 2, 3])
        buckets = readings(flows, "wait_seconds_bucket")
        assert buckets["p", "0.001"] == 2
        assert buckets["p", "0.5"] == 2
        assert buckets["p", "1.0"] in (2, 3)  # the clock may be a rounding late
        assert buckets["p", "2.5"] == 4
        assert buckets["p", "5.0"] == buckets["p", "+Inf"] == 5
        assert reading(flows, "wait_seconds_count") == 5
        assert reading(flows, "wait_seconds_sum") == pytest.approx(6)

    run(main())


class TestOrderDistortion:
    """Scenario 34: tokens overtaken, against the order of arrival, by hand."""

    def distortion(self, asked: list[tuple[str, str]]) -> tuple[float, float, float]:
        """Queue `(workload, tokens)` and grant them all; weights: a 1, b 3."""

        async def main():
            said = {
                "workloads": [
                    {"name": name, "match_labels": {"w": name}, "priority": priority}
                    for name, priority in (("a", 1), ("b", 3))
                ],
                "tokens_label_key": "tokens",
            }
            flows = scheduler(concurrency=concurrency(1), scheduler=said)
            labels = [(who, {"w": who, "tokens": tokens}) for who, tokens in asked]
            order = [str(who) for who, _ in await backlog(flows, labels)]
            assert "".join(order) == self.order
            return tuple(
                reading(flows, f"{name}_total")
                for name in ("preempted_tokens", "delayed_tokens", "on_time")
            )

        result: tuple[float, float, float] = run(main())
        return result

    order = ""

    def test_none_in_one_line(self):
        self.order = "aaaa"
        assert self.distortion([("a", "1")] * 4) == (0, 0, 4)

    def test_one_overtakes_another(self):
        """b, of weight 3, passes the one a before it: a is 2 tokens late, b is 5 early."""
        self.order = "ba"
        assert self.distortion([("a", "5"), ("b", "2")]) == (5, 2, 0)

    def test_some_of_each(self):
        """Tags: a at 1 and 2, b at 1/3, 2/3 and 1 (after a, which came before): b b a b a."""
        self.order = "bbaba"
        # b1: two a before it, none gone: +2.  b2: three before it, one gone: +2.  a1: none before, two gone: −2.
        # b3: four before it, three gone: +1.  a2: one before it, four gone: −3.
        asked = [("a", "1"), ("a", "1"), ("b", "1"), ("b", "1"), ("b", "1")]
        assert self.distortion(asked) == (5, 5, 0)

    def test_what_does_not_wait_has_no_place(self):
        async def main():
            flows = scheduler(concurrency=concurrency(5))
            for _ in range(5):
                await flows.start_flow("p")
            return [
                reading(flows, f"{name}_total")
                for name in ("preempted_tokens", "delayed_tokens", "on_time")
            ]

        assert run(main()) == [0, 0, 0]

    @pytest.mark.parametrize("leaves", ["cancelled", "timed out"])
    def test_who_leaves_was_not_overtaken(self, leaves):
        async def main():
            flows = scheduler(concurrency=concurrency(1))
            holder = await flows.start_flow("p")
            first = await waiting(flows, timeout=1.01)
            second = await waiting(flows)
            third = await waiting(flows, timeout=1.01)
            if leaves == "cancelled":
                first.cancel()
                third.cancel()
            await until(2.0)
            holder.end()
            (await granted(second)).end()
            balanced(flows)
            return [
                reading(flows, f"{name}_total")
                for name in ("preempted_tokens", "delayed_tokens", "on_time")
            ]

        assert run(main()) == [0, 0, 1]

    @pytest.mark.parametrize("remembered", [10_000, 3])
    def test_against_a_count_of_every_flow(self, monkeypatch, remembered):
        """Who came before and still waits was overtaken; who came after and went was faster."""
        monkeypatch.setattr(leavers, "MOST_REMEMBERED", remembered)

        async def main():
            rng = random.Random(5)
            flows = scheduler(concurrency=concurrency(1), scheduler={"workload_label_key": "w"})
            held = [await flows.start_flow("p")]
            line: dict[asyncio.Task[Any], int] = {}
            came = preempted = delayed = 0
            went: list[tuple[int, int]] = []  # when, and who
            since: dict[int, int] = {}
            for _ in range(3_000):
                verb = rng.randrange(5)
                if verb < 2:
                    came += 1
                    since[came] = len(went)
                    line[await waiting(flows, {"w": rng.choice("abc")})] = came
                elif verb == 2 and line:
                    task = rng.choice(list(line))
                    task.cancel()
                    del line[task]
                    await ticks(3)
                elif verb > 2 and line:
                    held.pop().end()
                    await ticks(3)
                    (task,) = [task for task in line if task.done()]
                    held.append(task.result())
                    number = line.pop(task)
                    overtaken = sum(other < number for other in line.values())
                    faster = sum(other > number for _, other in went[since[number] :])
                    preempted += max(0, overtaken - faster)
                    delayed += max(0, faster - overtaken)
                    went.append((len(went), number))
            assert reading(flows, "preempted_tokens_total") == preempted > 100
            assert reading(flows, "delayed_tokens_total") == delayed > 100
            point: Any = point_of(flows)
            assert remembered > 3 or len(point.leavers._tree) < 50 * (3 + 4 * len(line))
            for task in line:
                task.cancel()

        run(main())


class TestFairnessIndex:
    def index(self, served: dict[str, int]) -> float:
        """Accept so many flows of each workload, and refuse one of each: they all wanted more."""

        async def main():
            said = {
                "workloads": [
                    {"name": name, "match_labels": {"w": name}, "priority": priority}
                    for name, priority in (("a", 1), ("b", 3))
                ]
            }
            flows = scheduler(quota=quota(sum(served.values()), 1e-6), scheduler=said)
            for name, count in served.items():
                for _ in range(count):
                    assert (await flows.start_flow("p", {"w": name}, timeout=0)).should_run()
            for name in served:
                assert not (await flows.start_flow("p", {"w": name}, timeout=0)).should_run()
            return reading(flows, "fairness_index")

        result: float = run(main())
        return result

    def test_shares_by_weight_are_fair(self):
        assert self.index({"a": 10, "b": 30}) == pytest.approx(1.0)

    def test_equal_service_of_unequal_weights_is_not(self):
        """Jain: (30 + 10)² / (2·(30² + 10²))."""
        assert self.index({"a": 30, "b": 30}) == pytest.approx(0.8)

    def test_all_for_one(self):
        assert self.index({"a": 30, "b": 0}) == pytest.approx(0.5)

    def test_nothing_refused_is_fair(self):
        flows = scheduler(quota=quota(1, 1))
        assert reading(flows, "fairness_index") == 1


def test_bad_missing_and_late():
    async def main():
        flows = scheduler(
            concurrency=concurrency(1, max_inflight_duration="1s"),
            scheduler={"tokens_label_key": "tokens", "fairness_label_key": "user"},
        )
        flow = await flows.start_flow("p", {"tokens": "-1"})
        await until(2.0)
        assert not flow.end()
        assert reading(flows, "bad_labels_total") == 1
        assert reading(flows, "missing_labels_total") == 1
        assert reading(flows, "late_ends_total") == 1

    run(main())


def test_the_load_multiplier_is_that_of_the_controller():
    async def main():
        said = {"controller": "aiad", "signal": "posted", "setpoint": 1.0, "period": "1s"}
        flows = scheduler(load=said)
        await flows.start_flow("p")
        assert readings(flows, "load_multiplier") == {}
        for _ in range(3):
            flows.post_signal("posted", 2.0)
            await until(now() + 1.0)
        await ticks()
        return reading(flows, "load_multiplier")

    assert run(main()) in [pytest.approx(value) for value in (0.95, 0.9, 0.85)]


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_alert_lasts_as_long_as_load_is_held_back_and_its_resolve_timeout(dry_run):
    async def main():
        said = {"controller": "range", "signal": "posted", "period": "1s", "dry_run": dry_run}
        said |= {
            "low_throttle_threshold": {"signal_value": 1, "load_multiplier": 1},
            "high_throttle_threshold": {"signal_value": 2, "load_multiplier": 0.5},
            "alerter": {"severity": "crit", "resolve_timeout": "3s"},
        }
        flows = scheduler(load=said)
        await flows.start_flow("p")
        key = ("p", "range", "crit")
        assert readings(flows, "load_alert") == {key: 0}
        flows.post_signal("posted", 2.0)
        await until(now() + 1.1)
        assert readings(flows, "load_alert") == {key: 1}
        for seconds, alert in ((1.0, 1), (2.5, 1), (1.0, 0)):
            flows.post_signal("posted", 0.5)
            await until(now() + seconds)
            assert readings(flows, "load_alert") == {key: alert}, seconds

    run(main())


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_a_controller_wants_is_told_in_a_dry_run_too(dry_run):
    async def main():
        said = {"controller": "aiad", "signal": "posted", "setpoint": 1.0, "dry_run": dry_run}
        flows = scheduler(load=said)
        await flows.start_flow("p")
        flows.post_signal("posted", 2.0)
        point_of(flows).tick(now())
        applied, wanted = (
            readings(flows, name) for name in ("load_multiplier", "wanted_load_multiplier")
        )
        assert wanted == {("p",): pytest.approx(0.95)}
        assert applied == ({} if dry_run else wanted)

    run(main())


class TestBounds:
    """Names that a client makes up fill no memory and no scrape."""

    def test_workloads(self):
        async def main():
            flows = scheduler(scheduler={"workload_label_key": "w", "priority_label_key": "p"})
            for number in range(500):
                labels = {"w": f"w{number}", "p": str(1 + number)}
                (await flows.start_flow("p", labels)).end()
            found = readings(flows, "accepted_tokens_total")
            assert len(found) == 101
            assert found["p", "other"] == 400
            assert sum(found.values()) == 500
            point: Any = point_of(flows)
            assert len(point.counts.workloads) == 101

        run(main())

    def test_control_points(self):
        async def main():
            flows = scheduler()
            for number in range(500):
                await flows.start_flow(f"made up {number}")
            found = readings(flows, "unknown_control_points_total")
            assert len(found) == 101
            assert found["other",] == 400
            assert sum(found.values()) == 500

        run(main())

    @pytest.mark.parametrize("name", ["\ud800", 'a"b\\c\nd', "", "\x00", "\u202e", "x" * 10_000])
    def test_any_name_can_be_scraped(self, name):
        async def main():
            flows = scheduler(scheduler={"workload_label_key": "w"})
            await flows.start_flow("p", {"w": name})
            await flows.start_flow(name)
            assert sum(readings(flows, "accepted_tokens_total").values()) == 1
            assert sum(readings(flows, "unknown_control_points_total").values()) == 1
            assert len(flows.metrics()[0]) < 20_000

        run(main())


def test_every_metric_has_a_text_and_a_point_of_its_own():
    flows = scheduler(concurrency=concurrency(1))
    content = flows.metrics()[0].decode()
    families = [line.split()[2] for line in content.splitlines() if line.startswith("# HELP")]
    assert len(families) == len(set(families)) >= 20
    assert all(name.startswith("fairlead_flows_") for name in families)
