"""Measured shares against computed max-min fair shares, in the manner of Kubernetes' fair queueing tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fairlead.capacities import Reserved, Slots
from fairlead.policies import FIFO, Classes, FairQueue, Level
from tests.scenarios.clients import Client, max_min_shares, run

HOUR = 3600.0


@pytest.mark.parametrize(
    ("demands", "weights", "capacity", "expected"),
    [
        ({"a": 5, "b": 5}, {"a": 1, "b": 1}, 10, {"a": 5, "b": 5}),
        ({"a": 9, "b": 9}, {"a": 1, "b": 1}, 10, {"a": 5, "b": 5}),
        ({"a": 2, "b": 9}, {"a": 1, "b": 1}, 10, {"a": 2, "b": 8}),
        ({"a": 9, "b": 9}, {"a": 3, "b": 1}, 8, {"a": 6, "b": 2}),
        ({"a": 4, "b": 9, "c": 9}, {"a": 3, "b": 1, "c": 1}, 10, {"a": 4, "b": 3, "c": 3}),
        ({"a": 1, "b": 3, "c": 9}, {"a": 1, "b": 1, "c": 1}, 9, {"a": 1, "b": 3, "c": 5}),
        ({"a": 1, "b": 1}, {"a": 1, "b": 1}, 10, {"a": 1, "b": 1}),
        ({}, {}, 10, {}),
    ],
)
def test_max_min_shares(
    demands: dict[Any, float],
    weights: dict[Any, float],
    capacity: float,
    expected: dict[Any, float],
):
    assert max_min_shares(demands, weights, capacity) == pytest.approx(expected)


def expected_shares(clients: list[Client], weights: Mapping[Any, float], slots: int) -> Any:
    demands = {client.name: client.demand for client in clients}
    shares = max_min_shares(demands, {name: weights.get(name, 1.0) for name in demands}, slots)
    return pytest.approx(shares, rel=0.02)


SCENARIOS: dict[str, tuple[list[Client], dict[Any, float], int]] = {
    "equal": ([Client(name, threads=8, work=1.0) for name in "abcd"], {}, 4),
    "weighted": (
        [Client(name, threads=20, work=1.0) for name in "abc"],
        {"a": 1, "b": 2, "c": 3},
        6,
    ),
    "one light client": (
        [
            Client("heavy", threads=10, work=1.0),
            Client("light", threads=1, work=0.2, think=1.8),
            Client("other", threads=10, work=1.0),
        ],
        {},
        4,
    ),
    "long work beside short": (
        [Client("long", threads=10, work=10.0), Client("short", threads=20, work=0.1)],
        {},
        4,
    ),
    "heavy beside many light": (
        [Client("heavy", threads=40, work=2.0)]
        + [Client(f"light {number}", threads=2, work=0.5, think=1.5) for number in range(6)],
        {"heavy": 1},
        5,
    ),
    "weights and demands mixed": (
        [
            Client("gold", threads=30, work=1.0),
            Client("silver", threads=30, work=3.0),
            Client("free", threads=30, work=0.5),
            Client("small", threads=2, work=1.0, think=3.0),
        ],
        {"gold": 4, "silver": 2, "free": 1, "small": 1},
        7,
    ),
    "nobody has to wait": (
        [Client(name, threads=2, work=1.0, think=1.0) for name in "abc"],
        {},
        8,
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_shares_are_max_min_fair(scenario: str):
    clients, weights, slots = SCENARIOS[scenario]
    measured = run(
        FairQueue("tenant", weights=weights), Slots(slots), clients, until=HOUR, since=60.0
    )
    assert measured == expected_shares(clients, weights, slots)


@pytest.mark.parametrize("scenario", ["long work beside short", "heavy beside many light"])
def test_first_come_first_served_is_not_fair(scenario: str):
    clients, weights, slots = SCENARIOS[scenario]
    measured = run(FIFO(), Slots(slots), clients, until=HOUR, since=60.0)
    assert measured != expected_shares(clients, weights, slots)


def test_a_client_that_comes_late_and_leaves_early_gets_its_share_meanwhile():
    clients = [
        Client("always", threads=10, work=1.0),
        Client("visitor", threads=10, work=1.0, from_=1000.0, until=2000.0),
    ]

    def measured(since: float, until: float) -> dict[Any, float]:
        return run(FairQueue("tenant"), Slots(4), clients, since=since, until=until)

    assert measured(0.0, 1000.0) == pytest.approx({"always": 4, "visitor": 0}, rel=0.01)
    assert measured(1000.0, 2000.0) == pytest.approx({"always": 2, "visitor": 2}, rel=0.02)
    assert measured(2100.0, 3000.0) == pytest.approx({"always": 4, "visitor": 0}, rel=0.01)


def test_users_share_what_their_workload_gets():
    clients = [Client(f"user {n}", threads=5, work=1.0, workload="A") for n in range(5)]
    clients.append(Client("lone", threads=25, work=1.0, workload="B"))
    nested = FairQueue("workload", inside=lambda workload: FairQueue("tenant"))
    measured = run(nested, Slots(10), clients, until=HOUR, since=60.0)
    assert measured == pytest.approx(
        {"lone": 5.0, **{f"user {n}": 1.0 for n in range(5)}}, rel=0.02
    )
    flat = run(FairQueue("tenant"), Slots(10), clients, until=HOUR, since=60.0)
    assert flat["lone"] == pytest.approx(10 / 6, rel=0.02)


def two_classes() -> Classes:
    return Classes(
        Level("bulk", inside=lambda: FairQueue("tenant"), starvation=30.0),
        Level("interactive", inside=lambda: FairQueue("tenant")),
    )


def test_a_reservation_is_kept_for_its_class_and_its_rest_is_shared():
    """Interactive needs 3 of its 4 slots; bulk, two equal tenants, shares what the reservation leaves."""
    clients = [
        Client("chat", threads=6, work=1.0, think=1.0, rank=1),
        Client("batch 1", threads=10, work=1.0, rank=0),
        Client("batch 2", threads=10, work=1.0, rank=0),
    ]
    measured = run(two_classes(), Reserved(8, (0, 4)), clients, until=HOUR, since=60.0)
    assert measured["chat"] == pytest.approx(3.0, rel=0.02)
    assert measured["batch 1"] == pytest.approx(measured["batch 2"], rel=0.02)
    assert 4.0 <= measured["batch 1"] + measured["batch 2"] <= 5.0


@pytest.mark.parametrize(("lend", "bulk"), [(True, 8.0), (False, 4.0)])
def test_an_idle_reservation_is_lent_and_comes_back_with_demand(lend: bool, bulk: float):
    clients = [
        Client("chat", threads=12, work=1.0, rank=1, from_=1000.0),
        Client("batch 1", threads=10, work=1.0, rank=0),
        Client("batch 2", threads=10, work=1.0, rank=0),
    ]

    def measured(since: float, until: float) -> dict[Any, float]:
        policy = Classes(
            Level("bulk", inside=lambda: FairQueue("tenant")),
            Level("interactive", inside=lambda: FairQueue("tenant")),
        )
        capacity = Reserved(8, (0, 4), lend=lend)
        return run(policy, capacity, clients, since=since, until=until)

    alone = measured(0.0, 1000.0)
    assert alone["batch 1"] == pytest.approx(bulk / 2, rel=0.02)
    assert alone["batch 2"] == pytest.approx(bulk / 2, rel=0.02)
    beside = measured(1010.0, 2000.0)
    # Strict: it wants everything, and is above.
    assert beside["chat"] == pytest.approx(8.0, rel=0.02)
    assert beside["batch 1"] == pytest.approx(0.0, abs=0.02)


def test_promotions_give_the_lower_class_one_turn_in_k():
    clients = [
        Client("chat", threads=40, work=1.0, rank=1),
        Client("batch", threads=200, work=1.0, rank=0),  # enough of them to be starved all the time
    ]
    measured = run(two_classes(), Slots(8), clients, until=HOUR, since=600.0)
    assert measured == pytest.approx({"chat": 6.0, "batch": 2.0}, rel=0.02)
