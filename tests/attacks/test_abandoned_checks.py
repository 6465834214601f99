"""Attacks by clients that ask for a flow and are gone: what they asked for is held for nobody."""

import asyncio
import json
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from fairlead.flows import messages as wire
from fairlead.flows.serving import FlowServer
from fairlead.flows.table import FlowTable
from fairlead.serving.unread import READ_WITHIN, Unread
from tests.flows.service_rig import active, end, post, serving, until_waiting, url, waiting
from tests.gateway.rig import Client, connected, run, run_on_uvloop, until
from tests.sizes import times

OPEN = {"control_points": {"one": {"concurrency": {"max_concurrency": 10_000}}}}
BODY = json.dumps({"control_point": "one"}).encode()
CHECK = b"POST /v1/flows/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHECK += b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
TRIED = {
    "checks over HTTP that are reset at random": 2000,
    "checks over gRPC that are cancelled at random": 1000,
}
LOOPS = pytest.mark.parametrize("run_on", [run, run_on_uvloop])


def reset(client: Client) -> None:
    """Close a connection by a reset."""
    sock = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


async def ask(client: Client) -> str:
    head, said = await post(client, "/v1/flows/check", {"control_point": "one"})
    assert head.status == 200
    flow_id: str = said["flow_id"]
    return flow_id


