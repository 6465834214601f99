"""A service as a process: from start-up to a graceful end.

On the first SIGTERM or SIGINT the service ends in its own time; on the second it is hurried, and if it waits for
somebody all the same, such as a database that does not answer, the process ends as it stands and says what it leaves.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fairlead.serving.listener import allow_many_connections, loop_factory

if TYPE_CHECKING:
    from collections.abc import Callable

HURRIED = 1.5  # seconds for a service that is hurried to end by itself


class Service(Protocol):
    """What can be run: `async with service` serves while inside and waits, on leaving, for what runs."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> Any: ...

    def hurry(self) -> None:
        """Wait for nothing any more."""

    def left(self) -> str:
        """Say what would be left undone if the process ended now."""

    def describe(self) -> str:
        """Say in one line what is served where."""


class Following(Protocol):
    """Something that goes on beside a service, like `documents.watching.Watch`."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def stop(self) -> None: ...


Served = TypeVar("Served", bound=Service)


async def serve(
    service: Served,
    stop: asyncio.Event,
    *,
    following: Following | None = None,
    on_started: Callable[[Served], object] = lambda service: None,
) -> None:
    """Serve until told to stop; what follows along, such as a watched file, stops first."""
    async with service:
        if following is not None:
            following.start(asyncio.get_running_loop())
        on_started(service)
        await stop.wait()
        if following is not None:
            following.stop()


def run(
    make_service: Callable[[], Served],
    *,
    name: str,
    following: Callable[[Served], Following | None] = lambda service: None,
    on_started: Callable[[Served], object] = lambda service: None,
    hurried: int = 1,
    tell: Callable[[str], object] | None = None,
    complain: Callable[[str], object] | None = None,
) -> int:
    """Run a service until a signal ends it; return the exit code, which is `hurried` after a second signal.

    If that does not end it the process is ended, with code 1.

    `make_service` is called on the loop.  Once started, it says `describe()` on standard error, or to `tell`, line by
    line; an address that cannot be had is told there, or to `complain`, and is code 2.
    """
    complain = complain or say
    allow_many_connections()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            main = _run(make_service, name, following, on_started, hurried, tell or say, complain)
            return runner.run(main)
    except OSError as error:
        complain(f"{name}: {error.strerror or error}")
        return 2


async def _run(
    make_service: Callable[[], Served],
    name: str,
    following: Callable[[Served], Following | None],
    on_started: Callable[[Served], object],
    hurried: int,
    tell: Callable[[str], object],
    complain: Callable[[str], object],
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    service = make_service()
    code = 0

    def on_signal() -> None:
        nonlocal code
        if stop.is_set():
            code = hurried
            service.hurry()
            end_soon(name, service.left, complain)
        stop.set()

    def started(service: Served) -> None:
        _settle_collector()
        on_started(service)
        for line in service.describe().splitlines():
            tell(line)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    await serve(service, stop, following=following(service), on_started=started)
    return code


def _settle_collector() -> None:
    """Tune the garbage collector of a process that is all ours; where we are embedded it is left alone.

    What was loaded stays, so it is not looked through again.  A leader of jobs reads a million records that stay, too:
    at the usual 700 objects a collection, looking for garbage among them would take as long as reading them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def end_soon(
    name: str, left: Callable[[], str], complain: Callable[[str], object] | None = None
) -> None:
    """End this process as it stands, unless it ends by itself in a moment; its loop must be running."""

    def end() -> None:
        try:
            (complain or say)(f"{name}: ended as it stood: {left()}")
        finally:
            os._exit(1)

    asyncio.get_running_loop().call_later(HURRIED, end)


def say(*lines: str) -> None:
    """Write lines to standard error: standard output is the access log's."""
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
