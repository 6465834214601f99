"""How a call to a backend fails."""

from __future__ import annotations

import socket

from fairlead.errors import FairleadError
from fairlead.serving.connections import out_of_descriptors


class BadAnswer(ValueError):
    """A backend's answer that must not reach a client."""


class Lost(FairleadError):
    """The connection ended before the answer did; `unsent` when not a byte of the request had been written."""

    def __init__(self, reason: str, *, unsent: bool = False) -> None:
        super().__init__(reason)
        self.unsent = unsent


class Unconnected(FairleadError):
    """No connection could be made; `exhausted` when this process or machine is the reason, not the backend."""

    def __init__(self, reason: str, *, exhausted: bool = False) -> None:
        super().__init__(reason)
        self.exhausted = exhausted


def is_exhausted(error: OSError | UnicodeError) -> bool:
    """Return whether an error means that this process or machine has run out of something."""
    if not isinstance(error, socket.gaierror):
        return out_of_descriptors(error)
    try:
        socket.socket().close()  # the resolver needs descriptors too, and does not say so
    except OSError as shortage:
        return out_of_descriptors(shortage)
    return False
