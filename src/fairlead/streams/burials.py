"""Dead letters on their way: a record counts as done only when its dead letter is stored.

A letter that its topic refuses is sent again without our headers, which may be what makes it too large.  If that is
refused too, the letter is tried for the topic's patience, then goes to a file, is skipped, or is tried on.  Only
refusals that concern the letter or its topic use up patience: while the cluster is away, letters wait.  There is one
patience with each dead-letter topic, so that a flood of letters for a topic that is missing costs it once.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from fairlead.config import error_text
from fairlead.errors import BrokerFault
from fairlead.streams.letters import line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlead.streams.broker import Message, Outbox
    from fairlead.streams.holdings import Holding
    from fairlead.streams.letters import LetterFiles

log = logging.getLogger("fairlead.streams")

AGAIN = 1.0  # seconds until a dead letter that was refused is sent again
QUIET = 30.0  # seconds between two complaints about one file
LONGEST_ERROR = 2000  # characters


class Burial(StrEnum):
    """What became of a dead letter."""

    WRITTEN = "written"  # to the dead-letter topic
    FILED = "filed"
    SKIPPED = "skipped"


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

    __slots__ = (
        "again_at",
        "bare",
        "error",
        "filing",
        "holding",
        "message",
        "named",
        "refusal",
        "sent",
    )

    def __init__(self, holding: Holding, message: Message, error: BaseException) -> None:
        self.holding = holding
        self.message = message
        self.error = error
        self.sent: Future[Any] | None = None
        self.again_at = 0.0
        self.bare = False  # sent without our headers
        self.filing = False  # sent to a file
        self.named: set[str] = set()  # what has been logged of it
        self.refusal = ""

    @property
    def to(self) -> str:
        """The dead-letter topic."""
        return self.holding.topic.dead_letter or ""


class Burials:
    """The dead letters of one listener; it calls all of this under its lock."""

    def __init__(
        self,
        group: str,
        outbox: Callable[[], Outbox],
        renew: Callable[[], None],
        files: LetterFiles,
    ) -> None:
        self._group = group
        self._outbox = outbox
        self._renew = renew  # the outbox, when it is broken for good
        self._files = files
        self._letters: list[Letter] = []
        self._refused: dict[str, tuple[float, float]] = {}  # by topic: since when, and last
        self._complained: dict[str, float] = {}  # by file

    def __bool__(self) -> bool:
        return bool(self._letters)

    def add(self, holding: Holding, message: Message, error: BaseException) -> None:
        """A record is to be buried."""
        self._letters.append(Letter(holding, message, error))

    def forget(self, holding: Holding) -> None:
        """A partition is gone: its next owner will see to it."""
        self._letters = [letter for letter in self._letters if letter.holding is not holding]

    def refusal(self, holding: Holding) -> str:
        """Return why a letter of a partition was last refused; nothing if none was."""
        return next((one.refusal for one in self._letters if one.holding is holding), "")

    def settled(self, now: float) -> Iterator[tuple[Holding, Message, Burial]]:
        """Send what is to be sent; yield each letter that is stored, or skipped."""
        for letter in list(self._letters):
            if letter.sent is None and now >= letter.again_at:
                self._send(letter)
            if letter.sent is None or not letter.sent.done():
                continue
            error = letter.sent.exception()
            letter.sent = None
            end = self._stored(letter) if error is None else self._failed(letter, error, now)
            if end is not None:
                self._letters.remove(letter)
                yield letter.holding, letter.message, end

    def _send(self, letter: Letter) -> None:
        message = letter.message
        headers = message.headers if letter.bare else letter_headers(message, letter.error)
        try:
            letter.sent = self._outbox().send(
                letter.to, key=message.key, value=message.value, headers=headers
            )
        except BrokerFault as fault:
            letter.sent = Future()
            letter.sent.set_exception(fault)

    def _stored(self, letter: Letter) -> Burial:
        if letter.filing:
            log.error(
                "the dead letter of %r is in the file %s, for %r did not take it: %s",
                letter.message,
                letter.holding.topic.dead_letter_file,
                letter.to,
                letter.refusal,
            )
            return Burial.FILED
        self._refused.pop(letter.to, None)
        if letter.bare:
            log.warning(
                "the dead letter of %r is in %r without the headers that say why (%s): with them it was refused: %s",
                letter.message,
                letter.to,
                error_text(letter.error)[:LONGEST_ERROR],
                letter.refusal,
            )
        return Burial.WRITTEN

    def _failed(self, letter: Letter, error: BaseException, now: float) -> Burial | None:
        if letter.filing:
            self._unfiled(letter, error, now)
            return None
        letter.refusal = str(error)
        if isinstance(error, BrokerFault) and error.fatal:
            self._renew()
        if not isinstance(error, BrokerFault) or error.retriable or error.fatal:
            self._name(letter, "away", "waits until the cluster takes it")
            self._refused.pop(letter.to, None)
            self._again(letter, now)
            return None
        if not letter.bare:
            letter.bare = True
            self._send(letter)
            return None
        return self._refuse(letter, now)

    def _again(self, letter: Letter, now: float) -> None:
        letter.bare = letter.filing = False
        letter.again_at = now + AGAIN

    def _refuse(self, letter: Letter, now: float) -> Burial | None:
        """Count a refusal that concerns the letter or its topic; give the topic up once patience is used up."""
        topic = letter.holding.topic
        since, last = self._refused.get(letter.to, (now, now))
        if now - last > max(topic.dead_letter_patience, 2 * AGAIN):
            since = now  # a refusal of long ago
        self._refused[letter.to] = since, now
        given_up = now - since >= topic.dead_letter_patience
        if topic.on_dead_letter_failure == "stop":
            self._name(
                letter,
                "stop",
                f"is tried again every {AGAIN:g} s; {letter.holding.tp} stands still meanwhile",
            )
        elif not given_up:
            left = topic.dead_letter_patience - (now - since)
            after = "is skipped" if topic.on_dead_letter_failure == "skip" else "goes to a file"
            self._name(letter, "patience", f"is tried for {left:.3g} s more, then {after}")
        elif topic.on_dead_letter_failure == "skip":
            log.error(
                "%r is skipped: %r did not take its dead letter: %s",
                letter.message,
                letter.to,
                letter.refusal,
            )
            return Burial.SKIPPED
        else:
            letter.filing = True
            letter.sent = self._files.write(topic.dead_letter_file, self._line(letter))
            return None
        self._again(letter, now)
        return None

    def _line(self, letter: Letter) -> bytes:
        return line_of(
            letter.message,
            time=time.time(),
            group=self._group,
            error=error_text(letter.error),
            dead_letter=letter.to,
            refusal=letter.refusal,
        )

    def _unfiled(self, letter: Letter, error: BaseException, now: float) -> None:
        path = letter.holding.topic.dead_letter_file
        if now - self._complained.get(path, -QUIET) >= QUIET:
            self._complained[path] = now
            log.error(
                "the dead letter of %r could not be written to the file %s (%s); %s stands still until the file or %r "
                "takes it, which is tried every %g s",
                letter.message,
                path,
                error_text(error),
                letter.holding.tp,
                letter.to,
                AGAIN,
            )
        self._again(letter, now)

    def _name(self, letter: Letter, kind: str, what: str) -> None:
        """Log once of a letter what is going on."""
        if kind not in letter.named:
            letter.named.add(kind)
            log.error(
                "%r did not take the dead letter of %r, which %s: %s",
                letter.to,
                letter.message,
                what,
                letter.refusal,
            )
