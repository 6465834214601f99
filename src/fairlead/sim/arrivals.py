"""Arrivals in order of time, and clients that come again when their last work has ended."""

from __future__ import annotations

from itertools import chain
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from fairlead.errors import ConfigError
from fairlead.sim.graphs import followers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead.sim.result import Arrival

MOST_ARRIVALS = 2_000_000  # of one simulation: what is more is a mistake, and fills the memory


class Client:
    """One caller in a closed loop: it comes again after its last work has ended, and a time to think."""

    __slots__ = ("_make", "_think", "first")

    def __init__(
        self, first: float, make: Callable[[float], Arrival | None], think: Callable[[], float]
    ) -> None:
        self.first = first
        self._make = make
        self._think = think

    def come(self, at: float) -> Arrival | None:
        """Tell what it comes with at an instant; None if it does not come any more."""
        return self._make(at)

    def again(self, ended: float) -> float:
        """Tell when it comes again."""
        return ended + self._think()


def merged(
    drawn: Sequence[Sequence[Arrival]], seconds: float = inf, count: int | None = None
) -> list[Arrival]:
    """Put the arrivals of several sources in order of time; those of one instant in the order of their sources.

    What comes too late, or after the first `count`, is left out, and with it what depends on it; a graph counts
    as one.  Dependencies, which count within their own source, are made to count in the whole.
    """
    total = sum(map(len, drawn))
    if total > MOST_ARRIVALS:
        raise ConfigError(
            f"the sources together come {total:,} times; a simulation is of {MOST_ARRIVALS:,} at most"
        )
    # No graphs: neither `deps` nor `dag`.
    bare = not any(arrival[10] or arrival[12] >= 0 for source in drawn for arrival in source)
    if bare:
        everyone = sorted(chain.from_iterable(drawn), key=itemgetter(0))
        if seconds < inf:
            everyone = [arrival for arrival in everyone if arrival.at <= seconds]
        return everyone if count is None else everyone[:count]
    tagged = [
        (arrival.at, number, index, arrival)
        for number, source in enumerate(drawn)
        for index, arrival in enumerate(source)
        if arrival.at <= seconds
    ]
    tagged.sort(key=lambda one: one[:3])
    if count is not None:
        tagged = _first(tagged, count)
    tagged = _whole(tagged, drawn)
    graphs: dict[tuple[int, int], int] = {}
    places = {(number, index): place for place, (_, number, index, _) in enumerate(tagged)}
    result = []
    for _, number, _, arrival in tagged:
        deps = tuple(places[number, dep] for dep in arrival.deps)
        dag = arrival.dag
        if dag >= 0:
            dag = graphs.setdefault((number, dag), len(graphs))
        result.append(arrival._replace(deps=deps, dag=dag))
    return result


Tagged = tuple[float, int, int, "Arrival"]


def _whole(tagged: list[Tagged], drawn: Sequence[Sequence[Arrival]]) -> list[Tagged]:
    """Leave out what depends, directly or through others, on something that was left out."""
    present = {(number, index) for _, number, index, _ in tagged}
    for number, source in enumerate(drawn):
        followers = followers_of(source)
        gone = [index for index in range(len(source)) if (number, index) not in present]
        for index in gone:
            for follower in followers.get(index, ()):
                if (number, follower) in present:
                    present.discard((number, follower))
                    gone.append(follower)
    return [one for one in tagged if (one[1], one[2]) in present]


def _first(tagged: list[Tagged], count: int) -> list[Tagged]:
    """Keep the first so many, a graph counting as one; the rest of a graph that was begun is kept too."""
    seen: dict[tuple[int, int], None] = {}
    kept = []
    left = count
    for one in tagged:
        graph = (one[1], one[3].dag)
        if one[3].dag >= 0 and graph in seen:
            kept.append(one)
        elif left > 0:
            left -= 1
            kept.append(one)
            if one[3].dag >= 0:
                seen[graph] = None
    return kept
