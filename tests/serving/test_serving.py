"""Listeners, routes and processes: over real sockets, with real signals."""

import asyncio
import json
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.serving.http import (
    Answer,
    Body,
    Problem,
    Stream,
    answer,
    read_json,
    read_object,
    read_query,
    read_strictly,
)
from fairlead.serving.listener import Listener, Tls
from fairlead.serving.logs import set_up_logging
from fairlead.serving.routes import Application, Routes, reading
from tests.gateway.rig import connected, fetch, run, within


class Asked(Body):
    name: str
    size: float = 1.0


class Small(Application):
    """An app with one of each."""

    def __init__(self) -> None:
        self.entered, self.leave = asyncio.Event(), asyncio.Event()
        self.left = asyncio.Event()
        self.cut = 0
        self.routes = Routes(
            {
                "/livez": reading(self._live),
                "/hold": reading(self._hold),
                "/events": reading(self._events),
                "/runs/{run}": reading(self._named),
                "/runs/{run}/jobs/{job}": reading(self._named),
                "/gates/{id:path}/waiting": reading(self._named),
                "/asked": {"POST": self._asked, "PUT": self._strict, "PATCH": self._object},
            }
        )

    def authorize(self, scope: Any) -> None:
        if (b"x-stranger", b"1") in scope["headers"]:
            raise Problem(401, "unauthorized", "who are you?")

    async def _live(self, scope: Any, receive: Any) -> Answer:
        return answer({"status": "ok"})

    async def _hold(self, scope: Any, receive: Any) -> Answer:
        self.entered.set()
        try:
            await self.leave.wait()
        except asyncio.CancelledError:
            self.cut += 1
            raise
        return answer({"held": True})

    async def _events(self, scope: Any, receive: Any) -> Stream:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                yield b"data: 1\n\n"
                self.entered.set()
                await self.leave.wait()
                yield b"data: 2\n\n"
            finally:
                self.left.set()

        return Stream(pieces(), b"text/event-stream")

    async def _named(self, scope: Any, receive: Any, *names: str) -> Answer:
        return answer(names)

    async def _asked(self, scope: Any, receive: Any) -> Answer:
        return answer((await read_json(scope, receive, Asked)).model_dump())

    async def _strict(self, scope: Any, receive: Any) -> Answer:
        return answer((await read_strictly(scope, receive, Asked)).model_dump())

    async def _object(self, scope: Any, receive: Any) -> Answer:
        return answer(
            {"query": read_query(scope, ("a",)), "body": await read_object(scope, receive)}
        )


def told(body: bytes) -> Any:
    return json.loads(body)


JSON = [("content-type", "application/json")]


def test_paths_with_holes_and_everything_else():
    async def main():
        app = Small()
        listener = Listener(app, "127.0.0.1:0")
        await listener.begin()
        assert listener.url == f"http://{listener.address}"

        async def get(path: str, method: str = "GET", **given: Any) -> tuple[int, Any, Any]:
            async with connected(listener.url) as client:
                client.request(method, path, **given)
                head, body = await client.response(bodiless=method == "HEAD")
            return head.status, told(body) if body else None, head

        assert (await get("/runs/7"))[1] == ["7"]
        assert (await get("/runs/7/jobs/a%20b"))[1] == ["7", "a b"]
        assert (await get("/gates/gateway%2Fdefault/waiting"))[1] == ["gateway/default"]
        status, said, _ = await get("/runs/7/8")
        assert status == 404
        assert "nothing is served at '/runs/7/8'" in said["detail"]
        status, said, head = await get("/runs/7", "DELETE")
        assert status == 405
        assert head.get("allow") == "GET, HEAD"
        status, said, head = await get("/livez", "HEAD")
        assert status == 200
        assert said is None
        assert head.get("content-length") == "15"
        stranger = [("x-stranger", "1")]
        assert (await get("/livez", headers=stranger))[0] == 200
        assert (await get("/runs/7", headers=stranger))[0] == 401
        assert (await get("/nowhere", headers=stranger))[0] == 401
        await listener.end(1.0)

    run(main())


BODIES = [
    ("POST", b'{"name": "a", "size": 2}', 200),
    ("POST", b'{"name": "a", "name": "b"}', 200),  # the quick reader keeps the last
    ("PUT", b'{"name": "a", "name": "b"}', 422),
    ("PATCH", b'{"name": "a", "name": "b"}', 422),
    ("PATCH", b"[]", 422),
    ("PATCH", b'{"size": NaN}', 400),
    ("POST", b'{"name": 7, "more": 1}', 422),
    ("POST", b'{"name": "a", "size": 1e999}', 422),
    ("POST", b"{", 400),
    ("POST", b"\xff", 400),
    ("PUT", b"[" * 20_000, 400),
    ("POST", b" " * (64 * 1024 + 1), 413),
]


