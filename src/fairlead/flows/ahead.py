"""Wait for a flow on behalf of a client that may leave: one who does frees its place in the queue.

Only a flow that has to wait costs a task, which reads what the client sends meanwhile; most find tokens at once and
cost nothing.  What was read is kept, for whoever reads the request afterwards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Steps = Coroutine[Any, Any, Any]

MOST_BUFFERED = 256 * 1024  # bytes of a request read ahead; who sends more is no longer watched


def begin(flow: Any) -> tuple[Steps, Any] | None:
    """Enter a flow as far as that takes no waiting; None if it is decided by then, else what is left to do."""
    steps: Steps = flow.__aenter__()
    try:
        return steps, steps.send(None)
    except StopIteration:
        return None


class Ahead:
    """Reads a request ahead while its flow waits."""

    __slots__ = ("left", "_buffer", "_pump", "_receive", "_waiting")

    def __init__(self, receive: Receive) -> None:
        self.left = False  # the client has gone
        self._receive = receive
        self._waiting: asyncio.Task[Any] | None = None
        self._buffer: deque[Message] | None = None
        self._pump: asyncio.Task[None] | None = None

    async def enter(self, flow: Any) -> bool:
        """Enter a flow; False if the client left first, and then nothing is held for it."""
        begun = begin(flow)
        return begun is None or await self.wait(*begun)

    async def wait(self, steps: Steps, pending: Any) -> bool:
        """Enter a flow that was begun; False if the client left first, and then nothing is held for it."""
        task = self._waiting = asyncio.current_task()
        cancelling = task.cancelling() if task else 0
        self._buffer = deque()
        self._pump = asyncio.create_task(self._read(self._buffer))
        try:
            await _rest(steps, pending)
        except asyncio.CancelledError:
            if task is None or not self.left or task.cancelling() > cancelling + 1:
                raise  # somebody else wants this task to end
            task.uncancel()  # that was us
            return False
        finally:
            self._waiting = None
        return True

    async def _read(self, buffer: deque[Message]) -> None:
        buffered = 0
        while self._waiting is not None and buffered < MOST_BUFFERED:
            message = await self._receive()
            buffer.append(message)
            buffered += len(message.get("body", b""))
            if message["type"] == "http.disconnect":
                if self._waiting is not None:
                    self.left = True
                    self._waiting.cancel()
                return

    def stop(self) -> None:
        """Read no further: nobody will ask for more."""
        if self._pump is not None:
            self._pump.cancel()

    @property
    def reader(self) -> Receive:
        """What to read the request with from now on."""
        return self._receive if self._buffer is None else self._replay

    async def _replay(self) -> Message:
        if not self._buffer and self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])  # one read is still out; it must not be lost
        return self._buffer.popleft() if self._buffer else await self._receive()


@coroutine
def _rest(steps: Steps, pending: Any) -> Generator[Any, Any, Any]:
    """Await what is left of a coroutine that has been stepped once and waits for `pending`."""
    while True:
        try:
            try:
                sent = yield pending
            except BaseException as error:
                pending = steps.throw(error)
            else:
                pending = steps.send(sent)
        except StopIteration as done:
            return done.value
