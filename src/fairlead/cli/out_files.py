"""Files that a command writes: whether they can be is said before the work, and each is whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.config import shown
from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


def see_writable(name: str) -> Path:
    """See that a file can be written, before an hour is spent on what goes into it."""
    path = Path(name)
    try:
        if "\0" in name:
            why = "no file can have that name"
        elif path.is_dir():
            why = "it is a folder"
        elif not path.parent.is_dir():
            why = f"there is no folder {shown(str(path.parent))}"
        elif not os.access(path.parent, os.W_OK):
            why = f"the folder {shown(str(path.parent))} may not be written to"
        else:
            return path
    except OSError as error:
        why = error.strerror or str(error)
    raise ConfigError(f"--out {shown(name)} cannot be written: {why}")


def write_whole(path: Path, parts: Iterable[bytes]) -> int:
    """Write all or nothing, and return how many parts: what breaks off leaves no file that looks whole."""
    part = path.with_name(path.name + ".part")
    number = 0
    try:
        with part.open("wb") as file:
            for piece in parts:
                file.write(piece)
                number += 1
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return number
