"""The access log: one line of JSON for every request, whatever became of it."""

import asyncio
import json
import logging

import pytest

from fairlead.testing import run_virtual
from tests.gateway.rig import connected, run
from tests.gateway.sockets import site
from tests.gateway.virtual import Backends, Scene, ticks

JSON = (b"content-type", b"application/json")


class TestTheAccessLog:
    def lines(self, caplog) -> list[dict[str, object]]:
        return [json.loads(r.getMessage()) for r in caplog.records if r.name == "fairlead.access"]

    def test_has_one_line_for_every_request_however_it_ended(self, caplog):
        async def main() -> None:
            scene = Scene(
                access_log=True,
                classes={"default": {"queue_size": 1, "queue_timeout": 2}},
                limits={"body_bytes": 10},
            )
            client, held = await scene.running("interactive", path="/completed")
            await held.answer(b"x", 201)
            await client.done()
            client, held = await scene.running(path="/failed")
            held.fail(LookupError())
            with pytest.raises(LookupError):
                await client.done()
            client, held = await scene.running(path="/cancelled")
            client.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await client.task
            await scene.client(path="/large", headers=[(b"content-length", b"11")]).done()
            holder, held = await scene.running(path="/holder")
            waiting = await scene.waiting(path="/timeout")
            await scene.client(path="/full").done()
            await waiting.done()
            waiting = await scene.waiting(path="/gone")
            waiting.leave()
            await waiting.done()
            await held.answer()
            await holder.done()
            client, held = await scene.running(path="/left")
            client.leave()
            await held.leave()
            await client.done()
            victim, _ = await scene.running("bulk", path="/preempted", tenant='a"\n\x1b[31m')
            scene.client("interactive", path="/by")
            await victim.done()
            await (await scene.app.next()).answer()
            await ticks()

        with caplog.at_level(logging.INFO, "fairlead.access"):
            run_virtual(main())
        found = {str(line["path"]): line for line in self.lines(caplog)}
        assert len(found) == len(self.lines(caplog))
        outcomes = {path: (line["status"], line["outcome"]) for path, line in found.items()}
        assert outcomes == {
            "/completed": (201, "completed"),
            "/failed": (500, "failed"),
            "/cancelled": (499, "disconnected"),
            "/large": (413, "rejected_body_too_large"),
            "/holder": (200, "completed"),
            "/timeout": (408, "rejected_queue_timeout"),
            "/full": (429, "rejected_queue_full"),
            "/gone": (499, "client_cancelled"),
            "/left": (499, "disconnected"),
            "/preempted": (503, "preempted"),
            "/by": (200, "completed"),
        }
        assert found["/timeout"]["wait"] == 2
        assert found["/completed"]["class"] == "interactive"
        assert found["/preempted"]["class"] == "bulk"

    def test_what_a_client_sent_cannot_forge_a_line(self, caplog):
        async def main() -> None:
            scene = Scene(access_log=True)
            client, held = await scene.running(tenant='a"\n{"x":1}', path='/"\r\n\x1b[31m')
            await held.answer()
            await client.done()

        with caplog.at_level(logging.INFO, "fairlead.access"):
            run_virtual(main())
        [record] = [r for r in caplog.records if r.name == "fairlead.access"]
        assert record.getMessage().isprintable()

    def test_can_be_switched_off(self, caplog):
        async def main() -> None:
            scene = Scene(access_log=False)
            client, held = await scene.running()
            await held.answer()
            await client.done()

        with caplog.at_level(logging.INFO, "fairlead.access"):
            run_virtual(main())
        assert not self.lines(caplog)

    def test_names_what_was_refused_before_it_asked_for_a_slot(self, caplog):
        async def main() -> None:
            scene = Scene(access_log=True, pool_by="model")
            scene.admission.follow(Backends(lambda model: "one" if model == "a" else None))
            scene.admission.set_capacities({"one": 1})
            bodies = {"/none": b"{}", "/other": b'{"model": "b"}'}
            for path, body in bodies.items():
                await scene.client(path=path, method="POST", headers=[JSON], body=body).done()

        with caplog.at_level(logging.INFO, "fairlead.access"):
            run_virtual(main())
        found = {line["path"]: (line["status"], line["outcome"]) for line in self.lines(caplog)}
        assert found == {
            "/none": (400, "rejected_model_required"),
            "/other": (404, "rejected_model_not_found"),
        }

    def test_has_a_line_too_for_what_was_refused_before_it_was_a_request(self, caplog):
        raw = {
            "TRACE /trace HTTP/1.1\r\nHost: a\r\n\r\n": ("TRACE", "/trace", 405),
            "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n": ("GET", "http://a/", 400),
            "POST /cl HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n": ("POST", "/cl", 400),
            "GET /many HTTP/1.1\r\n" + "X: 1\r\n" * 101 + "\r\n": ("GET", "/many", 431),
            "GET /slow?key=secret HTTP/1.1\r\nHost": ("GET", "/slow", 408),
            "\x16\x03\x01\x02": (None, None, 400),
        }

        async def main() -> None:
            async with site(access_log=True, limits={"header_timeout": "300ms"}) as here:
                for text in raw:
                    async with connected(here.url) as client:
                        client.send(text)
                        await client.response()
                        await client.ended()

        with caplog.at_level(logging.INFO, "fairlead.access"):
            run(main())
        lines = self.lines(caplog)
        assert [(line["method"], line["path"], line["status"]) for line in lines] == [*raw.values()]
        codes = ["method_not_allowed", "bad_request", "bad_request", "headers_too_large"]
        codes += ["headers_too_slow", "bad_request"]
        assert [line["outcome"] for line in lines] == [f"rejected_{code}" for code in codes]
        assert all((line["class"], line["wait"]) == (None, 0) for line in lines)

    def test_has_one_line_each_for_a_request_and_the_garbage_sent_after_it(self, caplog):
        async def main() -> None:
            async with site(access_log=True) as here:
                client, held = await here.running_one(path="/held")
                client.send("nonsense\r\n\r\n")
                held.answer()
                await client.response()
                assert (await client.response())[0].status == 400
                await here.quiet()

        with caplog.at_level(logging.INFO, "fairlead.access"):
            run(main())
        found = [(line["path"], line["status"]) for line in self.lines(caplog)]
        assert sorted(found, key=str) == [("/held", 200), (None, 400)]

    def test_has_one_line_for_a_request_that_is_refused_while_it_runs(self, caplog):
        async def main() -> None:
            async with site(
                access_log=True, limits={"body_bytes": 1000, "body_before_slot": 0}
            ) as here:
                async with connected(here.url) as client:
                    client.send(
                        "POST /big HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                    )
                    client.send(f"258\r\n{'a' * 600}\r\n")
                    await here.backend.arrival()
                    client.send(f"258\r\n{'a' * 600}\r\n")
                    assert (await client.response())[0].status == 413
                await here.quiet()

        with caplog.at_level(logging.INFO, "fairlead.access"):
            run(main())
        assert [(line["path"], line["status"]) for line in self.lines(caplog)] == [("/big", 413)]

    def test_switched_off_it_has_none_for_those_either(self, caplog):
        async def main() -> None:
            async with site(access_log=False) as here, connected(here.url) as client:
                client.send("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n")
                await client.response()

        with caplog.at_level(logging.INFO, "fairlead.access"):
            run(main())
        assert not self.lines(caplog)

    def test_shows_the_head_that_the_client_got(self, caplog):
        async def main() -> None:
            scene = Scene(access_log=True)
            _, held = await scene.running("system", tenant="root")
            await held.head(200)
            await held.head(502)
            await held.leave()

        with caplog.at_level(logging.INFO, "fairlead.access"):
            run_virtual(main())
        assert [line["status"] for line in self.lines(caplog)] == [200]
