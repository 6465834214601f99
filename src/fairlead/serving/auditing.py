"""The trail of changes: each request that changes something leaves one entry, with its caller, and before and after.

`Application` writes the entry when a handler has answered, so that no handler can forget it; the handler only adds what
it knows (`noted`).  Entries are kept in memory, the latest ones, and appended to a file if there is one: a line of JSON
each, in a file that only its owner reads.  The file is opened for each entry, so that it can be rotated.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.errors import ConfigError
from fairlead.serving.access import LOCAL

if TYPE_CHECKING:
    from fairlead.serving.http import Scope

log = logging.getLogger("fairlead.server")

KEPT = 1000  # entries in memory
CALLER = "fairlead.caller"  # in the scope: who asks
NOTE = "fairlead.audit.note"  # in the scope: what a handler adds to its entry
UNCHANGED = "fairlead.audit.unchanged"  # in the scope: the route changes nothing
PRIVATE = 0o600


class Entry(NamedTuple):
    """One change; `t` is in seconds since the epoch, `subject` the id of an override."""

    number: int
    t: float
    caller: str
    peer: str | None
    request: str
    what: str
    before: Any
    after: Any
    subject: str | None


class Note(NamedTuple):
    """What a handler knows of its change."""

    what: str
    before: Any = None
    after: Any = None
    subject: str | None = None


def noted(
    scope: Scope, what: str, before: Any = None, after: Any = None, subject: str | None = None
) -> None:
    """Describe the change that a request has made."""
    scope[NOTE] = Note(what, before, after, subject)


class Audit:
    """The latest changes, newest first, and the file that has all of them.

    >>> audit = Audit()
    >>> audit.add("ann", Note("resized flows/checkout", 8, 5), request="POST /x")
    >>> [(one.caller, one.before, one.after) for one in audit.entries()]
    [('ann', 8, 5)]
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self.lost = 0  # entries that could not be written
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._numbers = count(1)

    def open(self) -> None:
        """Make the file, readable by its owner alone; refuse a path that cannot be written."""
        if self.path is None:
            return
        try:
            handle = _opened(self.path)
            try:
                os.fchmod(handle, PRIVATE)
            finally:
                os.close(handle)
        except OSError as error:
            said = error.strerror or error
            raise ConfigError(
                f"server.audit_log: {self.path} cannot be written ({said}); name a file in a folder "
                "that this process may write to"
            ) from None

    def record(self, scope: Scope) -> None:
        """Add the entry of a request that was answered well."""
        request = f"{scope['method']} {scope['path']}"
        note = scope.get(NOTE) or Note(request)
        client = scope.get("client")
        peer = str(client[0]) if client else None
        self.add(scope.get(CALLER, LOCAL).name, note, request=request, peer=peer)

    def add(self, caller: str, note: Note, *, request: str, peer: str | None = None) -> None:
        """Add an entry, in memory, in the log and in the file."""
        entry = Entry(
            next(self._numbers),
            time.time(),
            caller,
            peer,
            request,
            note.what,
            note.before,
            note.after,
            note.subject,
        )
        self._entries.appendleft(entry)
        log.info("%s: %s", caller, note.what)
        if self.path is not None:
            self._write(self.path, entry)

    def _write(self, path: str, entry: Entry) -> None:
        line = json.dumps(entry._asdict(), default=str) + "\n"
        try:
            handle = _opened(path)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        except OSError as error:
            self.lost += 1
            said = error.strerror or error
            log.error("the change is not in the audit log %s (%s): %s", path, said, line.strip())

    def entries(self, limit: int = KEPT) -> list[Entry]:
        """Return the latest entries, newest first."""
        return list(islice(self._entries, limit))

    def latest(self, subject: str) -> Entry | None:
        """Return the latest entry of an override."""
        return next((one for one in self._entries if one.subject == subject), None)


def _opened(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    return os.open(Path(path), flags, PRIVATE)
