"""Who had how much of what was given, and how much would have been max-min fair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.sim.result import usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fairlead.sim.result import Row


def max_min(wanted: Sequence[float], given: float) -> list[float]:
    """Divide `given` so that nobody gets more than he wants, nor less than another who wants more.

    >>> max_min([1.0, 5.0, 9.0], 9.0)
    [1.0, 4.0, 4.0]
    """
    shares = [0.0] * len(wanted)
    left = given
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for place, index in enumerate(order):
        shares[index] = min(wanted[index], left / (len(order) - place))
        left -= shares[index]
    return shares


def fair_shares(
    parts: Mapping[str, Sequence[Row]], horizon: float, bins: int, *, weighs: bool
) -> dict[str, tuple[float, float]]:
    """Tell of each group the share it had of all that was given, and the max-min fair one.

    The fair one is that of a fluid: in each of `bins` equal parts of the run what was really given is divided max-min
    fairly among the groups by the work they have brought and not yet been given.  Work that was turned away was wanted
    too, until it left.  So a group's fair share is never more than it asked for, and all have theirs if all are served.
    """
    used = {
        name: levels(served(rows, horizon, weighs=weighs), horizon, bins)
        for name, rows in parts.items()
    }
    width = horizon / bins
    brought = {name: [0.0] * bins for name in parts}
    left = {name: [0.0] * bins for name in parts}
    for name, rows in parts.items():
        for row in rows:
            work = row.cost * row.service if weighs else row.service
            brought[name][_bin(row.at, width, bins)] += work
            if row.state != "done" and row.ended is not None:
                left[name][_bin(row.ended, width, bins)] += work
    owed, due = dict.fromkeys(parts, 0.0), dict.fromkeys(parts, 0.0)
    for index in range(bins):
        given = sum(used[name][index] for name in parts) * width
        for name in parts:
            owed[name] += brought[name][index]
        fair = max_min([owed[name] for name in parts], given)
        for name, share in zip(parts, fair, strict=True):
            due[name] += share
            owed[name] = max(0.0, owed[name] - share - left[name][index])
    had = {name: sum(found) for name, found in used.items()}
    given, all_due = sum(had.values()), sum(due.values())
    if given <= 0 or all_due <= 0:
        return {}
    # Rounded, so that the last bits of long sums are no difference between two policies.
    return {name: (round(had[name] / given, 9), round(due[name] / all_due, 9)) for name in parts}


def _bin(at: float, width: float, bins: int) -> int:
    return min(bins - 1, int(at / width)) if width > 0 else 0


def levels(
    stretches: Iterator[tuple[float, float, float]], horizon: float, bins: int
) -> list[float]:
    """Average what is present in each of `bins` equal parts of a run."""
    return [level for _, level in usage(stretches, horizon, bins)] or [0.0] * bins


def served(
    rows: Sequence[Row], horizon: float, *, weighs: bool
) -> Iterator[tuple[float, float, float]]:
    """Tell when tickets held room, and how much; an earlier try that was preempted is not known any more."""
    for row in rows:
        if row.started is not None:
            ended = horizon if row.ended is None else row.ended
            yield row.started, ended, row.cost if weighs else 1.0


def queued(rows: Sequence[Row], horizon: float) -> Iterator[tuple[float, float, float]]:
    """Tell when tickets waited; each counts as one."""
    for row in rows:
        until = row.ended if row.started is None else row.started
        yield row.at, horizon if until is None else until, 1.0
