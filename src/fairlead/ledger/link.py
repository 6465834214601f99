"""The way to Redis or Valkey: many scripts in one round trip, answered in time or not at all.

A call names a script, one key and its arguments.  Scripts are sent by their hash; a server that does not know one yet
is sent the text.  What goes wrong with one call is told of that call, what goes wrong with all is raised: both as
`Fault`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import platform
import uuid
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from fairlead.config import ESCAPED, hide_password, is_readable, shown
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ANSWER_WITHIN = 0.5  # seconds for a round trip, connecting included
SLOW = 0.15  # seconds after which those who need not be sure stop waiting for it
STALL = 0.05  # a timer this late means that this process stood still, not that the server did

log = logging.getLogger("fairlead.ledger")


def used_once(name: str | None) -> str:
    """Make a name for this end of it: what an earlier process of the same name asked for is not ours."""
    return f"{name or f'{platform.node()}:{os.getpid()}'}-{uuid.uuid4().hex[:12]}"


class Fault(Exception):
    """The server did not do what it was asked for; says why."""


class Script:
    """A script and its hash."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = files("fairlead.ledger").joinpath("lua", f"{name}.lua").read_text("utf-8")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """One script to run on one key."""

    script: Script
    key: str
    args: tuple[str, ...]


class Link:
    """A connection that is made when it is needed, and made anew after a fault."""

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        scheme, colon, rest = url.partition("://")
        if not colon or scheme not in SCHEMES:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            named = shown(hide_password(url))
            raise ConfigError(f"{named} is not the address of a Redis or Valkey: use {known}")
        if not is_readable(url):
            raise ConfigError(f"{shown(hide_password(url))} cannot be read: {ESCAPED}")
        self._url = f"{SCHEMES[scheme]}://{rest}"
        self._clock = clock
        self._client: Redis | None = None
        self._checked = False
        self.round_trips = 0
        self.reloads = 0  # scripts that had to be sent as text
        self.warnings: list[str] = []

    async def run(
        self, calls: Sequence[Call], slow: Callable[[], None] | None = None
    ) -> list[list[str] | Fault]:
        """Run the calls in one round trip (a second one for scripts that are new there).

        `slow` is called when it takes long, though the answer may still come.
        """
        task = asyncio.ensure_future(self._run(calls))
        task.add_done_callback(_read)
        try:
            await self._wait(task, SLOW)
            if not task.done() and slow is not None:
                slow()
            if not task.done():
                await self._wait(task, ANSWER_WITHIN - SLOW)
        finally:
            if not task.done():
                task.cancel()
        if not task.done() or task.cancelled():
            await self.drop()
            raise Fault(f"no answer within {ANSWER_WITHIN:g} s")
        try:
            return task.result()
        except (RedisError, OSError, ValueError, EOFError) as error:
            await self.drop()
            raise Fault(f"{type(error).__name__}: {error}") from error

    async def _wait(self, task: asyncio.Future[Any], seconds: float) -> None:
        deadline = self._clock() + seconds
        await asyncio.wait({task}, timeout=seconds)
        if not task.done() and self._clock() - deadline > STALL:
            await asyncio.wait({task}, timeout=STALL)  # the answer may lie there unread

    async def _run(self, calls: Sequence[Call]) -> list[list[str] | Fault]:
        if self._client is None:
            self._client = Redis.from_url(
                self._url,
                decode_responses=True,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                single_connection_client=False,
                max_connections=2,
            )
        answers = await self._send([("EVALSHA", call.script.sha, call) for call in calls])
        missing = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            self.reloads += len(missing)
            again = await self._send([("EVAL", calls[n].script.text, calls[n]) for n in missing])
            for n, answer in zip(missing, again, strict=True):
                answers[n] = answer
        if not self._checked:
            self._checked = True
            await self._check_server()
        return [_checked(answer) for answer in answers]

    async def _send(self, commands: Sequence[tuple[str, str, Call]]) -> list[Any]:
        assert self._client is not None  # noqa: S101  # made by the only caller
        pipe = self._client.pipeline(transaction=False)
        for verb, script, call in commands:
            pipe.execute_command(verb, script, 1, call.key, *call.args)
        self.round_trips += 1
        return await pipe.execute(raise_on_error=False)

    async def _check_server(self) -> None:
        """Warn of what makes the books unreliable; a server that does not tell is not asked twice."""
        try:
            info = await self._client.info() if self._client is not None else {}
        except ResponseError:
            return
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction":
            self._warn(
                f"its maxmemory-policy is {policy!r}: limits may be forgotten; set 'noeviction'"
            )
        version = str(info.get("redis_version", "5"))
        if version.split(".")[0].isdigit() and int(version.split(".")[0]) < 5:
            self._warn(f"it is Redis {version}; 5 or newer is needed")

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        log.warning("ledger: %s", text)

    async def drop(self) -> None:
        """Forget the connection; the next run makes a new one."""
        client, self._client = self._client, None
        if client is not None:
            try:
                await asyncio.wait_for(client.aclose(), 0.1)
            except (RedisError, OSError, TimeoutError):
                pass


SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "unix": "unix",
}


def _read(task: asyncio.Future[Any]) -> None:
    """Look at how a task ended: one that was given up may still fail, and then nobody else would."""
    if not task.cancelled():
        task.exception()


def _checked(answer: Any) -> list[str] | Fault:
    if isinstance(answer, Exception):
        return Fault(f"{type(answer).__name__}: {answer}")
    if not isinstance(answer, list) or not all(isinstance(part, str) for part in answer):
        return Fault(f"a reply that is not ours: {answer!r:.200}")
    if not answer or answer[0] not in ("ok", "stale"):
        return Fault(f"a reply that is not ours: {answer!r:.200}")
    return answer
