"""Whether reservations fit into a capacity: the arithmetic of spec §6, pools, and what a refusal says."""

from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.capacities.reserved import Reserved
from fairlead.errors import ConfigError
from fairlead.gateway import reservations
from fairlead.gateway.loading import load, load_content
from fairlead.gateway.reservations import Table, connected, pools
from fairlead.gateway.settings import BUILT_IN, CLASSES, Settings, Upstream

# Decimals with few digits meet whole numbers often: that is where a float's ceil is one too high.
SHARES = st.integers(0, 100).map(lambda cents: cents / 100)
CLASS = st.tuples(st.integers(0, 60), SHARES)
TABLES = st.tuples(CLASS, CLASS, CLASS, CLASS)


def table(entries: Any) -> Table:
    return Table(
        {
            name: BUILT_IN[name].model_copy(
                update={"reserved_floor": floor, "reserved_per_slot": share}
            )
            for name, (floor, share) in zip(CLASSES, entries, strict=True)
        }
    )


def refused(config: dict[str, Any]) -> list[str]:
    return [problem.message for problem in load(config).problems]


def enabled(**more: Any) -> dict[str, Any]:
    return {"priority_scheduler": {"enabled": True, "reservations_exceed": "fallback"}, **more}


def scaling(**more: Any) -> dict[str, Any]:
    return {"priority_scheduler": {"enabled": True}, **more}


@pytest.mark.parametrize(
    ("capacity", "desired"),
    [
        (256, (0, 26, 128, 32)),
        (1024, (0, 103, 256, 32)),
        (100, (0, 10, 100, 32)),
        (0, (0, 0, 0, 0)),
    ],
)
def test_the_worked_values_of_the_spec(capacity, desired):
    assert Table(BUILT_IN).desired(capacity) == desired


@pytest.mark.parametrize(
    ("capacity", "fitting"),
    [
        (800, (0, 80, 200, 32)),
        (256, (0, 26, 128, 32)),
        (100, (0, 7, 70, 22)),
        (80, (0, 5, 53, 21)),
        (64, (0, 4, 39, 19)),
        (3, (0, 1, 1, 1)),
        (1, (0, 0, 0, 1)),
        (0, (0, 0, 0, 0)),
    ],
)
def test_what_fits_is_in_proportion(capacity, fitting):
    assert Table(BUILT_IN).fitting(capacity) == fitting


@given(TABLES, st.integers(0, 400))
def test_scaled_reservations_fit_keep_their_proportions_and_leave_nobody_out(entries, capacity):
    judged = table(entries)
    asked, kept = judged.desired(capacity), judged.fitting(capacity)
    need = sum(asked)
    if need <= capacity:
        assert kept == asked
        return
    assert sum(kept) <= capacity < sum(kept) + len(kept), "only rounding leaves any"
    for wanted, given_ in zip(asked, kept, strict=True):
        assert given_ <= wanted
        assert abs(given_ - Fraction(wanted * capacity, need)) < 1
    left_out = [rank for rank in range(4) if asked[rank] and not kept[rank]]
    assert not left_out or sum(kept) == capacity, "a class got none though there was one"
    higher = [rank for rank in range(4) if asked[rank] and rank > max(left_out, default=4)]
    assert all(kept[rank] for rank in higher)


@pytest.mark.parametrize("rounding", [ceil, lambda part: 0])
def test_another_rounding_is_caught(monkeypatch, rounding):
    def broken(asked, total):
        wanted = max(1, sum(asked))
        return tuple(rounding(Fraction(one * total, wanted)) for one in asked)

    monkeypatch.setattr(reservations, "scaled", broken)
    with pytest.raises(AssertionError):
        test_scaled_reservations_fit_keep_their_proportions_and_leave_nobody_out()


@given(TABLES, st.integers(0, 400))
def test_a_larger_capacity_costs_no_class_more_than_rounding(entries, capacity):
    judged = table(entries)
    pairs = zip(judged.fitting(capacity), judged.fitting(capacity + 1), strict=True)
    assert all(larger >= smaller - 1 for smaller, larger in pairs)


@given(TABLES, st.integers(1, 400), st.integers(0, 500))
def test_slots_that_are_lost_for_a_while_are_lost_from_the_lowest_class_up(
    entries, declared, total
):
    judged = table(entries)
    slots = Reserved(0, judged.floors, judged.shares)
    slots.resize(total, declared)
    whole = judged.fitting(max(total, declared))
    assert sum(slots.reserved) <= total
    if total >= declared:
        assert slots.reserved == whole
    most = [min(pair) for pair in zip(judged.desired(total), whole, strict=True)]
    cut = [rank for rank in range(4) if slots.reserved[rank] < most[rank]]
    assert all(got <= limit for got, limit in zip(slots.reserved, most, strict=True))
    if cut:
        assert sum(slots.reserved) == total
        assert not any(slots.reserved[: max(cut)]), "a lower class kept what a higher one lacks"


