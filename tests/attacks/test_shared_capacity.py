"""Attacks on a capacity that gateways share: the books are lost, stale, frozen, and gateways come back one by one."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from fairlead.ledger.link import Script
from tests.attacks.shared_books import Scene, Server
from tests.engines import proxy, valkey
from tests.gateway.rig import gateway, run, until
from tests.gateway.test_shared_capacity import SCHEDULED, Counted, asking, shared, upstream
from tests.sizes import FULL

PERIOD = 14.0  # seconds of a history, of the virtual clock
LATE = 4.0  # seconds after which a gateway is back at the latest, while others are served
PARTS = 4
TRIED = {"histories of lost, stale and frozen books": 20_000}
# In each part; a fifth of them would still be too long for CI.
HISTORIES = TRIED["histories of lost, stale and frozen books"] // PARTS if FULL else 25
SEEN = 1.5  # seconds between two cuts of one gateway: it is heard of in between


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    with valkey() as server, redis.Redis(unix_socket_path=server.path) as found:
        yield found


def history(client: redis.Redis, seed: int, text: str) -> Scene:
    """Run a random history: faults of the books, ways that are cut, gateways that start or stand still."""
    client.flushdb()
    server = Server(client, text)
    scene = Scene(server, seed, total=0)
    rng = scene.rng
    scene.total = rng.choice((3, 5, 8, 16))
    scene.drops = rng.choice((0.0, 0.0, 0.05))
    gateways = rng.randint(2, 5)
    for number in range(gateways):
        on_loss = rng.choice(("local", "local", "closed"))
        first = rng.choice((0.0, 0.0, rng.uniform(0, PERIOD)))
        scene.at(scene.now + first, lambda n=number, how=on_loss: join(scene, n, how))
    began = scene.now
    ends = began + PERIOD
    lasting = rng.choice((0.2, 1.0, 30.0))

    asking = [True]

    def ask() -> None:
        if not asking[0]:
            return
        if scene.members:
            busy = rng.randint(1, len(scene.members))  # not all have something to do
            scene.members[rng.randrange(busy)].request(rng.expovariate(1 / lasting))
        scene.at(scene.now + rng.expovariate(3 * scene.total / lasting + 2), ask)

    ask()
    copies: list[Any] = []

    def copy() -> None:
        copies.append(server.copy())
        scene.at(scene.now + rng.uniform(0.1, 2), copy)

    copy()
    at = scene.now
    while at < ends - 6:
        at += rng.uniform(1.5, 5)
        for member_number in range(gateways):
            if rng.random() < 0.5:
                back = rng.uniform(0, LATE)
                scene.at(at, lambda n=member_number, until=at + back: cut(scene, n, until))
        kind = rng.choice(("lost", "stale", "frozen", "flushed", "gone", "stood still"))
        if kind == "lost":
            scene.at(at, lambda: note(scene, "lost", lambda: server.become({}, scene.now)))
        elif kind == "stale":
            scene.at(
                at,
                lambda: note(scene, "stale", lambda: server.become(rng.choice(copies), scene.now)),
            )
        elif kind == "flushed":
            scene.at(at, lambda: note(scene, "flushed", lambda: server.flush(scene.now)))
        elif kind == "stood still":
            lasts = rng.uniform(0, 9)
            number = rng.randrange(gateways)
            scene.at(at, lambda n=number, until=at + lasts: stand_still(scene, n, until))
        else:
            lasts = rng.uniform(0.1, 8)
            scene.at(at, scene.freeze)
            if kind == "gone":  # it comes back without its data
                scene.at(
                    at + lasts, lambda: note(scene, "empty", lambda: server.become({}, scene.now))
                )
            scene.at(at + lasts, scene.thaw)
            at += lasts
    scene.run(ends)
    # And afterwards all of it is used, wherever the requests are.
    asking[0] = False
    scene.run(ends + 10)
    for _ in range(scene.total):
        scene.members[-1].request(1000.0)
    used = scene.now + 5
    while scene.running() < scene.total:
        assert scene.now < used, scene.state()
        scene.run(scene.now + 0.01)
    return scene


def join(scene: Scene, number: int, on_loss: str) -> None:
    """Start a gateway; if the books have just been lost, when those that were there before are back."""
    if not scene.server.frozen and scene.now < scene.server.changed_at + LATE + SEEN:
        scene.at(scene.server.changed_at + LATE + SEEN, lambda: join(scene, number, on_loss))
        return
    scene.note(f"g{number} starts")
    scene.join(f"g{number}", on_loss)


def note(scene: Scene, what: str, deed: Any) -> None:
    scene.note(what)
    deed()


def cut(scene: Scene, number: int, until: float) -> None:
    if number < len(scene.members) and scene.now > scene.members[number].cut_until + SEEN:
        scene.note(f"g{number} cut until {until:.3f}")
        scene.members[number].cut_until = until


def stand_still(scene: Scene, number: int, until: float) -> None:
    if number < len(scene.members):
        member = scene.members[number]
        if member.slots.used(member.slots.name):
            return  # its requests would be taken to have ended with it
        scene.note(f"g{number} stands still until {until:.3f}")
        member.frozen_until = until


SCRIPT = Script("slots").text


@pytest.mark.parametrize("part", range(PARTS))
def test_the_capacity_is_never_exceeded_whatever_becomes_of_the_books(client, part: int):
    for seed in range(HISTORIES):
        scene = history(client, HISTORIES * part + seed, SCRIPT)
        assert scene.most <= scene.total


MUTANTS = [
    ("if pausing then free", "if false then free"),  # who heals first takes all
    ("(alive and elapsed > ask.ttl)", "false"),  # time that stood still counts as silence
    ("now + (ask.fresh or 0)", "now"),  # a gateway that starts in the loss takes all
    ("ask.limit - others - mine.held", "ask.limit"),
]


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_broken_books_are_caught(client, number: int):
    old, new = MUTANTS[number]
    assert old in SCRIPT
    with pytest.raises(AssertionError):
        for seed in range(200):
            history(client, seed, SCRIPT.replace(old, new))


def test_a_gateway_that_heals_first_takes_only_what_no_other_can_hold():
    """Two gateways in front of a backend that counts; the server comes back empty, to one of them first."""

    async def main() -> None:
        with valkey() as server:
            async with (
                proxy(server.path) as way,
                proxy(server.path) as other_way,
                Counted() as backend,
            ):
                given = upstream(backend, 8)
                async with (
                    gateway(given, **SCHEDULED, **shared(way.url)) as one,
                    gateway(given, **SCHEDULED, **shared(other_way.url)) as other,
                    asking(one.data_listener.url, 12),
                    asking(other.data_listener.url, 12),
                ):
                    await until(lambda: backend.held() == 8)
                    assert one.admission.sharing is not None
                    assert other.admission.sharing is not None
                    first, second = one.admission.sharing.ledger, other.admission.sharing.ledger
                    server.kill()
                    await until(lambda: first.lost and second.lost)
                    other_way.refuse()
                    server.start()
                    await until(lambda: not first.lost)
                    returned = time.monotonic()
                    while (
                        time.monotonic() < returned + 2
                    ):  # work ends while one of them is not back
                        backend.answer(1)
                        await asyncio.sleep(0.2)
                    assert second.lost
                    other_way.refuse(False)
                    await until(lambda: not second.lost)
                    backend.answer(4)
                    await until(lambda: backend.held() > 0)
                assert backend.most == 8

    run(main(), 60.0)
