"""The twelve conformance cases of spec/gateway.md §18, over real sockets through the whole proxy."""

import asyncio
import json

import pytest

from fairlead.gateway.loading import load
from tests.gateway.rig import HEALTHY, Backend, connected, fetch, gateway, run, until, within
from tests.gateway.sockets import answered, elapsed, fine, run_on_uvloop, site

ENABLED = {"priority_scheduler": {"enabled": True}}
NO_PREEMPTION = {"system": {"can_preempt": False}, "interactive": {"can_preempt": False}}


def test_c1_a_class_is_clamped_to_the_tenants_ceiling():
    async def main() -> None:
        async with site(
            1,
            classes={"default": {"queue_size": 0}},
            policies={"header:low": {"max_class": "default"}},
        ) as here:
            bulk, held = await here.running_one("bulk")
            clamped = await here.ask("system", tenant="low")
            assert (await answered(clamped))[:2] == (429, "scheduler_queue_full")
            assert not held.gone.is_set()
            held.answer()
            head, _ = await bulk.response()
            assert head.status == 200
            assert not head.get("x-fairlead-preempted")
            assert not head.get("x-smg-preempted")
            counted = {"tenant": "header:low", "requested": "system", "effective": "default"}
            assert here.gauge("clamps_total", **counted) == 1
            await here.quiet()

    run(main())


def test_c2_two_hundred_race_for_sixty_four_slots():
    async def main() -> None:
        async with site(64, classes={"default": {"queue_size": 0}}) as here:
            clients = [await here.ask() for _ in range(200)]
            held = [await here.backend.arrival() for _ in range(64)]
            await until(
                lambda: here.gauge("admissions_total", outcome="rejected_queue_full") == 136
            )
            assert here.backend.arrivals.empty()
            assert here.inflight() == 64
            for one in held:
                one.answer()
            heads = [(await client.response())[0].status for client in clients]
            assert (heads.count(200), heads.count(429)) == (64, 136)
            await here.quiet()

    run(main())


def test_c3_reservations_are_floors():
    async def main() -> None:
        classes = {name: {"queue_size": 0, "can_preempt": False} for name in ("system", "bulk")}
        classes["system"]["reserved_floor"] = 2
        async with site(4, classes=classes, scheduler={"lend_reservations": False}) as here:
            running = [await here.running_one("bulk") for _ in range(2)]
            assert (await answered(await here.ask("bulk")))[0] == 429
            running += [await here.running_one("system", tenant="root") for _ in range(2)]
            assert (await answered(await here.ask("system", tenant="root")))[0] == 429
            assert (await answered(await here.ask("bulk")))[0] == 429
            for client, held in running:
                held.answer()
                await fine(client)
            await here.quiet()

    run(main())


def test_c4_reservations_follow_capacity_down_and_up_again():
    async def main() -> None:
        backend = Backend()
        backend.health_document = {"max_running_requests": 256}
        async with (
            backend,
            gateway(
                {"url": backend.url, "capacity": "reported", **HEALTHY},
                priority_scheduler={"enabled": True},
            ) as running,
        ):

            def reserved() -> tuple[int, ...]:
                found = running.admission.pools[""].capacity.reserved
                return tuple(reversed(found))

            for total, expected in [
                (256, (32, 128, 26, 0)),
                (80, (32, 48, 0, 0)),
                (256, (32, 128, 26, 0)),
                (800, (32, 200, 80, 0)),
            ]:
                backend.health_document = {"max_running_requests": total}
                await until(lambda want=expected: reserved() == want)

    run(main())


def test_reservations_cut_to_a_reported_capacity_are_told_once(caplog):
    async def main() -> None:
        backend = Backend()
        backend.health_document = {"max_running_requests": 64}
        given = {"capacity": "reported", **HEALTHY}
        async with backend, gateway({"url": backend.url, **given}, **ENABLED) as running:
            slots = running.admission.pools[""].capacity
            for total in (64, 48, 400, 64):
                backend.health_document = {"max_running_requests": total}
                await until(lambda want=total: slots.total == want)
            assert "64 slots, reservations reduced from 103 to 64" in running.describe()

    run(main())
    told = [record.message for record in caplog.records if "reservations" in record.message]
    assert (
        told
        == [
            "reservations of pool default need 103 slots but its upstreams report 64; "
            "64 are in force: system 32, interactive 32, default 0, bulk 0"
        ]
        * 2
    )


