"""Ask a flow service over HTTP, from an event loop.  `SyncFlowClient` is the twin for threads.

A client never stands in the way: if the service cannot be reached in time, a flow runs (or, where the client fails
closed, does not), `flow.decision` is "unreachable", and nothing is raised.  A question the service cannot take (400,
413, 422) was answered: such a flow is rejected.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from fairlead.errors import Misuse
from fairlead.flows.blocking_client import BlockingRemoteFlow, SyncFlowClient
from fairlead.flows.decorating import Decorating
from fairlead.flows.remote import (
    CHECK,
    CHECK_TIMEOUT,
    END,
    END_TIMEOUT,
    KEPT,
    Asking,
    RemoteFlow,
    ended,
    read_url,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlead.flows.remote import Policy


__all__ = ["AsyncRemoteFlow", "BlockingRemoteFlow", "FlowClient", "SyncFlowClient"]

FAILURES = (aiohttp.ClientError, OSError, TimeoutError)


class AsyncRemoteFlow(RemoteFlow):
    """A flow asked for on an event loop: `async with client.flow(...) as flow: ...`."""

    def __init__(self, client: FlowClient, *about: Any) -> None:
        super().__init__(*about)
        self._client = client

    async def __aenter__(self) -> Self:
        """Ask, and wait for the answer as long as it may."""
        try:
            self.answer(*await self._client.ask(CHECK, self.question(), self.patience()))
        except FAILURES as error:
            self.lost(error)
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.end("ok" if kind is None else "error")

    async def end(self, status: str = "ok", tokens: float | None = None) -> bool:
        """Say that the work is done; a second end, or one nobody hears, is harmless and returns False."""
        said = self.to_end(status, tokens)
        return said is not None and await self._client.say_ended(said)


class FlowClient(Decorating, Asking):
    """Flows that a service elsewhere decides on.

    >>> async def pay(client):
    ...     async with client.flow("checkout", labels={"user_id": "u1"}, timeout=0.5) as flow:
    ...         return flow.decision, flow.should_run()
    >>> async def main():
    ...     async with FlowClient("http://127.0.0.1:1") as client:  # nobody is there
    ...         return await pay(client)
    >>> asyncio.run(main())
    ('unreachable', True)

    Without a timeout a flow waits `check_timeout` seconds, or, if that is None, as long as its workload lets it.
    `fail` says whether flows run if the service cannot be asked, `fail_at` says so for single control points.
    """

    twin = "SyncFlowClient"

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        check_timeout: float | None = CHECK_TIMEOUT,
        fail: Policy = "open",
        fail_at: Mapping[str, Policy] | None = None,
        baggage: bool = True,
    ) -> None:
        super().__init__(check_timeout=check_timeout, fail=fail, fail_at=fail_at, baggage=baggage)
        self._url = read_url(url).geturl().rstrip("/")
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None
        self._ends: set[asyncio.Task[bool]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, once every end has been said."""
        self._closed = True
        if self._ends:
            await asyncio.wait(self._ends)
        if self._session is not None:
            await self._session.close()

    def flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncRemoteFlow:
        """Make a flow, to be entered with `async with`."""
        return AsyncRemoteFlow(self, *self.about(control_point, labels, timeout))

    async def start_flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncRemoteFlow:
        """Start a flow that `await flow.end()` is to end."""
        return await self.flow(control_point, labels, timeout).__aenter__()

    async def ask(self, path: str, body: bytes, patience: float | None) -> tuple[int, bytes]:
        """Post, and give the status and the body of the answer."""
        if self._closed and (path == CHECK or self._session is None or self._session.closed):
            raise Misuse("the client is closed; make a new one")
        if self._session is None:
            # Each flow that waits holds a connection: to limit them here would be a queue of our own.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        timeout = aiohttp.ClientTimeout(total=patience, sock_connect=1.0)
        async with self._session.post(self._url + path, data=body, timeout=timeout) as answer:
            return answer.status, await answer.read()

    async def say_ended(self, body: bytes) -> bool:
        """Post an end, and see it through even if whoever waits for it is cancelled."""
        task = asyncio.create_task(self._say_ended(body))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)
        return await asyncio.shield(task)

    async def _say_ended(self, body: bytes) -> bool:
        try:
            return ended(*await self.ask(END, body, END_TIMEOUT))
        except (Misuse, *FAILURES):
            return False
