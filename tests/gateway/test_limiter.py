"""Without classes: a plain limiter with a bounded FIFO queue, by choice or because the configuration is wrong."""

import asyncio
import logging
from typing import Any

import pytest

from fairlead.errors import ConfigError
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.testing import run_virtual
from tests.gateway.virtual import (
    Backends,
    Client,
    HoldGate,
    Scene,
    config,
    reading,
    settled,
    ticks,
)

SMALL = {"max_concurrent_requests": 2, "queue_size": 2, "queue_timeout": 5}


class Misconfigured(Scene):
    """The scheduler is on, and wrong: its reservations do not fit."""

    def __init__(self) -> None:
        self.app = HoldGate()
        classes = {"system": {"reserved_floor": 2}, "interactive": {"reserved_floor": 1}}
        scheduler = {"reservations_exceed": "fallback"}
        given = config(2, classes=classes, scheduler=scheduler, fallback=SMALL)
        self.guarded = PriorityMiddleware(self.app, given)
        self.admission = self.guarded.admission
        self.metrics = self.admission.metrics
        assert self.admission.problems


def disabled() -> Scene:
    return Scene(scheduler={"enabled": False}, fallback=SMALL)


@pytest.fixture(params=[disabled, Misconfigured], ids=["disabled", "misconfigured"])
def make(request, caplog):
    caplog.set_level(logging.CRITICAL)
    return request.param


class TestThePlainLimiter:
    def test_is_fifo_whatever_class_is_asked_for(self, make):
        async def main() -> None:
            scene = make()
            running = [await scene.running("bulk") for _ in range(2)]
            waiting = [await scene.waiting(name) for name in ("bulk", "interactive")]
            assert reading(scene.admission, "inflight", **{"class": "default"}) == 2
            for client, held in running:
                await held.answer()
                assert (await client.done()).status == 200
            for client in waiting:
                held = await scene.app.next()
                assert held.path == client.path
            for client in waiting:
                await scene.app.inside[client.path].answer()
                await client.done()
            scene.quiet()

        run_virtual(main())

    def test_has_a_bounded_queue_and_a_timeout(self, make):
        async def main() -> None:
            scene = make()
            running = [await scene.running() for _ in range(2)]
            waiting = [await scene.waiting() for _ in range(2)]
            full = await scene.client("interactive", path="/v1/x").done()
            assert (full.status, full.code) == (429, "scheduler_queue_full")
            assert int(full.head["retry-after"]) >= 1
            for client in waiting:
                await client.done()
                assert (client.status, client.code) == (408, "scheduler_queue_timeout")
            assert asyncio.get_running_loop().time() == 5
            for client, held in running:
                await held.answer()
                await client.done()
            scene.quiet()

        run_virtual(main())

    def test_preempts_nobody_and_holds_no_head_back(self, make):
        async def main() -> None:
            scene = make()
            running = [await scene.running("bulk") for _ in range(2)]
            waiting = await scene.waiting("system", tenant="root")
            for client, held in running:
                assert not held.cancellations
                await held.head()
                assert client.status == 200
            for _, held in running:
                await held.chunk(b"", more=False)
                await held.leave()
            await (await scene.app.next()).answer()
            await waiting.done()
            assert not scene.metrics.preemptions
            scene.quiet()

        run_virtual(main())

    def test_honours_a_clients_own_limit_and_notices_that_it_left(self, make):
        async def main() -> None:
            scene = make()
            running = [await scene.running() for _ in range(2)]
            late = scene.client(headers=[(b"x-request-timeout", b"1")])
            gone = await scene.waiting()
            gone.leave()
            assert (await late.done()).status == 408
            assert asyncio.get_running_loop().time() == 1
            await gone.done()
            for client, held in running:
                await held.answer()
                await client.done()
            scene.quiet()

        run_virtual(main())

    def test_shows_in_the_metrics(self, make):
        async def main() -> None:
            scene = make()
            assert reading(scene.admission, "fallback_active") == 1
            assert reading(scene.admission, "degraded") == (make is Misconfigured)
            assert reading(scene.admission, "capacity") == 2
            assert reading(scene.admission, "reserved") == 0

        run_virtual(main())


def test_a_model_nobody_serves_is_404_without_classes_too():
    async def main() -> None:
        scene = Scene(pool_by="model", scheduler={"enabled": False}, fallback=SMALL)
        scene.admission.follow(Backends(lambda model: "one" if model == "a" else None))
        scene.admission.set_capacities({"one": 1})
        asked: dict[str, Any] = {"method": "POST"}
        asked["headers"] = [(b"content-type", b"application/json")]
        client = await scene.client(body=b'{"model": "b"}', **asked).done()
        assert (client.status, client.code) == (404, "model_not_found")
        for body in (b'{"model": "a"}', b"{}"):
            client, held = await scene.running(body=body, **asked)
            await held.answer()
            assert (await client.done()).status == 200
        scene.quiet()

    run_virtual(main())


def test_without_any_backend_a_named_model_is_503_and_worth_another_try():
    async def main() -> None:
        scene = Scene(pool_by="model", scheduler={"enabled": False}, fallback=SMALL)
        backends = Backends(lambda model: None)
        backends.empty = True
        scene.admission.follow(backends)
        scene.admission.set_capacities({})
        headers = [(b"content-type", b"application/json")]
        client = await scene.client(body=b'{"model": "b"}', method="POST", headers=headers).done()
        assert (client.status, client.code) == (503, "no_healthy_upstream")
        scene.quiet()

    run_virtual(main())


def test_built_in_reservations_at_the_boundary():
    """C5: 178 slots are the fewest that hold the built-in reservations."""
    guarded = PriorityMiddleware(
        HoldGate(), {"capacity": 178, "priority_scheduler": {"enabled": True}}
    )
    assert not guarded.admission.problems
    scheduler = {"enabled": True, "reservations_exceed": "fallback"}
    guarded = PriorityMiddleware(HoldGate(), {"capacity": 177, "priority_scheduler": scheduler})
    [problem] = guarded.admission.problems
    assert "177" in problem
    assert "178" in problem
    assert guarded.admission.plain

    async def main() -> None:
        client = Client(guarded)
        await ticks()
        await guarded.app.inside[client.path].answer()
        assert (await client.done()).status == 200
        settled(guarded.admission)

    run_virtual(main())


def test_disabled_is_not_degraded_and_the_default():
    guarded = PriorityMiddleware(HoldGate())
    assert guarded.admission.plain
    assert not guarded.admission.problems
    assert reading(guarded.admission, "capacity") == 256


def test_strict_raises_with_every_problem():
    broken = config(2, strict=True, classes={"bulk": {"queue_size": -1, "queue_timeout": 0}})
    with pytest.raises(ConfigError) as caught:
        PriorityMiddleware(HoldGate(), broken)
    assert "queue_size" in str(caught.value)
    assert "queue_timeout" in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        "nowhere.yaml",
        {"capacity": "8", "priority_scheduler": {"enabled": True}},
        {"capacity": 8, "priority_scheduller": {"enabled": True}},
        HoldGate(),
    ],
)
def test_what_the_limiter_cannot_stand_in_for_is_raised(given):
    """A limiter of 256 would not protect the 8 that were meant."""
    with pytest.raises(ConfigError):
        PriorityMiddleware(HoldGate(), given)


def test_misconfigured_says_so_aloud(caplog):
    with caplog.at_level(logging.ERROR):
        guarded = PriorityMiddleware(HoldGate(), config(2, classes={"bulk": {"queue_size": -1}}))
    assert guarded.admission.plain
    assert guarded.admission.problems
    assert "queue_size" in caplog.text
