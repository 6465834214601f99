"""`fairlead serve` ended by a signal: each door finishes what it has begun.  Real processes, sockets and signals."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.gateway.rig import Backend, Client, connected, within
from tests.server.rig import GATEWAY, LONGEST, Process, begun, document, followed, process, run

GRACE = "25s"  # far longer than the tests need: whoever waits it out is seen by its time limit
JSON = [("content-type", "application/json")]


@asynccontextmanager
async def serving(
    folder: Path, environ: Mapping[str, str] | None = None, **sections: Any
) -> AsyncIterator[Process]:
    """Serve these doors in a process of its own."""
    said = {"server": {"listen": "127.0.0.1:0", "shutdown_grace": GRACE}, **sections}
    (folder / "fairlead.yaml").write_text(json.dumps(said))  # JSON is YAML
    async with process(folder, **(environ or {})) as server:
        await begun(server)
        yield server


async def link(server: Process, door: str, name: str) -> str:
    doors = (await document(server.url, "/api/v1/overview"))["doors"]
    found: str = next(one for one in doors if one["name"] == door)["links"][name]
    return found


async def until_waiting(server: Process, gate: str) -> None:
    async with asyncio.timeout(LONGEST):
        while (await document(server.url, f"/api/v1/gates/{gate}/waiting"))["total"] != 1:
            pass


async def drains(server: Process, door: str = "", snapshots: int = 2) -> None:
    """Send the signal, and see the end begin: not ready, and nobody new is let in at the door's address.

    Whoever cuts what runs does it within the next turns of the server, so that it is given some: half a second goes
    by between the snapshots that it sends, and it sends none once its doors have ended.
    """
    server.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(LONGEST):
        while (await document(server.url, "/readyz"))["status"] != "draining":
            pass
        while door:
            try:
                async with connected(door):
                    pass
            except ConnectionError:
                break
        await followed(server.url, snapshots)


def post(client: Client, path: str, content: Any) -> None:
    client.request("POST", path, JSON, json.dumps(content).encode())


def test_a_request_in_flight_and_one_that_waits_are_answered(tmp_path: Path):
    async def test() -> None:
        async with Backend() as backend:
            upstreams = [{"url": backend.url, "capacity": 1}]
            gateway = GATEWAY | {"upstreams": upstreams, "shutdown_grace": GRACE}
            async with serving(tmp_path, gateway=gateway) as server:
                proxy = await link(server, "gateway", "proxy")
                async with connected(proxy) as first, connected(proxy) as second:
                    first.request("GET", "/v1/first")
                    in_flight = await backend.arrival()
                    second.request("GET", "/v1/second")
                    await until_waiting(server, "gateway/default")
                    await drains(server, proxy)
                    assert not in_flight.gone.is_set()
                    in_flight.answer(body=b"the first")
                    head, body = await first.response()
                    assert (head.status, body) == (200, b"the first")
                    (await backend.arrival()).answer(body=b"the second")
                    head, body = await second.response()
                    assert (head.status, body) == (200, b"the second")
                assert await server.ended() == 0
                assert "Traceback" not in "".join(server.said)

    run(test)


def test_a_flow_that_is_held_may_end_and_who_waits_gets_his_turn(tmp_path: Path):
    point = {"concurrency": {"max_concurrency": 1}}
    flows = {"http": "127.0.0.1:0", "control_points": {"one": point}}

    async def test() -> None:
        async with serving(tmp_path, flows=flows) as server:
            http = await link(server, "flows", "http")
            content = {"control_point": "one"}
            async with connected(http) as client, connected(http) as other:
                post(client, "/v1/flows/check", content)
                held = json.loads((await client.response())[1])
                assert held["decision"] == "accepted"
                post(client, "/v1/flows/check", content)
                await until_waiting(server, "flows/one")
                await drains(server)
                async with connected(http) as late:
                    post(late, "/v1/flows/check", content)
                    head, body = await late.response()
                    assert head.status == 503
                    assert "shutting down" in json.loads(body)["message"]
                post(other, "/v1/flows/end", {"flow_id": held["flow_id"]})
                assert json.loads((await other.response())[1]) == {"ended": True}
                head, body = await client.response()
                got = json.loads(body)
                assert (head.status, got["decision"]) == (200, "accepted")
                async with connected(http) as late:
                    post(late, "/v1/flows/end", {"flow_id": got["flow_id"]})
                    assert json.loads((await late.response())[1]) == {"ended": True}
            assert await server.ended() == 0
            assert "Traceback" not in "".join(server.said)

    run(test)


# It tells of each batch over a connection and waits there for leave to end it; of the offsets when all is over.
APPLICATION = """
import atexit, json, os, socket
from fairlead.streams import Consumer, StreamApp
from fairlead.testing.streams import MemoryBroker

test = socket.create_connection(("127.0.0.1", int(os.environ["TEST_PORT"]))).makefile("rw")


def tell(**said):
    test.write(json.dumps(said) + "\\n")
    test.flush()


class Orders(Consumer):
    def consume(self, messages):
        tell(batch=[message.value.decode() for message in messages])
        test.readline()


broker = MemoryBroker({"orders": 1})
for value in (b"first", b"second"):
    broker.write("orders", value, partition=0)
# Only the end commits.
app = StreamApp(group="g", concurrency=1, broker=broker, commit_interval="1h")
app.topic("orders", Orders, batch_size=1)
atexit.register(lambda: tell(offsets=list(broker.offsets("g").values())))
"""


def test_a_batch_in_flight_is_finished_and_committed_and_the_next_is_left(tmp_path: Path):
    (tmp_path / "application.py").write_text(APPLICATION)

    async def test() -> None:
        came: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        came = asyncio.get_running_loop().create_future()
        listening = await asyncio.start_server(
            lambda reader, writer: came.set_result((reader, writer)), "127.0.0.1", 0
        )
        port = str(listening.sockets[0].getsockname()[1])
        streams = {"app": "application:app"}
        async with serving(tmp_path, {"TEST_PORT": port}, streams=streams) as server:
            reader, writer = await within(came, LONGEST)

            async def told() -> Any:
                return json.loads(await within(reader.readline(), LONGEST))

            assert await told() == {"batch": ["first"]}
            await drains(server, snapshots=4)
            (app,) = (await document(server.url, "/api/v1/streams"))["apps"]
            assert app["state"] == "stopping"
            writer.write(b"end it\n")
            assert await told() == {"offsets": [1]}
            assert await server.ended() == 0
            assert "Traceback" not in "".join(server.said)
            writer.close()
        listening.close()

    run(test)
