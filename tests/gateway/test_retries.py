"""Retries: what is repeated, where, and within which budget."""

import asyncio
import json
import random
import socket
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway.retries import LEAST, WINDOW, Budget
from fairlead.gateway.settings import Upstream
from tests.gateway.proxies import proxied
from tests.gateway.rig import Backend, Client, connected
from tests.gateway.rig import run_on_uvloop as run


@given(
    st.lists(st.tuples(st.sampled_from(["request", "retry"]), st.floats(0, 0.5)), max_size=400),
    st.floats(0, 1),
)
def test_retries_stay_within_the_budget_of_the_last_seconds(verbs, share):
    budget, now = Budget(share), 1000.0
    requests: list[float] = []
    retries: list[float] = []
    for verb, later in verbs:
        now += later
        if verb == "request":
            budget.count(now)
            requests.append(now)
            continue
        before = sum(at > now - WINDOW + 0.1 for at in retries)
        possible = max(LEAST, share * sum(at > now - WINDOW - 0.1 for at in requests))
        if budget.allows(now):
            budget.spend(now)
            retries.append(now)
            assert before < possible
        else:
            assert sum(at > now - WINDOW - 0.1 for at in retries) >= LEAST


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("method", "path", "repeated"),
    [("GET", "/x", True), ("PUT", "/x", True), ("POST", CHAT, True), ("POST", "/x", False)],
)
@pytest.mark.parametrize("fault", ["reset", 502, 503, 504, "full", 500])
def test_what_is_safe_to_repeat_is_answered_by_another_backend(method, path, repeated, fault):
    async def main() -> None:
        async with (
            Backend() as one,
            Backend(auto=True) as two,
            proxied(one, two) as (url, _),
            connected(url) as client,
        ):
            client.request(method, path, body=b"hi")
            held = await one.arrival()
            assert held.body == b"hi"
            if fault == "reset":
                held.die()
            elif fault == "full":
                held.answer(503, b"no", [("retry-after", "1")])
            else:
                held.answer(fault, b"no")
            head, _ = await client.response()
            again = repeated and fault != 500
            assert two.seen == again
            own = {"reset": 502, "full": 503}.get(fault, fault)
            assert head.status == (200 if again else own)

    run(main())


def test_no_more_tries_than_attempts_and_none_where_inference_is_not_repeated():
    async def main() -> None:
        retries = {"attempts": 2, "inference": False}
        async with (
            Backend() as one,
            Backend() as two,
            Backend() as three,
            proxied(one, two, three, retries=retries) as (url, _),
            connected(url) as client,
        ):
            client.request("GET", "/")
            (await one.arrival()).answer(503, b"one")
            (await two.arrival()).answer(503, b"two")
            assert (await client.response())[1] == b"two"
            client.request("POST", CHAT, body=b"x")
            (await three.arrival()).answer(503, b"three")
            assert (await client.response())[1] == b"three"

    run(main())


def closed_port() -> str:
    """Return the URL of a port that refuses connections."""
    listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_connection_that_cannot_be_opened_costs_no_attempt_and_no_budget(method, monkeypatch):
    monkeypatch.setattr("fairlead.gateway.retries.LEAST", 0)

    async def main() -> None:
        dead = [closed_port() for _ in range(4)]
        async with Backend(auto=True) as alive, proxied(*dead, alive) as (url, fleet):
            for upstream in fleet._upstreams.values():
                upstream.nudge.clear()
            async with connected(url) as client:
                assert (await client.ask(method, "/x", body=b"hi"))[0].status == 200
            assert alive.seen == 1

    run(main())


def test_connections_are_not_tried_elsewhere_where_the_configuration_says_so():
    async def main() -> None:
        retries = {"on": ["reset"]}
        async with (
            Backend(auto=True) as alive,
            proxied(closed_port(), alive, retries=retries) as (url, _),
            connected(url) as client,
        ):
            assert (await client.ask("GET", "/x"))[0].status == 503
            assert alive.seen == 0

    run(main())


