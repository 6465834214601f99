"""No backend ever runs more requests than it is declared to take, whatever the configuration and whatever fails."""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead.core import Gate
from fairlead.gateway.admission import Admission
from fairlead.gateway.fleet import Fleet
from fairlead.gateway.loading import load
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.gateway.serving import Gateway
from fairlead.gateway.upstream import Upstream
from fairlead.testing import run_virtual
from fairlead.testing.checked import CheckedGate
from tests.gateway.rig import Backend, Head, fetch, gateway, run, until, within
from tests.gateway.virtual import Client

CLASSES = ("bulk", "default", "interactive")
MODELS = "xyz"


def drawn(draw: random.Random) -> dict[str, Any]:
    """Draw a valid configuration of a fleet."""
    listing = draw.random() < 0.6
    upstreams: list[dict[str, Any]] = []
    for number in range(draw.randrange(1, 5)):
        upstream: dict[str, Any] = {
            "url": f"http://h{number}",
            "capacity": draw.choice([0, 1, 2, 3, 8, "reported"]),
        }
        if listing and draw.random() < 0.8:
            upstream["models"] = draw.sample(MODELS, draw.randrange(1, 4))
        upstreams.append(upstream)
    scheduler: dict[str, Any] = {
        "enabled": draw.random() < 0.7,
        "default_max_class": "interactive",
        "reservations_exceed": draw.choice(["scale", "fallback"]),
        "default_max_slots": draw.choice([None, None, 1, "50%"]),
    }
    config: dict[str, Any] = {"upstreams": upstreams, "priority_scheduler": scheduler}
    config["access_log"] = False
    if draw.random() < 0.4:
        config["capacity"] = draw.choice([1, 5, 40])
    if listing and draw.random() < 0.5:
        config["pool_by"] = "model"
    if draw.random() < 0.5:
        config["fallback"] = {"max_concurrent_requests": draw.choice([1, 6, 100])}
    return config


class Watched:
    """A fleet behind the middleware, with an application that calls it as the proxy does and keeps count."""

    def __init__(self, config: dict[str, Any], draw: random.Random, flapping: bool) -> None:
        loaded = load(config)
        assert not loaded.fatal
        self.draw = draw
        self.flapping = flapping
        self.admission = Admission(loaded, lambda name: Gate if flapping else CheckedGate)
        self.fleet = Fleet(loaded.settings, lambda: self.admission.follow_fleet(self.fleet))
        self.admission.follow(self.fleet)
        self.admission.follow_fleet(self.fleet)
        self.guarded = PriorityMiddleware(self.app, self.admission)
        self.running: Counter[str] = Counter()
        self.ran = 0

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        tried: list[Upstream] = []
        model, status = scope.get("fairlead.model"), 503
        for _ in range(3):
            upstream = self.fleet.next(scope.get("fairlead.place"), model, tried)
            if upstream is None:
                break
            tried.append(upstream)
            upstream.in_flight += 1
            self.running[upstream.url] += 1
            self.ran += 1
            declared = upstream.declared
            peak = self.running[upstream.url]
            assert declared is None or peak <= declared, f"{upstream.url} takes {declared}"
            try:
                assert upstream.serves(model)
                await asyncio.sleep(self.draw.choice([0, 0.1, 1]))
                if self.flapping and self.draw.random() < 0.1:
                    self.fleet.unreachable(upstream, "it was unplugged")
                elif self.draw.random() > 0.1:
                    status = 200
                    break
            finally:
                self.running[upstream.url] -= 1
                self.fleet.finished(upstream)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def ask(self) -> Client:
        draw = self.draw
        model = draw.choice([*MODELS, "unlisted", None])
        return Client(
            self.guarded,
            priority=draw.choice(CLASSES),
            method="POST",
            headers=[(b"content-type", b"application/json"), (b"content-length", b"99")],
            body=json.dumps({} if model is None else {"model": model}).encode(),
            address=f"10.0.0.{draw.randrange(3)}",
        )

    def heal(self) -> None:
        """Find a backend well, or another number of slots, as looking at it would."""
        upstream = self.draw.choice(list(self.fleet._upstreams.values()))
        upstream.healthy = True
        if upstream.capacity_rule == "reported":
            upstream.reported = self.draw.choice([None, 1, 5])
        self.fleet._changed()


