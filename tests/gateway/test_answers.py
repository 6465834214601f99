"""What a client is told: complete errors in the form its library reads, limits, retry tokens, decisions."""

import asyncio
import json

import pytest

from fairlead.gateway.admission import TOKENS, Admission
from fairlead.testing import run_virtual
from tests.gateway.virtual import Client, Scene

CHUNKED = (b"transfer-encoding", b"chunked")
DECISION = (b"x-fairlead-decision", b"1")


async def refusal(scene: Scene, code: str, path: str) -> Client:
    """Have one request refused in the way that has this code."""
    if code == "no_healthy_upstream":
        scene.admission.set_capacities({"": 0})
        return await scene.client(path=path, headers=[DECISION]).done()
    if code == "body_too_large":
        return await scene.client(path=path, headers=[(b"content-length", b"999"), DECISION]).done()
    name = "bulk" if code == "scheduler_preempted" else "default"
    _, held = await scene.running(name, path=path, headers=[DECISION])
    if code == "scheduler_preempted":
        victim = scene.client("bulk", path=path, headers=[DECISION])
        await held.answer()
        await scene.app.next()
        scene.client("interactive")
        return await victim.done()
    if code == "scheduler_queue_full":
        await scene.waiting(path="/waits")
    return await scene.client(path=path, headers=[DECISION]).done()


STATUS = {
    "scheduler_queue_full": 429,
    "scheduler_queue_timeout": 408,
    "scheduler_preempted": 503,
    "no_healthy_upstream": 503,
    "body_too_large": 413,
}


class TestForms:
    @pytest.mark.parametrize("code", STATUS)
    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1", "/v1x", "/generate"])
    def test_are_complete(self, code, path):
        async def main() -> None:
            scene = Scene(
                classes={"default": {"queue_size": 1, "queue_timeout": 2}},
                limits={"body_bytes": 100},
            )
            client = await refusal(scene, code, path)
            assert client.complete
            assert (client.status, client.code) == (STATUS[code], code)
            document = json.loads(client.body)
            if path == "/v1" or path.startswith("/v1/"):
                assert client.head["content-type"] == "application/json"
                assert set(document) == {"error"}
                assert set(document["error"]) == {"message", "type", "code", "param"}
                assert document["error"]["message"]
            else:
                assert client.head["content-type"] == "application/problem+json"
                assert {"status", "title", "detail", "code", "type"} <= set(document)
                assert document["status"] == client.status
            if STATUS[code] != 413:
                assert int(client.head["retry-after"]) >= 1
            assert code in client.head["x-fairlead-decision"]

        run_virtual(main())

    def test_retry_after_follows_the_drain_rate(self):
        async def main() -> None:
            scene = Scene(classes={"default": {"queue_size": 4}})
            _, held = await scene.running()
            for _ in range(4):
                await scene.waiting()
            for _ in range(3):
                await asyncio.sleep(10)  # one every ten seconds
                await held.answer()
                held = await scene.app.next()
                await scene.waiting()
            full = await scene.client().done()
            assert full.status == 429
            # Three finished in twenty seconds and none since; five are ahead of the next.
            assert 20 <= int(full.head["retry-after"]) <= 60

        run_virtual(main())

    def test_retry_after_forgets_a_quiet_hour(self):
        async def main() -> None:
            scene = Scene(classes={"default": {"queue_size": 4}})
            for _ in range(40):
                client, held = await scene.running()
                await held.answer()
                await client.done()
            await asyncio.sleep(3600)
            _, held = await scene.running()
            for _ in range(4):
                await scene.waiting()
            for _ in range(3):
                await asyncio.sleep(0.5)
                await held.answer()
                held = await scene.app.next()
                await scene.waiting()
            full = await scene.client().done()
            assert full.status == 429
            # Three finished in the last second; five are ahead of the next.
            assert 1 <= int(full.head["retry-after"]) <= 3

        run_virtual(main())


class TestDecision:
    def test_only_when_asked(self):
        async def main() -> None:
            scene = Scene()
            client, held = await scene.running()
            await held.answer()
            assert "x-fairlead-decision" not in (await client.done()).head

        run_virtual(main())

    def test_tells_class_wait_and_reason(self):
        async def main() -> None:
            scene = Scene()
            first, held = await scene.running("interactive", headers=[DECISION])
            second = await scene.waiting("interactive", headers=[DECISION])
            await asyncio.sleep(1.5)
            await held.answer()
            await (await scene.app.next()).answer()
            told = (await first.done()).head["x-fairlead-decision"]
            assert told == 'class=interactive; wait=0.000; reason="admitted at once"'
            told = (await second.done()).head["x-fairlead-decision"]
            assert told == 'class=interactive; wait=1.500; reason="admitted in turn"'

        run_virtual(main())


