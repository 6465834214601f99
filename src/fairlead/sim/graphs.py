"""Graphs of arrivals: who follows whom, and in which order they may begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.sim.result import Arrival

    Followers = dict[int, list[int]]


def followers_of(arrivals: Sequence[Arrival]) -> Followers:
    """Tell who waits for each, by index."""
    followers: Followers = {}
    for number, arrival in enumerate(arrivals):
        for dep in arrival.deps:
            followers.setdefault(dep, []).append(number)
    return followers


def in_turn(arrivals: Sequence[Arrival], followers: Followers) -> list[int]:
    """Put them in an order in which each comes after all it depends on; who waits for himself is not in it.

    >>> from fairlead.sim.result import Arrival
    >>> three = [Arrival(0, 1, deps=(1,)), Arrival(0, 1), Arrival(0, 1, deps=(2,))]
    >>> in_turn(three, followers_of(three))
    [1, 0]
    """
    waits = [len(arrival.deps) for arrival in arrivals]
    order = [number for number, count in enumerate(waits) if not count]
    for number in order:
        for follower in followers.get(number, ()):
            waits[follower] -= 1
            if not waits[follower]:
                order.append(follower)
    return order


def in_a_circle(arrivals: Sequence[Arrival], followers: Followers) -> Arrival | None:
    """Find one that waits for itself, through others; None if nobody does."""
    order = in_turn(arrivals, followers)
    if len(order) == len(arrivals):
        return None
    begun = set(order)
    return next(one for number, one in enumerate(arrivals) if number not in begun)
