"""The ASGI app driven directly, and the health verdict on a virtual loop and a clock set by hand."""

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from fairlead import Misuse, QueueFull, Scheduler, WaitedTooLong
from fairlead.capacities import TokenBucket
from fairlead.observe import Health, Verdict, app
from fairlead.observe.health import MOST_SAMPLES
from fairlead.observe.negotiation import chosen, ranges_of
from fairlead.tasks import ThreadScheduler
from fairlead.testing import ManualClock, run_virtual

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;"
    "version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)


async def ask(application, path, method="GET", accept=None, root_path=None) -> Response:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [] if accept is None else [(b"accept", accept.encode())],
    }
    if root_path is not None:
        scope["root_path"] = root_path
    sent = []

    async def receive():
        raise AssertionError("there is no body to read")

    async def send(message):
        sent.append(message)

    await application(scope, receive, send)
    start, body = sent
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    assert not body.get("more_body")
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert len(headers) == len(start["headers"])
    return Response(start["status"], headers, body["body"])


async def busy(scheduler: Scheduler) -> list[asyncio.Future[Any]]:
    """Two waits of 3 s, one of them high and one low, then one unit running and one queued."""
    for priority in (50, 80, 0):
        scheduler.spawn(priority, asyncio.sleep, 3)
    scheduler.spawn(1000, asyncio.sleep, 3)
    await asyncio.sleep(3.5)
    with pytest.raises(ZeroDivisionError):
        await scheduler.spawn(20, lambda: 1 / 0)
    await asyncio.sleep(10)
    return [scheduler.spawn(50, asyncio.sleep, 1000) for _ in range(3)]


def observe_busy(check):
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=2, max_queue_size=10)
        futures = await busy(scheduler)
        await check(scheduler, app(scheduler))
        for future in futures:
            future.cancel()
        await scheduler.shutdown()

    run_virtual(main())


def samples_of(families) -> dict[str, float]:
    found = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


# Metrics


def test_the_json_document_has_the_names_of_the_original():
    async def check(scheduler, application):
        response = await ask(application, "/metrics")
        assert response.status == 200
        assert response.headers["content-type"] == "application/json"
        assert response.headers["vary"] == "Accept"
        assert response.headers["cache-control"] == "no-store"
        assert int(response.headers["content-length"]) == len(response.body)
        assert response.json() == {
            "scheduler": {
                "enabled": True,
                "activeCount": 2,
                "queuedCount": 1,
                "totalSubmitted": 8,
                "totalCompleted": 5,
                "highPriorityCompleted": 2,
                "lowPriorityCompleted": 2,
                "starvationPromotions": scheduler.stats().starvation_promotions,
                "totalFailed": 1,
                "totalCancelled": 0,
                "totalRefused": 0,
                "totalClamped": 1,
                "totalExpired": 0,
                "maxConcurrency": 2,
                "maxQueueSize": 10,
                "shuttingDown": False,
            }
        }

    observe_busy(check)


