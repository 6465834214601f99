"""A recording and a what-if of a pool that lends: what each of its doors has to tell, and no more."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

from fairlead.capacities import Slots
from fairlead.core import Gate, Ticket
from fairlead.observe.passed import Passed
from fairlead.observe.watched import Feed
from fairlead.policies import FIFO
from fairlead.server.hosted_pool import HostedPool
from fairlead.server.recording import line_of
from fairlead.server.settings import Pool
from fairlead.sim import Scenario, read_policy, simulate
from fairlead.sim.records import arrivals_of

API, JOBS = "gateway/default", "jobs/leader"


class Jobs:
    """The door of jobs, while they do not run here."""

    def policy(self, gate: str) -> dict[str, Any] | None:
        return None

    async def recorded(self, rows: Sequence[Passed]) -> Iterable[dict[str, Any]]:
        return map(line_of, rows)


def lending(feed: Feed) -> HostedPool:
    hosted = HostedPool("gpu", Pool(slots=1, doors={JOBS: 1, API: 1}), feed)
    door: Any = Jobs()
    hosted.lender(door, JOBS, Gate, lambda: None)
    return hosted


def test_where_nothing_passed_nothing_is_told():
    feed = Feed()
    hosted = lending(feed)
    own = feed.gate(JOBS)(FIFO(), Slots(1))
    ticket = Ticket("long ago")
    own.offer(ticket, 0.0)
    own.finish(ticket, 1.0)
    assert len(feed.rows(JOBS)) == 1
    rows = feed.rows("pool/gpu", time.time() - 1.0)
    assert list(asyncio.run(hosted.recorded(rows))) == []


def test_a_door_that_does_not_work_now_does_not_keep_a_pool_from_being_replayed():
    """What came by it before is replayed in the order of arrival."""
    policy = lending(Feed()).policy("pool/gpu")
    assert policy is not None
    assert policy["doors"] == {}
    lines = [{"t": 0.0, "service_ms": 1000, "door": door, "id": door} for door in (API, JOBS)]
    result = simulate(Scenario.of(arrivals_of(lines)), read_policy(policy), 0)
    assert result.totals["done"] == 2
    assert result.horizon == 2.0
