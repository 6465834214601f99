"""Hints between processes by LISTEN and NOTIFY: something was written, have a look.

A hint is sent after the commit, in a transaction of its own, and no more often than every `GAP`: NOTIFY makes commits
wait for each other, so it has no place in those that matter.  A hint may be lost with the process or the connection
that sends or hears it; whoever waits also looks by itself now and then.
"""

from __future__ import annotations

import asyncio
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError, StoreError
from fairlead.jobs.stores.postgres_connections import DRIVER

if TYPE_CHECKING:
    from fairlead.jobs.stores.postgres_connections import Address, Connections

GAP = 0.02  # seconds between two hints of one process
LONGEST_PAUSE = 5.0  # seconds between tries to listen again

# Nothing depends on a hint being durable, so its commit waits for no disk.
NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"


def channel_of(address: Address) -> str:
    """Name the channel of a schema."""
    return f"fairlead_{address.schema}"


class Hints:
    """The hints of one store, both ways."""

    def __init__(self, connections: Connections, *, listen: bool) -> None:
        self.channel = channel_of(connections.address)
        self.listening = asyncio.Event()
        self._connections = connections
        self._listen = listen
        self._token = token_hex(8)
        self._heard = asyncio.Event()
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Send when asked, and listen if that is wanted and possible."""
        self._tasks.append(asyncio.create_task(self._send(), name="fairlead-hints"))
        if self._listen and not self._connections.pooled:
            self._tasks.append(asyncio.create_task(self._hear(), name="fairlead-listen"))

    async def stop(self) -> None:
        """Stop both."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self) -> None:
        """Tell others soon, and who waits here at once."""
        self._heard.set()
        self._wanted.set()

    def hear(self) -> None:
        """Let who waits here have another look."""
        self._heard.set()

    async def wait(self, timeout: float) -> bool:
        """Wait for a hint; one that came since the last wait counts."""
        if not self._heard.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await self._heard.wait()
            except TimeoutError:
                return False
        self._heard.clear()
        return True

    async def _send(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._connections.fetch(NOTIFY, self.channel, self._token)
            except StoreError:
                pass  # whoever waits looks by itself
            await asyncio.sleep(GAP)

    async def _hear(self) -> None:
        pause = 0.1
        while True:
            try:
                connection = await self._connections.connect()
            except (StoreError, ConfigError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            ended = asyncio.Event()
            connection.add_termination_listener(lambda _, ended=ended: ended.set())
            try:
                await connection.add_listener(self.channel, self._on_hint)
                pause = 0.1
                self._heard.set()  # something may have come while nobody listened
                self.listening.set()
                while not ended.is_set():
                    # A connection whose other end has vanished without a word is found out by asking.
                    try:
                        async with asyncio.timeout(30):
                            await ended.wait()
                    except TimeoutError:
                        await connection.execute("SELECT 1", timeout=5)
            except DRIVER:
                await asyncio.sleep(pause)
            finally:
                self.listening.clear()
                connection.terminate()

    def _on_hint(self, _connection: Any, _pid: int, _channel: str, payload: Any) -> None:
        if payload != self._token:
            self._heard.set()
