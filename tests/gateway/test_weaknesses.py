"""W1 to W16 of spec/gateway.md §17: one test each, which the original would fail."""

import asyncio
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from fairlead.gateway.loading import load
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.testing import run_virtual
from tests.gateway.rig import HEALTHY, Backend, fetch, gateway, run, until, within
from tests.gateway.sockets import SOON, Site, answered, elapsed, fine, site
from tests.gateway.virtual import Client, HoldGate, Scene, config, ticks

NO_PREEMPTION = {"system": {"can_preempt": False}, "interactive": {"can_preempt": False}}


async def served_in_order(here: Site, count: int) -> list[str]:
    """Answer that many requests as they reach the backend; tell their paths."""
    order = []
    for _ in range(count):
        held = await here.backend.arrival()
        order.append(held.target)
        held.answer()
    return order


def test_w1_promotions_do_not_invert_priority():
    async def main() -> None:
        classes = {"bulk": {"starvation_threshold": "1ms"}, **NO_PREEMPTION}
        async with site(1, classes=classes) as here:
            _, held = await here.running_one("interactive")
            for number in range(12):
                await here.waiting("bulk", path=f"/bulk/{number}")
            for number in range(12):
                await here.waiting("interactive", path=f"/interactive/{number}")
            held.answer()
            order = await served_in_order(here, 16)
            kinds = Counter(path.split("/")[1] for path in order[:12])
            assert kinds["interactive"] >= 9, "three slots in four, however old the backlog is"
            assert kinds["bulk"] >= 2, "and yet it is served"

    run(main())


def test_w2_idle_reservations_are_lent():
    async def main() -> None:
        classes = {"interactive": {"reserved_floor": 3}, "system": {"reserved_floor": 1}}
        async with site(4, classes=classes) as here:
            running = [await here.running_one() for _ in range(4)]
            assert here.gauge("utilization") == 1
            assert here.gauge("reserved") == 4, "shown before lending"
            for client, held in running:
                held.answer()
                await fine(client)
            await here.quiet()

    run(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate"])
def test_w3_the_preempted_503_has_its_whole_body(path):
    async def main() -> None:
        async with site(1) as here:
            victim, _ = await here.running_one("bulk", path=path)
            await here.running_one("interactive")
            head, body = await victim.response()
            assert head.status == 503
            assert int(head.get("content-length")) == len(body) > 50

    run(main())


def test_w4_a_newcomer_does_not_overtake_who_waits():
    async def main() -> None:
        async with site(1, classes=NO_PREEMPTION) as here:
            for _ in range(10):
                _, held = await here.running_one("default")
                await here.waiting("interactive", path="/waits")
                held.answer()
                await here.ask("bulk", path="/barges")
                assert await served_in_order(here, 2) == ["/waits", "/barges"]
            await here.quiet()

    run(main())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/v1/conversations/1"), ("DELETE", "/v1/responses/1"), ("POST", "/tokenize")),
        *(("POST", "/v1/audio/transcriptions"), ("PUT", "/anything"), ("GET", "/v1/realtime")),
    ],
)
def test_w5_every_kind_of_request_unwinds(method, path):
    async def main() -> None:
        async with site(1) as here:
            body = b"{}" if method in {"POST", "PUT"} else None
            victim, held = await here.running_one("bulk", method=method, path=path, body=body)
            _, by = await here.running_one("interactive")
            assert (await answered(victim))[:2] == (503, "scheduler_preempted")
            await within(held.gone.wait())
            by.answer()
            await here.quiet()

    run(main())


def test_w6_nobody_is_killed_in_vain():
    async def main() -> None:
        backend = Backend()
        backend.health_document = {"max_running_requests": 3}
        async with site("reported", backend=backend) as here:
            running = [await here.running_one("bulk") for _ in range(3)]
            backend.health_document = {"max_running_requests": 1}
            await until(lambda: here.gauge("capacity") == 1)
            await here.waiting("interactive")  # one slot less would admit nobody
            assert here.gauge("preemptions_total") == 0
            assert not any(held.gone.is_set() for _, held in running)
            for client, held in running:
                held.answer()
                await fine(client)
            (await backend.arrival()).answer()
            await here.quiet()

    run(main())


def test_w6_two_preemptors_and_one_victim():
    async def main() -> None:
        async with site(1) as here:
            victim, _ = await here.running_one("bulk")
            first, held = await here.running_one("interactive")
            second = await here.waiting("interactive")
            assert (await answered(victim))[0] == 503
            assert here.gauge("preemptions_total") == 1
            held.answer()
            await fine(first)
            (await here.backend.arrival()).answer()
            await fine(second)
            await here.quiet()

    run(main())


