"""The `fairlead` command.

Importing this costs nothing: typer and rich are an extra, loaded when a command line is read.  Exit codes: 0 done, 1
not done, or looked at and found wanting, 2 what was given cannot be used, 130 stopped with Ctrl-C.  A service ends
with 0 on SIGTERM: before it handles the signal itself there is nothing to finish, and the process ends at once.
"""

import os
import signal
import sys

TYPE_CHECKING = False  # as of `typing`, which is loaded later: nothing else is, before a signal finds its handler

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

# Commands that serve until a signal; `check` and `--check` beside them do not.
SERVICES = (
    ["serve"],
    ["worker"],
    ["gateway"],
    ["flows", "serve"],
    ["jobs", "serve"],
    ["streams", "run"],
)
CHECKS = frozenset(("check", "--check"))


def main(args: "Sequence[str] | None" = None) -> int:
    """Run a command line and return its exit code."""
    args = sys.argv[1:] if args is None else args
    try:
        if serves(args):
            signal.signal(signal.SIGTERM, _end)
        from importlib.util import find_spec

        for name in ("typer", "rich"):
            if find_spec(name) is None:
                print(
                    f"fairlead: the commands need {name}; install them with: pip install 'fairlead[cli]'",
                    file=sys.stderr,
                )
                return 1
        from fairlead.cli.commands import run

        return run(args)
    except KeyboardInterrupt:
        return 130


def serves(args: "Sequence[str]") -> bool:
    """Return whether a command line starts a service."""
    words = [word for word in args if not word.startswith("-")]
    named = any(words[: len(service)] == service for service in SERVICES)
    return named and CHECKS.isdisjoint([*words[1:2], *(word for word in args if word[:1] == "-")])


def _end(number: int, frame: object) -> None:
    # An exception could be caught by an import that expects to fail, or be printed as a traceback.
    os._exit(0)
