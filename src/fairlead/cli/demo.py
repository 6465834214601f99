"""The demonstration's model: four kinds of callers ask for 125 % of a pool, once under FIFO and once under Fairlead.

Both halves are the same in everything but the policy: the tasks door itself, 8 slots, room for 80 to wait, and one list
of arrivals made from the seed.  Arrivals are Poisson (uniform instants, sorted), a kind has exactly its share of them,
and work takes 20 to 40 ms, scaled so that together it is exactly 125 % of what the slots can do while work arrives.
When arrivals end, what waits is served, so that no wait is left out; percentiles are of what was served.

FIFO has one queue of 80.  Fairlead has a class per kind, the most important first, with the same 80 places divided
among them, so that the kind that overflows is the one refused; bulk work that has waited half a second is promoted
past the others, at most once in 8 starts.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.errors import QueueFull
from fairlead.policies import FIFO, Classes, Level
from fairlead.tasks import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead.core import Policy

SLOTS = 8
PLACES = 80
LOAD = 1.25
SHORTEST, LONGEST = 0.020, 0.040
STARVED_AFTER = 0.5
BUDGET = 8


class Kind(NamedTuple):
    """A kind of caller; `share` is of the arrivals, `places` of those that may wait under Fairlead."""

    name: str
    priority: int
    share: float
    places: int


# The most important first.  All but bulk together ask for 81 % of the slots.
KINDS = (
    Kind("system", 100, 0.10, 10),
    Kind("interactive", 80, 0.25, 15),
    Kind("default", 50, 0.30, 25),
    Kind("bulk", 0, 0.35, 30),
)


class Arrival(NamedTuple):
    """One unit of work: when it comes, whose it is, how long it takes."""

    at: float
    kind: Kind
    work: float


def arrivals(seconds: float, seed: int) -> list[Arrival]:
    """Make the arrivals of one half; the same for the same seed."""
    chance = random.Random(seed)
    offered = LOAD * SLOTS * seconds
    number = round(offered / ((SHORTEST + LONGEST) / 2))
    kinds = [kind for kind in KINDS for _ in range(round(kind.share * number))]
    chance.shuffle(kinds)
    works = [chance.uniform(SHORTEST, LONGEST) for _ in kinds]
    scale = offered / sum(works)
    instants = sorted(chance.uniform(0, seconds) for _ in kinds)
    return [
        Arrival(at, kind, work * scale)
        for at, kind, work in zip(instants, kinds, works, strict=True)
    ]


def load(planned: Sequence[Arrival], seconds: float) -> float:
    """Tell what the arrivals ask for, as a part of what the slots can do while they arrive."""
    return sum(arrival.work for arrival in planned) / (SLOTS * seconds)


def fifo() -> Policy:
    """Make the first half's policy."""
    return FIFO(name="demo")


def fairlead() -> Policy:
    """Make the second half's policy: a ticket's rank is the index of its class, the least important first."""
    *above, bulk = KINDS
    return Classes(
        Level(bulk.name, queue_limit=bulk.places, starvation=STARVED_AFTER),
        *(Level(kind.name, queue_limit=kind.places) for kind in reversed(above)),
        budget=BUDGET,
        name="demo",
    )


HALVES: dict[str, Callable[[], Policy]] = {"fifo": fifo, "fairlead": fairlead}


@dataclass(slots=True)
class Tally:
    """What happened to one kind so far."""

    kind: Kind
    arrived: int = 0
    refused: int = 0
    promoted: int = 0
    waits: list[float] = field(default_factory=list)

    @property
    def started(self) -> int:
        """How many were given a slot."""
        return len(self.waits)

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return self.arrived - self.refused - self.started

    @property
    def refused_share(self) -> float:
        """The part of the arrivals that was turned away."""
        return self.refused / self.arrived if self.arrived else 0.0