def test_the_built_in_table_needs_178():
    assert Table(BUILT_IN).enough(1) == 178
    assert not refused(enabled(capacity=178))
    (message,) = refused(enabled(capacity=177))
    assert "need 178 slots" in message
    assert "is 177" in message
    assert "raise the capacity to 178" in message
    assert "system 31, interactive 127, default 17, bulk 0" in message
    (message,) = refused(enabled(capacity=100))
    assert "need 142 slots" in message
    assert "is 100" in message
    assert not refused(enabled(capacity=0))
    assert not refused({"capacity": 100})


def test_what_does_not_fit_is_scaled_and_said():
    loaded = load(scaling(upstreams=[upstream(1, 64)]))
    assert not loaded.problems
    assert loaded.settings.priority_scheduler.enabled
    (warning,) = [line for line in loaded.warnings if "reservations" in line]
    assert "need 103 slots but the capacity of the upstreams is 64" in warning
    assert "scaled down in proportion: system 19, interactive 39, default 4, bulk 0" in warning
    assert "raise the capacity to 178" in warning
    assert not any("scaled" in line for line in load(scaling(capacity=178)).warnings)


@pytest.mark.parametrize("said", ["scale", "fallback"])
def test_strict_refuses_what_does_not_fit(said):
    scheduler = {"enabled": True, "reservations_exceed": said}
    loaded = load({"capacity": 64, "strict": True, "priority_scheduler": scheduler})
    (problem,) = loaded.problems
    assert "need 103 slots but the capacity is 64" in problem.message
    assert not any("scaled" in line for line in loaded.warnings)


def test_a_capacity_for_all_counts_as_far_as_the_upstreams_declare_as_much():
    (warning, *_) = load(scaling(capacity=500, upstreams=[upstream(1, 64)])).warnings
    assert "the capacity of the upstreams is 64" in warning
    (warning, *_) = load(scaling(capacity=100, upstreams=[upstream(1, 640)])).warnings
    assert "the capacity is 100" in warning


def test_shares_are_decimals():
    """Spec §6: as floats, 0.07 × 100 rounds up to 8."""
    assert ceil(0.07 * 100) == 8
    assert table([(0, 0.07)] * 4).desired(100) == (7, 7, 7, 7)


@given(TABLES, st.integers(1, 400))
def test_it_refuses_what_the_slots_refuse(entries, capacity):
    judged = table(entries)
    need = judged.need(capacity)
    if need > capacity:
        with pytest.raises(ConfigError, match=f"need {need} slots but the capacity is {capacity};"):
            Reserved(capacity, judged.floors, judged.shares)
    else:
        slots = Reserved(capacity, judged.floors, judged.shares)
        assert slots.reserved == judged.desired(capacity) == judged.fitting(capacity)
    slots = Reserved(0, judged.floors, judged.shares)
    slots.resize(capacity, capacity)
    assert slots.reserved == judged.fitting(capacity)


def holds(judged: Table, least: int, most: int) -> None:
    """The smallest capacity that is enough, found the long way."""
    brute = next((n for n in range(least, most) if judged.need(n) <= n), None)
    found = judged.enough(least)
    assert found == brute if brute is not None else found is None or found >= most


@given(TABLES, st.integers(1, 400))
def test_the_smallest_capacity_is_the_smallest(entries, least):
    holds(table(entries), least, 1000)


def test_enough_may_stop_being_enough():
    halves = table([(0, 0.5), (0, 0.5), (0, 0.0), (0, 0.0)])
    assert [n for n in range(1, 8) if halves.need(n) <= n] == [2, 4, 6]
    assert halves.enough(3) == 4
    assert table([(0, 1.0), (0, 1.0), (0, 0.0), (0, 0.0)]).enough(1) is None


class Halving(Table):
    """The mutant: a binary search, as if what is enough stayed so."""

    def enough(self, least: int) -> int | None:
        low, high = least, 65_536
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.need(middle) <= middle else (middle + 1, high)
        return low if low < 65_536 else None


def test_a_binary_search_is_caught():
    broken = Halving(BUILT_IN)
    broken.floors, broken._parts = (
        (0, 0, 0, 0),
        table([(0, 0.5), (0, 0.5), (0, 0.0), (0, 0.0)])._parts,
    )
    with pytest.raises(AssertionError):
        holds(broken, 3, 1000)


def test_nothing_is_enough_for_two_wholes():
    classes = {"bulk": {"reserved_per_slot": 1}, "default": {"reserved_per_slot": 1}}
    scheduler = {"enabled": True, "reservations_exceed": "fallback", "classes": classes}
    (message,) = refused({"capacity": 9, "priority_scheduler": scheduler})
    assert "no capacity is enough" in message


def upstream(number: int, capacity: Any, *models: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"url": f"http://h{number}", "capacity": capacity}
    return entry | ({"models": list(models)} if models else {})


