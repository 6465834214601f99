"""Runs made by hand, for tests of what is said about runs: a queue of a few lines instead of the simulator."""

import random
from heapq import heappop, heappush

from fairlead.sim.result import Result, Row, usage

CLASSES = (("interactive", 0, 0.3), ("default", 1, 0.4), ("bulk", 2, 0.3))


def run(
    policy: str, seed: int, *, slots: int = 4, seconds: float = 120.0, ranked: bool = False
) -> Result:
    """Serve the same arrivals in their order, or by class; more than 60 waiting are refused."""
    chance = random.Random(seed)
    rows = []
    at = 0.0
    while (at := at + chance.expovariate(slots * 1.1)) < seconds:
        pick = chance.random()
        name = "interactive" if pick < 0.3 else "default" if pick < 0.7 else "bulk"
        service = chance.expovariate(1.0)
        tenant = f"tenant-{'abc'[min(2, int(chance.random() * 4))]}"
        rows.append(
            Row(
                at,
                cls=name,
                tenant=tenant,
                workload="chat" if pick < 0.5 else "batch",
                service=service,
                deadline=at + 5.0 if name != "bulk" else None,
            )
        )
    ranks = {name: rank for name, rank, _ in CLASSES}
    free = [0.0] * slots
    waiting: list[tuple[int, int]] = []
    next_row = 0
    while next_row < len(rows) or waiting:
        room = heappop(free)
        while next_row < len(rows) and (rows[next_row].at <= room or not waiting):
            row = rows[next_row]
            if len(waiting) >= 60:
                row.state, row.ended = "refused", row.at
            else:
                heappush(waiting, (ranks[row.cls] if ranked else 0, next_row))
            next_row += 1
        if not waiting:
            break
        row = rows[heappop(waiting)[1]]
        row.started = max(room, row.at)
        row.ended = row.started + row.service
        row.state = "done"
        row.promoted = ranked and row.started - row.at > 20
        heappush(free, row.ended)
    horizon = max(row.ended or 0.0 for row in rows)
    used = usage(
        ((row.started, row.ended or horizon, 1.0) for row in rows if row.started is not None),
        horizon,
    )
    totals = {"arrived": len(rows), "done": sum(row.state == "done" for row in rows)}
    return Result(policy, seed, horizon, float(slots), rows, used, totals)