def test_an_unbounded_scheduler_says_that_it_is_not_enabled():
    async def main():
        async with Scheduler.unbounded() as scheduler:
            await scheduler.submit(50, asyncio.sleep, 1)
            application = app(scheduler)
            assert (await ask(application, "/metrics")).json() == {"scheduler": {"enabled": False}}
            text = (await ask(application, "/metrics", accept="text/plain")).body.decode()
            samples = samples_of(parse_text(text))
            assert samples["fairlead_scheduler_enabled"] == 0
            assert samples["fairlead_scheduler_submitted_total"] == 1
            assert "fairlead_scheduler_max_concurrency" not in samples
            assert (await ask(application, "/healthz")).json()["status"] == "healthy"

    run_virtual(main())


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        ("text/plain", PLAIN, parse_text),
        ("text/plain;version=0.0.4", PLAIN, parse_text),
        (PROMETHEUS_2, f"{OPENMETRICS}; escaping=underscores", parse_openmetrics),
        (PROMETHEUS_3, f"{OPENMETRICS}; escaping=allow-utf-8", parse_openmetrics),
        ("application/openmetrics-text", OPENMETRICS, parse_openmetrics),
    ],
)
def test_prometheus_reads_the_metrics_in_the_format_it_asked_for(accept, content_type, parse):
    async def check(scheduler, application):
        response = await ask(application, "/metrics", accept=accept)
        assert response.status == 200
        assert response.headers["content-type"] == content_type
        families = list(parse(response.body.decode()))
        assert all(family.name.startswith("fairlead_scheduler_") for family in families)
        assert all(family.documentation for family in families)
        kinds = {
            family.name.removeprefix("fairlead_scheduler_"): family.type for family in families
        }
        gauges = "enabled active_count queued_count max_concurrency max_queue_size shutting_down"
        counters = (
            "submitted completed failed cancelled refused clamped expired starvation_promotions"
        )
        assert kinds == {
            **dict.fromkeys(gauges.split(), "gauge"),
            **dict.fromkeys(counters.split(), "counter"),
            "wait_seconds": "histogram",
        }
        samples = {
            name.removeprefix("fairlead_scheduler_"): value
            for name, value in samples_of(families).items()
        }
        assert samples["active_count"] == 2
        assert samples["queued_count"] == 1
        assert samples["submitted_total"] == 8
        assert samples["completed_total{tier=high}"] == 2
        assert samples["completed_total{tier=normal}"] == 1
        assert samples["completed_total{tier=low}"] == 2
        assert samples["failed_total"] == 1
        assert samples["clamped_total"] == 1
        assert samples["starvation_promotions_total"] == scheduler.stats().starvation_promotions
        assert samples["max_concurrency"] == 2
        assert samples["max_queue_size"] == 10
        assert samples["shutting_down"] == 0

    observe_busy(check)


def test_the_wait_histogram_is_cumulative_and_adds_up_per_tier():
    async def check(scheduler, application):
        text = (await ask(application, "/metrics", accept="text/plain")).body.decode()
        samples = samples_of(parse_text(text))
        prefix = "fairlead_scheduler_wait_seconds_"
        # Started: 50 and 80 at once, 100 and 0 after 3 s, the failing 20 at once or not, two of 50 at once.
        stats = scheduler.stats()
        for tier in ("high", "normal", "low"):
            histogram = stats.waits[tier]
            buckets = [
                samples[f"{prefix}bucket{{le={bound},tier={tier}}}"]
                for bound in (*histogram.bounds, "+Inf")
            ]
            assert buckets == sorted(buckets)
            assert buckets[-1] == samples[f"{prefix}count{{tier={tier}}}"] == sum(histogram.counts)
            assert samples[f"{prefix}sum{{tier={tier}}}"] == histogram.total
        assert samples[f"{prefix}count{{tier=high}}"] == 2
        assert samples[f"{prefix}sum{{tier=high}}"] == 3
        assert samples[f"{prefix}bucket{{le=1.0,tier=high}}"] == 1
        assert samples[f"{prefix}bucket{{le=5.0,tier=high}}"] == 2
        started = sum(
            samples[f"{prefix}count{{tier={tier}}}"] for tier in ("high", "normal", "low")
        )
        assert started == 7

    observe_busy(check)


# Content negotiation

JSON = "application/json"


@pytest.mark.parametrize(
    ("accept", "format_"),
    [
        ("", JSON),
        ("*/*", JSON),
        (BROWSER, JSON),
        ("application/json", JSON),
        ("application/json, text/plain, */*", JSON),
        ("text/plain, application/json", JSON),
        ("application/xml", JSON),
        ("not a media range", JSON),
        ("text/plain;q=0", JSON),
        ("text/plain;q=0, */*", JSON),
        ("text/plain;q=0.2, application/json;q=0.3", JSON),
        ("text/plain;q=0.2, */*;q=0.3", JSON),
        ("text/plain;q=nonsense, application/json;q=0.1", JSON),
        ("text/plain;version=9", JSON),
        ("application/openmetrics-text;version=0.0.1", JSON),
        ("text/plain", "text/plain"),
        ("TEXT/PLAIN", "text/plain"),
        ("text/plain, */*", "text/plain"),
        ("text/*", "text/plain"),
        ("text/plain; charset=utf-8", "text/plain"),
        ("text/plain;q=0.3, application/json;q=0.2", "text/plain"),
        ("application/json;q=0.999,text/plain", "text/plain"),
        ("application/json;q=0, text/plain;q=0.001", "text/plain"),
        ("text/plain;version=0.0.4;q=1,*/*;q=0.1", "text/plain;version=0.0.4"),
        ('text/plain; version="0.0.4"', "text/plain;version=0.0.4"),
        ('application/xml;note="a,b;q=1", text/plain;q=0.5', "text/plain"),
        (PROMETHEUS_2, "application/openmetrics-text;version=1.0.0"),
        (PROMETHEUS_3, "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8"),
        ("text/plain;version=1.0.0;escaping=\r\nx: y", "text/plain;version=1.0.0"),
    ],
)
def test_the_heaviest_format_wins_and_json_among_equals(accept, format_):
    assert chosen(accept) == format_


