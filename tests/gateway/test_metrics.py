"""What a scrape reads: every gauge, bounded labels, real histograms, and counts that add up."""

import asyncio
import random
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.gateway.loading import load
from fairlead.gateway.metrics import BOUNDS, Histogram
from fairlead.gateway.tenant_labels import CANDIDATES, TenantLabels
from fairlead.testing import run_virtual
from tests.gateway.rig import connected, fetch, gateway, run
from tests.gateway.virtual import Backends, Scene, config, reading, ticks


def scrape(scene: Scene) -> dict[str, list[tuple[dict[str, str], float]]]:
    text, kind = scene.metrics.render()
    assert kind.startswith("text/plain")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            name = sample.name.removeprefix("fairlead_gateway_")
            found.setdefault(name, []).append((sample.labels, sample.value))
    return found


def label(scene: Scene, tenant: str) -> str:
    found: str = scene.admission.tenants.of("127.0.0.1", {b"x-tenant-id": [tenant.encode()]}).label
    return found


class TestTenantLabels:
    def test_are_bounded_with_the_named_ones_first(self):
        scene = Scene(tenants={"metric_labels": 3}, policies={"header:a": {"weight": 2}})
        seen = {label(scene, f"t{number}") for number in range(1000)}
        assert seen == {"header:t0", "other"}
        assert label(scene, "a") == "header:a"
        assert label(scene, "root") == "header:root"

    def test_none_at_all(self):
        scene = Scene(tenants={"metric_labels": 0})
        assert label(scene, "root") == "other"

    def test_through_the_middleware_at_most_a_hundred_and_other(self):
        async def main() -> None:
            scene = Scene(capacity=1, scheduler={"default_max_class": "bulk"})
            scene.guarded.app = answering
            for number in range(500):
                lines = [(b"x-smg-priority", b"nonsense" if number % 2 else b"system")]
                await scene.client(tenant=f"t{number}", headers=lines).done()
            assert len(scene.metrics.tenants) <= 101
            found = scrape(scene)
            for name in ("clamps_total", "unknown_priorities_total", "tenant_requests_total"):
                tenants = {labels["tenant"] for labels, _ in found[name]}
                assert len(tenants) <= 101
                assert "other" in tenants
            assert sum(value for _, value in found["tenant_requests_total"]) == 500
            assert sum(value for _, value in found["clamps_total"]) == 500
            assert sum(value for _, value in found["unknown_priorities_total"]) == 250
            scene.quiet()

        run_virtual(main())

    def test_a_retune_keeps_the_bound(self):
        async def main() -> None:
            scene = Scene()
            names = {f"header:p{number}": {"weight": 2} for number in range(90)}
            scene.admission.retune(load(config(policies=names)))
            names = {f"header:q{number}": {"weight": 2} for number in range(90)}
            scene.admission.retune(load(config(policies=names)))
            found = {label(scene, f"{kind}{number}") for kind in "pqr" for number in range(90)}
            assert len(found) <= 101

        run_virtual(main())

    def test_a_tenant_named_later_takes_the_place_of_the_least(self):
        async def main() -> None:
            few = {"metric_labels": 4}  # one is root's, who has a policy
            scene = Scene(capacity=1, tenants=few)
            scene.guarded.app = answering
            for tenant in ("a", "a", "b", "c", "c"):
                await scene.client(tenant=tenant).done()
            named = {"header:d": {"weight": 2}}
            scene.admission.retune(load(config(tenants=few, policies=named)))
            found = [label(scene, name) for name in "abcd"]
            assert found == ["header:a", "other", "header:c", "header:d"]
            counts = {
                labels["tenant"]: value for labels, value in scrape(scene)["tenant_requests_total"]
            }
            assert counts == {"header:a": 2, "header:c": 2, "other": 1}

        run_virtual(main())

    def test_a_retune_changes_their_number_and_takes_none_back(self):
        async def main() -> None:
            scene = Scene(tenants={"metric_labels": 2})
            assert label(scene, "a") == "header:a"
            assert label(scene, "b") == "other"
            scene.admission.retune(load(config(tenants={"metric_labels": 3})))
            assert label(scene, "b") == "header:b"
            assert label(scene, "c") == "other"
            scene.admission.retune(load(config(tenants={"metric_labels": 1})))
            assert [label(scene, name) for name in "abc"] == ["header:a", "header:b", "other"]

        run_virtual(main())

    def test_who_asks_most_has_one_however_late_it_came(self):
        async def main() -> None:
            scene = Scene(
                capacity=1, tenants={"metric_labels": 5}, policies={"header:named": {"weight": 2}}
            )
            scene.guarded.app = answering
            asked = [f"once{number}" for number in range(50)]
            asked += [f"heavy{number % 3}" for number in range(60)]
            asked += [f"later{number}" for number in range(50)]
            for tenant in asked:
                await scene.client("odd", tenant=tenant).done()
            counts = {
                labels["tenant"]: value for labels, value in scrape(scene)["tenant_requests_total"]
            }
            assert {f"header:heavy{number}" for number in range(3)} < set(counts)
            assert len(counts) <= 5 + 1
            assert min(counts[f"header:heavy{number}"] for number in range(3)) >= 15
            assert sum(counts.values()) == len(asked), (
                "each counts once, also of who lost its label"
            )
            unknown = scrape(scene)["unknown_priorities_total"]
            assert sum(value for _, value in unknown) == len(asked)
            assert {labels["tenant"] for labels, _ in unknown} == set(counts)
            assert label(scene, "named") == "header:named", "though it has never asked"
            scene.quiet()

        run_virtual(main())

    def test_a_flood_of_names_hides_nobody_who_asks_again_and_again(self):
        asked = Counter({"a": 50})
        labels = TenantLabels(asked, asked.pop)
        labels.most = 1
        assert labels.of("a") == "a"
        for number in range(20 * CANDIDATES):
            assert not labels.notice(f"flood{number}")
            if number % 100 == 0 and labels.notice("steady"):
                break
        assert labels.of("steady") == "steady"
        assert len(labels.candidates) <= CANDIDATES

    def test_labels_change_hands_seldom(self):
        """Each change asks for twice as much as the last, so that clients cannot make series without end."""
        lost: list[str] = []
        asked = Counter[str]()

        def lose(label: str) -> None:
            lost.append(label)
            del asked[label]

        labels = TenantLabels(asked, lose)
        labels.most = 1
        chance = random.Random(1)
        for _ in range(10_000):
            tenant = f"t{chance.randrange(3)}"
            found = labels.of(tenant)
            asked[found] += 1
            if found == "other":
                labels.notice(tenant)
        assert len(lost) <= 14


