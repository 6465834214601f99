"""The caller's own connection: the psycopg connection beneath one of SQLAlchemy or Django.

Neither is imported here: a caller that has such an object has imported its library.
"""

from __future__ import annotations

import sys
from typing import Any

from fairlead.config import shown
from fairlead.errors import ConfigError

TAKEN = (
    "connection= must be a psycopg connection, a SQLAlchemy Connection or Session, or a Django connection, "
    "with an open transaction"
)


def driver_of(connection: Any) -> Any:
    """Return the psycopg connection whose transaction is the caller's."""
    found = _of_sqlalchemy(connection)
    if found is None:
        found = _of_django(connection)
    library = "" if found is None else f", which is on {_package(found)}"
    found = connection if found is None else found
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(found, psycopg.Connection):
        return found
    if library:
        raise ConfigError(
            f"connection= is {shown(connection)}{library}; jobs.sync needs it on psycopg 3: "
            'pip install "psycopg[binary]", and postgresql+psycopg:// as the URL of SQLAlchemy'
        )
    if _package(found) in ("asyncpg", "psycopg"):
        raise ConfigError(
            f"{TAKEN}; an async connection belongs to its event loop: "
            "await jobs.submit(dag, connection=...) there"
        )
    raise ConfigError(f"{TAKEN}; got {shown(connection)}")


def _of_sqlalchemy(connection: Any) -> Any:
    """Return the driver's connection; the transaction is begun, so that SQLAlchemy commits it with its own."""
    orm, engine = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.engine")
    if orm is not None and isinstance(connection, orm.Session | orm.scoped_session):
        connection = connection.connection()
    if engine is None or not isinstance(connection, engine.Connection):
        return None
    if not connection.in_transaction():
        # Any statement begins it; what only the driver has begun, SQLAlchemy would roll back.
        connection.exec_driver_sql("SELECT 1")
    return connection.connection.driver_connection


def _of_django(connection: Any) -> Any:
    base: Any = sys.modules.get("django.db.backends.base.base")
    proxy: Any = sys.modules.get("django.utils.connection")
    if base is None or proxy is None:
        return None
    if not isinstance(connection, base.BaseDatabaseWrapper | proxy.ConnectionProxy):
        return None
    connection.ensure_connection()
    return connection.connection


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]