@pytest.mark.parametrize(
    "accept", ['"', '",;', "a/b;" * 1000, '"\\' * 1000, ",,,;;;", "a/b;q=1;q=0"]
)
def test_a_malformed_header_harms_nobody(accept):
    assert chosen(accept) == JSON
    assert all(one.media == "a/b" for one in ranges_of(accept))


def test_several_accept_headers_are_one_list():
    async def check(scheduler, application):
        scope_headers = [(b"accept", b"application/json;q=0.1"), (b"Accept", b"text/plain")]
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": scope_headers}
        await application(scope, None, send)
        assert dict(sent[0]["headers"])[b"content-type"] == PLAIN.encode()

    observe_busy(check)


# Liveness, readiness, and everything that is not asked for properly


def test_ready_until_shutdown_begins_and_alive_all_along():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1)
        application = app(scheduler)
        scheduler.spawn(50, asyncio.sleep, 5)
        ready = await ask(application, "/readyz")
        assert (ready.status, ready.json()) == (200, {"status": "ready", "reasons": []})
        stopping = asyncio.create_task(scheduler.shutdown())
        await asyncio.sleep(1)
        ready = await ask(application, "/readyz")
        assert ready.status == 503
        assert ready.json()["status"] == "not ready"
        assert "shutting down" in ready.json()["reasons"][0]
        alive = await ask(application, "/livez")
        assert (alive.status, alive.json()) == (200, {"status": "alive"})
        await stopping
        assert (await ask(application, "/readyz")).status == 503
        assert (await ask(application, "/livez")).status == 200

    run_virtual(main())


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/livez", "/readyz"])
def test_head_has_the_headers_of_get_and_no_body(path):
    async def check(scheduler, application):
        get, head = await ask(application, path), await ask(application, path, "HEAD")
        assert head.status == get.status == 200
        assert head.body == b""
        assert head.headers["content-type"] == get.headers["content-type"]
        assert int(head.headers["content-length"]) > 0

    observe_busy(check)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_not_allowed(method):
    async def check(scheduler, application):
        response = await ask(application, "/metrics", method)
        assert response.status == 405
        assert response.headers["allow"] == "GET, HEAD"
        assert response.headers["content-type"] == "application/problem+json"
        assert method in response.json()["detail"]

    observe_busy(check)


@pytest.mark.parametrize("path", ["/", "", "/metric", "/metrics/x", "//metrics", "/<script>\r\n"])
def test_an_unknown_path_is_answered_with_those_that_exist(path):
    async def check(scheduler, application):
        response = await ask(application, path)
        assert response.status == 404
        assert response.headers["content-type"] == "application/problem+json"
        problem = response.json()
        assert problem["status"] == 404
        assert problem["title"] == "Not Found"
        assert problem["paths"] == ["/healthz", "/livez", "/metrics", "/readyz"]
        assert "/metrics" in problem["detail"]

    observe_busy(check)


@pytest.mark.parametrize(
    ("root_path", "path"),
    [
        ("", "/metrics"),
        ("", "/metrics/"),
        ("/ops", "/ops/metrics"),  # the path includes the root, as the specification says
        ("/ops/", "/ops/metrics"),
        ("/ops", "/metrics"),  # the path does not, as some servers have it
        ("/metrics", "/metrics/metrics"),
        ("/metrics", "/metrics"),
        ("/metrics", "/metrics/"),
        ("/met", "/metrics"),
    ],
)
def test_it_works_wherever_it_is_mounted(root_path, path):
    async def check(scheduler, application):
        response = await ask(application, path, root_path=root_path)
        assert response.status == 200
        assert "scheduler" in response.json()

    observe_busy(check)


