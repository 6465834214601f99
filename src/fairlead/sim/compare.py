"""Policies side by side over seeds: means with confidence, and paired differences.

Every policy meets the same arrivals under the same seed, so policies are compared seed by seed: the difference is taken
first and its confidence after (a paired t-interval), which removes what the seeds themselves differ by.  With one seed
there is a difference and no confidence in it.
"""

from __future__ import annotations

from math import isclose, isfinite, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.sim.figures import MEASURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    # By dimension, group and measure; in `Values` one for each seed.
    Groups = Mapping[str, Mapping[str, Mapping[str, float | None]]]
    Values = dict[str, dict[str, dict[str, list[float | None]]]]

CONFIDENCE = 0.95
# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom.
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


class Estimate(NamedTuple):
    """A mean over seeds and the interval that holds it with 95 % confidence; no interval with one seed."""

    mean: float
    low: float | None
    high: float | None
    number: int


class Difference(NamedTuple):
    """How much a policy differs from the first; `verdict` is better, worse, unclear, same or other.

    `other` is a clear difference of a figure of which neither less nor more is better.
    """

    estimate: Estimate
    relative: float | None
    verdict: str


def student_t(degrees: int) -> float:
    """Tell the factor of a two-sided 95 % interval; beyond the table by Cornish and Fisher's expansion.

    >>> student_t(1), round(student_t(60), 3)
    (12.7062, 2.0)
    """
    if degrees <= len(_T):
        return _T[degrees - 1]
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    second = (z**3 + z) / 4
    third = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + second / degrees + third / degrees**2


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Estimate the mean of what the seeds gave; seeds in which there was nothing to measure are left out."""
    known = [value for value in values if value is not None and isfinite(value)]
    if not known:
        return None
    number = len(known)
    mean = sum(known) / number
    if number == 1:
        return Estimate(mean, None, None, 1)
    spread = sqrt(sum((value - mean) ** 2 for value in known) / (number - 1))
    margin = student_t(number - 1) * spread / sqrt(number)
    return Estimate(mean, mean - margin, mean + margin, number)


def paired(
    measure: str, first: Sequence[float | None], other: Sequence[float | None]
) -> Difference | None:
    """Compare two policies seed by seed, by a measure; seeds in which either has nothing are left out."""
    pairs = [
        (before, after)
        for before, after in zip(first, other, strict=True)
        if before is not None and after is not None
    ]
    # Sums that were added in another order differ in their last bits: that is no difference.
    found = estimate([0.0 if isclose(after, before) else after - before for before, after in pairs])
    if found is None:
        return None
    base = sum(before for before, _ in pairs) / len(pairs)
    relative = found.mean / base if base > 0 else None
    return Difference(found, relative, verdict(measure, found))


def verdict(measure: str, difference: Estimate) -> str:
    """Judge a difference: an interval that holds zero is no clear difference."""
    if difference.mean == 0 and not difference.low and not difference.high:
        return "same"
    if difference.low is None or difference.high is None:
        return "unclear"  # one seed may be luck
    if difference.low <= 0 <= difference.high:
        return "unclear"
    better = MEASURES[measure].better
    if not better:
        return "other"
    return "better" if (difference.mean < 0) == (better == "less") else "worse"


def gather(runs: Sequence[Groups], groups: Mapping[str, Sequence[str]]) -> Values:
    """Gather what the seeds gave, by dimension, group and measure; a group may be missing under a seed."""
    gathered: Values = {}
    for dimension, names in groups.items():
        gathered[dimension] = {}
        for name in names:
            found = [run.get(dimension, {}).get(name, {}) for run in runs]
            measured = {
                measure: [figures.get(measure) for figures in found] for measure in MEASURES
            }
            gathered[dimension][name] = {
                measure: values
                for measure, values in measured.items()
                if any(value is not None for value in values)
            }
    return gathered


def estimates(values: Values) -> dict[str, Any]:
    """Estimate each figure over the seeds."""
    told: dict[str, Any] = {}
    for dimension, names in values.items():
        for name, measures in names.items():
            for measure, found in measures.items():
                mean = estimate(found)
                if mean is not None:
                    told.setdefault(dimension, {}).setdefault(name, {})[measure] = {
                        "mean": mean.mean,
                        "low": mean.low,
                        "high": mean.high,
                        "values": found,
                    }
    return told


def differences(first: Values, other: Values) -> dict[str, Any]:
    """Compare each figure of a policy with the first's, seed by seed."""
    told: dict[str, Any] = {}
    for dimension, names in other.items():
        for name, measures in names.items():
            for measure, found in measures.items():
                before = first[dimension].get(name, {}).get(measure)
                difference = before and paired(measure, before, found)
                if difference:
                    told.setdefault(dimension, {}).setdefault(name, {})[measure] = {
                        "mean": difference.estimate.mean,
                        "low": difference.estimate.low,
                        "high": difference.estimate.high,
                        "relative": difference.relative,
                        "verdict": difference.verdict,
                    }
    return told
