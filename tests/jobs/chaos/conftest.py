"""A PostgreSQL for the storms that do not kill it."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.engines_postgres import Postgres, postgres

# A process that is killed loses nothing that the kernel has: flushing to disk would only take time here.
QUICK = {"fsync": "off", "full_page_writes": "off"}
NUMBERS = count(1)


@pytest.fixture(scope="package")
def server() -> Iterator[Postgres]:
    with postgres(**QUICK) as one:
        yield one


@pytest.fixture
def database(server: Postgres) -> str:
    """The URL of a new database."""
    name = f"storm_{next(NUMBERS)}"
    server.execute(f"CREATE DATABASE {name}")
    return server.url_of(name)