def test_c5_reservations_that_do_not_fit_are_scaled():
    async def main() -> None:
        async with Backend(auto=True) as backend:
            upstream = {"url": backend.url, "capacity": 100, **HEALTHY}
            async with gateway(upstream, priority_scheduler={"enabled": True}) as running:
                assert not running.admission.problems
                assert not running.admission.plain
                [warning] = [line for line in running.admission.loaded.warnings if "142" in line]
                assert "is 100" in warning
                assert "100 slots, reservations reduced from 142 to 99" in running.describe()
                head, body = await fetch(running.data_listener.url)
                assert (head.status, body) == (200, b"done")
                head, body = await fetch(running.admin_listener.url, "GET", "/readyz")
                assert head.status == 200
                assert json.loads(body) == {
                    "status": "ok",
                    "reservations": [
                        {"pool": "default", "asked": 142, "reserved": 99, "slots": 100}
                    ],
                }
                _, page = await fetch(running.admin_listener.url, "GET", "/metrics")
                for name, number in [("reserved", 70), ("reserved_asked", 100)]:
                    line = f'fairlead_gateway_{name}{{class="interactive",pool=""}} {number}.0'
                    assert line.encode() in page

    run(main())


def test_c5_reservations_that_do_not_fit_leave_the_plain_limiter():
    scheduler = {"enabled": True, "reservations_exceed": "fallback"}

    async def main() -> None:
        async with Backend(auto=True) as backend:
            upstream = {"url": backend.url, "capacity": 100, **HEALTHY}
            async with gateway(upstream, priority_scheduler=scheduler) as running:
                assert running.admission.pools[""].slots == 100
                [problem] = running.admission.problems
                assert "142" in problem
                assert "100" in problem
                head, body = await fetch(running.data_listener.url)
                assert (head.status, body) == (200, b"done")
                head, body = await fetch(running.admin_listener.url, "GET", "/readyz")
                assert head.status == 200
                assert b"degraded" in body
        for capacity, fits in ((178, True), (177, False)):
            loaded = load({"capacity": capacity, "priority_scheduler": scheduler})
            assert bool(loaded.lines) != fits
            assert all("178" in line and "177" in line for line in loaded.lines)

    run(main())


def test_c6_a_full_queue_is_429():
    async def main() -> None:
        async with site(1, classes={"default": {"queue_size": 0}}) as here:
            holder, held = await here.running_one()
            status, code, head = await answered(await here.ask(path="/v1/chat/completions"))
            assert (status, code) == (429, "scheduler_queue_full")
            assert head.get("content-type") == "application/json"
            assert int(head.get("retry-after")) >= 1
            held.answer()
            assert await fine(holder) == b"done"
            await here.quiet()

    run(main())


def test_c7_a_wait_that_is_too_long_is_408_and_its_place_is_free_at_once():
    async def main() -> None:
        async with site(
            1, classes={"default": {"queue_size": 1, "queue_timeout": "200ms"}}
        ) as here:
            holder, held = await here.running_one()
            took, (status, code, _) = await elapsed(answered(await here.waiting()))
            assert (status, code) == (408, "scheduler_queue_timeout")
            assert 0.1 < took < 5
            last = await here.waiting()
            assert here.depth() == 1, "a queue of one takes the next"
            held.answer()
            await fine(holder)
            (await here.backend.arrival()).answer()
            await fine(last)
            await here.quiet()

    run(main())


def test_c8_the_higher_class_goes_first():
    async def main() -> None:
        async with site(1, classes=NO_PREEMPTION) as here:
            holder, held = await here.running_one()
            await here.waiting("bulk", path="/bulk")
            await here.waiting("interactive", path="/interactive")
            held.answer()
            await fine(holder)
            for path in ("/interactive", "/bulk"):
                next_one = await here.backend.arrival()
                assert next_one.target == path
                assert here.backend.arrivals.empty()
                next_one.answer()
            await here.quiet()

    run(main())


