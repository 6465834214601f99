"""The values that scenarios are made of: amounts and durations that may be drawn by chance."""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from math import log
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from fairlead.documents.values import LONGEST, Duration, DurationOrZero, Model

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    Draw = Callable[[], float]

MOST = 1e12
Amount = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Shape = Annotated[float, Field(ge=0.1, le=1000, allow_inf_nan=False)]
P95 = 1.6448536269514722  # of a standard normal


class _Chance(Model):
    """One way to draw; exactly one is given."""

    largest: ClassVar[float]  # that is ever drawn: a heavy tail has no end

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        return data if isinstance(data, dict) else {"constant": data}

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = self.model_fields_set
        if len(given) != 1:
            names = ", ".join(type(self).model_fields)
            raise ValueError(f"must be one of {names}; got {len(given)} of them")
        return self

    def draw(self, random: Random) -> Draw:
        """Make the function that draws."""
        (name,) = self.model_fields_set
        said = getattr(self, name)
        if name == "constant":
            return lambda: said
        if name == "exponential":
            chance = random.random
            return lambda: -said * log(1.0 - chance())  # as expovariate, with a call less
        if name == "uniform":
            low, high = said
            return lambda: random.uniform(low, high)
        if name == "one_of":
            return lambda: random.choice(said)
        if name == "lognormal":
            mu, sigma = said.parameters()
            largest = self.largest
            return lambda: min(largest, random.lognormvariate(mu, sigma))
        least, shape = said.least, said.shape
        most = self.largest if said.most is None else said.most
        return lambda: min(most, least * random.paretovariate(shape))


def _ordered(given: Any) -> Any:
    numbers = isinstance(given, list) and all(type(one) in (int, float) for one in given)
    if numbers and len(given) == 2 and given[0] > given[1]:
        raise ValueError("must be [lowest, highest]")
    return given


class _Lognormal(Model):
    """By its median, and either its 95th percentile or the sigma of its logarithm."""

    median: Duration
    p95: Duration | None = None
    sigma: Annotated[float, Field(ge=0, le=10)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.p95 is None) == (self.sigma is None):
            raise ValueError("needs p95 or sigma, and not both")
        if self.p95 is not None and self.p95 < self.median:
            raise ValueError("p95 may not be below the median")
        return self

    def parameters(self) -> tuple[float, float]:
        """Tell mu and sigma."""
        mu = log(self.median)
        if self.p95 is not None:
            return mu, (log(self.p95) - mu) / P95
        return mu, float(self.sigma or 0.0)


class _AmountLognormal(_Lognormal):
    median: Annotated[float, Field(gt=0, le=MOST)]
    p95: Annotated[float, Field(gt=0, le=MOST)] | None = None


class _Pareto(Model):
    """At least `least`; the smaller the shape, the heavier the tail; cut at `most`."""

    least: Duration
    shape: Shape
    most: Duration | None = None


class _AmountPareto(_Pareto):
    least: Annotated[float, Field(gt=0, le=MOST)]
    most: Annotated[float, Field(gt=0, le=MOST)] | None = None


class Times(_Chance):
    """Seconds: a duration, or chances of it."""

    largest = LONGEST

    constant: DurationOrZero | None = None
    exponential: Duration | None = None
    uniform: (
        Annotated[
            list[DurationOrZero], Field(min_length=2, max_length=2), BeforeValidator(_ordered)
        ]
        | None
    ) = None
    lognormal: _Lognormal | None = None
    pareto: _Pareto | None = None
    one_of: Annotated[list[DurationOrZero], Field(min_length=1)] | None = None


class Amounts(_Chance):
    """A number, or chances of it."""

    largest = MOST

    constant: Amount | None = None
    exponential: Annotated[float, Field(gt=0, le=MOST)] | None = None
    uniform: (
        Annotated[list[Amount], Field(min_length=2, max_length=2), BeforeValidator(_ordered)] | None
    ) = None
    lognormal: _AmountLognormal | None = None
    pareto: _AmountPareto | None = None
    one_of: Annotated[list[Amount], Field(min_length=1)] | None = None


def chooser(random: Random, names: dict[str, float]) -> Callable[[], str]:
    """Make the function that draws one of these by weight; of one there is nothing to draw."""
    if len(names) == 1:
        (only,) = names
        return lambda: only
    keys, sums = list(names), list(accumulate(names.values()))
    chance, total, last = random.random, sums[-1], len(sums) - 1
    return lambda: keys[bisect(sums, chance() * total, 0, last)]  # as random.choices, in a third