def test_upstreams_are_added_up():
    assert refused(enabled(upstreams=[upstream(1, 100), upstream(2, 77)]))
    assert not refused(enabled(upstreams=[upstream(1, 100), upstream(2, 78)]))
    assert not refused(enabled(upstreams=[upstream(1, 100), upstream(2, "reported")]))
    assert not refused(enabled(upstreams=[upstream(1, 100), upstream(2, "adaptive")]))
    assert not refused(enabled(upstreams=[]))
    assert not refused(enabled(capacity=178, upstreams=[upstream(1, 178)]))
    assert not refused(enabled(capacity=178, upstreams=[upstream(1, "reported")]))
    assert refused(enabled(capacity=178, upstreams=[upstream(1, 1)]))
    assert refused(enabled(capacity=177, upstreams=[upstream(1, 1000)]))


def test_with_pools_each_is_asked():
    both = [upstream(1, 100, "a"), upstream(2, 200, "b")]
    assert not refused(enabled(upstreams=both))
    (message,) = refused(enabled(upstreams=both, pool_by="model"))
    assert "the pool for models 'a' is 100" in message
    two = [upstream(1, 100, "a"), upstream(2, 50, "b")]
    assert len(refused(enabled(upstreams=two, pool_by="model"))) == 2
    unknown = [upstream(1, "reported", "a"), upstream(2, 200, "b")]
    assert not refused(enabled(upstreams=unknown, pool_by="model"))


def test_with_pools_a_capacity_for_all_is_not_asked():
    given = enabled(upstreams=[upstream(1, 100, "a")], pool_by="model", capacity=1000)
    (message,) = refused(given)
    assert "the pool for models 'a' is 100" in message
    assert any("capacity is not used with pool_by" in line for line in load(given).warnings)


def test_upstreams_that_share_a_model_are_one_pool():
    def groups(*models: list[str] | None) -> list[list[int]]:
        members = [Upstream(url=f"http://h:{n}", models=names) for n, names in enumerate(models)]
        return [[int(u.url.rpartition(":")[2]) for u in group] for group in connected(members)]

    assert groups(["a"], ["b"]) == [[0], [1]]
    assert [sorted(group) for group in groups(["a"], ["b"], ["a", "b"])] == [[0, 1, 2]]
    assert sorted(sorted(g) for g in groups(["a"], ["c"], ["b"], ["a", "b"])) == [[0, 2, 3], [1]]
    assert groups(["a"], None, ["b"]) == [[0, 1, 2]]
    assert groups() == []


@given(st.lists(st.sets(st.sampled_from("abcdef"), min_size=1, max_size=3), max_size=8))
def test_pools_share_no_model_and_cannot_be_divided(models):
    members = [
        Upstream(url=f"http://h:{n}", models=sorted(names), capacity=1)
        for n, names in enumerate(models)
    ]
    groups = connected(members)
    assert sorted(u.url for group in groups for u in group) == sorted(u.url for u in members)
    served = [{model for u in group for model in u.models or ()} for group in groups]
    assert sum(map(len, served)) == len(set().union(*served))
    for group in groups:
        reached = [group[0]]
        while more := [
            u
            for u in group
            if u not in reached and any(set(u.models or ()) & set(r.models or ()) for r in reached)
        ]:
            reached += more
        assert len(reached) == len(group)


def test_pools_without_models_serve_every_model():
    settings = Settings(pool_by="model", upstreams=[Upstream(url="http://a", capacity=3)])
    assert [pool.capacity for pool in pools(settings)] == [3]
    assert "every model" in pools(settings)[0].name


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("capacity: 100\npriority_scheduler:\n  enabled: true\n  classes: {}\n", 4),
        ("priority_scheduler: {enabled: true}\ncapacity: 100\n", 2),
        ("priority_scheduler: {enabled: true}\nupstreams: [{url: 'http://a', capacity: 9}]\n", 2),
    ],
)
def test_a_refusal_has_a_place_and_is_not_fatal(text, line):
    text = text.replace("enabled: true", "enabled: true, reservations_exceed: fallback", 1)
    text = text.replace("true, res", "true\n  res") if "{enabled" not in text else text
    line += "classes: {}" in text
    loaded = load_content(text.encode(), "gateway.yaml")
    (problem,) = loaded.problems
    assert (problem.line, problem.path) == (line, "priority_scheduler.classes")
    assert not loaded.fatal
    assert not loaded.settings.priority_scheduler.enabled


def test_it_is_told_together_with_other_problems_but_never_from_guesses():
    def messages(text: str) -> str:
        return "\n".join(load_content(text.encode(), "x").lines)

    wrong = "capacity: 100\npriority_scheduler:\n  enabled: true\n  reservations_exceed: fallback\n"
    assert "need 142" in messages(wrong + "  promotion_budget: 0\n")
    assert "need 142" in messages(wrong + "strict: 3\n")
    assert "need" not in messages(wrong + "  classes: {bulk: {queue_size: -1}}\n")
    assert "need" not in messages(wrong.replace("100", "-1"))
    assert "need" not in messages("upstreams: [{url: x}]\npriority_scheduler: {enabled: true}")
    assert "need 142" in messages(wrong + "upstreams: [{url: x}]\n")
