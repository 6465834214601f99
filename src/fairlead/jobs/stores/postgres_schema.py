"""The schema in PostgreSQL: which version it has, and bringing it up to date.

All steps that are missing run in one transaction under an advisory lock that ends with it, so any number of processes
may start at once, also behind pgbouncer, and a step that fails leaves nothing behind.  `lock_timeout` keeps a step that
must wait for somebody's lock from making everybody else wait behind it: it gives up, and can be run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.errors import SchemaMismatch
from fairlead.jobs.stores import migrations

if TYPE_CHECKING:
    import asyncpg

    from fairlead.jobs.stores.postgres_connections import Address, Connections

LOCK = 0x6661_6972_6C65_6164  # "fairlead"
LOCK_TIMEOUT = "900ms"
LONGEST = 3600.0  # seconds for all steps


async def version_of(connection: asyncpg.Connection[Any], address: Address) -> int:
    """Tell the version of the schema in the database; 0 if there is none."""
    table = f'"{address.schema}".migrations'
    if await connection.fetchval("SELECT to_regclass($1)::text", table) is None:
        return 0
    found: int | None = await connection.fetchval(f"SELECT max(number) FROM {table}")
    return found or 0


async def check_encoding(connection: asyncpg.Connection[Any], address: Address) -> None:
    """Refuse a database that cannot hold every character; SQL_ASCII keeps bytes as they are."""
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding not in ("UTF8", "SQL_ASCII"):
        raise SchemaMismatch(
            f"{address.shown} is encoded in {encoding}, which cannot hold every character of names and arguments; "
            "make another database: createdb --encoding UTF8 --template template0 NAME"
        )


async def versions(connections: Connections) -> tuple[int, int]:
    """Return the version in the database, and the one that is needed."""
    async with connections.transaction() as connection:
        await check_encoding(connection, connections.address)
        taken = await version_of(connection, connections.address)
    return taken, len(migrations.steps("postgres"))


async def migrate(connections: Connections) -> list[str]:
    """Take the steps that are missing; tell their names."""
    address = connections.address
    known = migrations.steps("postgres")
    async with connections.transaction() as connection:
        await check_encoding(connection, address)
        await connection.execute(
            f"SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({LOCK})",
            timeout=LONGEST,
        )
        taken = await version_of(connection, address)
        missing = migrations.missing(taken, known, address.shown)
        if not missing:
            return []
        schema = f'"{address.schema}"'
        await connection.execute(
            f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; SET LOCAL check_function_bodies = off;"
            f"CREATE SCHEMA IF NOT EXISTS {schema}; SET LOCAL search_path = {schema}, pg_catalog, pg_temp;"
            "CREATE TABLE IF NOT EXISTS migrations (number integer PRIMARY KEY, name text NOT NULL, "
            "taken_at timestamptz NOT NULL DEFAULT now())"
        )
        for step in missing:
            await connection.execute(step.sql, timeout=LONGEST)
            await connection.execute(
                f"INSERT INTO migrations (number, name) VALUES ({step.number}, '{step.name}')"
            )
    return [step.name for step in missing]