def talk(application, scope, *messages):
    """Send messages, return the answers."""
    incoming = list(messages)
    sent = []

    async def receive():
        return incoming.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(application(scope, receive, send))
    assert not incoming
    return sent


def test_the_lifespan_is_acknowledged():
    application = app(Scheduler.bounded(max_concurrency=1))
    messages = {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}
    assert talk(application, {"type": "lifespan"}, *messages) == [
        {"type": "lifespan.startup.complete"},
        {"type": "lifespan.shutdown.complete"},
    ]


def test_a_websocket_is_declined():
    application = app(Scheduler.bounded(max_concurrency=1))
    (closed,) = talk(application, {"type": "websocket", "path": "/"}, {"type": "websocket.connect"})
    assert closed["type"] == "websocket.close"
    assert "no websockets" in closed["reason"]

    scope = {"type": "websocket", "path": "/", "extensions": {"websocket.http.response": {}}}
    start, body = talk(application, scope, {"type": "websocket.connect"})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 404)
    assert b"no websockets" in body["body"]


def test_what_it_does_not_know_is_an_error_that_says_so():
    application = app(Scheduler.bounded(max_concurrency=1))
    with pytest.raises(Misuse, match="'mqtt'"):
        talk(application, {"type": "mqtt"})
    with pytest.raises(Misuse, match="something with stats"):
        app("scheduler")  # type: ignore[arg-type]


# The verdict


class Pool:
    """A scheduler under watch, whose work runs until it is let go."""

    def __init__(self, **options):
        self.scheduler = Scheduler.bounded(**options)
        self.clock = ManualClock()
        self.health = Health(self.scheduler, clock=self.clock)
        self.work: list[asyncio.Future[Any]] = []

    def hold(self, number: int) -> None:
        for _ in range(number):
            self.work.append(self.scheduler.spawn(50, asyncio.sleep, 10_000))

    async def let_go(self, number: int) -> None:
        """End the newest units of work, queued ones first."""
        for _ in range(number):
            self.work.pop().cancel()
        await asyncio.sleep(1)

    def after(self, seconds: float) -> Verdict:
        self.clock.advance(seconds)
        return self.health.verdict()


def watch(story, **options):
    """Run `story(pool)` on a virtual loop and end whatever is left."""

    async def main():
        pool = Pool(**options)
        await story(pool)
        await pool.let_go(len(pool.work))
        await pool.scheduler.shutdown()

    run_virtual(main())


def test_a_queue_that_fluctuates_is_healthy():
    async def story(pool):
        for _ in range(20):
            pool.hold(8)
            assert pool.after(5).status == "healthy"
            await pool.let_go(8)
            verdict = pool.after(5)
            assert (verdict.status, verdict.reasons) == ("healthy", ())

    watch(story, max_concurrency=4)


@pytest.mark.parametrize(("most", "status"), [(7, "warning"), (8, "healthy")])
def test_steady_growth_is_a_warning_once_it_exceeds_what_may_run(most, status):
    async def story(pool):
        pool.hold(most)
        pool.hold(4)
        assert pool.after(5).status == "healthy"  # 0 4: too few samples to call it steady
        pool.hold(2)
        assert pool.after(5).status == "healthy"
        pool.hold(2)
        verdict = pool.after(5)
        assert verdict.indicators["queueGrowth"] == 8
        assert verdict.status == status
        if verdict.reasons:
            assert verdict.reasons[0].startswith(
                "the queue grows steadily: by 8 to 8 in the last 15 s"
            )
            assert "set max_queue_size" in verdict.reasons[0]

    watch(story, max_concurrency=most)


def test_three_samples_are_too_few_to_call_growth_steady():
    async def story(pool):
        found = []
        for _ in range(3):
            pool.hold(10)
            found.append(pool.after(1).status)
        assert found == ["healthy", "healthy", "warning"]  # the third call has four samples

    watch(story, max_concurrency=2)