# A request has its slot before any of its body is read.
STREAMED = {"body_bytes": 100, "body_before_slot": 0}


class TestBodyLimit:
    @pytest.mark.parametrize("length", [b"101", b"8388609", b"9" * 30, b"9" * 5000])
    def test_a_declared_length_beyond_it_is_refused_at_once(self, length):
        async def main() -> None:
            scene = Scene(limits={"body_bytes": 100})
            client = await scene.client(headers=[(b"content-length", length)]).done()
            assert (client.status, client.code) == (413, "body_too_large")
            assert scene.app.arrivals.empty()
            scene.quiet()

        run_virtual(main())

    def test_at_the_limit_it_passes(self):
        async def main() -> None:
            scene = Scene(limits={"body_bytes": 100})
            for header in ((b"content-length", b"100"), CHUNKED):
                client, held = await scene.running(headers=[header], body=[b"x" * 60, b"x" * 40])
                assert len((await held.read())["body"]) == 100
                await held.answer()
                assert (await client.done()).status == 200

        run_virtual(main())

    @pytest.mark.parametrize("priority", ["bulk", "system"])
    @pytest.mark.parametrize("version", ["1.1", "2"])
    def test_a_chunked_body_beyond_it_is_413_before_it_asks_for_a_slot(self, priority, version):
        async def main() -> None:
            scene = Scene(limits={"body_bytes": 100})
            headers = [CHUNKED] if version == "1.1" else []
            client = scene.client(
                priority, tenant="root", headers=headers, body=[b"x" * 60] * 2, version=version
            )
            await client.done()
            assert (client.status, client.code) == (413, "body_too_large")
            assert scene.app.arrivals.empty()
            assert scene.metrics.refused_requests["body_too_large"] == 1
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("priority", ["bulk", "system"])
    @pytest.mark.parametrize("version", ["1.1", "2"])
    def test_one_that_grows_beyond_it_in_the_application_is_413(self, priority, version):
        async def main() -> None:
            scene = Scene(limits=STREAMED)
            headers = [CHUNKED] if version == "1.1" else []
            client = scene.client(
                priority, tenant="root", headers=headers, body=[b"x" * 60] * 2, version=version
            )
            held = await scene.app.next()
            assert len((await held.read())["body"]) == 60
            held.post(held.receive)
            await client.done()
            assert (client.status, client.code) == (413, "body_too_large")
            assert scene.ended("failed") == 1
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("priority", ["bulk", "system"])
    def test_one_that_grows_beyond_it_while_it_waits_is_413_at_once(self, priority):
        async def main() -> None:
            scene = Scene(limits=STREAMED)
            _, first = await scene.running("system", tenant="root")
            body = [b"x" * 60] * 2
            client = scene.client(priority, tenant="root", headers=[CHUNKED], body=body)
            await client.done()
            assert (client.status, client.code) == (413, "body_too_large")
            assert scene.depth() == 0
            await first.answer()
            scene.quiet()

        run_virtual(main())

    def test_http_2_needs_no_header_to_bring_a_body(self):
        async def main() -> None:
            scene = Scene(limits={"body_bytes": 100})
            client = scene.client(version="2", body=b"x" * 101)
            await client.done()
            assert (client.status, client.code) == (413, "body_too_large")
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("priority", ["bulk", "system"])
    def test_an_application_that_makes_its_own_answer_of_it_is_not_heard(self, priority):
        async def main() -> None:
            scene = Scene(limits=STREAMED | {"body_bytes": 10})

            async def app(scope, receive, send):
                try:
                    await receive()
                except Exception:
                    await send({"type": "http.response.start", "status": 400, "headers": []})
                    await send({"type": "http.response.body", "body": b"mine"})

            scene.guarded.app = app
            client = scene.client(priority, tenant="root", headers=[CHUNKED], body=b"x" * 11)
            assert (await client.done()).status == 413
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("priority", ["bulk", "system"])
    @pytest.mark.parametrize("raises", [False, True])
    def test_once_the_head_has_gone_there_is_no_second_one(self, priority, raises):
        async def main() -> None:
            scene = Scene(limits=STREAMED | {"body_bytes": 10})

            async def app(scope, receive, send):
                await send({"type": "http.response.start", "status": 200, "headers": []})
                try:
                    await receive()
                except Exception:
                    if raises:
                        raise

            scene.guarded.app = app
            client = scene.client(priority, tenant="root", headers=[CHUNKED], body=b"x" * 11)
            try:
                await client.task
            except Exception:
                assert raises
            client.check()
            assert client.status == (413 if priority == "bulk" else 200)
            scene.quiet()

        run_virtual(main())