@LOOPS
def test_a_check_whose_connection_is_reset_at_any_moment_leaves_nothing_in_flight(run_on):
    async def main() -> None:
        rng = random.Random(7)

        async def one(server: FlowServer) -> None:
            async with connected(url(server)) as client:
                cut = rng.choice((len(CHECK), len(CHECK), rng.randrange(len(CHECK))))
                client.send(CHECK[:cut])
                for _ in range(rng.randrange(12)):
                    await asyncio.sleep(0)
                reset(client)

        async with serving(OPEN) as server:
            for _ in range(times(TRIED["checks over HTTP that are reset at random"]) // 50):
                await asyncio.gather(*(one(server) for _ in range(50)))
            await until(lambda: active(server) == 0)
            assert len(server.table) == 0

    run_on(main())


@LOOPS
def test_a_reset_soon_after_the_answer_ends_the_flow(run_on):
    async def main() -> None:
        async with serving(OPEN) as server:
            async with connected(url(server)) as client:
                for _ in range(3):
                    await ask(client)
                ended = await ask(client)
                _, said = await post(client, "/v1/flows/end", {"flow_id": ended})
                assert said == {"ended": True}
                assert active(server) == 3
                reset(client)
                await until(lambda: active(server) == 0)
            counts = server.flows.points["one"].counts
            assert counts.ended_flows == 4

    run_on(main())


@LOOPS
def test_a_client_that_reads_its_answer_and_closes_keeps_its_flow(run_on):
    async def main() -> None:
        async with serving(OPEN) as server:
            async with connected(url(server)) as client:
                kept = await ask(client)
            await until(lambda: not server.http.server_state.connections)  # type: ignore[union-attr]
            assert active(server) == 1
            _, said = await end(server, kept)
            assert said == {"ended": True}

    run_on(main())


@LOOPS
def test_a_reset_long_after_the_answer_is_no_word_on_the_flow(run_on):
    async def main() -> None:
        async with serving(OPEN) as server, connected(url(server)) as client:
            await ask(client)
            answered = asyncio.get_running_loop().time()
            await until(lambda: asyncio.get_running_loop().time() > answered + READ_WITHIN + 0.2)
            reset(client)
            await until(lambda: not server.http.server_state.connections)  # type: ignore[union-attr]
            assert active(server) == 1

    run_on(main())


def test_clients_that_read_and_clients_that_do_not_are_told_apart():
    async def main() -> None:
        rng = random.Random(3)
        kept = 0

        async def one(server: FlowServer) -> None:
            nonlocal kept
            async with connected(url(server)) as client:
                if rng.random() < 0.5:
                    await ask(client)
                    if rng.random() < 0.5:
                        kept += 1  # it is closed at the end of the block
                        return
                else:
                    client.send(CHECK * rng.choice((1, 1, 3)))
                    for _ in range(rng.randrange(12)):
                        await asyncio.sleep(0)
                reset(client)

        async with serving(OPEN) as server:
            for _ in range(6):
                await asyncio.gather(*(one(server) for _ in range(50)))
            await until(lambda: not server.http.server_state.connections)  # type: ignore[union-attr]
            assert kept > 20
            await until(lambda: active(server) == kept)

    run_on_uvloop(main())


def test_a_reset_frees_a_full_limit_for_the_next():
    async def main() -> None:
        async with serving() as server:
            async with connected(url(server)) as gone, connected(url(server)) as next_one:
                gone.send(CHECK)
                await until(lambda: active(server) == 1)
                next_one.send(CHECK)
                await until_waiting(server)
                reset(gone)
                head, _ = await next_one.response()
                assert head.status == 200
            assert (active(server), waiting(server)) == (1, 0)

    run_on_uvloop(main())


def test_what_was_answered_long_ago_is_forgotten():
    unread, undone = Unread(), []
    for number in range(1000):
        unread.sent({"fairlead.undo": lambda n=number: undone.append(n)}, number / 100)
    unread.lost(ConnectionResetError(), 9.99)
    assert undone == list(range(899, 1000))
    unread.lost(ConnectionResetError(), 9.99)
    assert len(undone) == 101


# gRPC


@asynccontextmanager
async def stub(server: FlowServer) -> AsyncIterator[Any]:
    assert server.grpc is not None
    async with grpc.aio.insecure_channel(server.grpc.address) as channel:
        make = channel.unary_unary(
            f"/{wire.SERVICE}/Check",
            request_serializer=wire.message("CheckRequest").SerializeToString,
            response_deserializer=wire.message("CheckResponse").FromString,
        )
        request = wire.message("CheckRequest")(control_point="one", expect_end=True)
        yield lambda: make(request, timeout=20)


def test_a_call_that_is_cancelled_while_it_waits_leaves_nothing_in_flight():
    async def main() -> None:
        rng = random.Random(5)

        async def one(make: Any) -> None:
            call = make()
            await asyncio.sleep(rng.random() * 0.02)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

        async with serving(grpc=True) as server, stub(server) as make:
            holder = server.flows.flow("one")
            await holder.__aenter__()
            for _ in range(times(TRIED["checks over gRPC that are cancelled at random"]) // 50):
                await asyncio.gather(*(one(make) for _ in range(50)))
            await until(lambda: waiting(server) == 0)
            assert active(server) == 1
            assert holder.end()
            assert active(server) == 0

    run(main())


def test_a_cancellation_that_arrives_with_the_decision_ends_the_flow():
    """The turn comes, and before the answer is written the call is cancelled."""

    async def main() -> None:
        async with serving(grpc=True) as server, stub(server) as make:
            service = server.grpc.service  # type: ignore[union-attr]
            deciding: list[asyncio.Task[Any]] = []
            enter = service._enter

            async def entered(flow: Any) -> None:
                deciding.append(asyncio.current_task())  # type: ignore[arg-type]
                await enter(flow)

            service._enter = entered  # type: ignore[method-assign]
            holder = server.flows.flow("one")
            await holder.__aenter__()
            call = make()
            await until_waiting(server)
            holder.end()  # the turn of the call has come; its task has not run yet
            assert active(server) == 1
            deciding[0].cancel()
            await until(lambda: active(server) == 0)
            with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
                await call

    run(main())


BROKEN = [
    (Unread, "lost", test_a_reset_soon_after_the_answer_ends_the_flow),
    (FlowTable, "abandon", test_a_reset_soon_after_the_answer_ends_the_flow),
]


@pytest.mark.parametrize(("owner", "name", "test"), BROKEN)
def test_a_service_that_does_not_look_back_is_caught(monkeypatch, owner, name, test):
    monkeypatch.setattr(owner, name, lambda *given: None)
    with pytest.raises((AssertionError, TimeoutError)):
        test(lambda main: run(main, 1.5))


def test_a_service_that_takes_every_close_for_a_reset_is_caught(monkeypatch):
    lost = Unread.lost
    monkeypatch.setattr(Unread, "lost", lambda self, _, now: lost(self, ConnectionError(), now))
    with pytest.raises(AssertionError):
        test_a_client_that_reads_its_answer_and_closes_keeps_its_flow(run)


def test_a_flow_that_is_abandoned_twice_is_ended_once():
    table = FlowTable()
    table.abandon("no such flow")
    assert len(table) == 0
