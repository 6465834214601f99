"""Printing to people and to programs that may be gone, in whatever encoding they read."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    """Print to a reader who may have gone, in whatever encoding it reads."""
    try:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        print(text, flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """Print a remark beside the result."""
    try:
        print(f"fairlead: {text}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        pass
