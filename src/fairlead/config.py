"""Settings read and validated once: durations, whole numbers, environment variables; URLs as shown.

Every error names the argument or variable, shows what was given, and gives an example.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
MOST_SLOTS = 1_000_000
MOST_WAITING = 1_000_000_000
ESCAPED = "in a password, / # ? and @ are percent-encoded: %2F %23 %3F %40"
EXAMPLES = '"500ms", "30s", "1h30m" or a number of seconds'

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|min|s|m|h|d)", re.IGNORECASE | re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_SCHEME = re.compile(r"\A\s*[a-z][a-z0-9+.-]*:/+", re.IGNORECASE | re.ASCII)
_OPTION = re.compile(r"([^=?;\s]+)=")


def secret(given: str | None, name: str) -> str | None:
    """Read a secret that clients must show; None is none, and a blank one is refused: it would guard nothing."""
    if given is None:
        return None
    if not given.strip():
        raise ConfigError(f"{name} is blank: give a secret, or leave it out")
    if given != given.strip() or not given.isprintable():
        raise ConfigError(
            f"{name} has white space around it, or characters that no header may hold: "
            "no client could send it; take them out"
        )
    return given


def shown(value: Any) -> str:
    """Show a value as it was received, escaped and cut to a length a line can bear."""
    try:
        text = ascii(value)
    except Exception:  # an integer of 5,000 digits, a __repr__ that fails
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def hide_password(url: str) -> str:
    """Write a URL without its password; a broken one too, since a password may be what breaks it.

    >>> hide_password("postgresql://me:secret@db/app?schema=jobs")
    'postgresql://me:***@db/app?schema=jobs'
    """
    login = _SCHEME.sub("", url)
    scheme = url[: len(url) - len(login)]
    said = "&".join(map(_without_password, login.split("&")))
    user, _, rest = said.partition(":")
    if "@" in login.partition(":")[2]:  # the last one: those before it may be in the password
        _, at, host = rest.rpartition("@")
        said = f"{user}:***{at}{host if at else ''}"
    return scheme + said


def _without_password(option: str) -> str:
    for name in _OPTION.finditer(option):
        if "password" in unquote(name[1]).lower():
            return option[: name.end()] + "***"
    return option


def is_readable(url: str) -> bool:
    """Tell whether the host and the port of a URL can be read; why not may not be told, it quotes passwords."""
    try:
        _ = urlsplit(url).port
    except ValueError:
        return False
    return True


def error_text(error: BaseException) -> str:
    """Tell the class of an error and its text, if it has one that can be told.

    >>> error_text(ValueError("no such customer"))
    'ValueError: no such customer'
    """
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # the __str__ of others may do anything
        return f"{name}, whose text cannot be told"


def seconds(value: Any, name: str, *, zero: bool = False) -> float:
    """Read a duration: a number is seconds, text needs a unit.

    >>> seconds("1h30m", "timeout"), seconds("500ms", "timeout"), seconds(5, "timeout")
    (5400.0, 0.5, 5.0)
    """
    read: float | None = None
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            raise ConfigError(
                f"{name} needs a unit: {shown(value)} could be seconds or minutes; write {EXAMPLES}"
            )
        if len(text) <= 100 and _WHOLE.fullmatch(text):
            parts = _PART.findall(text)
            read = sum(float(amount) * UNITS[unit.lower()] for amount, unit in parts)
    elif isinstance(value, timedelta):
        read = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        read = float(value) if abs(value) < 1e15 else None
    if read is None or not isfinite(read) or read < 0 or (read == 0 and not zero):
        kind = "a duration" if zero else "a duration above zero"
        raise ConfigError(f"{name} must be {kind}, such as {EXAMPLES}; got {told(value)}")
    return read


def whole(value: Any, name: str, least: int, most: int = MOST_SLOTS) -> int:
    """Read a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(
            f"{name} must be a whole number from {least} to {most}; got {told(value)}"
        )
    return value


def told(value: Any) -> str:
    """Show a value in a sentence; of a collection only that it is one, for there may be secrets in it."""
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else shown(value)


def starvation_timeout(value: Any, name: str) -> float:
    """Read a starvation timeout: beneath a millisecond every priority would be at the ceiling at once."""
    read = seconds(value, name)
    if read < 0.001:
        raise ConfigError(f"{name} must be 1 ms or more, such as {EXAMPLES}; got {shown(value)}")
    return read


class SchedulerSettings(NamedTuple):
    """What FAIRLEAD_SCHEDULER_* say."""

    enabled: bool = False
    max_concurrency: int = 16
    max_queue_size: int = 0
    starvation_timeout: float = 30.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> SchedulerSettings:
        """Read FAIRLEAD_SCHEDULER_ENABLED, _MAX_CONCURRENCY, _MAX_QUEUE_SIZE and _STARVATION_TIMEOUT."""
        environ = os.environ if environ is None else environ
        prefix = "FAIRLEAD_SCHEDULER_"

        def number(name: str, default: int, least: int, most: int = MOST_SLOTS) -> int:
            text = environ.get(prefix + name)
            if text is None:
                return default
            if not re.fullmatch(r"-?[0-9]{1,18}", text.strip(), re.ASCII):
                raise ConfigError(f"{prefix}{name} must be a whole number; got {shown(text)}")
            return whole(int(text), prefix + name, least, most)

        name = prefix + "STARVATION_TIMEOUT"
        timeout = starvation_timeout(environ[name], name) if name in environ else 30.0
        return cls(
            enabled=environ.get(prefix + "ENABLED", "").strip().lower() in {"true", "1", "yes"},
            max_concurrency=number("MAX_CONCURRENCY", 16, 1),
            max_queue_size=number("MAX_QUEUE_SIZE", 0, 0, MOST_WAITING),
            starvation_timeout=timeout,
        )