async def answering(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class TestHistograms:
    def test_observations_fall_in_the_bucket_of_their_bound(self):
        histogram = Histogram()
        for value in (0.0, 0.001, 0.0011, 300.0, 301.0):
            histogram.observe(value)
        buckets = dict(histogram.buckets())
        assert buckets["0.001"] == 2
        assert buckets["0.005"] == 3
        assert buckets["300.0"] == 4
        assert buckets["+Inf"] == 5
        assert histogram.total == pytest.approx(601.0021)
        assert len(buckets) == len(BOUNDS) + 1

    def test_wait_and_first_byte_are_histograms_by_class(self):
        async def main() -> None:
            scene = Scene()
            first, held = await scene.running("interactive")
            second = await scene.waiting("bulk")
            await asyncio.sleep(3)
            await held.answer()
            held = await scene.app.next()
            await asyncio.sleep(0.2)
            await held.head()
            await held.chunk()
            await asyncio.sleep(1)
            await held.chunk(b"", more=False)
            await held.leave()
            await asyncio.gather(first.done(), second.done())
            found = scrape(scene)

            def at(name: str, kind: str, bound: str) -> float:
                [value] = [
                    value
                    for labels, value in found[name + "_bucket"]
                    if labels["class"] == kind and float(labels["le"]) == float(bound)
                ]
                return value

            assert at("queue_wait_seconds", "bulk", "2.5") == 0
            assert at("queue_wait_seconds", "bulk", "5") == 1
            assert at("queue_wait_seconds", "interactive", "0.001") == 1
            assert at("time_to_first_byte_seconds", "interactive", "5") == 1
            assert at("time_to_first_byte_seconds", "bulk", "0.1") == 0
            assert at("time_to_first_byte_seconds", "bulk", "0.25") == 1
            [total] = [v for k, v in found["queue_wait_seconds_sum"] if k["class"] == "bulk"]
            assert total == pytest.approx(3)

        run_virtual(main())


class TestGauges:
    def test_all_of_them(self):
        async def main() -> None:
            scene = Scene(
                capacity=4,
                classes={
                    "bulk": {"queue_size": 10},
                    "interactive": {"reserved_floor": 1, "reserved_per_slot": 0.5},
                },
                scheduler={"lend_reservations": False},
            )
            await scene.running("interactive")
            await scene.running("bulk")
            await scene.running("bulk")
            waiting = [await scene.waiting("bulk") for _ in range(4)]

            def gauge(name: str, kind: str) -> float:
                return reading(scene.admission, name, **{"class": kind})

            assert gauge("inflight", "bulk") == 2
            assert gauge("inflight", "interactive") == 1
            assert gauge("queue_depth", "bulk") == 4
            assert gauge("queue_limit", "bulk") == 10
            assert gauge("queue_limit", "interactive") == 256
            assert gauge("reserved", "interactive") == 2
            # Bulk: four of ten places; two slots over none reserved, of the two it may count on.
            assert gauge("class_pressure", "bulk") == 1.0
            assert gauge("class_pressure", "interactive") == 0
            assert reading(scene.admission, "capacity") == 4
            assert reading(scene.admission, "utilization") == 0.75
            assert reading(scene.admission, "fallback_active") == 0
            assert reading(scene.admission, "degraded") == 0
            scene.admission.set_capacities({"": 2})
            assert reading(scene.admission, "utilization") == 1.5, "above one after a shrink"
            assert gauge("reserved", "interactive") == 1
            scene.admission.set_capacities({"": 0})
            assert reading(scene.admission, "utilization") == 0
            for client in waiting:
                client.leave()
            await ticks()
            assert gauge("queue_depth", "bulk") == 0

        run_virtual(main())

    def test_c4_reservations_follow_capacity(self):
        async def main() -> None:
            names = ("system", "interactive", "default", "bulk")
            scene = Scene({"capacity": 256, "priority_scheduler": {"enabled": True}})

            def reserved() -> tuple[float, ...]:
                return tuple(reading(scene.admission, "reserved", **{"class": n}) for n in names)

            assert reserved() == (32, 128, 26, 0)
            for total, expected in [
                (80, (32, 48, 0, 0)),
                (256, (32, 128, 26, 0)),
                (800, (32, 200, 80, 0)),
                (100, (32, 68, 0, 0)),
                (0, (0, 0, 0, 0)),
                (1024, (32, 256, 103, 0)),
            ]:
                scene.admission.set_capacities({"": total})
                assert reserved() == expected

        run_virtual(main())

    @pytest.mark.parametrize(
        ("queued", "limit", "pressure"), [(4, 5, 0.8), (5, 10, 0.5), (4, 4, 1.0), (0, 5, 0.0)]
    )
    def test_pressure_by_depth(self, queued, limit, pressure):
        async def main() -> None:
            scene = Scene(capacity=100, classes={"default": {"queue_size": limit}})
            running = [await scene.running("interactive") for _ in range(100)]
            for _ in range(queued):
                await scene.waiting("default")
            found = reading(scene.admission, "class_pressure", **{"class": "default"})
            assert found == pytest.approx(pressure)
            assert len(running) == 100

        run_virtual(main())


def test_every_way_to_end_is_counted_once():
    async def main() -> None:
        scene = Scene(classes={"bulk": {"queue_size": 1, "queue_timeout": 1}})
        completed, held = await scene.running("bulk")
        await held.answer()
        await completed.done()
        failed, held = await scene.running("bulk")
        await held.answer(b"", 502)
        await failed.done()
        raised, held = await scene.running("bulk")
        held.fail(LookupError())
        with pytest.raises(LookupError):
            await raised.done()
        gone, held = await scene.running("bulk")
        await held.leave()
        await gone.done()
        preempted, held = await scene.running("bulk")
        _, by = await scene.running("interactive")
        await preempted.done()
        timeout = await scene.waiting("bulk")
        await scene.client("bulk").done()
        await timeout.done()
        left = await scene.waiting("bulk")
        left.leave()
        await left.done()
        await by.answer()
        scene.admission.set_capacities({"": 0})
        await scene.client("bulk").done()
        await ticks()

        def count(name: str, outcome: str) -> float:
            return reading(scene.admission, name, outcome=outcome, **{"class": "bulk"})

        assert count("admissions_total", "admitted") == 5
        assert count("admissions_total", "rejected_queue_full") == 1
        assert count("admissions_total", "rejected_queue_timeout") == 1
        assert count("admissions_total", "rejected_no_capacity") == 1
        assert count("admissions_total", "client_cancelled") == 1
        assert count("requests_total", "completed") == 1
        assert count("requests_total", "failed") == 2
        assert count("requests_total", "disconnected") == 1
        assert count("requests_total", "preempted") == 1
        by_class = {"victim_class": "bulk", "by_class": "interactive"}
        assert reading(scene.admission, "preemptions_total", **by_class) == 1
        scene.quiet()

    run_virtual(main())


def test_what_never_asked_for_a_slot_is_counted_by_its_code():
    async def main() -> None:
        scene = Scene(pool_by="model", limits={"body_bytes": 20})
        scene.admission.follow(Backends(lambda model: None))
        json = (b"content-type", b"application/json")
        length = (b"content-length", b"21")
        await scene.client(method="POST", headers=[json], body=b"{}").done()
        await scene.client(method="POST", headers=[json], body=b'{"model": "b"}').done()
        await scene.client(method="POST", headers=[json], body=b"x" * 21).done()
        await scene.client(headers=[length]).done()
        found = {labels["code"]: count for labels, count in scrape(scene)["refused_requests_total"]}
        assert found == {"model_required": 1, "model_not_found": 1, "body_too_large": 2}
        assert reading(scene.admission, "admissions_total") == 0

    run_virtual(main())


def test_what_the_protocol_refuses_is_counted():
    async def main():
        async with gateway() as running:
            for url in (running.data_listener.url, running.admin_listener.url):
                for line in ("TRACE /", "GET http://a/"):
                    async with connected(url) as client:
                        client.send(f"{line} HTTP/1.1\r\nHost: a\r\n\r\n")
                        await client.response()
            _, body = await fetch(running.admin_listener.url, "GET", "/metrics")
            for code in (b"method_not_allowed", b"bad_request"):
                assert b'refused_requests_total{code="%s"} 1.0' % code in body

    run(main())


def test_promotions_are_counted():
    async def main() -> None:
        scene = Scene(classes={"bulk": {"starvation_threshold": 2}})
        _, held = await scene.running("interactive")
        await held.head()
        await held.chunk()
        starved = await scene.waiting("bulk", headers=[(b"x-fairlead-decision", b"1")])
        other = await scene.waiting("interactive")
        await asyncio.sleep(3)
        await held.chunk(b"", more=False)
        held = await scene.app.next()
        assert held.path == starved.path
        await held.answer()
        assert "promoted" in (await starved.done()).head["x-fairlead-decision"]
        await scene.app.inside[(await scene.app.next()).path].answer()
        await other.done()
        assert reading(scene.admission, "promotions_total", **{"class": "bulk"}) == 1

    run_virtual(main())
