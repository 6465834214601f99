"""One HTTP exchange: a ticket that reads and writes for the request it stands for.

It holds its slot from admission until the last byte of the response has been sent, the application has returned, or it
was preempted and has come to its end.  While it may still be preempted the head of the response is kept back, so that
the client gets either the whole answer or a whole 503, never a 200 that ends in one.  The first byte and the preemption
are decided by one call, `gate.commit`, on one thread: exactly one of them wins.
"""

from __future__ import annotations

import asyncio
from math import inf, nextafter
from threading import get_ident
from typing import TYPE_CHECKING, Any

from fairlead.core.ticket import (
    EVICTED,
    EXPIRED,
    MOVED,
    NEW,
    REFUSED,
    RUNNING,
    UNSET,
    WAITING,
    WITHDRAWN,
    Evicted,
    LeanTicket,
    QueueLimit,
)
from fairlead.gateway.metrics import (
    CLIENT_GONE,
    COMPLETED,
    DISCONNECTED,
    FAILED,
    MEANING,
    PREEMPTED,
    QUEUE_FULL,
    QUEUE_TIMEOUT,
)
from fairlead.gateway.settings import CLASSES, DEFAULT
from fairlead.runtime.loop import NO_WAIT, task_of
from fairlead.serving.whole import AT_ONCE, write_whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Hashable

    from fairlead.gateway.asking import Asker
    from fairlead.gateway.body import Body
    from fairlead.gateway.metrics import Metrics
    from fairlead.gateway.pool import Pool

# What the verdict of a gate means to its door.
VERDICTS = {EXPIRED: QUEUE_TIMEOUT, REFUSED: QUEUE_FULL}
DATA = frozenset({"http.response.body", "http.response.pathsend", "http.response.zerocopysend"})


class Wishes:
    """What a request says of its body, and of how it wants to be treated."""

    __slots__ = ("decision", "limit", "model", "model_unread", "reads_body", "reads_tier", "token")

    def __init__(self) -> None:
        self.limit: float | None = None  # the wait it would accept
        self.reads_body = self.reads_tier = False  # before it asks
        self.model: str | None = None  # that its body names
        self.model_unread = False  # for nobody wanted to know it when it came
        self.token: bytes | None = None  # it came with, and no other was given for it
        self.decision = False  # to be told


NO_WISHES = Wishes()  # of most; nobody changes it


