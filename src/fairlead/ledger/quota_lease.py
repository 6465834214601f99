"""A quota kept by the ledger: what to ask of its token bucket, and what to do while the ledger is lost."""

from __future__ import annotations

import json
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from fairlead.capacities.block import TokenWant
from fairlead.errors import ConfigError
from fairlead.ledger.leases import MOST_KNOWN, Lease, label_of, numbers
from fairlead.ledger.link import Call, Fault, Script

if TYPE_CHECKING:
    from collections.abc import Hashable
    from contextlib import AbstractContextManager

    from fairlead.capacities.leased import LeasedTokens
    from fairlead.ledger.leases import Adjust, LossPolicy

BLOCK_LASTS = 1.0  # seconds a block of tokens may be used for
HEARD_FOR = 1.0  # seconds a process's demand counts at the ledger after it was told
POLL_LATEST = 0.25  # seconds after which who waits is told anew


class QuotaLease(Lease):
    """A token bucket kept by the ledger."""

    script = Script("quota")
    kind = "quota"
    capacity: LeasedTokens

    def __init__(
        self,
        name: str,
        capacity: LeasedTokens,
        bucket_capacity: float,
        fill_amount: float,
        interval: float,
        continuous_fill: bool,
        delay_initial_fill: bool,
        max_idle_time: float,
        on_loss: LossPolicy,
        adjust: Adjust,
        lock: AbstractContextManager[Any] | None,
    ) -> None:
        super().__init__(name, capacity, on_loss, adjust, lock)
        self.continuous_fill = continuous_fill
        self.delay_initial_fill = delay_initial_fill
        self.max_idle_time = max_idle_time
        self._set(bucket_capacity, fill_amount, interval)
        # By key the level at the ledger, and from when on it fills.
        self._known: dict[Hashable, tuple[float, float]] = {}

    def _set(self, bucket_capacity: float, fill_amount: float, interval: float) -> None:
        for what, value in (
            ("bucket_capacity", bucket_capacity),
            ("fill_amount", fill_amount),
            ("interval", interval),
        ):
            if not (isfinite(value) and value > 0):
                raise ConfigError(f"{what} must be a finite number above 0; got {value!r}")
        self.bucket_capacity = bucket_capacity
        self.fill_amount = fill_amount
        self.interval = interval
        self.rule = f"{fill_amount:g} tokens every {interval:g} s, {bucket_capacity:g} at most"
        if not self.continuous_fill:
            self.rule += ", all at once"
        if self.delay_initial_fill:
            self.rule += ", the first fill delayed"

    def retune(
        self, bucket_capacity: float, fill_amount: float, interval: float, now: float
    ) -> None:
        """Change the bucket; it counts from the next exchange on, and in a loss from now on."""
        self._set(bucket_capacity, fill_amount, interval)
        self._change("set_burst", bucket_capacity)
        if self.lost and self.on_loss == "local":
            self._change("retune_local", *self._part(), now)

    def _part(self) -> tuple[float, float, float | None]:
        """Tell this process's part of the bucket in a loss: its rate, its burst and the interval of its fills."""
        rate, burst = self.fill_amount / self.interval, self.bucket_capacity
        fills_every = None if self.continuous_fill else self.interval
        return rate / self._live, burst / self._live, fills_every

    def set_aside(self) -> None:
        for key, tokens in self.capacity.surplus():
            self._change("recall", key, tokens)

    def probe(self) -> TokenWant:
        return TokenWant(self.failed_key, [], 0.0, 0.0, 0.0, 0.0)

    def call(self, prefix: str, node: str, seq: int, want: TokenWant) -> Call:
        self.node = node
        self.asked += want.ahead + sum(claim.tokens for claim in want.claims)
        self.returned += want.back
        ask = {
            "node": node,
            "seq": seq,
            "rule": self.rule,
            "capacity": self.bucket_capacity,
            "fill": self.fill_amount,
            "interval": self.interval,
            "continuous": self.continuous_fill,
            "delay": self.delay_initial_fill,
            "idle": self.max_idle_time if self.max_idle_time < inf else 0,
            "ttl": HEARD_FOR,
            "back": want.back,
            "debit": want.debit,
            "spent": want.spent,
            "ahead": want.ahead,
            "claims": self._claims(want.claims),
        }
        key = f"{prefix}:{{{self.name}:{label_of(want.key)}}}:quota"
        return Call(self.script, key, (json.dumps(ask),))

    def answer(
        self, want: TokenWant, reply: list[str], sent_at: float, now: float, pace: float
    ) -> None:
        if reply[0] == "stale":
            self.unsent(want)
            return
        if len(reply) < 8:
            raise Fault(f"a reply that is not ours: {reply!r:.200}")
        ahead, wait, level, _, put_off = numbers(reply[1:6])
        self.compare(reply[6], reply[7], now)
        mail = reply[8:]
        granted = numbers(mail[1::2])
        if ahead < 0 or len(mail) % 2 or any(tokens < 0 for tokens in granted):
            raise Fault(f"a reply that is not ours: {reply!r:.200}")
        marks: dict[Hashable, float] = {}
        for label, tokens in zip(mail[::2], granted, strict=True):
            workload = self._labels.get(label, label)
            marks[workload] = marks.get(workload, 0.0) + tokens
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        self._known[want.key] = (level, now + put_off)
        with self.guard():
            if wait >= 0:
                poll_at = now + min(max(wait, pace), POLL_LATEST)
                self.capacity.dry(want.key, poll_at, now + wait)
                self._poll(want.key, poll_at)
            else:
                self.capacity.dry(want.key, -inf, -inf)
            if ahead or marks:
                self.granted += ahead + sum(granted)
                self._change("grant", want.key, ahead, marks, sent_at + BLOCK_LASTS)

    def unsent(self, want: TokenWant) -> None:
        with self.guard():
            self.capacity.unsent(want)

    def _lose(self, live: int, rank: int, now: float) -> None:
        if self.on_loss != "local":
            self._change("lose", self.on_loss, None)
            return
        rate, burst, interval = self._part()
        local = self.capacity.stand_in(rate, burst, interval, self.delay_initial_fill)
        for key, (level, at) in self._known.items():
            filled = min(self.bucket_capacity, level + max(0.0, now - at) * rate * live)
            own = self.capacity.level(key)
            local.set_level(min(burst, max(0.0, filled / live + own)), now, key, max(now, at))
        self._change("lose", "local", local)

    def let_go(self, now: float) -> list[TokenWant]:
        with self.guard():
            for key in list(self.capacity.room()):
                self._change("recall", key, inf)
            wants = self.capacity.wants(now, all_keys=True)
        return [want._replace(claims=[], ahead=0.0) for want in wants]
