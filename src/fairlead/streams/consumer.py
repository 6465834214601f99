"""The consumer a user writes: one instance per partition held, called by workers."""

from __future__ import annotations

import inspect
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.streams.jobs import Kind

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from fairlead.streams.broker import Message
    from fairlead.streams.holdings import Holding

CALLS = {
    Kind.CONSUMPTION: "consume",
    Kind.REVOCATION: "revoked",
    Kind.SHUTDOWN: "shutdown",
    Kind.PERIODIC: "tick",
    Kind.EOFED: "eofed",
}


class Consumer:
    """What is done with the records of one partition; every method may be `async def` or plain `def`.

    There is one instance for each partition while it is held, made when its first records come.  Its methods are
    never called beside each other, except `consume` of a topic with `parallel_by`.  Records count as done when
    `consume` returns; if it raises, they are tried again.

    With `processes = True`, `consume` runs in a process of its own: for work that keeps a core busy.  The class has
    to be importable there, and what it keeps in `self` stays there.

    >>> class Orders(Consumer):
    ...     async def consume(self, messages):
    ...         for message in messages:
    ...             print(message.offset, message.value)
    """

    processes = False
    topic = ""
    partition = -1
    _holding: Holding | None = None

    def consume(self, messages: Sequence[Message]) -> Any:
        """Work on records of one partition, in order."""
        raise NotImplementedError(f"{type(self).__name__} has to define consume(self, messages)")

    def revoked(self) -> Any:
        """The partition has gone to another member."""

    def shutdown(self) -> Any:
        """The app stops."""

    def tick(self) -> Any:
        """`tick_interval` has passed; called only if it is overridden."""

    def eofed(self) -> Any:
        """The end of the partition was reached; called only if it is overridden."""

    def tenant(self, messages: Sequence[Message]) -> Hashable:
        """Tell who a batch is for, for a policy that shares by tenant."""
        return self.topic

    def cost(self, messages: Sequence[Message]) -> float:
        """Tell what a batch costs, for a policy or a capacity that counts."""
        return len(messages)

    def deadline(self, messages: Sequence[Message]) -> float:
        """Tell by when a batch should have started (`time.monotonic`), for a policy that minds it."""
        return inf

    @property
    def lost(self) -> bool:
        """Whether the partition is gone by now: nothing that is done from here on will be committed."""
        return self._holding is not None and self._holding.lost


class Shape:
    """What is known of a consumer class once: which methods it has, and which of them are coroutines."""

    def __init__(self, consumer: type[Consumer]) -> None:
        self.consumer = consumer
        self.processes = consumer.processes
        self.ticks = self._own("tick")
        self.eofs = self._own("eofed")
        self.describes = any(map(self._own, ("tenant", "cost", "deadline")))
        self.methods = {kind: name for kind, name in CALLS.items() if self._own(name)}
        for name in self.methods.values():
            written = getattr(consumer, name)
            if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
                raise ConfigError(
                    f"{consumer.__name__}.{name} has a yield in it, so to call it would run nothing; "
                    "write it without"
                )
        self.coroutines = {
            kind
            for kind, name in self.methods.items()
            if inspect.iscoroutinefunction(getattr(consumer, name))
        }

    def _own(self, name: str) -> bool:
        return getattr(self.consumer, name) is not getattr(Consumer, name)