def storm(seed: int, flapping: bool = True) -> int:
    """Let random requests meet a random fleet; return how many calls were made."""
    draw = random.Random(seed)

    async def main() -> int:
        here = Watched(drawn(draw), draw, flapping)
        clients = []
        for _ in range(60):
            clients.append(here.ask())
            if draw.random() < 0.1:
                draw.choice(clients).leave()
            if draw.random() < 0.3:
                here.heal()
            await asyncio.sleep(draw.choice([0, 0, 0.05, 0.5]))
        while waiting := [client for client in clients if not client.task.done()]:
            here.heal()
            await asyncio.wait([client.task for client in waiting], timeout=1)
        for client in clients:
            if not client.gone:
                await client.done()
            assert client.gone or client.status in {200, 400, 404, 408, 429, 503}
        for upstream in here.fleet._upstreams.values():
            assert (upstream.held, upstream.in_flight) == (0, 0)
        return here.ran

    ran: int = run_virtual(main())
    return ran


@given(st.integers(0, 2**32))
@example(302570)  # a request whose own report of a dead backend has it preempted still gets its 503
@settings(max_examples=60)
def test_no_backend_runs_more_than_is_declared_for_it(seed):
    storm(seed)


@given(st.integers(0, 2**32))
@settings(max_examples=40)
def test_no_request_waits_beside_a_place_that_it_may_have(seed):
    storm(seed, flapping=False)


@pytest.mark.parametrize("mutant", ["places refuse nobody", "a full backend is chosen"])
def test_a_gateway_that_overruns_is_caught(monkeypatch, mutant):
    if mutant == "places refuse nobody":
        monkeypatch.setattr(Fleet, "has_place", lambda *_: True)
        monkeypatch.setattr(Upstream, "full", False)
    else:
        monkeypatch.setattr(Upstream, "full", property(lambda self: self.in_flight > self.capacity))
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        for seed in range(200):
            storm(seed)


def asked(running: Gateway, model: str) -> asyncio.Task[tuple[Head, bytes]]:
    """Ask for a completion, in a task of its own."""
    body = json.dumps({"model": model}).encode()
    fields = [("content-type", "application/json")]
    url = running.data_listener.url
    return asyncio.create_task(fetch(url, "POST", "/v1/chat/completions", fields, body))


async def statuses(tasks: list[asyncio.Task[tuple[Head, bytes]]]) -> set[int]:
    return {head.status for head, _ in await within(asyncio.gather(*tasks))}


def test_the_simplest_configuration_keeps_to_what_it_declares():
    async def main() -> None:
        async with Backend() as backend:
            upstream = {"url": backend.url, "capacity": 8}
            scheduler = {"enabled": True, "default_max_class": "interactive"}
            async with gateway(upstream, priority_scheduler=scheduler) as running:
                assert not running.admission.plain
                clients = [asked(running, "m") for _ in range(30)]
                held = [await backend.arrival() for _ in range(8)]
                gate = running.admission.pools[""].gate
                await until(lambda: gate.waiting == 22)
                for _ in range(22):
                    assert backend.arrivals.empty()
                    held.pop().answer()
                    held.append(await backend.arrival())
                for one in held:
                    one.answer()
                assert await statuses(clients) == {200}

    run(main())


@pytest.mark.parametrize("scheduler", [{"enabled": True}, {"enabled": False}])
def test_a_model_waits_for_the_backend_that_serves_it(scheduler):
    """Both backends are in one pool; one of them serves y, and takes one request."""

    async def main() -> None:
        async with Backend() as both, Backend() as only_x:
            upstreams = [
                {"url": only_x.url, "capacity": 4, "models": ["x"]},
                {"url": both.url, "capacity": 1, "models": ["x", "y"]},
            ]
            async with gateway(*upstreams, priority_scheduler=scheduler) as running:
                gate = running.admission.pools[""].gate
                clients = [asked(running, "y") for _ in range(5)]
                first = await both.arrival()
                await until(lambda: gate.waiting == 4)
                why = gate.explain(next(iter(gate.waiters())), gate.now).text
                assert "every backend that can take model 'y' is full" in why
                others = [asked(running, "x") for _ in range(4)]
                for held in [await only_x.arrival() for _ in range(4)]:
                    held.answer()
                assert await statuses(others) == {200}
                first.answer()
                for _ in range(4):
                    held = await both.arrival()
                    assert both.arrivals.empty()
                    held.answer()
                assert await statuses(clients) == {200}

    run(main())
