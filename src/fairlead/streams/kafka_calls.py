"""Calls of the Kafka client that know no timeout, given one.

A commit to a broker that has stopped answering, without closing its connections, waits until it answers again; so
does leaving the group.  And while one thread waits in the client, every other call on it waits too.  So such a call
runs on a thread of its own, and if it is late the client is *stuck*: nothing is asked of it until it comes back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import Consumer

Answer = TypeVar("Answer")


class Late(Exception):
    """The call has not come back in time; it may still succeed."""


class BoundedCalls:
    """Makes one call at a time; belongs to one thread."""

    def __init__(self) -> None:
        self._late: Future[Any] | None = None

    @property
    def stuck(self) -> bool:
        return self._late is not None and not self._late.done()

    def wait(self, timeout: float) -> bool:
        """Wait for the call that is late; say whether the client is free."""
        if self._late is not None:
            done = threading.Event()
            self._late.add_done_callback(lambda _: done.set())
            if not done.wait(timeout):
                return False
            self._late = None
        return True

    def run(self, call: Callable[[], Answer], limit: float) -> Answer:
        """Make a call; raise `Late` if it takes longer than `limit` seconds, or if an earlier one still does."""
        if not self.wait(0):
            raise Late
        answer: Future[Answer] = Future()

        def make() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=make, name="fairlead-kafka-call", daemon=True).start()
        try:
            return answer.result(limit)
        except TimeoutError:
            if answer.done():
                return answer.result()
            self._late = answer
            raise Late from None


def leave(consumer: Consumer, patience: float) -> None:
    """Leave the group, then close: a callback that the end overtakes is never answered (librdkafka #4884)."""
    consumer.unsubscribe()
    until = time.monotonic() + patience
    while consumer.assignment() and time.monotonic() < until:
        consumer.poll(0.01)
    consumer.close()
