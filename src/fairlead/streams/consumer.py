"""The consumer a user writes: one instance for each partition held, or one for all of them, called by workers."""

from __future__ import annotations

from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from fairlead.streams.broker import Message, Tp
    from fairlead.streams.holdings import Holding

called: ContextVar[Holding | None] = ContextVar("fairlead_stream_call", default=None)
"""The partition whose call runs in this context: an instance may be shared by several."""

Value = TypeVar("Value")


class _OfPartition(Generic[Value]):
    """An attribute read from the partition of the call, else from the partition of the instance.

    It has no setter, so that a consumer's own attribute of that name counts.
    """

    def __init__(self, read: Callable[[Tp], Value], default: Value) -> None:
        self._read = read
        self._default = default

    def __get__(self, consumer: Consumer | None, owner: type[Consumer]) -> Value:
        tp = None if consumer is None else consumer._place
        return self._default if tp is None else self._read(tp)


class Consumer:
    """What is done with the records of one partition; every method may be `async def` or plain `def`.

    There is one instance for each partition while it is held, made when its first records come.  Its methods are
    never called beside each other, except `consume` of a topic with `parallel_by`.  Records count as done when
    `consume` returns; if it raises, they are tried again.

    `app.topic` accepts the class, a `functools.partial` of it, a function that makes one for each partition, or an
    instance.  An instance serves all partitions of its topic, so its methods may run beside each other.

    With `processes = True`, `consume` runs in a process of its own: for work that keeps a core busy.  The class has
    to be importable there, and what it keeps in `self` stays there.

    >>> class Orders(Consumer):
    ...     async def consume(self, messages):
    ...         for message in messages:
    ...             print(message.offset, message.value)
    """

    processes = False
    topic = _OfPartition[str](lambda tp: tp.topic, "")
    partition = _OfPartition[int](lambda tp: tp.partition, -1)
    _holding: Holding | None = None
    _tp: Tp | None = None  # in a process of its own, where there is no holding

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
        holding = called.get() or self._holding
        return holding is not None and holding.lost

    @property
    def _place(self) -> Tp | None:
        holding = called.get() or self._holding
        return self._tp if holding is None else holding.tp
