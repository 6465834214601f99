"""The connections of one listener: how many may be open, in all and for one address, and which gives way to a new one.

Below the limit of file descriptors: a connection that is refused in words is better than one that finds no descriptor,
and the descriptors for backends, files and the other listeners of the process stay free.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.serving.limits import Limits

UNLIMITED = 1 << 20  # descriptors, where the system names no number
SHARE = 1 / 8  # of the descriptors, for the connections of a listener
LOOKS = 64  # connections that are looked at to find an idle one
ANSWERED = (
    16  # of the connections, one of so many may be open only to be told that there are too many
)
SAY_AGAIN = 60.0  # seconds
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS})

log = logging.getLogger("fairlead.serving")


class Caps(NamedTuple):
    """How many connections may be open."""

    total: int
    per_address: int

    @classmethod
    def of(cls, descriptors: int, share: float = SHARE, limits: Limits | None = None) -> Caps:
        """Return what a part of the descriptors allows, or less if the limits say so.

        >>> Caps.of(1024), Caps.of(1024, 1 / 2)
        (Caps(total=128, per_address=32), Caps(total=512, per_address=128))
        """
        total = max(1, int(descriptors * share))
        own = None
        if limits is not None:
            own = limits.connections_per_address
            if limits.connections is not None:
                # Each may need another one to a backend.
                total = max(1, min(limits.connections, int(descriptors * 7 / 8)))
        return cls(total, max(1, total // 4) if own is None else own)


class Connection(Protocol):
    """What has to be known of a connection."""

    @property
    def idle(self) -> bool:
        """Whether no request is being received or answered."""

    @property
    def served(self) -> bool:
        """Whether a request has come on it."""

    def give_way(self) -> None:
        """Close, though nothing is wrong with it."""


class Connections:
    """The connections of one listener, by address."""

    def __init__(self, where: str, caps: Callable[[], Caps], exempt: Callable[[str], bool]) -> None:
        self.where = where
        self.count = 0
        self._caps = caps
        self._exempt = exempt
        self._open: dict[str, dict[Connection, None]] = {}
        self._refused: set[Connection] = set()
        self._say_at = 0.0

    def admit(self, connection: Connection, address: str, now: float) -> bool:
        """Take a connection in, in place of an idle one if need be; False if there is no room for it."""
        caps = self._caps()
        own = self._open.get(address, {})
        if len(own) >= caps.per_address and not self._exempt(address):
            if not self._make_room(address):
                return False
        elif self.count >= caps.total:
            largest = max(self._open, key=lambda one: len(self._open[one]))
            self._say(caps, largest, now)
            if not self._make_room(largest):
                return False
        self._open.setdefault(address, {})[connection] = None
        self.count += 1
        return True

    def may_answer(self, connection: Connection) -> bool:
        """Whether a connection that was refused may stay open until it has been told why."""
        if len(self._refused) >= max(4, self._caps().total // ANSWERED):
            return False
        self._refused.add(connection)
        return True

    def leave(self, connection: Connection, address: str) -> None:
        """Forget a connection."""
        self._refused.discard(connection)
        own = self._open.get(address)
        if own is not None and connection in own:
            del own[connection]
            self.count -= 1
            if not own:
                del self._open[address]

    def _make_room(self, address: str) -> bool:
        """Close an idle connection of an address, the oldest that never brought a request before others."""
        own = self._open[address]
        found: Connection | None = None
        for connection in list(_first(own, LOOKS)):
            # The next search begins with the others: none is looked at again and again.
            del own[connection]
            own[connection] = None
            if connection.idle:
                if not connection.served:
                    found = connection
                    break
                found = found or connection
        if found is None:
            return False
        self.leave(found, address)
        found.give_way()
        return True

    def _say(self, caps: Caps, largest: str, now: float) -> None:
        if now < self._say_at:
            return
        self._say_at = now + SAY_AGAIN
        log.warning(
            "%s: all %d connections that may be open are, %d of them from %s; a new connection takes the place of an "
            "idle one or is answered 503. Raise the limit of open files or the number of connections, or set a limit "
            "for each address",
            self.where,
            caps.total,
            len(self._open[largest]),
            largest or "a socket",
        )


def _first(connections: dict[Connection, None], most: int) -> list[Connection]:
    return [connection for connection, _ in zip(connections, range(most), strict=False)]


def descriptors() -> int:
    """Return how many files and connections this process may have open."""
    try:
        import resource
    except ImportError:  # on Windows there is no such limit
        return UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def out_of_descriptors(error: BaseException) -> bool:
    """Whether an error is for want of descriptors or buffers here, and not the fault of the other side."""
    return getattr(error, "errno", None) in SHORTAGES
