"""Shares of a window: they equal brute force, keep their order, and change their verdict only with a lasting change."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.server.fairness import (
    FEWEST,
    JUDGED,
    LEAVES,
    LONGEST_STEP,
    RETURNS,
    WINDOWS,
    Fairness,
    Held,
    fair_shares,
)

NAMES = ("acme", "globex", "initech", "umbrella")
Samples = list[tuple[float, list[Held]]]


def held_of(asks: dict[str, tuple[int, int]]) -> list[Held]:
    waits, runs = zip(*asks.values(), strict=True) if asks else ((), ())
    demands = [wait + run for wait, run in zip(waits, runs, strict=True)]
    fair = fair_shares(demands, [1.0] * len(demands), sum(runs))
    return [Held(name, *ask, part) for (name, ask), part in zip(asks.items(), fair, strict=True)]


asked = st.dictionaries(
    st.sampled_from(NAMES), st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=4
)
histories = st.lists(st.tuples(st.floats(0.0, 8.0), asked), min_size=1, max_size=80)


def told(history: list[tuple[float, dict[str, tuple[int, int]]]]) -> tuple[Fairness, Samples]:
    shares, now, seen = Fairness(), 1000.0, []
    for step, asks in history:
        now += step
        held = held_of(asks)
        shares.sample(now, held)
        seen.append((now, held))
    return shares, seen


def by_hand(seen: Samples, seconds: float, name: str) -> tuple[float, float]:
    """Sum the samples of a window anew; each stands for the time since the one before."""
    now = seen[-1][0]
    used = own = fair = 0.0
    for place, (t, held) in enumerate(seen):
        step = min(LONGEST_STEP, t - seen[place - 1][0]) if place else 0.0
        if t > now - seconds:
            used += sum(one.running for one in held) * step
            own += sum(one.running for one in held if one.name == name) * step
            fair += sum(one.fair for one in held if one.name == name) * step
    return (own / used, fair / used) if used > 1e-9 else (0.0, 0.0)


@given(histories)
def test_a_share_is_the_mean_of_its_window(history):
    shares, seen = told(history)
    if seen[-1][0] - seen[0][0] < 1e-3:
        return  # no time has passed: shares are those of now
    for one in shares.tenants(9):
        for seconds in WINDOWS:
            wanted = by_hand(seen, seconds, str(one.name))
            assert one.parts[seconds] == pytest.approx(wanted, abs=1e-6)


@given(histories)
def test_shares_and_fair_shares_divide_the_same_room(history):
    shares, _ = told(history)
    for seconds in WINDOWS:
        parts = [one.parts[seconds] for one in shares.tenants(9)]
        for total in (sum(one.share for one in parts), sum(one.fair for one in parts)):
            assert total == pytest.approx(0.0, abs=1e-6) or total == pytest.approx(1.0, abs=1e-6)


@given(histories)
def test_tenants_are_listed_by_name_whatever_they_do(history):
    shares, _ = told(history)
    names = [str(one.name) for one in shares.tenants(9)]
    assert names == sorted(names)


@given(histories)
def test_a_verdict_changes_only_when_the_share_has_crossed_its_bound(history):
    shares, now, covered = Fairness(), 0.0, 0.0
    before: dict[object, str | None] = {}
    for place, (step, asks) in enumerate(history):
        now += step
        covered += min(LONGEST_STEP, step) if place else 0.0
        shares.sample(now, held_of(asks))
        for one in shares.tenants(9):
            gap = one.parts[JUDGED].share - one.parts[JUDGED].fair
            old, new = before.get(one.name), one.verdict
            if new in ("above", "below") and old != new:
                assert gap > LEAVES if new == "above" else gap < -LEAVES
            if old in ("above", "below") and new == "fair":
                assert abs(gap) <= LEAVES
                assert gap <= RETURNS if old == "above" else gap >= -RETURNS
            if covered < FEWEST:
                assert new is None
            before[one.name] = new


def flips(make, seed: int) -> int:
    """Count how often verdicts change while eight slots are shared fairly, but not at each instant."""
    rng, shares, found = random.Random(seed), make(), 0
    before: dict[object, str | None] = {}
    for half in range(600):
        cuts = sorted(rng.choices(range(9), k=3))
        runs = [high - low for low, high in zip([0, *cuts], [*cuts, 8], strict=True)]
        shares.sample(half / 2, held_of({n: (5, run) for n, run in zip(NAMES, runs, strict=True)}))
        for one in shares.tenants(9):
            if half > 120 and before.get(one.name) != one.verdict:
                found += 1
            before[one.name] = one.verdict
    return found


@pytest.mark.parametrize("seed", range(5))
def test_noise_flips_no_verdict(seed):
    assert flips(Fairness, seed) <= 12  # of 1,900: chance alone moves the mean of a minute a little


def test_an_instantaneous_sample_is_caught():
    class Instant(Fairness):
        def __init__(self) -> None:
            super().__init__(windows=(0.5, 60.0), judged=0.5)

        def _judge(self) -> None:
            self._judged.covered = FEWEST
            super()._judge()

    assert flips(Instant, 0) > 500


def test_a_tenant_that_left_is_forgotten_after_the_longest_window():
    shares = Fairness()
    shares.sample(0.0, held_of({"acme": (0, 1)}))
    shares.sample(1.0, held_of({"acme": (0, 1)}))
    shares.sample(max(WINDOWS), [])
    assert [one.name for one in shares.tenants(9)] == ["acme"]
    shares.sample(max(WINDOWS) + 2, [])
    assert shares.tenants(9) == []


def test_of_many_tenants_those_with_the_most_demand_are_listed():
    shares = Fairness()
    for second in range(30):
        held = [Held(f"t{number:03}", number, 0, 0.0) for number in range(50)]
        shares.sample(second, held)
    assert [one.name for one in shares.tenants(3)] == ["t047", "t048", "t049"]
