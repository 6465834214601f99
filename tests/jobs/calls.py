"""Functions for the tests of executors, at the top of a module that other processes can import too.

Each comes as `plain_…` and as `async_…`, which does the same on a loop.  Waiting is for files, by which a test and a
call in another process can talk.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.jobs.context import current_job

LONG = 60.0


class Odd(BaseException):
    """Not even an Exception."""


class Unspeakable(Exception):
    """An error that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Slippery(list[Any]):
    """A list that fails whoever looks into it."""

    def __iter__(self) -> Any:
        raise RuntimeError("do not look")

    def __len__(self) -> int:
        raise RuntimeError("do not count")


def _ring() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    return deep


async def _unawaited() -> None:
    """Never run."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("bad value"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": lambda: KeyboardInterrupt(),
    "CancelledError": lambda: asyncio.CancelledError(),
    "Odd": lambda: Odd("odd"),
    "Unspeakable": lambda: Unspeakable(),
    "StopIteration": lambda: StopIteration(1),
    "GeneratorExit": lambda: GeneratorExit(),
    "huge": lambda: ValueError("x" * 5_000_000),
    "surrogate": lambda: ValueError("half \ud800 and \0 nul"),
    "group": lambda: ExceptionGroup("two", [ValueError("a"), TypeError("b")]),
}
UNSTORABLE: dict[str, Callable[[], Any]] = {
    "bytes": lambda: b"x",
    "nan": lambda: float("nan"),
    "set": lambda: {1},
    "ring": _ring,
    "deep": _deep,
    "huge": lambda: "x" * (1 << 20),
    "surrogate": lambda: "\ud800",
    "long": lambda: 2**63,
    "generator": lambda: (one for one in range(3)),
    "coroutine": _unawaited,
    "class": lambda: Odd,
    "slippery": lambda: Slippery([1]),
    "key": lambda: {1: 2},
}


def plain_give(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


def plain_fail(kind: str) -> None:
    error = ERRORS[kind]()
    raise error


def plain_return(kind: str) -> Any:
    return UNSTORABLE[kind]()


def plain_about() -> Any:
    job = current_job()
    return [job.id, job.run, job.name, job.attempt, job.cancelled, job.fence]


def plain_span(seconds: float) -> list[float]:
    began = time.monotonic()
    time.sleep(seconds)
    return [began, time.monotonic()]


def plain_meet(folder: str, me: str, others: int) -> int:
    """Return once so many have met: they must run at once."""
    (Path(folder) / me).touch()
    until = time.monotonic() + LONG
    while len(list(Path(folder).iterdir())) < others:
        if time.monotonic() > until:
            raise TimeoutError("the others did not come")
        time.sleep(0.005)
    return os.getpid()


def plain_wait(path: str) -> None:
    """Wait for a file."""
    until = time.monotonic() + LONG
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.005)


def plain_hang(folder: str) -> None:
    """Say that it runs, and go on until somebody stops it; on a thread, look whether to stop."""
    (Path(folder) / "runs").write_text(str(os.getpid()))
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        if current_job().cancelled:
            (Path(folder) / "told").touch()
            return
        time.sleep(0.005)


def plain_die(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


def plain_die_once(path: str) -> str:
    """Die, but not the second time."""
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)
    return "alive"


def plain_stubborn_family(folder: str) -> None:
    """Start a process, ignore SIGTERM, and go on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (Path(folder) / "inner").write_text(str(inner.pid))
    plain_hang(folder)


def plain_leave_child(folder: str) -> None:
    """Die while something that was started holds every file open."""
    pid = os.fork()
    if pid == 0:
        time.sleep(LONG)
        os._exit(0)
    (Path(folder) / "inner").write_text(str(pid))
    os._exit(5)


def plain_coroutine() -> Any:
    return _unawaited()


async def async_give(*args: Any, **kwargs: Any) -> Any:
    await asyncio.sleep(0)
    return plain_give(*args, **kwargs)


async def async_fail(kind: str) -> None:
    await asyncio.sleep(0)
    plain_fail(kind)


async def async_return(kind: str) -> Any:
    return plain_return(kind)


async def async_about() -> Any:
    await asyncio.sleep(0)
    return await asyncio.create_task(_about())


async def _about() -> Any:
    return plain_about()


async def async_span(seconds: float) -> list[float]:
    began = time.monotonic()
    await asyncio.sleep(seconds)
    return [began, time.monotonic()]


def _present(folder: str) -> int:
    return len(list(Path(folder).iterdir()))


async def async_meet(folder: str, me: str, others: int) -> int:
    (Path(folder) / me).touch()
    async with asyncio.timeout(LONG):
        while _present(folder) < others:  # noqa: ASYNC110 - the others may be in other processes
            await asyncio.sleep(0.005)
    return os.getpid()


async def async_wait(path: str) -> None:
    until = time.monotonic() + LONG
    while not Path(path).exists() and time.monotonic() < until:  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.005)


async def async_hang(folder: str) -> None:
    (Path(folder) / "runs").write_text(str(os.getpid()))
    try:
        await asyncio.sleep(LONG)
    except asyncio.CancelledError:
        (Path(folder) / "told").touch()
        raise


async def async_stubborn(folder: str) -> None:
    """Will not be cancelled."""
    (Path(folder) / "runs").touch()
    while not (Path(folder) / "enough").exists():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass
    (Path(folder) / "ended").touch()
