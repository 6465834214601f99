"""Dead letters on their way: a record counts as done only when the broker has its dead letter."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING

from fairlead.config import error_text
from fairlead.errors import BrokerFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlead.streams.broker import Message, Outbox, Tp
    from fairlead.streams.holdings import Holding

log = logging.getLogger("fairlead.streams")

AGAIN = 1.0  # seconds until a dead letter that was refused is sent again
LONGEST_ERROR = 2000  # characters


def letter_headers(message: Message, error: BaseException) -> list[tuple[str, bytes]]:
    """Write the headers of a dead letter: the record's own, what went wrong, and where it comes from."""
    text = error_text(error)[:LONGEST_ERROR]
    return [
        *message.headers,
        ("fairlead-error", text.encode(errors="replace")),
        ("fairlead-topic", message.topic.encode()),
        ("fairlead-partition", str(message.partition).encode()),
        ("fairlead-offset", str(message.offset).encode()),
    ]


class Letter:
    """One record to be buried."""

    __slots__ = ("error", "holding", "message", "sent", "again_at")

    def __init__(self, holding: Holding, message: Message, error: BaseException) -> None:
        self.holding = holding
        self.message = message
        self.error = error
        self.sent: Future[Tp] | None = None
        self.again_at = 0.0


class Burials:
    """The dead letters of one listener; it calls all of this under its lock."""

    def __init__(self, outbox: Callable[[], Outbox]) -> None:
        self._outbox = outbox
        self._letters: list[Letter] = []

    def __bool__(self) -> bool:
        return bool(self._letters)

    def add(self, holding: Holding, message: Message, error: BaseException) -> None:
        """A record is to be buried."""
        self._letters.append(Letter(holding, message, error))

    def forget(self, holding: Holding) -> None:
        """A partition is gone: its next owner will see to it."""
        self._letters = [letter for letter in self._letters if letter.holding is not holding]

    def settled(self, now: float) -> Iterator[tuple[Holding, Message]]:
        """Send what is to be sent; tell what the broker has by now."""
        for letter in list(self._letters):
            if letter.sent is None and now >= letter.again_at:
                self._send(letter)
            if letter.sent is None or not letter.sent.done():
                continue
            error = letter.sent.exception()
            if error is None:
                self._letters.remove(letter)
                yield letter.holding, letter.message
            else:
                letter.sent = None
                letter.again_at = now + AGAIN
                log.error(
                    "the dead letter of %r was not taken, and is sent again: %s",
                    letter.message,
                    error,
                )

    def _send(self, letter: Letter) -> None:
        message = letter.message
        try:
            letter.sent = self._outbox().send(
                letter.holding.topic.dead_letter or "",
                key=message.key,
                value=message.value,
                headers=letter_headers(message, letter.error),
            )
        except BrokerFault as fault:
            letter.sent = Future()
            letter.sent.set_exception(fault)
