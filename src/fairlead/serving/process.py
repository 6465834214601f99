"""A service as a process: from start-up to a graceful end.

On the first SIGTERM or SIGINT the service ends in its own time; on the second it is hurried.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fairlead.serving.listener import allow_many_connections, loop_factory

if TYPE_CHECKING:
    from collections.abc import Callable


class Service(Protocol):
    """What can be run: `async with service` serves while inside and waits, on leaving, for what runs."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> Any: ...

    def hurry(self) -> None:
        """Wait for nothing any more."""

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

    `make_service` is called on the loop.  Once started, it says `describe()` on standard error, or to `tell`, line by
    line; an address that cannot be had is told there, or to `complain`, and is code 2.
    """
    allow_many_connections()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run(make_service, following, on_started, hurried, tell or say))
    except OSError as error:
        (complain or say)(f"{name}: {error.strerror or error}")
        return 2


async def _run(
    make_service: Callable[[], Served],
    following: Callable[[Served], Following | None],
    on_started: Callable[[Served], object],
    hurried: int,
    tell: Callable[[str], object],
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
        stop.set()

    def started(service: Served) -> None:
        gc.collect()
        gc.freeze()  # what was loaded stays: there is no need to look through it again and again
        on_started(service)
        for line in service.describe().splitlines():
            tell(line)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    await serve(service, stop, following=following(service), on_started=started)
    return code


def say(*lines: str) -> None:
    """Write lines to standard error: standard output is the access log's."""
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
