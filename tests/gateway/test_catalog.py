"""The list of models is what the backends that are up serve together."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead.gateway.front import catalog
from tests.gateway.rig import fetch, gateway, read_head, run, until
from tests.gateway.sockets import code


class Engine:
    """A backend that lists models; `answer` is what it says to /v1/models, as status and body."""

    def __init__(self, *names: str, status: int = 200, body: bytes | None = None) -> None:
        cards = [{"id": name, "object": "model", "max_model_len": 8} for name in names]
        self.body = json.dumps({"object": "list", "data": cards}).encode() if body is None else body
        self.status = status
        self.held: asyncio.Event | None = None
        self.asked: list[str] = []  # with which credentials
        self.healthy = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await read_head(reader)
                status, body = self.status, self.body
                if head.first[1] == "/health":
                    status, body = (200 if self.healthy else 503), b"{}"
                elif not head.first[1].rstrip("/").endswith("/v1/models"):
                    status, body = 200, head.first[1].encode()
                else:
                    self.asked.append(head.get("authorization"))
                    if self.held is not None:
                        await self.held.wait()
                lines = f"HTTP/1.1 {status} So\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(lines.encode() + body)
        except Exception:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def before(*engines: Engine, settings: Any = None, **more: Any) -> AsyncIterator[Any]:
    """Run a gateway before engines; `settings` are those of each upstream."""
    servers = [await asyncio.start_server(one.serve, "127.0.0.1", 0) for one in engines]
    upstreams = [
        {
            "url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
            "capacity": 4,
            "health": "/health",
            **extra,
        }
        for server, extra in zip(servers, settings or [{}] * len(engines), strict=True)
    ]
    try:
        async with gateway(*upstreams, **more) as running:
            yield running
    finally:
        for server in servers:
            server.close()


async def models(running: Any, path: str = "/v1/models", **headers: str) -> Any:
    head, body = await fetch(running.data_listener.url, "GET", path, list(headers.items()))
    assert head.status == 200, (head, body)
    assert head.get("content-type") == "application/json"
    return json.loads(body)


async def names(running: Any, **headers: str) -> list[str]:
    document = await models(running, **headers)
    assert document["object"] == "list"
    return [card["id"] for card in document["data"]]


def test_the_list_is_the_union_and_takes_no_slot():
    async def main() -> None:
        async with before(Engine("a", "b"), Engine("b", "c")) as running:
            assert await names(running) == ["a", "b", "c"]
            assert (await models(running))["data"][0]["max_model_len"] == 8  # its own words
            head, body = await fetch(running.data_listener.url, "GET", "/v1/models/c")
            assert (head.status, json.loads(body)["id"]) == (200, "c")
            head, body = await fetch(running.data_listener.url, "GET", "/v1/models/none")
            assert (head.status, code(head, body)) == (404, "model_not_found")
            assert running.admission.metrics.admitted(1) == 0

    run(main())


def test_with_pools_by_model_too():
    async def main() -> None:
        settings = [{"models": ["a"]}, {"models": ["org/b", "org/alias"]}]
        async with before(
            Engine("a", "unrouted"), Engine("org/b"), settings=settings, pool_by="model"
        ) as running:
            assert await names(running) == ["a", "org/alias", "org/b"]
            card = await models(running, "/v1/models/org/alias")
            assert (card["id"], card["object"]) == ("org/alias", "model")
            assert (await models(running, "/v1/models/org%2Fb"))["max_model_len"] == 8

    run(main())


def test_one_backend_without_a_list_of_models_speaks_for_itself():
    async def main() -> None:
        engine = Engine(body=b"whatever it says")
        async with before(engine) as running:
            for path, said in (
                ("/v1/models", b"whatever it says"),
                ("/v1/models/x", b"/v1/models/x"),
            ):
                head, body = await fetch(running.data_listener.url, "GET", path)
                assert (head.status, body) == (200, said)

    run(main())


def test_one_backend_with_a_list_is_restricted_to_it():
    async def main() -> None:
        async with before(Engine("a", "b"), settings=[{"models": ["b"]}]) as running:
            assert await names(running) == ["b"]

    run(main())


def test_a_backend_that_is_down_or_silent_is_left_out(monkeypatch):
    monkeypatch.setattr(catalog, "PATIENCE", 0.2)
    monkeypatch.setattr(catalog, "KEPT", 0.0)

    async def main() -> None:
        fine, silent, gone = Engine("fine"), Engine("silent"), Engine("gone")
        async with before(fine, silent, gone) as running:
            assert await names(running) == ["fine", "silent", "gone"]
            silent.held = asyncio.Event()
            gone.healthy = False
            await until(lambda: len(running.fleet.up) == 2)
            assert await names(running) == ["fine"]
            silent.held.set()
            gone.healthy = True
            await until(lambda: len(running.fleet.up) == 3)
            assert await names(running) == ["fine", "silent", "gone"]

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": 500},
        {"status": 302},
        {"body": b""},
        {"body": b"[1]"},
        {"body": b'{"data": 5}'},
        {"body": b'{"data": [1]}'},
        {"body": b'{"data": [{"id": 5}, {"name": "x"}]}'},
        {"body": b'{"data": [{"id": "x", "y": ' + b"[" * 100_000},
        {"body": b"x" * (catalog.LARGEST_LIST + 10)},
    ],
)
def test_a_backend_without_a_usable_list_adds_what_is_configured_for_it(wrong):
    async def main() -> None:
        async with before(
            Engine("a"), Engine(**wrong), settings=[{}, {"models": ["m"]}]
        ) as running:
            assert await names(running) == ["a", "m"]

    run(main())


def test_where_no_backend_gives_a_list_the_answer_is_a_backend_s():
    async def main() -> None:
        for status in (401, 404):
            async with before(Engine(status=status), Engine(status=status)) as running:
                for path in ("/v1/models", "/v1/models/"):
                    head, _ = await fetch(running.data_listener.url, "GET", path)
                    assert head.status == status

    run(main())


def test_callers_see_what_their_own_credentials_show():
    async def main() -> None:
        one, two = Engine("a"), Engine("b")
        async with before(one, two) as running:
            for key in ("Bearer 1", "Bearer 2", "Bearer 1"):
                assert await names(running, authorization=key) == ["a", "b"]
            assert one.asked == two.asked == ["Bearer 1", "Bearer 2"]  # the third was known

    run(main())


def test_many_callers_ask_the_backends_once():
    async def main() -> None:
        one, two = Engine("a"), Engine("b")
        one.held = asyncio.Event()
        async with before(one, two) as running:
            asking = [asyncio.create_task(names(running)) for _ in range(20)]
            await until(lambda: len(one.asked) == 1)
            asking[0].cancel()  # it began the asking
            one.held.set()
            assert await asyncio.gather(*asking[1:]) == [["a", "b"]] * 19
            assert len(one.asked) == len(two.asked) == 1

    run(main())


def test_what_is_kept_is_bounded():
    async def main() -> None:
        async with before(Engine("a"), Engine("b")) as running:
            for number in range(catalog.MOST_KEPT + 5):
                await names(running, authorization=f"Bearer {number}")
            assert len(running.catalog._known) == catalog.MOST_KEPT

    run(main())


def test_a_list_that_is_not_exempt_is_asked_for_in_turn():
    async def main() -> None:
        async with before(Engine("a"), Engine("b"), exempt=[]) as running:
            assert await names(running) == ["a", "b"]
            assert (await models(running, "/v1/models/b"))["id"] == "b"
            assert running.admission.metrics.admitted(1) == 2

    run(main())


def test_other_methods_and_paths_pass():
    async def main() -> None:
        async with before(Engine("a"), Engine("b")) as running:
            for method, path in (
                ("POST", "/v1/models/a"),
                ("DELETE", "/v1/models/a"),
                ("GET", "/v1/modelsx"),
            ):
                head, body = await fetch(running.data_listener.url, method, path)
                assert (head.status, body.decode()) == (200, path)
            head, _ = await fetch(running.data_listener.url, "GET", "/v1/models?limit=5")
            assert head.status == 200

    run(main())


def test_the_configuration_of_a_list_follows_a_reload():
    async def main() -> None:
        async with before(Engine("a", "b"), Engine("c")) as running:
            assert await names(running) == ["a", "b", "c"]
            loaded = running.admission.loaded
            first, second = loaded.settings.upstreams
            upstreams = [first.model_copy(update={"models": ["b"]}), second]
            settings = loaded.settings.model_copy(update={"upstreams": upstreams})
            running.retune(loaded._replace(settings=settings))
            assert await names(running) == ["b", "c"]

    run(main())