class TestRetryTokens:
    async def preempt(self, scene: Scene, token: str | None) -> tuple[Client, Client]:
        """Run a bulk request with this token against a preemptor; tell both."""
        headers = [] if token is None else [(b"x-fairlead-retry-token", token.encode())]
        victim, held = await scene.running("bulk", headers=headers)
        by = scene.client("interactive", headers=[(b"x-request-timeout", b"1")])
        await asyncio.sleep(2)
        if victim.task.done():
            await (await scene.app.next()).answer()
        else:
            await held.answer()
        return await victim.done(), await by.done()

    def test_a_request_is_preempted_three_times_at_most(self):
        async def main() -> None:
            scene = Scene()
            token = None
            for _ in range(3):
                victim, by = await self.preempt(scene, token)
                assert (victim.status, by.status) == (503, 200)
                token = victim.head["x-fairlead-retry-token"]
            victim, by = await self.preempt(scene, token)
            assert (victim.status, by.status) == (200, 408)
            scene.quiet()

        run_virtual(main())

    def test_a_token_is_good_once(self):
        async def main() -> None:
            scene = Scene()
            token = None
            for _ in range(3):
                victim, _ = await self.preempt(scene, token)
                token = victim.head["x-fairlead-retry-token"]
            assert (await self.preempt(scene, token))[0].status == 200
            assert (await self.preempt(scene, token))[0].status == 503
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("token", ["", "3", "AAAA", "A" * 24, "x" * 8000, "a,b", "\xff"])
    def test_a_forged_one_gives_nothing(self, token):
        async def main() -> None:
            scene = Scene()
            for _ in range(4):
                assert (await self.preempt(scene, token))[0].status == 503
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("answer", [429, 408, 503])
    def test_the_count_survives_a_refusal_on_the_way(self, answer):
        async def main() -> None:
            scene = Scene(classes={"bulk": {"queue_size": 1, "queue_timeout": 5}})
            token = ""
            for _ in range(3):
                victim, _ = await self.preempt(scene, token)
                token = victim.head["x-fairlead-retry-token"]
            holder, held = await scene.running("interactive")
            waiter = await scene.waiting("bulk") if answer == 429 else None
            if answer == 503:
                scene.admission.set_capacities({"": 0})
            headers = [(b"x-fairlead-retry-token", token.encode())]
            refused = await scene.client("bulk", headers=headers).done()
            assert refused.status == answer
            scene.admission.set_capacities({"": 1})
            await held.answer()
            await holder.done()
            if waiter is not None:
                await (await scene.app.next()).answer()
                await waiter.done()
            token = refused.head["x-fairlead-retry-token"]
            assert (await self.preempt(scene, token))[0].status == 200
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("how", ["fails", "leaves the queue", "leaves", "is too large"])
    def test_a_retry_that_is_not_served_keeps_its_token(self, how):
        async def main() -> None:
            scene = Scene(limits={"body_bytes": 10})
            token = ""
            for _ in range(3):
                victim, _ = await self.preempt(scene, token)
                token = victim.head["x-fairlead-retry-token"]
            headers = [(b"x-fairlead-retry-token", token.encode())]
            if how == "is too large":
                headers.append((b"content-length", b"11"))
                assert (await scene.client("bulk", headers=headers).done()).status == 413
            elif how == "leaves the queue":
                holder, held = await scene.running("interactive")
                client = await scene.waiting("bulk", headers=headers)
                client.leave()
                await client.done()
                await held.answer()
                await holder.done()
            else:
                client, held = await scene.running("bulk", headers=headers)
                if how == "fails":
                    await held.answer(status=502)
                else:
                    client.leave()
                    await held.leave()
                await client.done()
            assert (await self.preempt(scene, token))[0].status == 200
            scene.quiet()

        run_virtual(main())

    def test_memory_is_bounded(self):
        admission = Admission(None)
        tokens = [admission.issue_token(1) for _ in range(TOKENS + 5)]
        assert len(set(tokens)) == len(tokens)
        assert len(admission._tokens) == TOKENS
        assert admission.redeem_token(tokens[0]) == 0
        assert admission.redeem_token(tokens[-1]) == 1
