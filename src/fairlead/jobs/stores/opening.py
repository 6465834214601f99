"""From a URL to a store that is not open yet."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fairlead.config import ESCAPED, hide_password, is_readable, shown
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from fairlead.jobs.stores.base import Store

EXAMPLES = (
    'write "sqlite:///fairlead.db" for a file here, "sqlite:////var/lib/fairlead.db" for one anywhere, '
    'or "postgresql://user@host/database"'
)


def open_store(url: Any, *, blocking: bool = False) -> Store:
    """Make the store a URL names; verbs of a blocking one never suspend (see `at_once`).

    >>> open_store("sqlite:///fairlead.db").url
    'sqlite:///fairlead.db'
    """
    if not isinstance(url, str):
        raise ConfigError(f"the URL of a store must be text, not {type(url).__name__}; {EXAMPLES}")
    url = url.strip()  # a file or a variable that it was read from often ends with a line break
    if not url.isprintable():
        raise ConfigError(
            f"the URL of a store must be printable text; got {hidden(url)}; {EXAMPLES}"
        )
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite":
        return sqlite(url, rest, blocking)
    if separator and scheme in ("postgresql", "postgres"):
        return postgres(url, blocking)
    raise ConfigError(f"{hidden(url)} is not the URL of a store; {EXAMPLES}")


def sqlite(url: str, rest: str, blocking: bool) -> Store:
    # Imported when needed: whoever keeps jobs in PostgreSQL may have a Python without SQLite.
    from fairlead.jobs.stores.sqlite import SqliteStore
    from fairlead.jobs.stores.sqlite_blocking import BlockingSqliteStore

    if not rest.startswith("/"):
        raise ConfigError(f"{hidden(url)} has too few slashes; {EXAMPLES}")
    name = unquote(rest[1:])
    if name in ("", "/") or name.endswith("/"):
        raise ConfigError(f"{hidden(url)} names no file; {EXAMPLES}")
    if name == ":memory:":
        raise ConfigError(
            f"{hidden(url)}: jobs outlive the process, so they need a file; {EXAMPLES}"
        )
    if "?" in name or "#" in name or "\0" in name:
        raise ConfigError(f"{hidden(url)}: a SQLite store takes no options; {EXAMPLES}")
    kind = BlockingSqliteStore if blocking else SqliteStore
    return kind(Path(name), url)


def postgres(url: str, blocking: bool) -> Store:
    if not is_readable(url):
        raise ConfigError(f"{hidden(url)} cannot be read: {ESCAPED}; {EXAMPLES}")
    try:
        importlib.import_module("asyncpg")
    except ImportError:
        raise ConfigError(
            'jobs in PostgreSQL need asyncpg: pip install "fairlead[postgres]"'
        ) from None
    if blocking:
        module = importlib.import_module("fairlead.jobs.stores.postgres_blocking")
        blocked: Store = module.BlockingPostgresStore(url)
        return blocked
    module = importlib.import_module("fairlead.jobs.stores.postgres")
    store: Store = module.PostgresStore(url)
    return store


def hidden(url: str) -> str:
    """Show a URL without the password that may be in it."""
    return shown(hide_password(url))
