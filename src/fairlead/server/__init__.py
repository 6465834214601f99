"""One process for everything: the doors a configuration names, a control API, and a dashboard to look at them.

`fairlead serve` runs it; a program says `async with Server(load("fairlead.yaml"))`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.server.loading import Loaded, load, load_mapping
    from fairlead.server.service import Server

__all__ = ["Loaded", "Server", "load", "load_mapping"]

_HOMES = {
    "Loaded": "loading",
    "Server": "service",
    "load": "loading",
    "load_mapping": "loading",
}


def __getattr__(name: str) -> Any:
    """Import a part when it is asked for: commands that serve nothing import others of this package."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'fairlead.server' has no attribute {name!r}")
    return getattr(import_module(f"fairlead.server.{_HOMES[name]}"), name)
