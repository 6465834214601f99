"""Tokens in flight kept by the ledger: what to ask of its room, and how long what it lends may be used."""

from __future__ import annotations

import json
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.capacities.leased_slots import SlotWant
from fairlead.ledger.leases import MOST_KNOWN, Lease, label_of, numbers
from fairlead.ledger.link import Call, Fault, Script

if TYPE_CHECKING:
    from collections.abc import Hashable
    from contextlib import AbstractContextManager

    from fairlead.capacities.leased_slots import LeasedSlots
    from fairlead.ledger.leases import Adjust, Asked, LossPolicy

SLOTS_LAST = 2.0  # seconds in which room may be used for new starts after it was renewed
MARGIN = 0.1  # of that time: clocks of two machines run at different speeds
SETTLE = 2.0  # seconds for all processes to declare what they hold, after the books were lost
FRESH = (
    1.0  # the same in new books of which no process has heard, where room is kept through a loss
)
REMEMBERED = 60.0  # seconds after which a process has forgotten books of which it has heard no more
POLL_HOLDING = 0.05  # seconds after which a process that has its part asks again


class SlotsLease(Lease):
    """Tokens in flight, kept by the ledger."""

    script = Script("slots")
    kind = "concurrency"
    capacity: LeasedSlots

    def __init__(
        self,
        name: str,
        capacity: LeasedSlots,
        max_concurrency: float,
        max_inflight_duration: float,
        on_loss: LossPolicy,
        adjust: Adjust,
        lock: AbstractContextManager[Any] | None,
    ) -> None:
        super().__init__(name, capacity, on_loss, adjust, lock)
        self._set(max_concurrency, max_inflight_duration)
        # The books by key that it heard of in this half of the time and in the one before.  It forgets before they
        # expire, or books of a limit that was idle would be taken for lost; halves pass only while the ledger answers.
        self._epochs: dict[Hashable, str] = {}
        self._earlier: dict[Hashable, str] = {}
        self._half_ends_at = -inf
        self._answered: dict[Hashable, int] = {}  # the last ask that was answered
        self._lapses_at = inf  # when others may be lent what is kept here
        self.settled = False  # all that this process is to have has been lent

    def _set(self, max_concurrency: float, max_inflight_duration: float) -> None:
        self.max_concurrency = max_concurrency
        self.max_inflight_duration = max_inflight_duration
        self.rule = f"{max_concurrency:g} in flight, each for {max_inflight_duration:g} s at most"

    def resize(self, max_concurrency: float) -> None:
        """Change the limit; it counts from the next exchange on."""
        self._change("resize", max_concurrency)
        self._set(max_concurrency, self.max_inflight_duration)
        if self.capacity.keeps:
            self.capacity.look_at(self.capacity.name)

    def set_expiry(self, max_inflight_duration: float) -> None:
        """Change how long what starts from now on may hold."""
        self._change("set_expiry", max_inflight_duration)
        self._set(self.max_concurrency, max_inflight_duration)

    def set_aside(self) -> None:
        for key, room in self.capacity.surplus():
            self._change("lend", key, room, self.capacity.deadline(key))

    def probe(self) -> SlotWant:
        key, capacity = self.failed_key, self.capacity
        held, used = capacity.held(key), capacity.used(key)
        return SlotWant(key, [], 0.0, held, used, capacity.limit, capacity.keeps)

    def calls(self, prefix: str, node: str, seq: int, now: float, sweep: bool) -> list[Asked]:
        if now >= self._half_ends_at:
            self._epochs, self._earlier = {}, self._epochs
            self._half_ends_at = now + REMEMBERED / 2
        return super().calls(prefix, node, seq, now, sweep)

    def call(self, prefix: str, node: str, seq: int, want: SlotWant) -> Call:
        self.node = node
        self.asked += want.ahead + sum(claim.tokens for claim in want.claims)
        ask = {
            "node": node,
            "seq": seq,
            "rule": self.rule,
            "limit": want.limit,
            "ttl": SLOTS_LAST,
            "longest": min(self.max_inflight_duration, 864_000.0),
            "settle": self._settle,
            # A process that has seen a fault takes new books for lost ones.
            "fresh": 0.0 if not self.capacity.keeps else self._settle if self.switches else FRESH,
            "kept": REMEMBERED * (1 + MARGIN),
            "held": want.held,
            "used": want.used,
            "keeps": want.keeps,
            "ahead": want.ahead,
            "answered": self._answered.get(want.key, 0),
            "epoch": self._epochs.get(want.key) or self._earlier.get(want.key, ""),
            "claims": self._claims(want.claims),
        }
        key = f"{prefix}:{{{self.name}:{label_of(want.key)}}}:slots"
        return Call(self.script, key, (json.dumps(ask),))

    def answer(
        self, want: SlotWant, reply: list[str], sent_at: float, now: float, pace: float
    ) -> None:
        if reply[0] == "stale":
            return
        if len(reply) != 9:
            raise Fault(f"a reply that is not ours: {reply!r:.200}")
        held, target, _, seq, pause = numbers([*reply[1:4], *reply[7:]])
        if not (held >= 0 and target >= 0):
            raise Fault(f"a reply that is not ours: {reply!r:.200}")
        self.compare(reply[5], reply[6], now)
        if len(self._epochs) > MOST_KNOWN:
            self._epochs.clear()
        if len(self._answered) > MOST_KNOWN:
            self._answered.clear()
        self._epochs[want.key], self._answered[want.key] = reply[4], int(seq)
        self._lapses_at = sent_at + self.silent_for * (1 - MARGIN)
        self.settled = pause <= 0 and held >= target
        self.granted += max(0.0, held - want.held)
        with self.guard():
            self.capacity.believed(want.key, held)
            asked = sum(claim.tokens for claim in want.claims)
            if asked > held:
                poll_at = now + (pace if target > held else max(pace, POLL_HOLDING))
                self.capacity.dry(want.key, poll_at, short=target <= held)
                self._poll(want.key, poll_at)
            else:
                self.capacity.dry(want.key, -inf)
            room = min(held, target)
            until = sent_at + SLOTS_LAST * (1 - MARGIN)
            self._change("lend", want.key, room, until, want.limit)
            if max(room, self.capacity.used(want.key)) < held:
                self.returned += held - room
                self.capacity.look_at(want.key)
                self._poll(want.key, now)

    @property
    def _settle(self) -> float:
        return self.silent_for if self.capacity.keeps else SETTLE

    @property
    def silent_for(self) -> float:
        """Seconds after which the ledger takes a process that is not heard of to have ended."""
        return SLOTS_LAST + self.max_inflight_duration

    def _lose(self, live: int, rank: int, now: float) -> None:
        if self.capacity.keeps and now >= self._lapses_at:  # this process stood still
            self._change("lend", self.capacity.name, 0.0, -inf)
        self._change("lose", self.on_loss, live, rank)

    def let_go(self, now: float) -> list[SlotWant]:
        with self.guard():
            for key in list(self.capacity.room()):
                self._change("lend", key, 0.0, -inf)
                self.capacity.look_at(key)
            wants = self.capacity.wants(now)
        return [want._replace(claims=[], ahead=0.0, keeps=False) for want in wants]
