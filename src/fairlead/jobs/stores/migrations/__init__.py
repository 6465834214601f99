"""The steps that made the schemas what they are: numbered SQL files, one folder per database.

    migrations/sqlite/0001_first.sql    taken once, in order, in one transaction; never changed once released

The version of a schema is the number of the last step taken; a store notes it in the same transaction.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from fairlead.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = re.compile(r"(\d{4})_(\w+)\.sql", re.ASCII)


class Step(NamedTuple):
    """One numbered step."""

    number: int
    name: str  # as the file is called, without .sql
    sql: str


def steps(database: str) -> list[Step]:
    """Read every step for a database ("sqlite", "postgres"), in order, without gaps."""
    folder = files(__name__) / database
    found = sorted(
        Step(int(match[1]), f"{match[1]}_{match[2]}", file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if (match := FILE.fullmatch(file.name))
    )
    if [step.number for step in found] != list(range(1, len(found) + 1)):
        raise SchemaMismatch(
            f"the migrations for {database} in {folder} are not numbered 1, 2, 3 …: "
            "this Fairlead is not completely installed; install it again"
        )
    return found


def missing(taken: int, known: Sequence[Step], shown: str) -> list[Step]:
    """Tell which steps a schema still needs; refuse one that is ahead of this Fairlead."""
    if taken > len(known):
        raise SchemaMismatch(
            f"{shown} has schema {taken}, and this Fairlead knows schemas up to {len(known)}: a newer Fairlead "
            "has migrated it; upgrade this one: pip install --upgrade fairlead"
        )
    return list(known[taken:])


def check(taken: int, known: Sequence[Step], shown: str, command: str) -> None:
    """Refuse a schema that is not the one this Fairlead needs; `command` brings an older one up to date."""
    if missing(taken, known, shown):
        state = f"has schema {taken}" if taken else "has no Fairlead schema yet"
        raise SchemaMismatch(
            f"{shown} {state}, and this Fairlead needs {len(known)}; run: {command}"
        )
