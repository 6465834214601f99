"""What-if: observed figures beside simulated ones, preemptions and the work they threw away among the prices."""

from typing import Any

import pytest

from fairlead.capacities import Slots
from fairlead.core.ticket import Ticket
from fairlead.observe.watched import Feed
from fairlead.policies import FIFO
from fairlead.server.observed import observed
from fairlead.server.recording import line_of, lines_of
from fairlead.server.whatif import _replayed
from fairlead.sim.records import arrivals_of


def line(
    t: float, started: float | None, ended: float, state: str, cls: str = "a", **more: Any
) -> dict[str, Any]:
    return {
        "t": t,
        "started": started,
        "ended": ended,
        "state": state,
        "class": cls,
        "tenant": "acme",
        "deadline": None,
        **more,
    }


def test_observed_figures_are_those_of_what_happened():
    lines = [
        line(0.0, 0.0, 2.0, "done"),
        line(0.0, 1.0, 4.0, "evicted"),
        line(1.0, 3.0, 5.0, "failed", "b"),
        line(1.0, None, 1.0, "refused", "b"),
        line(2.0, 2.5, 10.0, "disconnected"),
        line(3.0, 3.0, 3.0, "moved"),
    ]
    found = observed(lines)
    everything = found["all"]["all"]
    assert everything["arrived"] == 5
    assert everything["wait.max"] == 2.0
    assert everything["throughput"] == pytest.approx(2 / 10)
    assert everything["lost"] == pytest.approx(3 / 5)
    assert (everything["preempted"], everything["wasted"]) == (1, 3.0)
    assert found["class"]["b"]["wasted"] == 0.0
    assert found["tenant"]["acme"]["arrived"] == 5


def test_the_instant_after_which_nobody_preempts_is_recorded_and_replayed():
    clock = iter([100.0 + step / 2 for step in range(50)])
    feed = Feed(wall=lambda: next(clock))
    gate = feed.gate("g")(FIFO(), Slots(1))
    first, second = Ticket("first", evictable=True), Ticket("second", evictable=True)
    gate.offer(first, now=0.0)
    assert gate.commit(first)
    gate.finish(first, now=3.0)
    gate.offer(second, now=4.0)
    gate.finish(second, now=5.0)
    told = [row.committed for row in feed.channels["g"]._rows]
    assert told[0] is not None
    assert told[1] is None
    assert feed.channels["g"]._committed == {}
    lines = list(lines_of(feed.channels["g"]._rows))
    assert lines[0]["commits_ms"] == told[0] * 1000
    assert "commits_ms" not in line_of(feed.channels["g"]._rows[1])
    read = arrivals_of(lines)
    assert [one.commits for one in read] == [
        told[0],
        told[0],
    ]  # the other: as is usual in its class


def test_a_replay_tells_what_preemption_threw_away():
    arrivals = [
        {
            "t": t,
            "class": cls,
            "rank": rank,
            "tenant": None,
            "service_ms": 1000.0,
            "deadline": None,
            "started": t,
            "ended": t + 1,
            "state": "done",
            "tokens": 1,
        }
        for t, cls, rank in [(0.0, "bulk", 0), (0.5, "interactive", 2)]
    ]
    policy = {
        "preset": "gateway",
        "capacity": 1,
        "classes": {
            "interactive": {"reserved_floor": 0, "reserved_per_slot": 0},
            "default": {"reserved_floor": 0, "reserved_per_slot": 0},
            "system": {"reserved_floor": 0},
        },
    }
    found = _replayed(arrivals, policy, {}, 1, lambda part: None)
    before = found["before"]["groups"]["all"]["all"]
    assert (before["preempted"], before["wasted"]) == (1, pytest.approx(0.5))
    assert found["observed"]["groups"]["all"]["all"]["wasted"] == 0.0