def test_growth_with_a_dip_is_not_steady():
    async def story(pool):
        pool.hold(2)
        for _ in range(2):
            pool.hold(5)
            pool.after(5)
        await pool.let_go(2)
        pool.after(5)
        for _ in range(2):
            pool.hold(5)
            verdict = pool.after(5)
            assert verdict.status == "healthy"
            assert verdict.indicators["queueGrowth"] >= 13

    watch(story, max_concurrency=2)


def test_asking_often_does_not_hide_growth_behind_noise():
    async def story(pool):
        pool.hold(2)
        for _ in range(50):
            pool.hold(3)
            pool.after(0.2)
            for future in pool.work[-2:]:
                future.cancel()
            del pool.work[-2:]
            pool.after(0.2)
        assert pool.health.verdict().status == "warning"

    watch(story, max_concurrency=2)


def test_a_queue_at_four_fifths_of_its_limit_is_a_warning_and_at_its_limit_unhealthy():
    async def story(pool):
        found = []
        pool.hold(20 + 6)
        for _ in range(4):
            pool.hold(1)
            verdict = pool.after(1)
            found.append((verdict.indicators["queuedCount"], verdict.status))
        assert found == [(7, "healthy"), (8, "warning"), (9, "warning"), (10, "unhealthy")]
        reasons = pool.health.verdict().reasons
        assert [reason[:35] for reason in reasons] == ["the queue is full (10/10 waiting), "]

    watch(story, max_concurrency=20, max_queue_size=10)


def test_refusals_are_unhealthy_until_they_leave_the_window():
    async def story(pool):
        pool.hold(2 + 5)
        with pytest.raises(QueueFull):
            pool.hold(1)
        await pool.let_go(7)
        for past in range(10, 70, 10):
            verdict = pool.after(10)
            assert verdict.status == "unhealthy"
            (reason,) = verdict.reasons
            assert reason.startswith(f"work is being refused: 1 in the last {past} s")
        assert pool.after(10).status == "healthy"

    watch(story, max_concurrency=2, max_queue_size=5)


def test_timeouts_are_unhealthy():
    async def story(pool):
        pool.hold(1)
        with pytest.raises(WaitedTooLong):
            await pool.scheduler.bind(timeout=5).submit(50, asyncio.sleep, 0)
        verdict = pool.after(30)
        assert verdict.status == "unhealthy"
        assert verdict.indicators["expired"] == 1
        assert verdict.reasons[0].startswith(
            "work is timing out: 1 waited too long in the last 30 s"
        )

    watch(story, max_concurrency=1)


def test_growth_without_any_completion_is_unhealthy_after_half_the_window():
    async def story(pool):
        pool.hold(8)
        assert pool.after(1).status == "healthy"
        pool.hold(1)
        assert pool.after(28).status == "healthy"
        pool.hold(1)
        verdict = pool.after(1)
        assert verdict.status == "unhealthy"
        (reason,) = verdict.reasons
        assert reason.startswith(
            "nothing completed in the last 30 s while the queue grew by 2 to 2"
        )
        assert "(8 running)" in reason

    watch(story, max_concurrency=8)


def test_one_completion_shows_that_work_is_not_stuck():
    async def story(pool):
        pool.hold(8)
        await pool.scheduler.submit(50, asyncio.sleep, 0)
        pool.hold(2)
        assert pool.after(50).status == "healthy"

    watch(story, max_concurrency=9)


def test_more_promotions_than_completions_are_a_warning():
    async def story(pool):
        pool.hold(1)
        pool.work.append(pool.scheduler.spawn(0, asyncio.sleep, 0))
        await asyncio.sleep(4)
        assert pool.after(1).status == "healthy"
        await asyncio.sleep(2)  # past +10
        verdict = pool.after(1)
        assert verdict.status == "warning"
        assert verdict.reasons[0].startswith("promotions rise rapidly: 1 against 0 completions")

    watch(story, max_concurrency=1)


def test_running_more_than_may_is_a_warning():
    async def story(pool):
        pool.hold(4)
        pool.scheduler.resize(3)
        verdict = pool.after(1)
        assert verdict.status == "warning"
        assert verdict.reasons[0].startswith("4 run where 3 may")

    watch(story, max_concurrency=4)