@pytest.mark.parametrize(("method", "body", "status"), BODIES)
def test_bodies_are_read_or_said_to_be_wrong(method, body, status):
    async def main():
        listener = Listener(Small(), "127.0.0.1:0")
        await listener.begin()
        head, said = await fetch(listener.url, method, "/asked", JSON, body)
        assert head.status == status, said
        if status != 200:
            assert head.get("content-type") == "application/problem+json"
            assert told(said)["detail"]
        plain = [("content-type", "text/plain")]
        head, _ = await fetch(listener.url, method, "/asked", plain, body)
        assert head.status == 415
        await listener.end(1.0)

    run(main())


def test_a_query_has_each_parameter_once():
    async def main():
        listener = Listener(Small(), "127.0.0.1:0")
        await listener.begin()
        for query, status in (
            ("a=1", 200),
            ("", 200),
            ("a=1&a=2", 422),
            ("b=1", 422),
            ("a=%ff", 422),
        ):
            head, said = await fetch(listener.url, "PATCH", f"/asked?{query}", JSON, b"{}")
            assert head.status == status, said
        await listener.end(1.0)

    run(main())


def test_the_end_waits_for_what_runs_and_accepts_no_more():
    async def main():
        app = Small()
        listener = Listener(app, "127.0.0.1:0")
        await listener.begin()
        async with connected(listener.url) as client:
            client.request("GET", "/hold")
            await within(app.entered.wait())
            ending = asyncio.create_task(listener.end(20.0))
            await asyncio.sleep(0)
            with pytest.raises(ConnectionRefusedError):
                async with connected(listener.url):
                    pass
            app.leave.set()
            assert (await client.head()).status == 200
            await within(ending)
        assert app.cut == 0

    run(main())


@pytest.mark.parametrize("grace", [0.05, None])
def test_the_end_cuts_what_takes_too_long(grace):
    async def main():
        app = Small()
        listener = Listener(app, "127.0.0.1:0")
        await listener.begin()
        async with connected(listener.url) as client:
            client.request("GET", "/hold")
            await within(app.entered.wait())
            ending = asyncio.create_task(listener.end(grace))
            if grace is None:
                await asyncio.sleep(0)
                assert not ending.done()
                listener.hurry()
            await within(ending)
        assert app.cut == 1

    run(main())


def test_a_stream_ends_with_its_pieces_or_its_reader():
    async def main():
        app = Small()
        listener = Listener(app, "127.0.0.1:0")
        await listener.begin()
        async with connected(listener.url) as client:
            client.request("GET", "/events")
            head = await client.head()
            assert head.get("content-type") == "text/event-stream"
            assert await client.chunk() == b"data: 1\n\n"
            app.leave.set()
            assert await client.chunk() == b"data: 2\n\n"
            assert await client.chunk() == b""
        app.leave.clear()
        app.left.clear()
        async with connected(listener.url) as client:
            client.request("GET", "/events")
            await client.head()
            assert await client.chunk() == b"data: 1\n\n"
        await within(app.left.wait())
        await listener.end(1.0)

    run(main())


def test_a_taken_address_is_told_before_anything_runs():
    async def main():
        first = Listener(Small(), "127.0.0.1:0")
        first.bind()
        second = Listener(Small(), first.address)
        with pytest.raises(OSError, match=f"cannot listen on {first.address}: Address"):
            second.bind()
        first.close()

    run(main())


