"""Which `Jobs` a command means: `--app module:jobs`, or the database alone, `--db URL`; else by the environment.
And which `StreamApp`: `module:app`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fairlead.config import secret
from fairlead.errors import ConfigError
from fairlead.server.apps import find, make_importable

if TYPE_CHECKING:
    from fairlead.jobs.service import Jobs
    from fairlead.streams.app import StreamApp

APP = "FAIRLEAD_APP"
DB = "FAIRLEAD_DB"


def find_jobs(app: str | None, db: str | None, *, tasks: bool = False) -> Jobs:
    """Find the `Jobs` meant; with `tasks`, one that has some: a database alone will not do."""
    from fairlead.jobs.service import Jobs

    if app is not None and db is not None:
        raise ConfigError("give either --app or --db: an app has its own database")
    if app is None and db is None:
        app = os.environ.get(APP) or None
        db = os.environ.get(DB) or None if app is None else None
    if app is not None:
        return find(app, Jobs, "--app")
    if tasks:
        raise ConfigError(f"say where the tasks are: --app module:jobs, or set {APP}")
    if db is None:
        raise ConfigError(
            f"say which jobs are meant: --app module:jobs or --db URL, or set {APP} or {DB}"
        )
    make_importable()
    return Jobs(db)


def token_of(given: str | None, variable: str) -> str | None:
    """Read the token that clients must show, from its option or its variable; a blank one is refused."""
    if given is None:
        given = os.environ.get(variable)  # typer takes an empty variable for one that is not set
    return secret(given, f"the token of --token or {variable}")


def find_stream_app(text: str) -> StreamApp:
    """Find the `StreamApp` meant."""
    from fairlead.streams.app import StreamApp

    return find(text, StreamApp, "the app")