def test_a_lone_backend_that_fails_does_not_use_up_the_budget():
    async def main() -> None:
        off = {"enabled": False}
        async with (
            Backend() as one,
            Backend(auto=True) as two,
            proxied(one, outliers=off) as (url, fleet),
            connected(url) as client,
        ):
            for _ in range(2 * LEAST):
                client.request("GET", "/x")
                (await one.arrival()).answer(503, b"no")
                assert (await client.response())[0].status == 503
            fleet.add(Upstream(url=two.url, capacity=8))
            assert (await client.ask("GET", "/x"))[0].status == 200  # least recently used
            client.request("GET", "/x")
            (await one.arrival()).answer(503, b"no")
            assert (await client.response())[0].status == 200
            assert two.seen == 2

    run(main())


class Backends:
    """Backends that misbehave at random, and note each request that reached them, by its nonce."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.begun: dict[
            str, list[bytes]
        ] = {}  # the bodies of a request, as often as they were read

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                nonce = head.split(b"x-nonce: ")[1].split(b"\r\n")[0].decode()
                bodies = self.begun.setdefault(nonce, [])
                bodies.append(b"")
                mood = self.rng.random()
                if mood < 0.1:
                    break
                length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                bodies[-1] = await reader.readexactly(length)
                if mood < 0.2:
                    break
                status = self.rng.choice([502, 503, 504, 500]) if mood < 0.4 else 200
                more = b"retry-after: 1\r\n" if mood < 0.25 else b""
                writer.write(
                    b"HTTP/1.1 %d So\r\n%bcontent-length: %d\r\n\r\n%b"
                    % (status, more, len(nonce), nonce.encode())
                )
                if mood > 0.9:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        if self.rng.random() < 0.5:
            writer.transport.abort()
        writer.close()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_safe_runs_once_and_what_is_repeated_is_the_same_in_each_byte(seed):
    """Random faults: resets at each point, statuses, hang-ups; each answer belongs to its request."""

    async def main() -> None:
        rng, backends = random.Random(seed), Backends(seed)
        async with AsyncExitStack() as stack:
            urls = []
            for _ in range(3):
                server = await asyncio.start_server(backends.serve, "127.0.0.1", 0)
                stack.callback(server.close)
                urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            off = {"enabled": False}
            url, _ = await stack.enter_async_context(proxied(*urls, outliers=off))
            asked: dict[str, tuple[bool, bytes]] = {}
            repeated = 0

            async def ask(client: Client, nonce: str) -> None:
                method, path, safe = rng.choice(
                    [
                        ("GET", "/x", True),
                        ("PUT", "/x", True),
                        ("POST", CHAT, True),
                        ("POST", "/x", False),
                        ("PATCH", CHAT, False),
                        ("POST", CHAT + "/", False),
                    ]
                )
                size = rng.choice([0, 10, 70_000])
                body = json.dumps({"n": nonce}).encode() + b"x" * size
                asked[nonce] = safe, body
                head, answer = await client.ask(method, path, [("x-nonce", nonce)], body)
                assert answer == nonce.encode() or head.get("x-fairlead-error-code")

            async def converse(number: int) -> None:
                async with connected(url) as client:
                    for turn in range(25):
                        await ask(client, f"{number}-{turn}")

            await asyncio.gather(*(converse(number) for number in range(8)))
            for nonce, bodies in backends.begun.items():
                safe, body = asked[nonce]
                assert len(bodies) == 1 or safe, nonce
                assert len(bodies) <= 2
                assert set(bodies) <= {b"", body}
                repeated += len(bodies) > 1
            assert LEAST / 2 < repeated <= max(LEAST, len(asked) // 10)

    run(main())


BROKEN = {
    "what is not safe is repeated": (
        "fairlead.gateway.proxy.is_safe",
        lambda settings, method, path: True,
    ),
    "the budget is never spent": (
        "fairlead.gateway.retries.Budget.spend",
        lambda budget, now: None,
    ),
    "the budget is never reached": (
        "fairlead.gateway.retries.Budget.allows",
        lambda budget, now: True,
    ),
    "nothing is repeated": (
        "fairlead.gateway.proxy.is_safe",
        lambda settings, method, path: False,
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_rule_of_retries_is_caught(monkeypatch, broken):
    monkeypatch.setattr(*BROKEN[broken])
    with pytest.raises(AssertionError):
        test_what_is_not_safe_runs_once_and_what_is_repeated_is_the_same_in_each_byte(0)
