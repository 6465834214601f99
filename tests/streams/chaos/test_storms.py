"""Storms of members that are killed, expelled and replaced under load: nothing is skipped, and no commit is too early.

In CI there is one, and it is small.  FAIRLEAD_STORM=1 makes it what was promised, 200,000 records on 16 partitions, 50
kills and 100 rebalances, and adds those of other group protocols and schedulers.
"""

import os
from typing import Any

import pytest

from tests.streams.chaos.checker import Figures
from tests.streams.chaos.storm import TIMES, Storm, storm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="storms need fork"),
]


def times(number: float) -> int:
    return max(1, round(number * TIMES))


def survived(one: Storm) -> Figures:
    one.calm()
    figures = one.judge()
    print(f"\n{one.story()}\n{figures}")
    return figures


def test_members_are_killed_expelled_and_replaced_and_brokers_fail(tmp_path):
    with storm(tmp_path) as one:
        for _ in range(3):
            one.start()
        one.load(times(20_000), over=times(12))
        one.watch()
        one.rage(
            {
                "kill": times(5),
                "leave": times(4),
                "stall": times(0.5),
                "drop_a_broker": times(1),
                "refuse_commits": times(2),
            },
            0.5,
            2.5 if TIMES >= 1 else 1.0,
        )
        figures = survived(one)
    assert figures.kills == times(5)
    assert figures.rebalances >= times(10)
    assert figures.duplicates > 0, "nothing was in flight when they died"
    if TIMES >= 1:
        assert figures.late > 0, "no result came late"


RANGE = {"partition.assignment.strategy": "range"}
OTHERS: dict[str, dict[str, Any]] = {
    "eager": {"kafka": RANGE},
    "KIP-848": {"kafka": {"group.protocol": "consumer"}},
    "two groups, FairByTopic": {"scheduler": "FairByTopic", "second_group": "second"},
    "OneAtATime": {"scheduler": "OneAtATime", "work": (0.0, 0.02)},
    "long-running": {"options": {"long_running": True}},
}


@pytest.mark.skipif(TIMES < 1, reason="with FAIRLEAD_STORM=1")
@pytest.mark.parametrize("how", OTHERS)
def test_other_groups_and_schedulers(tmp_path, how):
    with storm(tmp_path, **OTHERS[how]) as one:
        for _ in range(2):
            one.start()
        one.load(times(2_000), over=times(2))
        one.watch()
        one.rage({"kill": times(1), "leave": times(1), "refuse_commits": times(0.5)}, 0.5, 2.5)
        figures = survived(one)
    assert figures.rebalances >= times(2)
