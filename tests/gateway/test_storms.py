"""Storms: 20,000 faults in all, 5,000 races, capacity that flaps; afterwards every gauge is 0 and the books balance."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.capacities import Reserved
from fairlead.gateway.settings import CLASSES
from fairlead.testing import run_virtual
from tests.gateway.rig import Backend, Client, Cut, Held, connected, run
from tests.gateway.sockets import Site, site
from tests.gateway.virtual import Client as Caller
from tests.gateway.virtual import Scene, ticks
from tests.sizes import times

IN_PROCESS, OVER_SOCKETS = 17_000, 3_000  # faults, together 20,000
RACES, SOCKET_RACES = 5_000, 100
TIGHT = {
    "interactive": {"queue_size": 20, "queue_timeout": 0.5, "starvation_threshold": 0.2},
    "default": {"queue_size": 20, "queue_timeout": 0.5, "starvation_threshold": 0.2},
    "bulk": {"queue_size": 20, "queue_timeout": 0.5, "starvation_threshold": 0.2},
}


@pytest.fixture(autouse=True)
def ceiling(monkeypatch, caplog) -> Iterator[None]:
    """See at every start, in every storm, that there was a slot (P5); and keep the logs quiet."""
    take = Reserved.take

    def checked(self, ticket, now):
        assert self.used < self.total, "a slot that is not there"
        return take(self, ticket, now)

    monkeypatch.setattr(Reserved, "take", checked)
    caplog.set_level(logging.CRITICAL)
    for name in ("fairlead.gateway", "uvicorn.error", "fairlead.access"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    yield
    for name in ("fairlead.gateway", "uvicorn.error", "fairlead.access"):
        logging.getLogger(name).setLevel(logging.NOTSET)


class Fault(Exception):
    """What an application of the storm raises."""


class Application:
    """Answers after a while, in pieces, or fails somewhere on the way, as the path says."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        chance, fault = self.chance, scope["path"].rpartition("/")[2]
        await asyncio.sleep(chance.choice((0, 0.01, 0.1)))
        if fault == "raise":
            raise Fault
        status = 502 if fault == "502" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        if fault == "swallow":
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
        for _ in range(chance.randrange(3)):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(chance.choice((0, 0.02)))
        if fault == "cut":
            raise Fault
        if fault == "hang":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await send({"type": "http.response.body", "body": b"y"})


FAULTS = ("raise", "502", "swallow", "cut", "hang", "leave", "cancel", "timeout")


async def one(scene: Scene, chance: random.Random, fault: str, seen: Counter[str]) -> None:
    """One request with one fault."""
    headers = [(b"x-request-timeout", b"0.01")] if fault == "timeout" else []
    caller = Caller(
        scene.guarded,
        f"/{seen.total()}/{fault}",
        chance.choice(CLASSES),
        tenant=chance.choice(("root", "a", "b")),
        headers=headers,
    )
    if fault in {"leave", "cancel", "hang"}:
        await asyncio.sleep(chance.choice((0, 0.005, 0.05, 0.2)))
        caller.task.cancel() if fault == "cancel" else caller.leave()
    try:
        await caller.task
    except Fault:
        assert fault in {"raise", "cut"}
    except asyncio.CancelledError:
        assert fault == "cancel"
    caller.check()
    if caller.status == 503:
        assert caller.complete
        assert b"scheduler_preempted" in caller.body or b"no_healthy" in caller.body
    seen[f"{fault} {caller.status}"] += 1


def happened(seen: Counter[str]) -> int:
    """Count the faults that came to pass: departures, and answers that are neither 200 nor a refusal at the door."""
    return sum(
        count
        for kind, count in seen.items()
        if kind.split()[0] in {"leave", "cancel", "hang"}
        or kind.split()[1] in {"None", "408", "502"}
    )


async def storm(faults: int, flap: bool) -> Counter[str]:
    chance = random.Random(20_000)
    scene = Scene(capacity=8, classes=TIGHT)
    scene.guarded.app = Application(chance)
    seen: Counter[str] = Counter()
    batch = 0
    while happened(seen) < faults:
        batch += 1
        if flap:
            scene.admission.set_capacities({"": 64 if batch % 2 else 1})
        await asyncio.gather(*(one(scene, chance, chance.choice(FAULTS), seen) for _ in range(100)))
    scene.quiet()
    return seen


