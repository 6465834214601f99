"""The `fairlead` command.

Importing this costs nothing: typer and rich are an extra, loaded when a command line is read.  Exit codes: 0 done, 1
not done, or looked at and found wanting, 2 what was given cannot be used, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    try:
        for name in ("typer", "rich"):
            if find_spec(name) is None:
                print(
                    f"fairlead: the commands need {name}; install them with: pip install 'fairlead[cli]'",
                    file=sys.stderr,
                )
                return 1
        from fairlead.cli.commands import run

        return run(sys.argv[1:] if args is None else args)
    except KeyboardInterrupt:
        return 130
