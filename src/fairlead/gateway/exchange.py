"""One HTTP exchange: a ticket that reads and writes for the request it stands for.

It holds its slot from admission until the last byte of the response has been sent, the application has returned, or it
was preempted and has come to its end.  While it may still be preempted the head of the response is kept back, so that
the client gets either the whole answer or a whole 503, never a 200 that ends in one.  The first byte and the preemption
are decided by one call, `gate.commit`, on one thread: exactly one of them wins.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections import deque
from math import inf, nextafter
from typing import TYPE_CHECKING, Any

from fairlead.core.ticket import (
    EVICTED,
    NEW,
    RUNNING,
    UNSET,
    WAITING,
    Evicted,
    LeanTicket,
    QueueLimit,
)
from fairlead.gateway import metrics as count
from fairlead.gateway.settings import CLASSES, DEFAULT

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairlead.gateway.metrics import Metrics
    from fairlead.gateway.pool import Pool

# Bytes of bodies read ahead for requests that wait.  Who has more to send than is read is not seen to leave, so each
# may go beyond its own part while all of a pool have not used up theirs.
MOST_BUFFERED = 256 * 1024
MOST_BUFFERED_TOGETHER = 64 * 1024 * 1024
DATA = frozenset({"http.response.body", "http.response.pathsend", "http.response.zerocopysend"})


class BodyTooLarge(Exception):
    """The request's body is longer than allowed."""


