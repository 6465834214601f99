"""Which `Jobs` a command means: `--app module:jobs`, or the database alone, `--db URL`; else by the environment.
And which `StreamApp`: `module:app`.

The current directory is importable.  Whatever is wrong with somebody's module is told in one sentence.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from fairlead.jobs.service import Jobs
    from fairlead.streams.app import StreamApp

APP = "FAIRLEAD_APP"
DB = "FAIRLEAD_DB"

_APP = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def find_jobs(app: str | None, db: str | None, *, tasks: bool = False) -> Jobs:
    """Find the `Jobs` meant; with `tasks`, one that has some: a database alone will not do."""
    from fairlead.jobs.service import Jobs

    if app is not None and db is not None:
        raise ConfigError("give either --app or --db: an app has its own database")
    if app is None and db is None:
        app = os.environ.get(APP) or None
        db = os.environ.get(DB) or None if app is None else None
    if app is not None:
        return load_app(app)
    if tasks:
        raise ConfigError(f"say where the tasks are: --app module:jobs, or set {APP}")
    if db is None:
        raise ConfigError(
            f"say which jobs are meant: --app module:jobs or --db URL, or set {APP} or {DB}"
        )
    make_importable()
    return Jobs(db)


def load_app(text: str) -> Jobs:
    """Load `module:jobs`."""
    from fairlead.jobs.service import Jobs

    if not _APP.fullmatch(text):
        raise ConfigError(f"--app must be module:name, such as shop.work:jobs; got {shown(text)}")
    found = _named(text, f"--app {text}")
    if not isinstance(found, Jobs):
        kind = type(found).__name__
        raise ConfigError(f"{text} is no Jobs but of type {kind!r}; write --app module:jobs")
    return found


def load_stream_app(text: str) -> StreamApp:
    """Load `module:app`."""
    from fairlead.streams.app import StreamApp

    if not _APP.fullmatch(text):
        raise ConfigError(f"the app must be module:name, such as billing:app; got {shown(text)}")
    found = _named(text, text)
    if not isinstance(found, StreamApp):
        kind = type(found).__name__
        raise ConfigError(f"{text} is no StreamApp but of type {kind!r}; write module:app")
    return found


def _named(text: str, given: str) -> Any:
    name, _, attributes = text.partition(":")
    found: Any = _imported(name)
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except Exception:
            raise ConfigError(f"module {name!r} has no {attributes!r} ({given})") from None
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
