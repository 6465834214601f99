"""What the tests of operations share: a small app, and questions to the HTTP API without a socket."""

import asyncio
import json
from pathlib import Path
from typing import Any

from fairlead.jobs import Jobs
from fairlead.jobs.api import JobsApi
from tests.engines_postgres import shared_url, wiped

QUICK: dict[str, Any] = {"lease": "2s", "sweep": "200ms", "poll": "100ms", "ack": "1s"}
HOST = (b"host", b"localhost")
JSON = [(b"content-type", b"application/json")]
HELLO = {"name": "hello", "jobs": [{"name": "a", "task": "double", "args": [21]}]}
PAIR = {
    "name": "pair",
    "soft_sla": "15m",
    "tenant": "acme",
    "jobs": [
        {"name": "first", "task": "double", "args": [1]},
        {"name": "second", "task": "double", "args": [{"$result": "first"}]},
    ],
}


def database(kind: str, folder: Path) -> str:
    """Make an empty database; tell its URL."""
    if kind == "sqlite":
        return f"sqlite:///{folder}/jobs.db"
    return asyncio.run(wiped(shared_url(), "test_operations"))


def go(coroutine: Any, limit: float = 30) -> Any:
    async def bounded():
        async with asyncio.timeout(limit):
            return await coroutine

    return asyncio.run(bounded())


def small(url: str, **settings: Any) -> Jobs:
    """A Jobs with a few tasks."""
    jobs = Jobs(url, **{**QUICK, **settings})

    @jobs.task()
    async def double(number):
        return 2 * number

    @jobs.task(retries=1, retry_delay="1h")
    async def fail(text):
        raise ValueError(text)

    @jobs.task()
    async def give_up(text):
        raise ValueError(text)

    @jobs.task()
    async def hold():
        await asyncio.Event().wait()

    return jobs


class Answered:
    """An answer of the API."""

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: JobsApi,
    method: str,
    path: str,
    content: Any = None,
    *,
    headers: list[tuple[bytes, bytes]] | None = None,
    query: bytes = b"",
) -> Answered:
    """Ask the app as a server would."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    if content is None:
        body = b""
    given = (JSON if content is not None else []) if headers is None else headers
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": given if any(name == b"host" for name, _ in given) else [HOST, *given],
    }
    messages = [
        {"type": "http.request", "body": body[:7], "more_body": True},
        {"type": "http.request", "body": body[7:], "more_body": False},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *rest = sent
    return Answered(
        start["status"], dict(start["headers"]), b"".join(one.get("body", b"") for one in rest)
    )


async def until(claim: Any, pause: float = 0.02) -> Any:
    """Wait until a question has a good answer; the test's own limit ends it."""
    while not (found := await claim()):  # noqa: ASYNC110
        await asyncio.sleep(pause)
    return found
