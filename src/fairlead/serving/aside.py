"""Work that would hold the event loop, done in another process: judging a large body, above all.

A thread would not do: while C code reads a document of megabytes it keeps the interpreter to itself, and every other
port waits.  The process is started for the first large body, does one thing at a time, and ends when it has had nothing
to do for a while.  It gets a function by its name, and its arguments; what comes back is small.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fairlead.serving.http import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Result = TypeVar("Result")

LARGE = 32 * 1024  # bytes from which a body is judged aside
MOST_WAITING = 16  # pieces of work, the one that is done included
IDLE = 30.0  # seconds without work until the process ends
LONGEST = 300.0  # seconds for one piece of work
NICE = 5
PIECE = 64 * 1024  # bytes written at once: what a pipe does not take is copied
HEAD = 8  # bytes of a length


class Child(NamedTuple):
    """The process, and what it is given and gives."""

    process: subprocess.Popen[bytes]
    given: asyncio.StreamWriter
    taken: asyncio.StreamReader


async def _begin() -> Child:
    ours, theirs = socket.socketpair()
    try:
        # An event loop would fork, which takes long in a large process; this one need not.
        process = await asyncio.to_thread(
            subprocess.Popen,
            # -P: a module in the working folder is none of ours
            [sys.executable, "-P", "-m", "fairlead.serving.aside"],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    taken, given = await asyncio.open_connection(sock=ours)
    return Child(process, given, taken)


class Aside:
    """One process for the large bodies of a service; `close` ends it."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._ending: asyncio.TimerHandle | None = None

    async def run(self, fn: Callable[..., Coroutine[Any, Any, Result]], *args: Any) -> Result:
        """Call an async function of a module with arguments that can be pickled; return or raise what it does."""
        if self._waiting >= MOST_WAITING:
            detail = f"{MOST_WAITING} large bodies are being judged; try again"
            raise Problem(503, "busy", detail, headers=((b"retry-after", b"1"),))
        self._waiting += 1
        try:
            async with self._turn:
                result: Result = await self._run(fn, args)
                return result
        finally:
            self._waiting -= 1

    async def _run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        try:
            async with asyncio.timeout(LONGEST):
                returned, value = await self._asked(
                    pickle.dumps((fn.__module__, fn.__name__, args), protocol=5)
                )
        except (OSError, EOFError, TimeoutError) as error:
            await self._end()
            detail = f"a large body could not be judged ({type(error).__name__}); try again"
            raise Problem(503, "not_judged", detail, headers=((b"retry-after", b"1"),)) from None
        except BaseException:  # whoever asked is gone: what was begun is not waited for
            await asyncio.shield(self._end())
            raise
        self._ending = asyncio.get_running_loop().call_later(IDLE, self._retire)
        if not returned:
            raise value
        return value

    async def _asked(self, asked: bytes) -> Any:
        if self._child is None or self._child.process.poll() is not None:
            self._child = await _begin()
        given, taken = self._child.given, self._child.taken
        given.write(len(asked).to_bytes(HEAD, "big"))
        for start in range(0, len(asked), PIECE):
            given.write(asked[start : start + PIECE])
            await given.drain()
        size = int.from_bytes(await taken.readexactly(HEAD), "big")
        return pickle.loads(await taken.readexactly(size))  # noqa: S301 - of our own process

    def _retire(self) -> None:
        """Let the process end by itself: it has nothing to do."""
        self._ending = None
        child, self._child = self._child, None
        if child is not None:
            child.given.close()
            asyncio.get_running_loop().run_in_executor(None, child.process.wait)

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.given.close()
            child.process.kill()
            await asyncio.to_thread(child.process.wait)

    async def close(self) -> None:
        """End the process."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        await self._end()


async def _serve(given: Any, taken: Any) -> None:
    """Do what is asked, one thing after another, until nothing more can come."""
    while head := given.read(HEAD):
        module, name, args = pickle.loads(given.read(int.from_bytes(head, "big")))  # noqa: S301
        try:
            value = await getattr(import_module(module), name)(*args)
            answer = pickle.dumps((True, value), protocol=5)
        except Exception as error:
            answer = _pickled(error)
        taken.write(len(answer).to_bytes(HEAD, "big"))
        taken.write(answer)
        taken.flush()


def _pickled(error: Exception) -> bytes:
    """Write an error so that it can be read again; one that cannot is told by its text."""
    error.__cause__ = error.__context__ = error.__traceback__ = None
    try:
        answer = pickle.dumps((False, error), protocol=5)
        pickle.loads(answer)  # noqa: S301
    except Exception:
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")), protocol=5)
    return answer


def main() -> None:
    """Serve the process that started us, over the socket that is our standard input."""
    line = socket.socket(fileno=os.dup(0))
    line.set_inheritable(False)
    given, taken = line.makefile("rb"), line.makefile("wb")
    with suppress(OSError):
        os.nice(NICE)
    asyncio.run(_serve(given, taken))


if __name__ == "__main__":
    main()
