"""Applications by name: `module:attribute`, imported from Python's path or the current directory.

Whatever is wrong with somebody's module is told in one sentence.
"""

from __future__ import annotations

import re
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.config import shown
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

Kind = TypeVar("Kind")

_APP = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def find(text: str, kind: type[Kind], setting: str) -> Kind:
    """Import an application of that kind; `setting` is what the user calls the place that names it."""
    if not _APP.fullmatch(text):
        raise ConfigError(
            f"{setting} must be module:name, such as shop.work:app; got {shown(text)}"
        )
    name, _, attributes = text.partition(":")
    try:
        found: Any = _imported(name)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None
    except Exception:
        raise ConfigError(f"{setting}: module {name!r} has no {attributes!r}") from None
    if not isinstance(found, kind):
        said = f"{text} is no {kind.__name__} but of type {type(found).__name__!r}"
        raise ConfigError(f"{setting}: {said}")
    return found


def make_importable() -> None:
    """Let modules of the current directory be imported, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _imported(name: str) -> ModuleType:
    make_importable()
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            raise ConfigError(
                f"there is no module {missing!r}, neither in {Path.cwd()} nor on Python's path"
            ) from None
        raise ConfigError(f"module {name!r} needs {missing!r}, which is not installed") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"module {name!r} cannot be imported: {_told(error)}") from None


def _told(error: BaseException) -> str:
    said = f"{type(error).__name__}: {error}".rstrip(": ")
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return said
    return f"{said} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