def lines_run(deed: Any) -> int:
    """Count the lines of fairlead that a deed executes."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if "fairlead" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        deed()
    finally:
        sys.settrace(before)
    return count


def test_w7_the_choice_of_a_victim_costs_the_same_however_many_run():
    async def cost(holders: int) -> int:
        scene = Scene(capacity=holders)
        for _ in range(holders):
            await scene.running("bulk")
        by = Client(scene.guarded, priority="interactive")
        by.task.cancel()
        step = scene.guarded(by.scope, by.receive, by.send)
        lines = lines_run(lambda: step.send(None))
        assert scene.metrics.preemptions == {(0, 2): 1}
        step.close()
        return lines

    few, many = (run_virtual(cost(holders)) for holders in (10, 1000))
    assert many <= few + 5


def test_w8_a_client_that_leaves_the_queue_is_gone_at_once():
    async def main() -> None:
        async with site(1, classes={"default": {"queue_size": 1}}) as here:
            _, held = await here.running_one()
            for leave in ("close", "reset"):
                ghost = await here.waiting(path="/ghost")
                getattr(ghost, leave)()
                took, _ = await elapsed(until(lambda: here.depth() == 0))
                assert took < SOON + 0.75, "a quarter of a second, on a machine that is not busy"
            assert here.gauge("admissions_total", outcome="client_cancelled") == 2
            last = await here.waiting(path="/last")
            held.answer()
            assert await served_in_order(here, 1) == ["/last"]
            await fine(last)
            await here.quiet()

    run(main())


def test_w9_a_busy_model_does_not_hold_up_an_idle_one():
    async def main() -> None:
        async with Backend() as one, Backend() as two:
            upstreams = [
                {"url": one.url, "capacity": 1, "models": ["busy"], **HEALTHY},
                {"url": two.url, "capacity": 1, "models": ["idle"], **HEALTHY},
            ]
            scheduler = config()["priority_scheduler"]
            async with gateway(
                *upstreams, pool_by="model", priority_scheduler=scheduler
            ) as running:
                assert not running.admission.problems
                url = running.data_listener.url
                json = [("content-type", "application/json")]

                def post(model: str) -> Any:
                    body = b'{"model": "%s"}' % model.encode()
                    return asyncio.create_task(fetch(url, "POST", "/v1/x", json, body))

                first = post("busy")
                held = await one.arrival()
                second = post("busy")
                await until(lambda: sum(p.gate.waiting for p in running.admission.pools.values()))
                third = post("idle")
                (await two.arrival()).answer()
                assert (await third)[0].status == 200
                held.answer()
                (await one.arrival()).answer()
                assert [(await task)[0].status for task in (first, second)] == [200, 200]
                assert (await post("unheard of"))[0].status == 404

    run(main())


def test_w10_one_tenant_does_not_keep_another_waiting():
    async def main() -> None:
        async with site(1) as here:
            _, held = await here.running_one(tenant="loud")
            for number in range(20):
                await here.waiting(tenant="loud", path=f"/loud/{number}")
            await here.waiting(tenant="quiet", path="/quiet")
            held.answer()
            assert "/quiet" in await served_in_order(here, 3)

    run(main())


def test_w11_every_refusal_says_when_to_come_back():
    async def main() -> None:
        classes = {"default": {"queue_size": 1, "queue_timeout": "100ms"}}
        async with site(1, classes=classes) as here:
            victim, _ = await here.running_one("bulk")
            _, held = await here.running_one("interactive")
            refusals = [await answered(victim)]
            late = await here.waiting()
            refusals += [await answered(await here.ask()), await answered(late)]
            held.answer()
            await here.backend.stop()
            await until(lambda: here.gauge("capacity") == 0)
            refusals.append(await answered(await here.ask()))
            assert [status for status, _, _ in refusals] == [503, 429, 408, 503]
            for _, _, head in refusals:
                assert head.get("retry-after").isdigit()
                assert int(head.get("retry-after")) >= 1

    run(main())


def test_w12_the_fallback_is_visible_and_capacity_never_jumps_up():
    async def main() -> None:
        async with Backend() as backend:
            upstream = {"url": backend.url, "capacity": 4, **HEALTHY}
            wrong = {"enabled": True, "classes": {"bulk": {"queue_size": -1}}}
            async with gateway(upstream, priority_scheduler=wrong) as running:
                head, body = await fetch(running.admin_listener.url, "GET", "/readyz")
                assert (head.status, b"degraded" in body) == (200, True)
                _, text = await fetch(running.admin_listener.url, "GET", "/metrics")
                assert b"fairlead_gateway_fallback_active 1" in text
                assert b"fairlead_gateway_degraded 1" in text
        async with site(4) as here:
            await here.backend.stop()
            await until(lambda: here.gauge("capacity") == 0)
            took, (status, code, _) = await elapsed(answered(await here.ask("interactive")))
            assert (status, code) == (503, "no_healthy_upstream")
            assert took < 2

    run(main())


def test_w13_tenants_cannot_grow_the_metrics_without_bound():
    async def main() -> None:
        async with site(4, backend=Backend(auto=True)) as here:
            for number in range(0, 300, 20):
                clients = [
                    await here.ask("odd", tenant=f"t{n}") for n in range(number, number + 20)
                ]
                for client in clients:
                    await fine(client)
            _, text = await here.operate("GET", "/metrics")
            tenants = {part.split('"')[1] for part in text.decode().split("tenant=")[1:]}
            assert len(tenants) <= 101
            assert "other" in tenants

    run(main())


def test_w14_partial_entries_unknown_keys_milliseconds_and_reload(tmp_path):
    loaded = load({"priority_scheduler": {"classes": {"interactive": {"queue_timeout": "250ms"}}}})
    entry = loaded.settings.priority_scheduler.classes["interactive"]
    assert (entry.queue_timeout, entry.reserved_floor, entry.reserved_per_slot) == (0.25, 128, 0.25)
    [line] = load({"priority_scheduler": {"classes": {"bulk": {"queue_sise": 1}}}}).lines
    assert "queue_size" in line

    async def main() -> None:
        file = tmp_path / "gateway.yaml"
        text = "capacity: 1\npriority_scheduler:\n  enabled: true\n  classes:\n"
        for name in ("system", "interactive", "default", "bulk"):
            text += f"    {name}: {{reserved_floor: 0, reserved_per_slot: 0.0}}\n"
        file.write_text(text)
        app = HoldGate()
        guarded = PriorityMiddleware(app, str(file))
        assert not guarded.admission.problems
        first = Client(guarded)
        waiting = Client(guarded)
        await ticks()
        assert list(app.inside) == [first.path]
        file.write_text(text.replace("capacity: 1", "capacity: oops"))
        await asyncio.sleep(3)
        assert list(app.inside) == [first.path], "a bad file changes nothing"
        file.write_text(text.replace("capacity: 1", "capacity: 2"))
        await asyncio.sleep(3)
        assert list(app.inside) == [first.path, waiting.path], "a good one drops nobody"
        for held in list(app.inside.values()):
            await held.answer()
        assert ((await first.done()).status, (await waiting.done()).status) == (200, 200)

    run_virtual(main())


def test_w15_a_preempted_client_that_comes_back_is_not_preempted_for_ever():
    async def main() -> None:
        async with site(1, classes={"interactive": {"queue_timeout": "100ms"}}) as here:
            token: list[tuple[str, str]] = []
            for _ in range(3):
                victim, _ = await here.running_one("bulk", headers=token)
                by, held = await here.running_one("interactive")
                _, _, head = await answered(victim)
                token = [("x-fairlead-retry-token", head.get("x-fairlead-retry-token"))]
                held.answer()
                await fine(by)
            victim, held = await here.running_one("bulk", headers=token)
            assert (await answered(await here.ask("interactive")))[0] == 408
            held.answer()
            await fine(victim)
            await here.quiet()

    run(main())


@pytest.mark.parametrize(
    "header",
    [("x-request-timeout", "0.1"), ("x-request-timeout", "100ms"), ("grpc-timeout", "100m")],
)
def test_w16_a_client_that_would_wait_less_is_kept_no_longer(header):
    async def main() -> None:
        async with site(1) as here:
            _, held = await here.running_one("bulk", headers=[])
            held.stream()
            held.event("first")
            took, (status, code, _) = await elapsed(answered(await here.ask(headers=[header])))
            assert (status, code) == (408, "scheduler_queue_timeout")
            assert took < 3
            held.finish()
            await here.quiet()

    run(main())


def test_w9_the_plain_limiter_too_sends_a_model_where_it_is_served():
    async def main() -> None:
        async with Backend(auto=True) as one, Backend(auto=True) as two:
            upstreams = [
                {"url": one.url, "capacity": 4, "models": ["a"], **HEALTHY},
                {"url": two.url, "capacity": 4, "models": ["b"], **HEALTHY},
            ]
            async with gateway(*upstreams, pool_by="model") as running:
                assert running.admission.plain
                json = [("content-type", "application/json")]
                for _ in range(6):
                    url = running.data_listener.url
                    head, _ = await fetch(url, "POST", "/v1/x", json, b'{"model": "b"}')
                    assert head.status == 200
            assert (one.seen, two.seen) == (0, 6)

    run(main())