class Exchange(LeanTicket):
    """A request on its way through a pool."""

    # Slots, each set: of a class whose defaults it finds elsewhere a reader pays four times as much.
    __slots__ = (
        "answering",
        "asker",
        "body",
        "cancelling",
        "committed",
        "evictions",
        "head",
        "keeps_head",
        "member",
        "metrics",
        "moved",
        "outcome",
        "pool_of_slots",
        "rank",
        "raw_receive",
        "raw_send",
        "reason",
        "status",
        "streaming",
        "task",
        "tenant",
        "waiter",
        "wishes",
    )

    asker: Asker
    cancelling: int  # its task's cancellations from before
    keeps_head: bool
    pool_of_slots: Pool
    task: asyncio.Task[Any] | None  # to be cancelled if it is preempted
    tenant: Hashable
    priority = 50
    work = None

    def __init__(self, metrics: Metrics, receive: Any, send: Any) -> None:
        # The core's
        self.state = NEW
        self.arrived_at = UNSET
        self.wait_until = self.hold_until = self.started_at = inf
        self.seq = self.evictions = 0
        self.scopes = ()
        self.place = None
        self.promoted = self.committed = False
        self.reason: QueueLimit | Evicted | str | None = None
        # The door's
        self.metrics = metrics
        self.raw_receive = receive
        self.raw_send = send
        self.wishes = NO_WISHES
        self.rank, self.tenant = DEFAULT, ""  # until they are settled
        self.moved = False  # from a pool that is no more
        self.body: Body | None = None  # None: left to the server
        self.waiter: asyncio.Future[None] | None = None
        self.head: Any = None  # the start of the response, kept back
        self.answering = False  # the head of the response has gone, or goes with the first byte
        self.streaming = False
        self.outcome: str | None = None  # once it has ended
        self.status = 0

    @property
    def requested(self) -> int:
        """The class it asked for."""
        return self.asker.requested

    @property
    def model(self) -> str | None:
        """What its body names, if somebody wanted to know."""
        return self.wishes.model

    @property
    def patience(self) -> float | None:
        """What the request itself said, and not its class."""
        return self.wishes.limit

    # Asking for a slot

    def offer(self, pool: Pool) -> None:
        """Ask; `state` is the answer.  It stays NEW where there is no capacity at all, unless it has waited before."""
        self.pool_of_slots = pool
        if not (pool.slots or self.moved):
            return
        self.can_preempt, self.keeps_head, self.evictable = pool.tuning.treated[self.rank]
        gate, runtime = pool.gate, pool.runtime
        # A task of the gate's own loop and thread: to ask for the running loop takes a system call before Python 3.12.
        task = task_of(runtime.loop) if get_ident() == runtime.thread else None
        if task is None:
            runtime.enter("gateway")
            task = task_of(runtime.loop)
        self.task = task
        if self.wishes.limit is not None and self.arrived_at == -inf:
            self.wait_until = runtime.clock() + self.wishes.limit
        if not gate.start(self, runtime.clock()):
            runtime.offer(self)
        if self.evictable or self.state is not RUNNING:  # who waits may be so after a reload
            self.cancelling = 0 if task is None else task.cancelling()

    async def wait(self, body: Body) -> None:
        """Wait for the verdict, reading ahead so as to notice a client that leaves."""
        pool = self.pool_of_slots
        loop = pool.runtime.entered
        self.waiter = loop.create_future()
        body.read_ahead(self)
        try:
            await self.waiter
        except asyncio.CancelledError:
            if self.state is WAITING:
                pool.runtime.withdraw([self])
            raise
        finally:
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
            runtime = self.pool_of_slots.runtime
            if self.task is not None and self.task is task_of(runtime.loop):
                # By a verb of its own: a cancellation would strike wherever it waits next, be that its 503.
                runtime.entered.call_soon(self._cancel)
            elif self.task is not None:
                self.task.cancel()
        elif self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def _cancel(self) -> None:
        if self.task is not None and self.outcome is None:
            self.task.cancel()

    def renew(self) -> None:
        """Stand as a new ticket again: its pool is no more, another may have room."""
        self.state = NEW
        self.reason = None
        self.scopes = ()
        self.place = None
        self.promoted = False
        self.moved = True
        if self.wait_until < inf:  # the old gate's heap must not take it for its own
            self.wait_until = nextafter(self.wait_until, -inf)

    # Ending before its time

    @property
    def gone(self) -> bool:
        """Whether the client has been seen to leave."""
        return self.body is not None and self.body.gone

    @property
    def moves(self) -> bool:
        """Whether a gate has let go of it, to be offered again."""
        return self.state is WITHDRAWN and self.reason == MOVED

    @property
    def unanswerable(self) -> bool:
        """Whether its body was refused, which nothing the application says can change."""
        return self.body is not None and self.body.failure is not None and not self.answering

    @property
    def cancellations(self) -> int:
        """How often its task was cancelled since it asked; if it was preempted, once by us."""
        return 0 if self.task is None else self.task.cancelling() - self.cancelling

    def take_back_cancellation(self) -> None:
        """It was preempted and has come to its end; its task may go on."""
        if self.task is not None and self.cancellations:
            self.task.uncancel()

    # Writing the response

    def send(self, message: Any) -> Awaitable[None]:
        """Pass a message on, unless the request was preempted before its first byte.

        No coroutine of its own where the server's will do: most of what is sent passes through here unchanged.
        """
        kind = message["type"]
        if self.streaming:
            if kind in DATA and not message.get("more_body", False):
                return self._send_data(message)
        elif self.body is not None and self.unanswerable:
            return NO_WAIT
        elif kind in DATA:
            return self._send_data(message)
        elif kind == "http.response.start":
            if not self.answering:
                self.status = message["status"]
            if self.wishes.decision:
                message = self._with_decision(message)
            if self.keeps_head:
                self.head = message
                return NO_WAIT
            self.answering = True
        elif self.state is EVICTED:
            return NO_WAIT
        sending: Awaitable[None] = self.raw_send(message)
        return sending

    async def _send_data(self, message: Any) -> None:
        """Send the first of the body, or the last, or what is both."""
        last = not message.get("more_body", False)
        if not self.streaming:  # else it was asked to send before another's first byte had gone
            pool = self.pool_of_slots
            if self.keeps_head:
                if not (last or message.get("body")) and message["type"] == "http.response.body":
                    return  # not a byte yet: it may still be preempted
                if self.evictable and (self.state is EVICTED or not pool.gate.commit(self)):
                    return
            self.answering = self.streaming = True
            self.metrics.first_byte[self.rank].observe(pool.runtime.clock() - self.started_at)
            head, self.head = self.head, None
            if head is not None:
                if last and write_whole(self.raw_send, head, message):
                    self.end(COMPLETED if self.status < 500 else FAILED)
                    return
                await self.raw_send(head)
        if last and len(message.get("body", b"")) > AT_ONCE:
            # A server waits for a slow client before it writes, not after: the slot is held until this has drained.
            await self.raw_send({**message, "more_body": True})
            message = {"type": "http.response.body"}
        await self.raw_send(message)
        if last:
            self.end(COMPLETED if self.status < 500 else FAILED)

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
            self.end(DISCONNECTED)
        elif self.outcome is None:
            # Where its gate had decided already, that stands.
            outcome = VERDICTS.get(self.state, CLIENT_GONE)
            self.metrics.turn_away(self, outcome, "its client left")

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
        if self.outcome is not None:
            return
        pool = self.pool_of_slots
        if outcome is COMPLETED:
            self.outcome = outcome
            self.metrics.completed[self.rank] += 1
            if not pool.gate.end(self, pool.runtime.clock()):
                pool.runtime.finish(self)
        else:
            if self.state is EVICTED:
                outcome = PREEMPTED  # whatever it came to after that
            elif outcome is FAILED:
                answered = f"it was answered with {self.status}"
                self.reason = answered if self.status >= 400 else "its answer broke off"
            self.outcome = outcome
            self.metrics.ended[self.rank, outcome] += 1
            pool.runtime.finish(self, MEANING[outcome])
        pool.finished.append(pool.gate.now)
        if pool.on_end is not None:
            pool.on_end()
