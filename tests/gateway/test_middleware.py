"""Slots are held from admission to the end of the response, and no longer; the first byte settles who wins."""

import asyncio
import json
from typing import Any

import pytest

from fairlead.gateway import PriorityMiddleware
from fairlead.testing import run_virtual
from tests.gateway.virtual import Client, HoldGate, Scene, config, settled, ticks

CHUNKED = (b"transfer-encoding", b"chunked")


class TestASlotIsHeld:
    def test_until_the_body_has_drained(self):
        async def main() -> None:
            scene = Scene()
            client, held = await scene.running()
            other = await scene.waiting()
            await held.head()
            await held.chunk(b"one")
            await held.chunk(b"two")
            assert (scene.inflight(), scene.depth()) == (1, 1)
            await held.chunk(b"", more=False)
            assert (await scene.app.next()).path == other.path, "before the application returned"
            assert held.path in scene.app.inside
            await held.leave()
            assert (await client.done()).body == b"onetwo"
            await scene.app.inside[other.path].answer()
            await other.done()
            scene.quiet()

        run_virtual(main())

    def test_while_the_client_is_slow_to_take_the_last_byte(self):
        async def main() -> None:
            scene = Scene()
            client, held = await scene.running()
            other = await scene.waiting()
            await held.head()
            await held.chunk()
            client.stalled = asyncio.Event()
            last = asyncio.ensure_future(held.chunk(b"end", more=False))
            await ticks()
            assert other.path not in scene.app.inside
            client.stalled.set()
            await last
            assert (await scene.app.next()).path == other.path

        run_virtual(main())

    @pytest.mark.parametrize("sent", ["nothing", "head", "byte"])
    def test_until_the_application_returns_without_an_answer(self, sent):
        async def main() -> None:
            scene = Scene()
            client, held = await scene.running()
            if sent != "nothing":
                await held.head()
            if sent == "byte":
                await held.chunk()
            await held.leave()
            await client.done()
            assert not client.complete
            assert scene.ended("disconnected") == 1
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("streaming", [False, True])
    def test_until_the_client_has_gone(self, streaming):
        async def main() -> None:
            scene = Scene()
            client, held = await scene.running()
            if streaming:
                await held.head()
                await held.chunk()
            assert (await held.read())["type"] == "http.request"
            client.leave()
            assert (await held.read())["type"] == "http.disconnect"
            await held.leave()
            await client.done()
            assert scene.ended("disconnected") == 1
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("after", [None, "head", "byte", "end"])
    def test_until_the_application_raises(self, after):
        async def main() -> None:
            scene = Scene()
            client, held = await scene.running("bulk")
            if after is not None:
                await held.head()
            if after in {"byte", "end"}:
                await held.chunk(b"x", more=after == "byte")
            held.fail(LookupError("broken"))
            with pytest.raises(LookupError, match="broken"):
                await client.done()
            client.check()
            assert scene.ended("failed") == (after != "end")
            assert client.status == (200 if after in {"byte", "end"} else None)
            scene.quiet()

        run_virtual(main())

    def test_until_the_application_ends_with_more_than_an_error(self):
        async def app(scope, receive, send) -> None:
            raise BaseExceptionGroup("ends", [asyncio.CancelledError()])

        async def main() -> None:
            guarded = PriorityMiddleware(app, config())
            client = Client(guarded)
            with pytest.raises(BaseExceptionGroup):
                await client.task
            settled(guarded.admission)

        run_virtual(main())

    def test_a_response_with_a_server_error_has_failed(self):
        async def main() -> None:
            scene = Scene()
            for status, failed in ((500, 1), (502, 2), (499, 2), (404, 2), (204, 2)):
                client, held = await scene.running()
                await held.answer(b"", status)
                assert (await client.done()).status == status
                assert scene.ended("failed") == failed
            assert sum(scene.metrics.completed) == 3
            scene.quiet()

        run_virtual(main())

    def test_a_client_that_leaves_the_queue_frees_its_place_at_once(self):
        async def main() -> None:
            scene = Scene(classes={"default": {"queue_size": 1}})
            holder, held = await scene.running()
            waiting = await scene.waiting()
            waiting.leave()
            await ticks()
            assert waiting.task.done()
            assert not waiting.sent
            assert scene.depth() == 0
            assert scene.refused("client_cancelled") == 1
            assert asyncio.get_running_loop().time() == 0
            other = await scene.waiting()
            await held.answer()
            await holder.done()
            await (await scene.app.next()).answer()
            assert (await other.done()).status == 200
            scene.quiet()

        run_virtual(main())

    def test_a_body_that_comes_while_it_waits_is_handed_on_whole(self):
        async def main() -> None:
            scene = Scene(limits={"body_before_slot": 2})
            holder, held = await scene.running()
            waiting = await scene.waiting(headers=[CHUNKED], stay=False)
            for part in (b"a", b"b", b"c"):
                waiting.give(part, more=True)
            await ticks()
            await held.answer()
            held = await scene.app.next()
            assert (await held.read())["body"] == b"abc"
            last = asyncio.ensure_future(held.read())
            await ticks()
            assert not last.done()
            waiting.give(b"d", more=False)
            assert (await last)["body"] == b"d", "the read that was out when it started is not lost"
            await held.answer()
            await waiting.done()
            await holder.done()
            scene.quiet()

        run_virtual(main())


