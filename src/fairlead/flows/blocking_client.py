"""Ask a flow service over HTTP, from threads: the standard library is enough."""

from __future__ import annotations

import http.client
import os
import select
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from fairlead.errors import Misuse
from fairlead.flows.decorating import BlockingDecorating
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
    import socket
    from collections.abc import Mapping

    from fairlead.flows.remote import Policy


FAILURES = (OSError, http.client.HTTPException)


class BlockingRemoteFlow(RemoteFlow):
    """A flow asked for by a thread: `with client.flow(...) as flow: ...`."""

    def __init__(self, client: SyncFlowClient, *about: Any) -> None:
        super().__init__(*about)
        self._client = client

    def __enter__(self) -> Self:
        """Ask, and wait for the answer as long as it may."""
        try:
            self.answer(*self._client.ask(CHECK, self.question(), self.patience()))
        except FAILURES as error:
            self.lost(error)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end("ok" if kind is None else "error")

    def end(self, status: str = "ok", tokens: float | None = None) -> bool:
        """Say that the work is done; a second end, or one nobody hears, is harmless and returns False."""
        said = self.to_end(status, tokens)
        if said is None:
            return False
        try:
            return ended(*self._client.ask(END, said, END_TIMEOUT))
        except (Misuse, *FAILURES):
            return False


class SyncFlowClient(BlockingDecorating, Asking):
    """`FlowClient` for threads; any number of them may share one.

    >>> with SyncFlowClient("http://127.0.0.1:1", fail_at={"checkout": "closed"}) as client:  # nobody is there
    ...     with client.flow("checkout") as flow:
    ...         flow.decision, flow.should_run()
    ('unreachable', False)
    """

    twin = "FlowClient"

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
        parts = read_url(url)
        self._make: Any = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._idle: deque[tuple[http.client.HTTPConnection, float, int]] = deque()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that nobody uses; those in use are closed after use."""
        self._closed = True
        while self._idle:
            self._idle.pop()[0].close()

    def flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> BlockingRemoteFlow:
        """Make a flow, to be entered with `with`."""
        return BlockingRemoteFlow(self, *self.about(control_point, labels, timeout))

    def start_flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> BlockingRemoteFlow:
        """Start a flow that `flow.end()` is to end."""
        return self.flow(control_point, labels, timeout).__enter__()

    def ask(self, path: str, body: bytes, patience: float | None) -> tuple[int, bytes]:
        """Post, and give the status and the body of the answer."""
        if self._closed:
            raise Misuse("the client is closed; make a new one")
        connection = self._connected(patience)
        try:
            connection.request("POST", self._path + path, body, self._headers)
            answer = connection.getresponse()
            read = answer.read()
        except BaseException:
            connection.close()
            raise
        if answer.will_close or self._closed:
            connection.close()
        else:
            self._idle.append((connection, time.monotonic(), os.getpid()))
        return answer.status, read

    def _connected(self, patience: float | None) -> http.client.HTTPConnection:
        """Take a connection that is still good, or make one."""
        while True:
            try:
                connection, since, process = self._idle.pop()
            except IndexError:
                made: http.client.HTTPConnection = self._make(self._host, self._port, timeout=1.0)
                if patience is not None:
                    made.timeout = min(1.0, patience)
                made.connect()
                made.sock.settimeout(patience)
                return made
            good = process == os.getpid() and time.monotonic() - since < KEPT
            if good and not _speaks(connection.sock):  # else it was hung up
                connection.sock.settimeout(patience)
                return connection
            connection.close()


def _speaks(idle: socket.socket) -> bool:
    """Tell whether there is something to read where nothing was asked: the end, most likely."""
    if not hasattr(select, "poll"):  # on Windows
        return bool(select.select([idle], [], [], 0)[0])
    looking = select.poll()  # unlike select, it knows file descriptors above 1023
    looking.register(idle, select.POLLIN)
    return bool(looking.poll(0))