class Half:
    """One half of the demonstration, readable while it runs."""

    def __init__(self, name: str, planned: Sequence[Arrival]) -> None:
        self.name = name
        self.tallies = {kind.name: Tally(kind) for kind in KINDS}
        self.elapsed = 0.0
        self.active = 0
        self._planned = planned
        self._futures: set[asyncio.Future[Any]] = set()

    async def run(self) -> None:
        """Let the work arrive in real time, then serve what waits."""
        scheduler = Scheduler.bounded(SLOTS, PLACES, policy=HALVES[self.name]())
        try:
            await self._arrive(scheduler)
            await scheduler.shutdown()
            self._note_promotions(scheduler)
        except BaseException:  # Ctrl-C: nobody will ask for these results
            for future in list(self._futures):
                future.cancel()
            await scheduler.shutdown("abort")
            raise

    async def _arrive(self, scheduler: Scheduler) -> None:
        clock = asyncio.get_running_loop().time
        doors = {kind: scheduler.bind(rank=rank) for rank, kind in enumerate(reversed(KINDS))}
        began = clock()

        async def work(arrival: Arrival, tally: Tally, asked_at: float) -> None:
            tally.waits.append(clock() - asked_at)
            self.active += 1
            try:
                await asyncio.sleep(arrival.work)
            finally:
                self.active -= 1
                self.elapsed = clock() - began

        for arrival in self._planned:
            early = began + arrival.at - clock()
            if early > 0:
                await asyncio.sleep(early)
            tally = self.tallies[arrival.kind.name]
            tally.arrived += 1
            try:
                future = doors[arrival.kind].spawn(
                    arrival.kind.priority, work, arrival, tally, clock()
                )
            except QueueFull:
                tally.refused += 1
            else:
                self._futures.add(future)
                future.add_done_callback(self._futures.discard)
            self._note_promotions(scheduler)

    def _note_promotions(self, scheduler: Scheduler) -> None:
        # All of them are of the last kind: no other class has a starvation threshold.
        self.tallies[KINDS[-1].name].promoted = scheduler.stats().starvation_promotions

    def report(self) -> dict[str, Any]:
        """Tell what happened, in plain values."""
        return {
            "elapsed": round(self.elapsed, 3),
            "kinds": {name: _figures(tally) for name, tally in self.tallies.items()},
        }


def _figures(tally: Tally) -> dict[str, Any]:
    ordered = sorted(tally.waits)
    return {
        "priority": tally.kind.priority,
        "arrived": tally.arrived,
        "served": tally.started,
        "refused": tally.refused,
        "promoted": tally.promoted,
        "wait": {f"p{part}": round(percentile(ordered, part), 6) for part in (50, 95, 99)},
    }


def percentile(ordered: Sequence[float], part: int) -> float:
    """Tell the smallest value that at least `part` percent do not exceed; 0 if there are none."""
    return ordered[max(0, ceil(len(ordered) * part / 100) - 1)] if ordered else 0.0


def compare(halves: Sequence[Half]) -> list[str]:
    """Say in two sentences what the figures show, whichever way they point."""
    before, after = halves
    sentences = []
    for kind, opening in (
        (KINDS[0], "The most important work"),
        (KINDS[-1], "The least important"),
    ):
        old, new = (_figures(half.tallies[kind.name]) for half in (before, after))
        sentences.append(
            f"{opening} ({kind.name}) waited {_wait(new)} at the 95th percentile under Fairlead and {_wait(old)} under "
            f"FIFO{_times(old, new)}; {_refused(new)} of it was refused, against {_refused(old)}"
        )
    least = after.tallies[KINDS[-1].name]
    promoted = f"; {least.promoted} of its {least.started} starts were promotions past the others"
    return [sentences[0] + ".", f"{sentences[1]}{promoted if least.promoted else ''}."]


def _wait(figures: dict[str, Any]) -> str:
    return f"{figures['wait']['p95'] * 1000:.0f} ms"


def _times(old: dict[str, Any], new: dict[str, Any]) -> str:
    was, now = old["wait"]["p95"], new["wait"]["p95"]
    if min(was, now) < 0.001:
        return ""
    return f", {was / now:.1f} times shorter" if was >= now else f", {now / was:.1f} times longer"


def _refused(figures: dict[str, Any]) -> str:
    return f"{100 * figures['refused'] / max(1, figures['arrived']):.0f} %"


def document(seconds: float, seed: int, halves: Sequence[Half], offered: float) -> dict[str, Any]:
    """Make what `fairlead demo --json` prints; durations are seconds.

    - `seed`, `seconds`, `slots`, `queueLimit`: what both halves ran with
    - `load`: the work that arrived, as a part of what the slots can do (1.25)
    - `fifo`, `fairlead`: the halves; in each `elapsed`, and `kinds`, by name and the most important first:
      `priority`, `arrived`, `served`, `refused`, `promoted`, and `wait` with `p50`, `p95`, `p99` of what was served
    - `conclusion`: sentences computed from these figures
    """
    return {
        "seed": seed,
        "seconds": seconds,
        "slots": SLOTS,
        "queueLimit": PLACES,
        "load": round(offered, 4),
        **{half.name: half.report() for half in halves},
        "conclusion": compare(halves),
    }
