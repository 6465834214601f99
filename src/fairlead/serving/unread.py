"""Answers that a client cannot have read: what they granted is taken back.

A handler that grants something with its answer names the deed that takes the grant back.  The deed is done if the
connection ends before the answer is sent, or is reset within a second after.  A client that reads its answer and closes
its connection, which is no reset, keeps what it was granted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Deed = Callable[[], object]

UNDO, GONE = "fairlead.undo", "fairlead.gone"  # in the scope of a request
READ_WITHIN = 1.0  # seconds after an answer for which a reset means that it was not read


def undo_if_unread(scope: Scope, deed: Deed) -> None:
    """Do this deed if the answer to this request cannot have been read; at once if the client is gone already."""
    if scope.get(GONE):
        deed()
    else:
        scope[UNDO] = deed


def not_sent(scope: Scope) -> None:
    """Note that the connection ended before the answer was sent."""
    scope[GONE] = True
    deed: Deed | None = scope.pop(UNDO, None)
    if deed is not None:
        deed()


class Unread:
    """The answers of one connection that may not have been read yet."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: deque[tuple[float, Deed]] = deque()

    def sent(self, scope: Scope, now: float) -> None:
        """Note that the answer to a request was sent."""
        answers = self._answers
        while answers and answers[0][0] < now - READ_WITHIN:
            answers.popleft()
        deed: Deed | None = scope.pop(UNDO, None)
        if deed is not None:
            answers.append((now, deed))

    def lost(self, error: Exception | None, now: float) -> None:
        """Note how the connection ended; an error is a reset, or a write that found one."""
        answers = self._answers
        while answers:
            at, deed = answers.popleft()
            if isinstance(error, ConnectionError) and now - at <= READ_WITHIN:
                deed()