@pytest.mark.parametrize("flap", [False, True], ids=["steady", "flapping"])
def test_disconnects_errors_and_timeouts_in_process(flap):
    seen = run_virtual(storm(IN_PROCESS // 2, flap))
    assert happened(seen) >= IN_PROCESS // 2
    statuses = Counter[str]()
    for kind, count in seen.items():
        statuses[kind.split()[1]] += count
    assert min(statuses[status] for status in ("None", "200", "408", "429", "502", "503")) > 100


def test_capacity_flapping_in_the_midst_of_everything():
    """1↔64 at every hundredth of a second, while requests run, wait and start."""

    async def main() -> None:
        chance = random.Random(64)
        scene = Scene(capacity=1, classes=TIGHT)
        scene.guarded.app = Application(chance)
        seen: Counter[str] = Counter()
        flapping = True

        async def flap() -> None:
            while flapping:
                for total in (64, 1, 0, 1):
                    scene.admission.set_capacities({"": total})
                    await asyncio.sleep(0.01)

        task = asyncio.create_task(flap())
        for _ in range(20):
            await asyncio.gather(
                *(one(scene, chance, chance.choice(FAULTS), seen) for _ in range(60))
            )
        flapping = False
        await task
        scene.quiet()

    run_virtual(main())


def test_first_byte_against_preemption():
    """5,000 races, each with exactly one winner."""

    async def race(scene: Scene, chance: random.Random) -> str:
        client, held = await scene.running("bulk")
        await held.head()
        byte, preemptor = chance.randrange(4), chance.randrange(4)
        by: Caller | None = None
        for turn in range(4):
            deeds = [turn == byte, turn == preemptor]
            order = chance.sample((0, 1), 2)
            for deed in order:
                if deed == 0 and deeds[0]:
                    held.post(lambda: held.raw_send({"type": "http.response.body", "body": b"won"}))
                    held.post(None)
                elif deed == 1 and deeds[1]:
                    by = scene.client("interactive")
            await asyncio.sleep(0)
        assert by is not None
        inside = await scene.app.next()
        assert inside.path == by.path
        await client.done()
        if client.status == 200:
            assert client.body == b"won"
            assert not held.cancellations
        else:
            assert client.status == 503
            assert b"won" not in client.body
            assert client.complete
        await inside.answer()
        assert (await by.done()).status == 200
        return "byte" if client.status == 200 else "preemption"

    async def main() -> Counter[str]:
        chance = random.Random(5_000)
        scene = Scene()
        wins = Counter([await race(scene, chance) for _ in range(RACES)])
        assert scene.ended("preempted") == wins["preemption"]
        scene.quiet()
        return wins

    wins = run_virtual(main())
    assert wins.total() == RACES
    assert min(wins["byte"], wins["preemption"]) > RACES // 10


def test_first_byte_against_preemption_over_sockets():
    async def main() -> None:
        chance = random.Random(7)
        wins: Counter[int] = Counter()
        async with site(1) as here:
            for _ in range(SOCKET_RACES):
                victim, held = await here.running_one("bulk")
                if chance.random() < 0.5:
                    by = await here.ask("interactive")
                    held.answer(body=b"won")
                else:
                    held.answer(body=b"won")
                    by = await here.ask("interactive")
                inside = await here.backend.arrival()
                inside.answer()
                head, body = await victim.response()
                assert (await by.response())[0].status == 200
                assert head.status in {200, 503}
                assert (body == b"won") == (head.status == 200)
                victim.writer.write_eof()
                assert await victim.ended() == b"", "a byte after the end"
                wins[head.status] += 1
            await here.quiet()
        assert wins.total() == SOCKET_RACES

    run(main(), 60)


# Over real sockets


class Upstream(Backend):
    """Answers what comes as chance will have it: whole, in pieces, wrong, cut, or never."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.health_document = {"max_running_requests": 8}

    async def serve_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            held = await self.arrivals.get()
            loop.call_later(self.chance.choice((0, 0.001, 0.01)), self.respond, held)

    def respond(self, held: Held) -> None:
        deed = self.chance.randrange(7)
        if held.gone.is_set():
            return
        if deed == 0:
            held.answer(502)
        elif deed == 1:
            held.die()
        elif deed == 2:
            held.stream()
            held.event("x")
            held.die()
        elif deed == 3:
            held.raw(b"HTTP/9 nonsense\r\n\r\n")
            held.hang_up()
        elif deed == 4:
            held.stream()
            held.event("x")
            held.finish()
        elif deed == 5:
            held.answer()


async def caller(here: Site, chance: random.Random, seen: Counter[str]) -> None:
    """One connection that asks and then leaves, resets, or reads to the end."""
    async with connected(here.url) as client:
        headers: list[tuple[str, str]] = [("x-fairlead-priority", chance.choice(CLASSES))]
        if chance.random() < 0.2:
            headers.append(("x-request-timeout", "0.002"))
        leaves = chance.randrange(4)
        body = b"x" * chance.choice((1, 100_000)) if chance.random() < 0.3 else None
        client.request("GET" if body is None else "POST", "/v1/x", headers, body)
        if leaves in {0, 1}:
            await asyncio.sleep(chance.choice((0, 0, 0.001, 0.01)))
            client.close() if leaves == 0 else client.reset()
            seen["left"] += 1
            return
        try:
            head, _ = await client.response()
        except (Cut, ConnectionError):
            seen["cut"] += 1
            return
        seen[str(head.status)] += 1
        await nothing_more(client, head.status)


async def nothing_more(client: Client, status: int) -> None:
    """See that not a byte follows the end of a response."""
    try:
        client.writer.write_eof()
    except (OSError, RuntimeError):
        return
    assert await client.ended() == b"", f"a byte after a {status}"


def test_disconnects_resets_and_upstream_errors_over_sockets():
    async def main() -> None:
        chance = random.Random(3_000)
        seen: Counter[str] = Counter()
        upstream = Upstream(chance)
        async with site(
            "reported", backend=upstream, classes=TIGHT, upstream_timeout="30ms"
        ) as here:
            serving = asyncio.create_task(upstream.serve_all())
            faults, asked = 0, 0
            while faults < OVER_SOCKETS or seen["left"] < 2000:
                upstream.health_document = {"max_running_requests": 64 if asked % 200 else 1}
                await asyncio.gather(*(caller(here, chance, seen) for _ in range(50)))
                asked += 50
                faults = seen.total() - seen["200"] - seen["429"] - seen["503"]
            await here.quiet()
            serving.cancel()
            assert seen.total() == asked
            assert min(seen[kind] for kind in ("left", "cut", "502", "504")) > 50, seen

    run(main(), 120)


@pytest.mark.slow
def test_a_larger_storm():
    assert happened(run_virtual(storm(times(100_000), True))) >= times(100_000)


def test_ticks_are_enough():
    """The helper that lets things settle does let them settle: a preempted request needs the most turns."""

    async def main() -> None:
        scene = Scene()
        victim, _ = await scene.running("bulk")
        scene.client("interactive")
        await ticks()
        assert victim.task.done()

    run_virtual(main())
