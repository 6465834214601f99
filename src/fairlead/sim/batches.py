"""Recorded batches of streams, taken apart into records: how large a batch is, is for the policy to say.

What a batch took and what it counted is divided evenly among its records: more is not recorded.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fairlead.sim.result import Arrival


def unbatched(
    arrivals: list[Arrival], keys: Sequence[Mapping[str, int]], most: int
) -> list[Arrival]:
    """Take batches apart; `keys` tells how many records of each key one has, where order is kept by key.

    What depends on a batch depends on all of its records.
    """
    batches = [one for one in arrivals if one.labels is not None and one.cost > 1]
    if not batches and not any(keys):
        return arrivals
    together = _together(arrivals, keys, most)
    apart: list[Arrival] = []
    places: list[range] = []  # of the parts of each
    for one, own in zip(arrivals, keys, strict=True):
        first = len(apart)
        apart += _parts(one, together) if not own else _by_key(one, own)
        places.append(range(first, len(apart)))
    return [
        one._replace(deps=tuple(place for dep in one.deps for place in places[dep]))
        if one.deps
        else one
        for one in apart
    ]


def _together(arrivals: list[Arrival], keys: Sequence[Mapping[str, int]], most: int) -> int:
    """How many records of a batch stay together, for there to be no more arrivals than `most`.

    Those by key cannot: each has its own place in the line of its key.
    """
    single = sum(sum(own.values()) for own in keys)
    others = [one for one, own in zip(arrivals, keys, strict=True) if not own]
    if single and single + len(others) > most:
        raise ConfigError(
            f"there are {single:,} records by key, which are replayed one by one, "
            f"{most:,} at most; take a shorter time"
        )
    batched = sum(one.cost for one in others if one.labels is not None and one.cost > 1)
    # Each may leave a part that is not whole.
    return max(1, ceil(batched / max(1, most - single - len(others))))


def _parts(arrival: Arrival, together: int) -> Iterator[Arrival]:
    if arrival.labels is None or arrival.cost <= together:
        yield arrival
        return
    left = arrival.cost
    while left > 0:
        size = min(left, together)
        left -= size
        yield _part(arrival, size, arrival.labels)


def _by_key(arrival: Arrival, keys: Mapping[str, int]) -> Iterator[Arrival]:
    """One by one: records of several keys have no order to keep among them."""
    for key, count in keys.items():
        for _ in range(count):
            yield _part(arrival, 1.0, {**(arrival.labels or {}), "key": key})


def _part(arrival: Arrival, size: float, labels: Mapping[str, str]) -> Arrival:
    """Some records of a batch, with their part of its time and of its cost."""
    part = size / arrival.cost
    if "cost" in labels:
        labels = {**labels, "cost": repr(float(labels["cost"]) * part)}
    return arrival._replace(cost=size, service=arrival.service * size / arrival.cost, labels=labels)
