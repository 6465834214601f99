"""The order of a graph of numbers, or the ring that keeps it from having one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Edges looked at in search of a ring shorter than the first one found.
PATIENCE = 2_000_000


def order_of(needs: Sequence[Sequence[int]]) -> Sequence[int]:
    """Sort so that each comes after all that it needs; what is in a ring, or behind one, is left out.

    >>> order_of([(1,), (), (0, 1)]), order_of([(1,), (0,), (1,), ()])
    ([1, 0, 2], [3])
    """
    for index, before in enumerate(needs):
        for each in before:
            if each >= index:
                return _sorted(needs)
    return range(len(needs))  # as almost always: people add what they need first


def _sorted(needs: Sequence[Sequence[int]]) -> list[int]:
    feeds = _feeds_of(needs)
    waits = [len(before) for before in needs]
    order = [index for index, count in enumerate(waits) if not count]
    for index in order:  # it grows as it is read
        for fed in feeds[index]:
            waits[fed] -= 1
            if not waits[fed]:
                order.append(fed)
    return order


def _feeds_of(needs: Sequence[Sequence[int]]) -> list[list[int]]:
    feeds: list[list[int]] = [[] for _ in needs]
    for index, before in enumerate(needs):
        for each in before:
            feeds[each].append(index)
    return feeds


def shortest_cycle(needs: Sequence[Sequence[int]]) -> list[int]:
    """Find a ring in a graph that has one, the shortest unless the graph is vast; each feeds the next.

    >>> shortest_cycle([(2,), (0,), (1,), (0, 3)])
    [3]
    """
    ordered = set(order_of(needs))
    left = [index for index in range(len(needs)) if index not in ordered]
    best = _any_cycle(needs, left[0], ordered)
    feeds = _feeds_of(needs)
    patience = PATIENCE
    for start in left:
        if len(best) == 1 or patience < 0:
            break
        found, looked = _cycle_through(feeds, start, len(best), ordered)
        patience -= looked
        best = found or best
    least = best.index(min(best))
    return best[least:] + best[:least]


def _any_cycle(needs: Sequence[Sequence[int]], start: int, ordered: set[int]) -> list[int]:
    """Go back from need to need; what is left of a graph never ends, so some place comes twice."""
    place: dict[int, int] = {}
    walk: list[int] = []
    at = start
    while at not in place:
        place[at] = len(walk)
        walk.append(at)
        at = next(each for each in needs[at] if each not in ordered)
    return walk[place[at] :][::-1]


def _cycle_through(
    feeds: list[list[int]], start: int, bound: int, ordered: set[int]
) -> tuple[list[int] | None, int]:
    """Search breadth first for a ring through one place that is shorter than `bound`; tell the edges looked at."""
    came_from = {start: start}
    front = deque([(start, 1)])
    looked = 0
    while front:
        at, length = front.popleft()
        if length >= bound:
            break
        for fed in feeds[at]:
            looked += 1
            if fed == start:
                ring = [at]
                while ring[-1] != start:
                    ring.append(came_from[ring[-1]])
                return ring[::-1], looked
            if fed not in came_from and fed not in ordered:
                came_from[fed] = at
                front.append((fed, length + 1))
    return None, looked