@pytest.mark.parametrize("how", ["reported", "registered", "recovered"])
def test_c9_more_capacity_drains_the_queue(how):
    async def main() -> None:
        backend = Backend()
        backend.health_document = {"max_running_requests": 1}
        async with Backend() as other, site("reported", backend=backend) as here:
            if how == "recovered":
                other.health_status = 500
                document = {"url": other.url, "capacity": 1, "health": "/health"}
                assert (await here.operate("POST", "/workers", document))[0].status < 300
            _, first = await here.running_one()
            waiting = await here.waiting()
            if how == "reported":
                backend.health_document = {"max_running_requests": 2}
            elif how == "registered":
                document = {"url": other.url, "capacity": 1, "health": "/health"}
                assert (await here.operate("POST", "/workers", document))[0].status < 300
            else:
                other.health_status = 200
            second = await (backend if how == "reported" else other).arrival()
            assert here.gauge("capacity") == 2
            second.answer()
            await fine(waiting)
            # And down again: the queue grows, nobody is turned away.
            if how == "reported":
                backend.health_document = {"max_running_requests": 1}
            else:
                other.health_status = 500
            await until(lambda: here.gauge("capacity") == 1)
            await here.waiting()
            first.answer()
            (await backend.arrival()).answer()
            await here.quiet()

    run(main())


def test_c10_preemption_end_to_end():
    async def main() -> None:
        async with site(1) as here:
            victim, first = await here.running_one("bulk", path="/v1/completions")
            by, second = await here.running_one("interactive")
            status, code, head = await answered(victim)
            assert (status, code) == (503, "scheduler_preempted")
            assert head.get("retry-after") == "1"
            assert head.get("x-fairlead-preempted") == head.get("x-smg-preempted") == "true"
            await within(first.gone.wait())
            second.answer()
            assert await fine(by) == b"done"
            await here.quiet()

    run(main())


def test_c11_after_the_first_byte_nobody_is_preempted():
    async def main() -> None:
        async with site(1, classes={"interactive": {"queue_timeout": "200ms"}}) as here:
            victim, held = await here.streaming("bulk")
            status, code, _ = await answered(await here.ask("interactive"))
            assert (status, code) == (408, "scheduler_queue_timeout")
            assert not held.gone.is_set()
            held.event("second")
            held.finish()
            assert await victim.chunk() == b"data: second\n\n"
            assert await victim.chunk() == b""
            await here.quiet()

    run(main())


def test_c11_a_head_alone_is_not_a_byte_and_nothing_follows_a_503():
    async def main() -> None:
        async with site(1) as here, connected(here.url) as victim:
            victim.request("GET", "/victim", [("x-smg-priority", "bulk")])
            held = await here.backend.arrival()
            held.stream()
            by, second = await here.running_one("interactive")
            assert (await answered(victim))[:2] == (503, "scheduler_preempted")
            held.event("too late")
            second.answer()
            await fine(by)
            victim.request("GET", "/again")  # the connection is good for the next request
            (await here.backend.arrival()).answer(body=b"clean")
            assert await fine(victim) == b"clean"
            await here.quiet()

    run(main())


def test_c12_a_starved_request_is_admitted_although_nothing_is_ever_released():
    async def main() -> None:
        classes = {
            "interactive": {"reserved_floor": 1},
            "bulk": {"starvation_threshold": "200ms", "queue_timeout": "30s"},
        }
        async with site(1, classes=classes, scheduler={"lend_reservations": False}) as here:
            client = await here.ask("bulk")
            took, held = await elapsed(here.backend.arrival())
            assert took < 5
            assert here.gauge("promotions_total", **{"class": "bulk"}) == 1
            held.answer()
            await fine(client)
            await here.quiet()

    run(main())


def test_a_slot_returns_with_the_body_and_not_before():
    async def main() -> None:
        async with site(1) as here:
            first, held = await here.streaming()
            second = await here.waiting()
            held.event("more")
            await first.chunk()
            assert here.backend.arrivals.empty()
            held.finish()
            (await here.backend.arrival()).answer()
            await fine(second)
            first, held = await here.streaming()
            second = await here.waiting()
            first.reset()
            await asyncio.wait_for(held.gone.wait(), 10)
            (await here.backend.arrival()).answer()
            await fine(second)
            await here.quiet()

    run(main())


@pytest.mark.parametrize(
    "case",
    [
        test_c2_two_hundred_race_for_sixty_four_slots,
        test_c7_a_wait_that_is_too_long_is_408_and_its_place_is_free_at_once,
        test_c10_preemption_end_to_end,
        test_c11_after_the_first_byte_nobody_is_preempted,
        test_c12_a_starved_request_is_admitted_although_nothing_is_ever_released,
        test_a_slot_returns_with_the_body_and_not_before,
    ],
    ids=lambda case: case.__name__.split("_")[1],
)
def test_the_same_on_uvloop(case, monkeypatch):
    monkeypatch.setitem(globals(), "run", run_on_uvloop)
    case()
