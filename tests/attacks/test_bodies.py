"""Attacks with bodies: uploads that fill the memory of a process, uploads that trickle or slow down."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.gateway.rig import Backend, Client, connected, gateway, read_head, run, until, within
from tests.gateway.sockets import site
from tests.sizes import FULL

CONNECTIONS = 1000 if FULL else 160
SENT = 7 if FULL else 2  # MiB, and 1 is never sent
ADDRESSES = 8
GROWTH = 300  # MiB
SOON = 1.0  # seconds in which another tenant is answered
ON_A_BUSY_MACHINE = 3.0

FLOOD = """
import asyncio, sys
port, connections, sent, addresses, path = int(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5]
HEAD = (f"POST {path} HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\n"
        f"Content-Length: {(sent + 1) << 20}\\r\\n\\r\\n").encode()
answers = {}
async def one(number, kept):
    local = (f"127.0.0.{number % addresses + 20}", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
    kept.append(writer)
    writer.write(HEAD)
    try:
        for _ in range(sent * 16):
            writer.write(b" " * 65536)
            await writer.drain()
        answer = await reader.readline()
    except OSError:
        answer = b"cut"
    answers[answer] = answers.get(answer, 0) + 1
async def main():
    kept = []
    tasks = [asyncio.ensure_future(one(number, kept)) for number in range(connections)]
    await asyncio.wait(tasks, timeout=float(sys.argv[6]))
    while not any(b"408" in answer for answer in answers) and not all(task.done() for task in tasks):
        await asyncio.sleep(0.1)  # a busy machine takes longer to reach the bound
    print(answers, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
asyncio.run(main())
"""
CLASSES = """
priority_scheduler:
  enabled: true
  classes: {interactive: {reserved_floor: 0}, system: {reserved_floor: 0}}
"""
APP = """
from fairlead.gateway import PriorityMiddleware
async def app(scope, receive, send):
    while (await receive()).get("more_body"): pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
guarded = PriorityMiddleware(app, {"capacity": 4, "access_log": False, "priority_scheduler": {"enabled": True,
    "classes": {"interactive": {"reserved_floor": 0, "reserved_per_slot": 0}, "system": {"reserved_floor": 0}}}})
"""


def memory(pid: int) -> int:
    """The resident memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024


@asynccontextmanager
async def process(*command: str, folder: Path, ready: str) -> AsyncIterator[tuple[int, int]]:
    """Run a server; give its process and its port, which it writes in a line that matches."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        cwd=folder,
    )  # fmt: skip
    lines = running.stderr
    assert lines is not None
    try:
        while True:
            line = (await within(lines.readline(), 60)).decode()
            assert line, "it ended"
            if found := re.search(ready, line):
                break
        drained = asyncio.create_task(lines.read())
        yield running.pid, int(found[1])
        assert running.returncode is None, "it has not ended meanwhile"
    finally:
        running.terminate()
        await running.wait()
        await drained


@asynccontextmanager
async def door(kind: str, folder: Path) -> AsyncIterator[tuple[int, int]]:
    """Serve with 4 slots, through the gateway or in a user's app under uvicorn."""
    if kind == "middleware":
        (folder / "guarded_app.py").write_text(APP)
        command = ["-m", "uvicorn", "guarded_app:guarded", "--port", "0", "--no-proxy-headers"]
        async with process(*command, folder=folder, ready=r"running on http://.*:(\d+)") as served:
            yield served
        return
    async with Backend(auto=True) as backend:
        file = folder / "gateway.yaml"
        file.write_text(
            f"listen: 127.0.0.1:0\nadmin: {{listen: '127.0.0.1:0'}}\naccess_log: false\n"
            f"upstreams: [{{url: '{backend.url}', capacity: 4}}]\n{CLASSES}"
        )
        command = ["-m", "fairlead", "gateway", "--config", str(file)]
        async with process(*command, folder=folder, ready=r"gateway: http://.*?:(\d+) ") as served:
            yield served


async def chat(port: int) -> float:
    """Ask as another tenant; return how long the answer took."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.77", 0))
    body = json.dumps({"model": "m", "pad": "x" * 2000}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    head = await read_head(reader)
    writer.close()
    assert head.status == 200
    return loop.time() - start


@pytest.mark.parametrize("kind", ["gateway", "middleware"])
@pytest.mark.parametrize("addresses", [1, ADDRESSES])
def test_uploads_fill_no_memory_and_another_tenant_is_answered_at_once(kind, addresses, tmp_path):
    async def main() -> None:
        async with door(kind, tmp_path) as (pid, port):
            await chat(port)
            before = most = memory(pid)
            flood = await asyncio.create_subprocess_exec(
                sys.executable, "-c", FLOOD, str(port), str(CONNECTIONS), str(SENT), str(addresses),
                "/v1/chat/completions", "15" if FULL else "2",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert flood.stdout is not None
            told = asyncio.create_task(flood.stdout.readline())
            waits = []
            while not told.done():
                waits.append(await within(chat(port), 30))
                most = max(most, memory(pid))
                await asyncio.sleep(0.1)
            assert b"408" in await told, "the slowest uploads were cut, and heard so"
            most = max(most, memory(pid))
            assert most - before <= GROWTH
            waits.sort()
            assert waits[len(waits) * 9 // 10] <= SOON
            assert waits[-1] <= ON_A_BUSY_MACHINE
            flood.kill()
            await flood.wait()
            # What was held for those who left is given back.
            await until(lambda: memory(pid) - before < 64, 30, pause=0.1)
            await chat(port)

    run(main(), 400)


def test_bodies_that_trickle_hold_no_slot():
    """8 uploads at 2 kB/s, 8 slots: another tenant is answered at once."""

    async def main() -> None:
        async with site(8) as here:
            trickling = []
            for _ in range(8):
                client = await here.ask(
                    "interactive",
                    path="/up",
                    method="POST",
                    headers=[("content-length", "8000000")],
                )
                client.send(b"a" * 2000)
                trickling.append(client)
            await until(lambda: here.admission.held.held == 16_000)
            other, held = await here.running_one("interactive", tenant="other")
            held.answer()
            assert (await other.response())[0].status == 200
            for client in trickling:
                client.reset()
            await here.quiet()
            await until(lambda: here.admission.held.held == 0)

    run(main())


def test_an_upload_that_slows_down_once_it_has_its_slot_loses_it(monkeypatch):
    monkeypatch.setattr("fairlead.gateway.body.WINDOW", 0.2)

    async def main() -> None:
        async with site(1) as here:
            headers = [("content-length", "8000000")]
            client = await here.ask(path="/up", method="POST", headers=headers)
            client.send(b"a" * (1 << 20))
            await until(lambda: here.inflight() == 1)
            waiting = await here.waiting(tenant="other")
            head, body = await client.response()
            assert (head.status, json.loads(body)["code"]) == (408, "body_too_slow")
            assert await client.ended() == b"", "its connection is closed"
            held = await here.backend.arrival()
            held.answer()
            assert (await waiting.response())[0].status == 200
            await here.quiet()

    run(main())


def test_an_upload_that_its_backend_does_not_take_is_not_too_slow(monkeypatch):
    """The client sends all that is taken from it; that the backend takes its time is not the client's fault."""
    monkeypatch.setattr("fairlead.gateway.body.WINDOW", 0.2)

    async def main() -> None:
        taking = asyncio.Event()
        seen: list[int] = []

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await read_head(reader)
            if head.first[1] != "/up":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                writer.close()
                return
            await taking.wait()
            seen.append(len(await reader.readexactly(int(head.get("content-length")))))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(slow, "127.0.0.1", 0, limit=1 << 16)
        port = server.sockets[0].getsockname()[1]
        size = 40 << 20
        async with (
            server,
            gateway(
                {"url": f"http://127.0.0.1:{port}", "capacity": 1}, limits={"body_bytes": size}
            ) as running,
            connected(running.data_listener.url) as client,
        ):
            client.send(f"POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n")
            sending = asyncio.create_task(send_all(client, size))
            await asyncio.sleep(1)
            taking.set()
            await within(sending, 30)
            assert (await within(client.response(), 30))[0].status == 200
        assert seen == [size]

    run(main(), 60)


async def send_all(client: Client, size: int) -> None:
    for _ in range(size >> 16):
        client.send(b"x" * 65536)
        await client.writer.drain()
