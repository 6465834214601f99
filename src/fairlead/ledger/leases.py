"""What to ask the ledger for a limit, and what its answers mean.  No I/O: `Ledger` carries calls and answers.

A *lease* ties one capacity to its books.  In order, `calls` says what to ask, `answer` brings what was granted into the
gate, `lose` and `regain` switch between the ledger and the policy chosen for its loss.  Nothing is lent that was not
first given back: room is reduced in the gate before the ledger is told.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import contextmanager, nullcontext
from heapq import heappop, heappush
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Literal

from fairlead.core.gate import Change
from fairlead.errors import ConfigError
from fairlead.ledger.link import Call, Fault, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from fairlead.capacities.demand import Claim

    LossPolicy = Literal["local", "closed", "open"]
    Adjust = Callable[[Change], None]

MOST_KNOWN = 10_000  # keys whose level at the ledger is remembered
MOST_CLAIMS = 64  # workloads told of apart
OTHERS = "(others)"
LONGEST_LABEL = 128
COMPARED_FOR = 5.0  # seconds for which other settings elsewhere are told of after they were seen

log = logging.getLogger("fairlead.ledger")


class Lease:
    """One limit of one gate, kept by the ledger."""

    script: Script
    kind: str
    capacity: Any
    rule: str  # what the limit is, in the same words in every process with the same settings

    def __init__(
        self,
        name: str,
        capacity: Any,
        on_loss: LossPolicy,
        adjust: Adjust,
        lock: AbstractContextManager[Any] | None,
    ) -> None:
        if on_loss not in ("local", "closed", "open"):
            raise ConfigError(f'on_loss must be "local", "closed" or "open"; got {on_loss!r}')
        self.name = name
        self.capacity = capacity
        self.on_loss: LossPolicy = on_loss
        self._lock = lock or nullcontext()
        self.lost = False
        self._live, self._rank = 1, 0  # how many processes there were at the loss; which this is
        self.suspended = False  # lost on suspicion only: the ledger is slow, and may yet answer
        self.failed_key: Hashable = None  # where the fault showed, to be tried again
        self.fault = ""
        self.retry_at = -inf
        self.asked = self.granted = self.returned = 0.0
        self.faults = self.switches = 0
        self.node = ""  # the name of this process at the ledger
        self.other_rule = ""  # what the limit is elsewhere, and where, if it is not the same there
        self._compared_at = -inf
        self._adjust = adjust
        self._polls: list[tuple[float, int, Hashable]] = []
        self._number = 0
        self._labels: dict[str, Hashable] = {}

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Hold the lock of the gate; the limit may have moved to another gate while that was waited for."""
        while True:
            lock = self._lock
            with lock:
                if lock is self._lock:
                    yield
                    return

    def move(self, capacity: Any, adjust: Adjust, lock: AbstractContextManager[Any] | None) -> None:
        """Go on with another capacity of the same keys, at another gate; the locks of both are held."""
        capacity.inherit(self.capacity)
        capacity.stir, self.capacity.stir = self.capacity.stir, lambda: None
        self.capacity, self._adjust, self._lock = capacity, adjust, lock or nullcontext()
        capacity.stir()

    def poll_at(self) -> float:
        """Tell when some key is to be asked for again."""
        return self._polls[0][0] if self._polls else inf

    def describe(self) -> dict[str, Any]:
        """Tell how it stands, for people and metrics."""
        return {
            "name": self.name,
            "kind": self.kind,
            "mode": self.capacity.mode,
            "on_loss": self.on_loss,
            "keys": self.capacity.keys,
            "asked": self.asked,
            "granted": self.granted,
            "returned": self.returned,
            "faults": self.faults,
            "switches": self.switches,
            "fault": self.fault,
            "other_rule": self.other_rule,
        }

    def note_fault(self, fault: Fault, key: Hashable = None) -> None:
        """Count a fault."""
        self.faults += 1
        self.fault = str(fault)
        self.failed_key = key

    def compare(self, node: str, rule: str, now: float) -> None:
        """Note that another process has other settings for this limit, or, if both are empty, that none is seen to."""
        if rule:
            other = f"{rule} ({node})"
            if other != self.other_rule:
                log.warning(
                    "ledger: %s is not the same everywhere: %s (%s), but %s; each goes by its own",
                    *(self.name, self.rule, self.node, other),
                )
            self.other_rule, self._compared_at = other, now
        elif now - self._compared_at > COMPARED_FOR:  # at another key it may be seen at this moment
            self.other_rule = ""

    def calls(self, prefix: str, node: str, seq: int, now: float, sweep: bool) -> list[Asked]:
        """Tell what to ask now; with `sweep`, of all keys, after what is not used is put aside."""
        with self.guard():
            while self._polls and self._polls[0][0] <= now:
                self.capacity.look_at(heappop(self._polls)[2])
            if sweep:
                self.set_aside()
            wants = self.capacity.wants(now, all_keys=sweep)
        return [(self, want, self.call(prefix, node, seq, want)) for want in wants]

    def set_aside(self) -> None:
        """Take from the gate what is lent and not used."""
        raise NotImplementedError

    def call(self, prefix: str, node: str, seq: int, want: Any) -> Call:
        """Put a want into the words of the script."""
        raise NotImplementedError

    def probe(self) -> Any:
        """Want nothing, where it failed."""
        raise NotImplementedError

    def answer(self, want: Any, reply: list[str], sent_at: float, now: float, pace: float) -> None:
        """Bring what was granted into the gate, and note when to ask again."""
        raise NotImplementedError

    def unsent(self, want: Any) -> None:
        """Note that the ledger may not have heard it."""

    def lose(self, live: int, rank: int, now: float) -> None:
        """Go on without the ledger, as the policy says; this is process `rank` of `live`."""
        if not self.lost:
            self.lost = True
            self.switches += 1
            self._live, self._rank = live, rank
            with self.guard():
                self._lose(live, rank, now)

    def set_policy(self, on_loss: LossPolicy, now: float) -> None:
        """Change what to do in a loss, also in one that lasts already; the lock is held."""
        before, self.on_loss = self.on_loss, on_loss
        if self.lost and on_loss != before:
            self._lose(self._live, self._rank, now)

    def regain(self) -> None:
        """Go back to the ledger."""
        self.lost = self.suspended = False
        self.switches += 1
        self._polls.clear()
        with self.guard():
            self._change("regain")

    def let_go(self, now: float) -> list[Any]:
        """Want nothing any more, and give everything back that is not used."""
        raise NotImplementedError

    def _lose(self, live: int, rank: int, now: float) -> None:
        raise NotImplementedError

    def _change(self, verb: str, *args: Any) -> None:
        self._adjust(Change(self.capacity.name, verb, args))

    def _poll(self, key: Hashable, at: float) -> None:
        self._number += 1
        heappush(self._polls, (at, self._number, key))

    def _claims(self, claims: Sequence[Claim]) -> list[list[Any]]:
        told = []
        if len(self._labels) > MOST_KNOWN:
            self._labels.clear()
        if len(claims) > MOST_CLAIMS:  # who makes up workloads has them counted as one
            kept = sorted(claims, key=lambda claim: -claim.weight)
            rest = kept[MOST_CLAIMS - 1 :]
            tokens = sum(claim.tokens for claim in rest)
            users = sum(claim.users for claim in rest)
            largest = max(claim.largest for claim in rest)
            others = rest[0]._replace(workload=OTHERS, users=users, tokens=tokens, largest=largest)
            claims = [*kept[: MOST_CLAIMS - 1], others]
        for claim in claims:
            label = label_of(claim.workload)
            self._labels[label] = claim.workload
            told.append(
                [label, claim.weight, max(1, claim.users), claim.tokens, claim.unit, claim.largest]
            )
        return told


Asked = tuple[Lease, Any, Call]


def label_of(value: Hashable) -> str:
    """Make short text of a key or workload: the same in every process.

    >>> label_of("checkout"), label_of(("paid", 3.0)), len(label_of("x" * 1000))
    ('checkout', "('paid', 3.0)", 64)
    """
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= LONGEST_LABEL and text.isprintable():
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def numbers(texts: list[str]) -> list[float]:
    """Read finite numbers, or say that the reply is not ours."""
    try:
        found = [float(text) for text in texts]
    except ValueError:
        raise Fault(f"a reply that is not ours: {texts!r:.200}") from None
    if not all(map(isfinite, found)):
        raise Fault(f"a reply that is not ours: {texts!r:.200}")
    return found