def test_a_drain_is_a_warning_and_what_it_refuses_is_not_unhealthy():
    async def main():
        scheduler = Scheduler.bounded(max_concurrency=1)
        application = app(scheduler)
        scheduler.spawn(50, asyncio.sleep, 5)
        stopping = asyncio.create_task(scheduler.shutdown())
        await asyncio.sleep(1)
        with pytest.raises(Exception, match="shutting down"):
            scheduler.spawn(50, asyncio.sleep, 5)
        response = await ask(application, "/healthz")
        assert response.status == 200
        assert response.json()["status"] == "warning"
        assert "shutting down (1 running, 0 waiting)" in response.json()["reasons"][0]
        await stopping

    run_virtual(main())


def test_rare_calls_are_compared_with_each_other():
    async def story(pool):
        assert pool.after(600).status == "healthy"
        pool.hold(2)
        with pytest.raises(QueueFull):
            pool.hold(1)
        verdict = pool.after(600)
        assert verdict.indicators["samples"] == 2
        assert "work is being refused: 1 in the last 600 s" in verdict.reasons[0]

    watch(story, max_concurrency=1, max_queue_size=1)


def test_no_number_of_calls_grows_memory():
    clock = ManualClock()
    health = Health(Scheduler.bounded(max_concurrency=1), clock=clock)
    for _ in range(5 * MOST_SAMPLES):
        clock.advance(0.001)
        assert health.verdict().indicators["samples"] <= MOST_SAMPLES
    assert health.verdict().indicators["seconds"] == 3.0


def test_a_scheduler_without_a_number_of_slots_has_a_verdict_too():
    async def story(pool):
        for _ in range(4):
            pool.hold(1)
            pool.after(1)
        verdict = pool.after(1)
        assert verdict.indicators["maxConcurrency"] is None
        assert verdict.status == "warning"

    watch(story, capacity=TokenBucket(rate=0.001, burst=1))


@pytest.mark.parametrize("window", [0, -1, "60", None, float("nan")])
def test_a_window_is_a_duration(window):
    with pytest.raises(ValueError, match="window"):
        Health(Scheduler.bounded(max_concurrency=1), window=window)


@pytest.mark.parametrize(
    ("status", "code", "queued"), [("healthy", 200, 0), ("warning", 200, 8), ("unhealthy", 503, 10)]
)
def test_healthz_shows_the_verdict(status, code, queued):
    async def story(pool):
        application = app(pool.scheduler)
        pool.hold(1 + queued)
        response = await ask(application, "/healthz")
        assert response.status == code
        assert response.headers["content-type"] == "application/json"
        body = response.json()
        assert list(body) == ["status", "reasons", "indicators"]
        assert body["status"] == status
        assert bool(body["reasons"]) == (status != "healthy")
        assert body["indicators"]["queuedCount"] == queued

    watch(story, max_concurrency=1, max_queue_size=10)


def test_anything_with_stats_can_be_watched():
    class Recorded:
        def __init__(self):
            self.snapshot = Scheduler.bounded(max_concurrency=2).stats()

        def stats(self):
            return self.snapshot

    recorded = Recorded()
    application = app(recorded)
    recorded.snapshot = replace(recorded.snapshot, total_refused=3)
    response = asyncio.run(ask(application, "/healthz"))
    assert response.status == 503
    assert response.json()["indicators"]["refused"] == 3


def test_a_thread_scheduler_is_shown_in_the_same_way():
    with ThreadScheduler.bounded(max_concurrency=2, max_queue_size=5) as scheduler:
        application = app(scheduler)
        assert scheduler.submit(80, lambda: 42) == 42
        shown = asyncio.run(ask(application, "/metrics")).json()["scheduler"]
        assert (shown["totalCompleted"], shown["highPriorityCompleted"]) == (1, 1)
        text = asyncio.run(ask(application, "/metrics", accept="text/plain")).body.decode()
        assert samples_of(parse_text(text))["fairlead_scheduler_completed_total{tier=high}"] == 1
        assert asyncio.run(ask(application, "/healthz")).json()["status"] == "healthy"
    assert asyncio.run(ask(application, "/readyz")).status == 503