def make_certificate(folder: Any) -> Tls:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    wanted = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    made = subprocess.run(
        ["openssl", *wanted, "-keyout", str(key), "-out", str(certificate)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    return Tls(certificate, key)


def test_tls(tmp_path):
    tls = make_certificate(tmp_path)

    async def main():
        listener = Listener(Small(), "127.0.0.1:0", tls=tls)
        await listener.begin()
        assert listener.url.startswith("https://")
        host, port = listener.address.split(":")
        context = ssl.create_default_context(cafile=str(tls.certificate))
        context.check_hostname = False
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await within(reader.read())).endswith(b'{"status":"ok"}')
        writer.close()
        await listener.end(1.0)

    run(main())


def test_a_certificate_that_cannot_be_read_is_told(tmp_path):
    async def main():
        for wrong in (tmp_path / "nothing.pem", tmp_path / "empty.pem"):
            (tmp_path / "empty.pem").write_text("")
            listener = Listener(Small(), "127.0.0.1:0", tls=Tls(wrong))
            with pytest.raises(OSError, match="cannot use the certificate or its key"):
                listener.bind()

    run(main())


PROCESS = """
import asyncio, sys
from fairlead.serving.listener import Listener
from fairlead.serving.logs import set_up_logging
from fairlead.serving.process import run
from tests.serving.test_serving import Small

class Service:
    def __init__(self):
        self.listener = Listener(Small(), "127.0.0.1:0")
    async def __aenter__(self):
        await self.listener.begin()
    async def __aexit__(self, *_):
        await self.listener.end()
    def hurry(self):
        self.listener.hurry()
    def left(self):
        return "what was held"
    def describe(self):
        return f"here: {self.listener.url}"

class Stuck(Service):
    async def __aexit__(self, *_):
        await super().__aexit__()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

with set_up_logging(json=True):
    sys.exit(run(globals()[sys.argv[1]], name="small", hurried=3))
"""


def test_signals_drain_then_hurry():
    async def main():
        for signals, code in (([signal.SIGTERM], 0), ([signal.SIGINT, signal.SIGTERM], 3)):
            pipe = asyncio.subprocess.PIPE
            made = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", PROCESS, "Service"), stdout=pipe, stderr=pipe
            )
            assert made.stderr is not None
            line = (await within(made.stderr.readline())).decode()
            assert line.startswith("here: http://127.0.0.1:"), line
            async with connected(line.split()[1]) as client:
                if len(signals) > 1:
                    client.request("GET", "/hold")
                    await client.writer.drain()
                    # Answered after the other was read.
                    await fetch(line.split()[1], "GET", "/livez")
                made.send_signal(signals[0])
                if len(signals) > 1:
                    await until_refused(line.split()[1])
                    assert made.returncode is None
                    made.send_signal(signals[1])
                assert await within(made.wait()) == code
            made._transport.close()  # type: ignore[attr-defined]

    run(main(), 60.0)


def test_a_service_that_waits_though_it_is_hurried_is_ended_and_says_what_it_leaves():
    async def main():
        made = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROCESS, "Stuck"), stderr=asyncio.subprocess.PIPE
        )
        assert made.stderr is not None
        line = (await within(made.stderr.readline())).decode()
        made.send_signal(signal.SIGTERM)
        await until_refused(line.split()[1])
        assert made.returncode is None
        made.send_signal(signal.SIGTERM)
        said = (await within(made.stderr.read())).decode()
        assert said == "small: ended as it stood: what was held\n"
        assert await within(made.wait()) == 1
        made._transport.close()  # type: ignore[attr-defined]

    run(main(), 60.0)


async def until_refused(url: str) -> None:
    while True:
        try:
            async with connected(url):
                pass
        except OSError:
            return
        await asyncio.sleep(0.01)


def test_logs_as_lines_of_json(capsys):
    import logging

    with set_up_logging(json=True, access=True, quiet=(KeyError,)):
        logging.getLogger("fairlead.x").warning("%s of\n two", "one")
        logging.getLogger("fairlead.access").info("a line")
        for error in (KeyError("known"), ValueError("news")):
            try:
                raise error
            except Exception:
                logging.getLogger("uvicorn.error").exception("it failed")
    logging.getLogger("fairlead.x").warning("nobody hears this")
    out, err = capsys.readouterr()
    assert out == "a line\n"
    first, second = (json.loads(line) for line in err.splitlines())
    assert (first["level"], first["logger"], first["message"]) == (
        *("warning", "fairlead.x", "one of\n two"),
    )
    assert "ValueError: news" in second["exception"]


@pytest.mark.filterwarnings("default")
def test_what_others_say_is_a_line_of_json_too(capsys):
    import logging
    import threading
    import warnings

    def fail() -> None:
        raise ValueError("in a thread")

    hooks = threading.excepthook, warnings.showwarning
    with set_up_logging(json=True):
        logging.getLogger("asyncio").error("a task\nfailed")
        logging.getLogger("somebodys.module").warning("careful")
        warnings.warn("old\nways", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=fail, name="worker")
        thread.start()
        thread.join()
    assert (threading.excepthook, warnings.showwarning) == hooks
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["logger"] for line in lines] == [
        *("asyncio", "somebodys.module", "py.warnings", "fairlead"),
    ]
    assert "ValueError: in a thread" in lines[-1]["exception"]
