"""Both clients against a real service: decisions, policies when nobody answers, ends that are never lost, baggage."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import baggage, context

from fairlead.errors import ConfigError, Misuse, Refused, WaitedTooLong
from fairlead.flows.client import FlowClient, SyncFlowClient
from fairlead.flows.remote import RemoteFlow
from fairlead.flows.serving import FlowServer
from tests.flows.service_rig import active, serving, until_waiting, url, waiting
from tests.gateway.rig import run, until, within


@asynccontextmanager
async def both(config: Any = None, **given: Any) -> AsyncIterator[tuple[FlowServer, FlowClient]]:
    async with serving(config) as server, FlowClient(url(server), **given) as client:
        yield server, client


async def in_thread(work: Callable[[], Any]) -> Any:
    return await within(asyncio.to_thread(work))


@pytest.fixture
def nowhere():
    """An address that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent():
    """An address that takes connections and never answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_flow_runs_and_is_ended():
    async def main():
        async with both() as (server, client):
            async with client.flow("one", labels={"user": "u1"}) as flow:
                assert flow.should_run()
                assert (flow.decision, flow.workload, flow.tokens) == ("accepted", "default", 1)
                assert active(server) == 1
            assert active(server) == 0
            assert await flow.end() is False  # a second end is harmless

    run(main())


def test_a_flow_is_entered_once():
    """Else the service would hold what the first turn was granted: one id is all that a flow can end."""

    async def main():
        async with both() as (server, client):
            flow = client.flow("one")
            async with flow:
                with pytest.raises(Misuse, match="one was entered before"):
                    await flow.__aenter__()
                assert active(server) == 1
            with pytest.raises(Misuse, match="one was entered before"):
                await flow.__aenter__()
            assert active(server) == 0

            def work() -> None:
                with SyncFlowClient(url(server)) as twin:
                    turn = twin.flow("one")
                    with turn:
                        with pytest.raises(Misuse, match="one was entered before"):
                            turn.__enter__()
                        assert active(server) == 1
                    with pytest.raises(Misuse, match="one was entered before"):
                        turn.__enter__()
                    assert active(server) == 0

            await in_thread(work)

    run(main())


def test_a_sync_flow_runs_and_is_ended():
    async def main():
        async with serving() as server:

            def work() -> None:
                with SyncFlowClient(url(server)) as client:
                    with client.flow("one", labels={"user": "u1"}) as flow:
                        assert flow.should_run()
                        assert (flow.decision, flow.workload) == ("accepted", "default")
                        assert active(server) == 1
                    assert active(server) == 0
                    assert flow.end() is False

            await in_thread(work)

    run(main())


def test_a_refused_flow_says_why():
    async def main():
        async with both() as (server, client):
            first = await client.start_flow("one")
            async with client.flow("one", timeout=0.05) as flow:
                assert not flow.should_run()
                assert (flow.decision, flow.reject_reason) == ("rejected", "timeout")
                assert flow.denied_status == 503
                assert flow.retry_after is not None
                assert flow.retry_after > 0

            def work() -> None:
                with SyncFlowClient(url(server)) as twin, twin.flow("one", timeout=0) as flow:
                    assert flow.decision == "rejected"

            await in_thread(work)
            assert active(server) == 1
            assert await first.end("error", tokens=1)
            assert server.flows.points["one"].gate.active == 0

    run(main())


def test_a_flow_waits_its_turn_and_one_that_is_cancelled_frees_its_place():
    async def main():
        async with both(check_timeout=None) as (server, client):
            first = await client.start_flow("one")
            second = asyncio.create_task(client.start_flow("one"))
            third = asyncio.create_task(client.start_flow("one"))
            await until_waiting(server, 2)
            second.cancel()
            await until_waiting(server, 1)
            await first.end()
            assert (await within(third)).decision == "accepted"
            assert (active(server), waiting(server)) == (1, 0)

    run(main())


def test_exceptions_pass_through_and_end_the_flow():
    async def main():
        async with both() as (server, client):
            with pytest.raises(KeyError):
                async with client.flow("one"):
                    raise KeyError
            assert active(server) == 0

            def work() -> None:
                with SyncFlowClient(url(server)) as twin, pytest.raises(KeyError), twin.flow("one"):
                    raise KeyError

            await in_thread(work)
            assert active(server) == 0
            counts = server.flows.points["one"].counts
            assert counts.failed_flows == 2

    run(main())


def test_a_cancelled_body_ends_its_flow_however_often_it_is_cancelled():
    async def main():
        async with both() as (server, client):
            entered = asyncio.Event()

            async def body() -> None:
                async with client.flow("one"):
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(body())
            await within(entered.wait())
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # while it says that it ends
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: active(server) == 0)

    run(main())


def test_closing_waits_for_ends_under_way():
    async def main():
        async with serving() as server:
            client = FlowClient(url(server))
            flow = await client.start_flow("one")
            ending = asyncio.create_task(flow.end())
            await asyncio.sleep(0)
            await client.close()
            assert active(server) == 0
            assert await ending
            with pytest.raises(Misuse):
                await client.start_flow("one")

    run(main())


def test_the_decorator_always_ends_the_flow():
    async def main():
        async with both() as (server, client):

            @client.decorate("one", labels=lambda number: {"number": str(number)}, timeout=0.05)
            async def work(number: int) -> int:
                assert active(server) == 1
                return 10 // number

            assert await work(5) == 2
            with pytest.raises(ZeroDivisionError):
                await work(0)
            assert active(server) == 0
            async with client.flow("one"):
                with pytest.raises(WaitedTooLong) as refused:
                    await work(1)
                assert refused.value.retry_after

            twin = SyncFlowClient(url(server))

            @twin.decorate("one", timeout=0, on_reject=lambda: "later")
            def blocking(number: int) -> int | str:
                return 10 // number

            assert await in_thread(lambda: blocking(2)) == 5
            async with client.flow("one"):
                assert await in_thread(lambda: blocking(2)) == "later"
            with pytest.raises(ZeroDivisionError):
                await in_thread(lambda: blocking(0))
            assert active(server) == 0
            twin.close()
            with pytest.raises(Misuse):
                client.decorate("one")(lambda: None)
            with pytest.raises(Misuse):
                twin.decorate("one")(work)

    run(main())


@pytest.mark.parametrize("kind", ["nowhere", "silent"])
def test_nobody_answers_and_the_policy_decides(kind, request):
    where = request.getfixturevalue(kind)
    policies: Any = {"check_timeout": 0.05, "fail_at": {"careful": "closed"}}

    async def main():
        async with FlowClient(where, **policies) as client:
            for point, runs in (("anywhere", True), ("careful", False)):
                async with client.flow(point) as flow:
                    assert (flow.decision, flow.should_run()) == ("unreachable", runs)
                    assert flow.message is not None
                    assert point in flow.message
                assert await flow.end() is False
            with pytest.raises(Refused):
                await client.decorate("careful")(main)()

    run(main())
    with SyncFlowClient(where, **policies) as twin:
        for point, runs in (("anywhere", True), ("careful", False)):
            with twin.flow(point) as blocking:
                assert (blocking.decision, blocking.should_run()) == ("unreachable", runs)
    with SyncFlowClient(where, check_timeout=0.05, fail="closed") as twin:
        assert not twin.start_flow("anywhere").should_run()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"hello"),
        (200, b"[]"),
        (200, b'{"decision": 1}'),
        (401, b'{"detail": "no"}'),
        (404, b""),
        (400, b"Client sent an HTTP request to an HTTPS server."),
        (413, b"[]"),
        (422, b'{"detail": "no"}'),
    ],
)
def test_an_answer_of_another_kind_is_none(status, body):
    flow = RemoteFlow("one", {}, None, "closed")
    flow.answer(status, body)
    assert (flow.decision, flow.should_run(), flow.retry_after) == ("unreachable", False, 1.0)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_question_that_is_refused_as_such_never_runs(status):
    flow = RemoteFlow("one", {}, None, "open")
    flow.answer(status, b'{"status": %d, "detail": "no"}' % status)
    assert (flow.decision, flow.should_run()) == ("rejected", False)
    assert (flow.reject_reason, flow.denied_status, flow.retry_after) == ("invalid", status, None)
    assert str(status) in str(flow.refusal())


LARGE = {"name": "x" * 900_000}


@pytest.mark.parametrize("labels", [{f"label{at}": "" for at in range(300)}, LARGE])
def test_labels_that_the_service_cannot_take_bypass_no_limit(labels):
    async def main():
        async with both() as (server, client):
            async with client.flow("one", labels, timeout=20.0) as flow:
                assert (flow.decision, flow.should_run()) == ("rejected", False)
                assert flow.message is not None
                assert "None" not in flow.message
            ran = client.decorate("one", labels, timeout=20.0)(main)
            with pytest.raises(Refused, match=r"at most 256; there are more|over 65536 bytes"):
                await ran()

            def work() -> None:
                with SyncFlowClient(url(server)) as twin, twin.flow("one", labels, 20.0) as flow:
                    assert (flow.decision, flow.should_run()) == ("rejected", False)

            await in_thread(work)

    run(main())


@pytest.mark.parametrize("value", ["\0", "a\tb", "\x80", "\x85"])
def test_control_characters_in_a_label_bypass_no_limit(value):
    async def main():
        async with both() as (_, client), client.flow("one", {"user": value}, 20.0) as first:
            assert first.decision == "accepted"
            async with client.flow("one", {"user": value, value: ""}, timeout=0) as second:
                assert (second.decision, second.reject_reason) == ("rejected", "timeout")

    run(main())


@pytest.mark.parametrize("tokens", [-1, float("nan"), float("inf"), 2e15, 10**400])
def test_an_end_that_the_service_could_not_read_is_told_and_the_block_still_ends_it(tokens):
    async def main():
        async with both() as (server, client):
            with pytest.raises(Misuse, match="cannot have spent"):
                async with client.flow("one") as flow:
                    await flow.end("ok", tokens)
            assert active(server) == 0

            def work() -> None:
                with SyncFlowClient(url(server)) as twin, pytest.raises(Misuse):  # noqa: SIM117
                    with twin.flow("one", timeout=20.0) as flow:
                        flow.end("ok", tokens)

            await in_thread(work)
            assert active(server) == 0
            flow = await client.start_flow("one")
            with pytest.raises(Misuse, match='"ok" or "error"'):
                await flow.end("fine")
            assert await flow.end("error")

    run(main())


def test_a_wrong_token_is_no_decision():
    async def main():
        async with serving(token="secret") as server:
            async with FlowClient(url(server), token="wrong") as client:
                flow = await client.start_flow("one")
                assert flow.decision == "unreachable"
                assert flow.message is not None
                assert "token" in flow.message
            async with FlowClient(url(server), token="secret") as client:
                assert (await client.start_flow("one")).decision == "accepted"

            def work() -> str:
                with SyncFlowClient(url(server), token="secret") as twin:
                    return twin.start_flow("one", timeout=0).decision

            assert await in_thread(work) == "rejected"

    run(main())


def test_a_service_that_comes_back_is_asked_again():
    async def main():
        async with serving() as server:
            where = url(server)
            port = int(where.rpartition(":")[2])
            client, twin = FlowClient(where), SyncFlowClient(where)
            await (await client.start_flow("one")).end()
            await in_thread(lambda: twin.start_flow("one").end())
        assert (await client.start_flow("one")).decision == "unreachable"
        assert (await in_thread(lambda: twin.start_flow("one"))).decision == "unreachable"
        async with serving(http=f"127.0.0.1:{port}"):
            flow = await client.start_flow("one")
            assert flow.decision == "accepted"
            await flow.end()
            flow = await in_thread(lambda: twin.start_flow("one"))
            assert flow.decision == "accepted"
            await client.close()
            twin.close()

    run(main())


def test_a_restart_between_two_flows_is_not_noticed():
    async def main():
        async with serving() as server:
            where = url(server)
            port = int(where.rpartition(":")[2])
            twin = SyncFlowClient(where)
            await in_thread(lambda: twin.start_flow("one").end())
        async with serving(http=f"127.0.0.1:{port}"):  # the kept connection is dead
            assert (await in_thread(lambda: twin.start_flow("one"))).decision == "accepted"
            twin.close()

    run(main())


def test_connections_are_kept():
    async def main():
        async with both() as (server, client):
            assert server.http is not None
            twin = SyncFlowClient(url(server))
            for _ in range(5):
                await (await client.start_flow("one")).end()
                await in_thread(lambda: twin.start_flow("one").end())
            assert len(server.http.server_state.connections) == 2
            twin.close()

    run(main())


def test_threads_share_a_client():
    async def main():
        async with serving() as server:
            decisions: list[str] = []
            with SyncFlowClient(url(server), check_timeout=20.0) as twin:

                def work() -> None:
                    for _ in range(5):
                        with twin.flow("one") as flow:
                            decisions.append(flow.decision)

                threads = [threading.Thread(target=work) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    await in_thread(thread.join)
            assert decisions == ["accepted"] * 40
            assert active(server) == 0

    run(main())


def test_baggage_becomes_labels_and_explicit_labels_win():
    client = SyncFlowClient("http://127.0.0.1:1")
    held = context.attach(baggage.set_baggage("tier", "free", baggage.set_baggage("user", 7)))
    try:
        assert client.flow("one", {"tier": "paid"}).labels == {"tier": "paid", "user": "7"}
        assert SyncFlowClient("http://127.0.0.1:1", baggage=False).flow("one").labels == {}
    finally:
        context.detach(held)
    assert client.flow("one").labels == {}


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_bad_questions_are_mistakes_of_the_caller(timeout):
    client = SyncFlowClient("http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="timeout"):
        client.flow("one", timeout=timeout)
    with pytest.raises(ConfigError, match="labels"):
        client.flow("one", {"a": 1})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="open or closed"):
        FlowClient("http://127.0.0.1:1", fail="perhaps")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="mapping"):
        client.flow("one", ["tier=paid"])  # type: ignore[arg-type]
    for kind in (FlowClient, SyncFlowClient):
        for bad in ("127.0.0.1:80", "http://", "http://here:port", "http://here:99999", 8088):
            with pytest.raises(ConfigError, match="http"):
                kind(bad)  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as broken:
            kind("http://me:s3cr3t/x@here")
        assert "s3cr3t" not in str(broken.value)