class TestTheFirstByte:
    async def preemptor(self, scene: Scene) -> Client:
        client = scene.client("interactive", headers=[(b"x-request-timeout", b"1")])
        await ticks()
        return client

    @pytest.mark.parametrize(
        "sent",
        [
            [],
            ["head"],
            ["head", b""],
            ["head", b"", b"", b""],
        ],
    )
    def test_has_not_come_so_it_is_preempted(self, sent):
        async def main() -> None:
            scene = Scene()
            victim, held = await scene.running("bulk", path="/v1/x")
            for part in sent:
                await (held.head() if part == "head" else held.chunk(part))
            assert not victim.sent, "the head is kept back"
            by = await self.preemptor(scene)
            await victim.done()
            assert held.cancellations == 1
            assert (victim.status, victim.code) == (503, "scheduler_preempted")
            assert victim.head["retry-after"] == "1"
            assert victim.head["x-fairlead-preempted"] == victim.head["x-smg-preempted"] == "true"
            assert victim.complete
            assert (await scene.app.next()).path == by.path
            await scene.app.inside[by.path].answer()
            assert (await by.done()).status == 200
            assert scene.metrics.preemptions == {(0, 2): 1}
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("kind", ["http.response.body", "http.response.pathsend"])
    def test_has_come_so_it_is_never_preempted(self, kind):
        async def main() -> None:
            scene = Scene()
            victim, held = await scene.running("bulk")
            await held.head()
            await held.send({"type": kind, "body": b"x", "path": "/x", "more_body": True})
            assert [message["type"] for message in victim.sent] == ["http.response.start", kind]
            by = await self.preemptor(scene)
            assert (await by.done()).status == 408
            assert held.cancellations == 0
            await held.chunk(b"y", more=False)
            await held.leave()
            assert (await victim.done()).status == 200
            scene.quiet()

        run_virtual(main())

    def test_while_it_is_on_its_way_it_has_won(self):
        async def main() -> None:
            scene = Scene()
            victim, held = await scene.running("bulk")
            await held.head()
            victim.stalled = asyncio.Event()
            sending = asyncio.ensure_future(held.chunk(b"x", more=False))
            await ticks()
            by = await self.preemptor(scene)
            assert held.cancellations == 0
            victim.stalled.set()
            await sending
            await held.leave()
            assert (await victim.done()).body == b"x"
            await (await scene.app.next()).answer()
            assert (await by.done()).status == 200
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("name", ["interactive", "system"])
    def test_is_not_waited_for_where_nobody_can_preempt(self, name):
        async def main() -> None:
            scene = Scene(classes={"system": {"can_preempt": False}})
            client, held = await scene.running(name, tenant="root")
            await held.head(201)
            assert client.status == 201, "its head went at once"
            await held.chunk(b"x", more=False)
            await held.leave()
            await client.done()
            scene.quiet()

        run_virtual(main())

    def test_may_be_sent_together_with_the_second(self):
        async def app(scope, receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            one = send({"type": "http.response.body", "body": b"one", "more_body": True})
            two = send({"type": "http.response.body", "body": b"two", "more_body": True})
            await asyncio.gather(one, two)
            await send({"type": "http.response.body", "body": b"end"})

        async def main() -> None:
            guarded = PriorityMiddleware(app, config())
            client = await Client(guarded, priority="bulk").done()
            kinds = [message["type"] for message in client.sent]
            assert kinds == ["http.response.start", *["http.response.body"] * 3]
            settled(guarded.admission)

        run_virtual(main())

    def test_messages_besides_head_and_body_do_not_count(self):
        async def main() -> None:
            scene = Scene()
            _, held = await scene.running("bulk")
            await held.send({"type": "http.response.debug", "info": {}})
            await self.preemptor(scene)
            assert held.cancellations == 1

        run_virtual(main())

    def test_trailers_follow_the_body(self):
        async def main() -> None:
            scene = Scene()
            client, held = await scene.running("bulk")
            await held.head(trailers=True)
            await held.chunk(b"", more=False)
            await held.send({"type": "http.response.trailers", "headers": [], "more": False})
            await held.leave()
            await client.task
            kinds = [message["type"].rpartition(".")[2] for message in client.sent]
            assert kinds == ["start", "body", "trailers"]

        run_virtual(main())

    @pytest.mark.parametrize("stubborn", [1, 2])
    def test_an_application_that_swallows_the_cancellation_cannot_send_any_more(self, stubborn):
        async def main() -> None:
            scene = Scene(stubborn=stubborn)
            victim, held = await scene.running("bulk")
            by = await self.preemptor(scene)
            assert held.cancellations == 1
            assert not victim.task.done()
            assert scene.inflight("bulk") == 1, "it holds its slot until it has come to its end"
            await held.answer(b"too late")
            await victim.done()
            assert (victim.status, victim.code) == (503, "scheduler_preempted")
            await (await scene.app.next()).answer()
            assert (await by.done()).status == 200
            assert scene.ended("preempted") == 1
            scene.quiet()

        run_virtual(main())

    def test_an_application_that_raises_when_it_is_cancelled_is_preempted_all_the_same(self):
        async def main() -> None:
            class Rude(HoldGate):
                async def __call__(self, scope, receive, send):
                    try:
                        await super().__call__(scope, receive, send)
                    except asyncio.CancelledError:
                        raise LookupError("not now") from None

            scene = Scene()
            scene.guarded.app = scene.app = Rude()
            victim, _ = await scene.running("bulk")
            by = await self.preemptor(scene)
            assert (await victim.done()).status == 503
            await scene.app.inside[by.path].answer()
            await by.done()
            scene.quiet()

        run_virtual(main())

    def test_one_preempted_between_its_grant_and_its_start_never_reaches_the_application(self):
        async def main() -> None:
            scene = Scene()
            holder, held = await scene.running("default")
            await held.head()
            await held.chunk()
            victim = await scene.waiting("bulk")
            by = scene.client("interactive")  # its first step comes before the victim's next
            scene.admission.set_capacities({"": 2})
            assert scene.inflight("bulk") == 1
            assert (await victim.done()).status == 503
            assert (await scene.app.next()).path == by.path
            await scene.app.inside[by.path].answer()
            await held.chunk(b"", more=False)
            await held.leave()
            await by.done()
            await holder.done()
            assert scene.ended("preempted") == 1
            assert scene.metrics.admitted(0) == 1
            scene.quiet()

        run_virtual(main())


class TestOtherScopes:
    @pytest.mark.parametrize("kind", ["lifespan", "websocket"])
    def test_pass_through(self, kind):
        async def main() -> None:
            scene = Scene(capacity=0)
            seen = []

            async def app(scope, receive, send):
                seen.append((scope, receive, send))

            scene.guarded.app = app
            call = ({"type": kind, "path": "/v1/x", "headers": []}, object(), object())
            await scene.guarded(*call)
            assert seen == [call]

        run_virtual(main())

    def test_exempt_paths_take_no_slot_and_are_exact(self):
        async def main() -> None:
            scene = Scene(capacity=1, exempt=["/health", "/v1/models"])
            _, held = await scene.running()
            for path in ("/health", "/v1/models"):
                client, inside = await scene.running(path=path)
                await inside.answer()
                assert (await client.done()).status == 200
            assert (scene.inflight(), scene.depth()) == (1, 0)
            for number, path in enumerate(("/health/", "/Health", "/v1/models/x"), 1):
                await scene.waiting(path=path)
                assert scene.depth() == number
            await held.answer()

        run_virtual(main())


@pytest.mark.parametrize("root", ["/api", "/api/"])
def test_paths_are_the_applications_own_where_it_is_mounted_under_another(root):
    async def main() -> None:
        scene = Scene(capacity=1, exempt=["/health"], classes={"bulk": {"queue_size": 0}})
        _, held = await scene.running()

        def mounted(path: str, **options: Any) -> Client:
            client = scene.client(path=path, **options)
            client.scope["root_path"] = root
            return client

        healthy = mounted("/api/health")
        await (await scene.app.next()).answer()
        assert (await healthy.done()).status == 200
        refused = await mounted("/api/v1/chat/completions", priority="bulk").done()
        assert refused.status == 429
        assert "error" in json.loads(refused.body), "the form of OpenAI"
        body = json.dumps({"service_tier": "flex"}).encode()
        said = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        path = "/api/v1/chat/completions"
        flexible = await mounted(path, method="POST", body=body, headers=said).done()
        assert flexible.status == 429, "flex is bulk"
        beside = mounted("/apihealth")
        await ticks()
        assert scene.depth() == 1, "no prefix of a name"
        await held.answer()
        await (await scene.app.next()).answer()
        await beside.done()
        scene.quiet()

    run_virtual(main())


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_slot_is_held_until_a_large_last_message_has_drained(pieces):
    """A server waits for the client before it writes: the end is told apart from the last large piece."""

    async def main() -> None:
        scene = Scene(capacity=1)
        client, held = await scene.running()
        await held.head()
        if pieces == 2:
            await held.chunk(b"first")
        drained = client.takes = asyncio.Event()
        held.post(lambda: held.raw_send({"type": "http.response.body", "body": bytes(1 << 20)}))
        await ticks()
        assert scene.inflight() == 1
        drained.set()
        await ticks()
        assert scene.inflight() == 0
        await held.leave()
        await client.done()
        assert len(client.body) == (1 << 20) + 5 * (pieces == 2)
        scene.quiet()

    run_virtual(main())


def test_without_capacity_the_answer_is_503_at_once():
    async def main() -> None:
        scene = Scene(capacity=0)
        client = await scene.client("interactive", path="/v1/x").done()
        assert (client.status, client.code) == (503, "no_healthy_upstream")
        assert int(client.head["retry-after"]) >= 1
        assert asyncio.get_running_loop().time() == 0
        assert scene.refused("rejected_no_capacity") == 1
        scene.quiet()

    run_virtual(main())
