"""The tasks a process knows: functions by name, with how they are run."""

from __future__ import annotations

import inspect
import re
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import seconds, shown, whole
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
DEFAULT_EXECUTOR = "default"
MOST_RETRIES = 1000


class Task(NamedTuple):
    """A function that jobs may call; only what is registered can be called."""

    name: str
    fn: Callable[..., Any]
    executor: str = DEFAULT_EXECUTOR
    estimate: float | None = None  # None: learned from history
    retries: int = 0
    retry_delay: float = 1.0
    timeout: float | None = None
    abandon: bool = False  # what does not stop in time is let go, and its slot is free

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop; else on a thread or in a process."""
        return _is_async(self.fn)


@cache  # asked for each call
def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn)


def named(value: Any, what: str) -> str:
    """Read a name of a task, an executor or the like."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ConfigError(
            f"{what} must be 1 to 64 of the letters A-Z a-z 0-9 _ . -; got {shown(value)}"
        )
    return value


def task_of(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    executor: str = DEFAULT_EXECUTOR,
    estimate: Any = None,
    retries: int = 0,
    retry_delay: Any = "1s",
    timeout: Any = None,
    abandon: bool = False,
) -> Task:
    """Read the options of a task; everything wrong is said at once it is declared."""
    if not callable(fn):
        raise ConfigError(f"a task must be a function; got {shown(fn)}")
    called = named(getattr(fn, "__name__", None) if name is None else name, "the name of a task")
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise ConfigError(f"task {called!r} is a generator; a task returns its result once")
    return Task(
        called,
        fn,
        named(executor, f"executor of task {called!r}"),
        None if estimate is None else seconds(estimate, f"estimate of task {called!r}", zero=True),
        whole(retries, f"retries of task {called!r}", 0, MOST_RETRIES),
        seconds(retry_delay, f"retry_delay of task {called!r}", zero=True),
        None if timeout is None else seconds(timeout, f"timeout of task {called!r}"),
        _truth(abandon, f"abandon of task {called!r}"),
    )


def _truth(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False; got {shown(value)}")
    return value


def check_options(options: Iterable[str]) -> None:
    """Refuse names of options that no task has."""
    known = list(task_of.__kwdefaults__ or ())
    for name in options:
        if name not in known:
            near = get_close_matches(name[:100], known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"a task has no option {shown(name)}; {meant}")


def same(one: Any, other: Any) -> bool:
    """Whether a function is the same, or the same again (a module that was imported as __main__ too)."""
    return one is other or (
        getattr(one, "__qualname__", 1) == getattr(other, "__qualname__", 2)
        and getattr(getattr(one, "__code__", None), "co_filename", 1)
        == getattr(getattr(other, "__code__", None), "co_filename", 2)
    )
