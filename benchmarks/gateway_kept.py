"""Figures that one run brings together, told one by one: a table wants a value per case and round."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.harness import Measure


class Kept:
    """Values of a table's cases, kept by round for a table of what follows from them."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}

    def keep(self, name: str, measure: Measure) -> Measure:
        """A case that is measured and remembered."""

        def case() -> float:
            value = measure()
            self.values.setdefault(name, []).append(value)
            return value

        return case

    def note(self, name: str, value: float) -> None:
        """Remember a value that a case brought beside its own."""
        self.values.setdefault(name, []).append(value)

    def again(self, name: str) -> Measure:
        """A case that tells what was remembered, round by round."""
        told = iter(range(1_000_000))
        return lambda: self.of(name, next(told))

    def minus(self, name: str, other: str) -> Measure:
        """A case that tells the difference of two others, round by round."""
        told = iter(range(1_000_000))

        def case() -> float:
            number = next(told)
            return self.of(name, number) - self.of(other, number)

        return case

    def of(self, name: str, number: int) -> float:
        values = self.values.get(name, [])
        if number >= len(values):
            raise RuntimeError(f"{name} was not measured")
        return values[number]


class Shared:
    """An experiment that brings many figures at once: whoever first asks in a round runs it."""

    def __init__(self, experiment: Callable[[int], Mapping[str, float]]) -> None:
        self.experiment = experiment  # called with the number of the round
        self.results: list[Mapping[str, float]] = []

    def figure(self, name: str) -> Measure:
        """A case that tells one of its figures, round by round."""
        told = iter(range(1_000_000))

        def case() -> float:
            number = next(told)
            while number >= len(self.results):
                self.results.append(self.experiment(len(self.results)))
            return self.results[number][name]

        return case
