"""A simulation that is over, written down: one row for each that came while there was time, and the sums."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from fairlead.core.ticket import EVICTED, EXPIRED, State
from fairlead.sim.result import Result, Row, usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.sim.result import Arrival
    from fairlead.sim.run import Run

ENDS = ("done", "refused", "expired", "evicted", "withdrawn", "waiting", "running")


def written(run: Run, policy: str, seed: int, scenario: str) -> Result:
    """Write everything down."""
    rows = []
    step = run.site.first_step
    names = {state: state.value for state in State}
    promoted = started = late = 0
    states = dict.fromkeys(ENDS, 0)
    for arrival, ticket in zip(run.arrivals, run.tickets, strict=True):
        if arrival.at > run.until:  # it would have come after time ran out
            continue
        if ticket is None:  # what it depends on was not done when time ran out
            rows.append(_unasked(arrival))
            states["waiting"] += 1
            late += arrival.deadline is not None
            continue
        state, began, ended = ticket.state, ticket.started_at, ticket.ended_at
        said = names[state]
        if state is EXPIRED and began < inf:
            said = "done" if ended < inf else "running"
        rose = ticket.promoted or (began < inf and began - ticket.asked >= step)
        promoted += rose
        reason, deadline = ticket.reason, arrival.deadline
        states[said] += 1
        started += began < inf
        if deadline is not None and (said != "done" or ended > deadline):
            late += 1
        rows.append(
            Row(
                ticket.asked,
                began if began < inf else None,
                ended if ended < inf else None,
                said,
                arrival.cls,
                arrival.tenant,
                arrival.workload,
                ticket.cost,
                arrival.service,
                deadline,
                rose,
                ticket.evictions + (state is EVICTED),
                arrival.key,
                arrival.priority,
                arrival.pool,
                arrival.dag,
                None if reason is None else str(reason),
            )
        )
    totals = {"arrived": len(rows)} | states
    totals |= {
        "started": started,
        "promoted": promoted,
        "preempted": run.preemptions,
        "retried": run.retries,
        "late": late,
    }
    horizon = run.now
    used = usage(_stretches(run, rows, horizon), horizon)
    weighs = run.site.weighs
    return Result(policy, seed, horizon, run.site.slots, rows, used, totals, scenario, weighs)


def _stretches(run: Run, rows: list[Row], horizon: float) -> Iterable[tuple[float, float, float]]:
    yield from run.lost
    weighs = run.site.weighs
    for row in rows:
        if row.started is not None and row.state != "evicted":
            ended = horizon if row.ended is None else row.ended
            yield row.started, ended, row.cost if weighs else 1.0


def _unasked(arrival: Arrival) -> Row:
    return Row(
        arrival.at,
        cls=arrival.cls,
        tenant=arrival.tenant,
        workload=arrival.workload,
        cost=arrival.cost,
        service=arrival.service,
        deadline=arrival.deadline,
        key=arrival.key,
        priority=arrival.priority,
        pool=arrival.pool,
        dag=arrival.dag,
    )