class Exchange(LeanTicket):
    """A request on its way through a pool."""

    # Slots, each set: of a class whose defaults it finds elsewhere a reader pays four times as much.
    __slots__ = (
        "answering",
        "buffer",
        "buffered",
        "ceiling",
        "committed",
        "counts_body",
        "decision",
        "ended",
        "evictions",
        "head",
        "label",
        "left",
        "member",
        "metrics",
        "outcome",
        "own_limit",
        "pool_of_slots",
        "pump",
        "rank",
        "raw_receive",
        "raw_send",
        "reads_body",
        "reads_tier",
        "reason",
        "requested",
        "status",
        "streaming",
        "task",
        "tenant",
        "waiter",
    )

    pool_of_slots: Pool
    priority = 50
    work = None

    def __init__(self, metrics: Metrics, receive: Any, send: Any, body_limit: int) -> None:
        # The core's
        self.state = NEW
        self.arrived_at = UNSET
        self.wait_until = self.hold_until = self.started_at = inf
        self.seq = self.evictions = 0
        self.scopes = ()
        self.place = None
        self.promoted = self.committed = self.can_preempt = self.evictable = False
        self.tenant: Hashable = ""
        self.reason: QueueLimit | Evicted | str | None = None
        # The door's
        self.metrics = metrics
        self.raw_receive = receive
        self.raw_send = send
        self.left = body_limit  # bytes of its body that may still come
        self.rank = self.requested = self.ceiling = DEFAULT
        self.label = ""
        self.own_limit: float | None = None  # the wait it would accept
        self.reads_body = self.reads_tier = self.counts_body = False
        self.buffer: deque[Any] | None = None
        self.buffered = 0  # bytes read ahead in this wait
        self.pump: asyncio.Task[None] | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.task: asyncio.Task[Any] | None = None
        self.head: Any = None  # the start of the response, kept back
        self.decision = False  # whether the client asked to be told
        self.answering = False  # the head of the response has gone, or goes with the first byte
        self.streaming = False
        self.ended = False
        self.outcome: str | None = None
        self.status = 0

    # Asking for a slot

    def offer(self, pool: Pool, task: asyncio.Task[Any] | None) -> None:
        """Ask; `state` is the answer.  It stays NEW where there is no capacity at all."""
        self.pool_of_slots = pool
        if not pool.capacity.total:
            return
        self.task = task
        tuning = pool.tuning
        self.can_preempt = tuning.can_preempt[self.rank]
        self.evictable = tuning.evictable[self.rank]
        gate, runtime = pool.gate, pool.runtime
        if runtime.loop is None or _get_running_loop() is not runtime.loop:
            runtime.enter("gateway")
        if self.own_limit is not None and self.arrived_at == -inf:
            self.wait_until = runtime.clock() + self.own_limit
        changed = gate.offer(self, runtime.clock())
        if changed or gate.due < runtime.timer_at:
            runtime.after(changed)
        if self.state is RUNNING:
            self.metrics.at_once[self.rank] += 1

    async def wait(self) -> None:
        """Wait for the verdict, reading ahead so as to notice a client that leaves."""
        pool = self.pool_of_slots
        loop = pool.runtime.entered
        self.waiter = loop.create_future()
        if self.buffer is None:
            self.buffer = deque()
        if self.pump is None or self.pump.done():
            self.pump = loop.create_task(self._read_ahead())
        try:
            await self.waiter
        except asyncio.CancelledError:
            if self.state is WAITING:
                pool.runtime.withdraw([self])
            raise
        finally:
            pool.read_ahead -= self.buffered
            self.buffered = 0
            if self.state is RUNNING or self.state is EVICTED:  # it did get its slot
                self._count_wait()

    def _count_wait(self) -> None:
        self.metrics.waited[self.rank].observe(self.started_at - self.arrived_at)
        if self.promoted:
            self.metrics.promotions[self.rank] += 1

    def told(self) -> None:
        """Carry out a verdict that another's verb brought."""
        if self.state is EVICTED:
            by = self.reason.rank if isinstance(self.reason, Evicted) else self.rank
            self.metrics.preemptions[self.rank, by] += 1
            if self.task is not None:
                self.task.cancel()
        elif self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def renew(self) -> None:
        """Stand as a new ticket again: its pool is no more, another may have room."""
        self.state = NEW
        self.scopes = ()
        self.place = None
        self.promoted = False
        if self.wait_until < inf:  # the old gate's heap must not take it for its own
            self.wait_until = nextafter(self.wait_until, -inf)

    # Reading the request

    @property
    def gone(self) -> bool:
        """Whether the client has been seen to leave."""
        buffer = self.buffer
        return bool(buffer) and buffer[-1]["type"] == "http.disconnect"  # type: ignore[index]

    async def _read_ahead(self) -> None:
        while self.state is WAITING and self._may_read_ahead():
            message = await self.raw_receive()
            self.buffer.append(message)  # type: ignore[union-attr]
            if self.state is WAITING:
                size = len(message.get("body", b""))
                self.buffered += size
                self.pool_of_slots.read_ahead += size
            if message["type"] == "http.disconnect":
                if self.state is WAITING:
                    self.pool_of_slots.runtime.withdraw([self])
                    self.told()
                return

    def _may_read_ahead(self) -> bool:
        if self.buffered < MOST_BUFFERED:
            return True
        return self.buffered <= self.left and self.pool_of_slots.read_ahead < MOST_BUFFERED_TOGETHER

    def reader(self) -> Any:
        """What the application reads the request with: the server's own, if nothing was read and nothing counts."""
        return self.raw_receive if self.buffer is None and not self.counts_body else self.receive

    async def receive(self) -> Any:
        """Hand the application what was read ahead, then the rest, within the limit."""
        if not self.buffer and self.pump is not None and not self.pump.done():
            await asyncio.wait([self.pump])  # one read is still out; it must not be lost
        message = self.buffer.popleft() if self.buffer else await self.raw_receive()
        body = message.get("body")
        if body:
            self.left -= len(body)
            if self.left < 0:
                raise BodyTooLarge
        return message

    async def read_body(self) -> bytes | None:
        """Read the whole body before admission, to be handed on later; None if the client left."""
        self.buffer = deque()
        parts = []
        while True:
            message = await self.raw_receive()
            if message["type"] == "http.disconnect":
                self.buffer.append(message)
                return None
            parts.append(message.get("body", b""))
            self.left -= len(parts[-1])
            if self.left < 0:
                raise BodyTooLarge
            if not message.get("more_body", False):
                break
        body = b"".join(parts)
        self.left += len(body)  # counted again as the application reads it
        self.buffer.append({"type": "http.request", "body": body, "more_body": False})
        return body

    # Writing the response

    async def send(self, message: Any) -> None:
        """Pass a message on, unless the request was preempted before its first byte."""
        kind = message["type"]
        if self.left < 0 and not self.answering:
            return  # its body was too long, whatever the application makes of that
        if self.streaming:
            await self.raw_send(message)
            if kind in DATA and not message.get("more_body", False):
                self.end(self._verdict())
        elif kind == "http.response.start":
            if not self.answering:
                self.status = message["status"]
            if self.decision:
                message = self._with_decision(message)
            if self.evictable:
                self.head = message
            else:
                self.answering = True
                await self.raw_send(message)
        elif kind in DATA:
            last = not message.get("more_body", False)
            if self.evictable:
                if not (last or message.get("body")) and kind == "http.response.body":
                    return  # not a byte yet: it may still be preempted
                if self.state is EVICTED or not self.pool_of_slots.gate.commit(self):
                    return
            self.answering = self.streaming = True
            pool = self.pool_of_slots
            self.metrics.first_byte[self.rank].observe(pool.runtime.clock() - self.started_at)
            if self.head is not None:
                await self.raw_send(self.head)
            await self.raw_send(message)
            if last:
                self.end(self._verdict())
        elif self.state is not EVICTED:
            await self.raw_send(message)

    def _verdict(self) -> str:
        return count.FAILED if self.status >= 500 else count.COMPLETED

    def waited(self) -> float:
        """Tell how long it has waited for a slot."""
        if self.arrived_at == -inf:
            return 0.0
        until = self.started_at if self.started_at < inf else self.pool_of_slots.gate.now
        return until - self.arrived_at

    def leave(self) -> None:
        """Nobody answers any more: the client has left, or somebody ends the task that serves this request."""
        if not self.answering:
            self.status = 499
        if self.state is RUNNING or self.state is EVICTED:
            self.end(count.DISCONNECTED)
        elif not self.ended and self.outcome is None:
            self.outcome = count.CLIENT_GONE
            self.metrics.refused[self.rank, count.CLIENT_GONE] += 1

    def _with_decision(self, message: Any) -> Any:
        told = "admitted at once" if self.waiter is None else "admitted in turn"
        if self.promoted:
            told = "promoted: it had waited as long as its class should"
        line = self.decision_line(told, self.waited())
        return {**message, "headers": [*message.get("headers", ()), line]}

    def decision_line(self, reason: str, wait: float) -> tuple[bytes, bytes]:
        """Write the header that tells what was decided, and why."""
        text = f'class={CLASSES[self.rank]}; wait={wait:.3f}; reason="{reason}"'
        if self.requested != self.rank:
            text += f"; requested={CLASSES[self.requested]}"
        return (b"x-fairlead-decision", text.encode())

    def end(self, outcome: str) -> None:
        """Give the slot back, once."""
        if self.ended:
            return
        self.ended = True
        self.outcome = outcome
        if outcome is count.COMPLETED:
            self.metrics.completed[self.rank] += 1
        else:
            self.metrics.ended[self.rank, outcome] += 1
        pool = self.pool_of_slots
        pool.finished.append(pool.runtime.clock())
        pool.runtime.finish(self)

    def stop_reading(self) -> None:
        """The exchange is over: nobody will ask for what was being read ahead."""
        if self.pump is not None and not self.pump.done():
            self.pump.cancel()
