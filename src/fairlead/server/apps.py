"""Applications by name: `module:attribute`, imported from Python's path or the current directory."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from fairlead.config import shown
from fairlead.errors import ConfigError

Kind = TypeVar("Kind")

_APP = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def find(text: str, kind: type[Kind], setting: str) -> Kind:
    """Import an application; whatever is wrong with somebody's module is told in one sentence."""
    if not _APP.fullmatch(text):
        raise ConfigError(
            f"{setting} must be module:name, such as shop.work:app; got {shown(text)}"
        )
    name, _, attributes = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(name)
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ConfigError(f"{setting}: module {name!r} cannot be imported: {said}") from None
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except Exception:
            raise ConfigError(f"{setting}: module {name!r} has no {attributes!r}") from None
    if not isinstance(found, kind):
        raise ConfigError(
            f"{setting}: {text} must be a {kind.__name__}; it is of type {type(found).__name__!r}"
        )
    return found
