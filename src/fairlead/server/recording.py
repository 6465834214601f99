"""What passed a gate, as lines that the simulator reads: one ticket each, with when it came and how long it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.server.snapshots import name_of, workload_of

if TYPE_CHECKING:
    from fairlead.observe.passed import Passed


def line_of(row: Passed) -> dict[str, Any]:
    """Describe one ticket; instants are seconds since the epoch, and `service_ms` is null if its work was not done."""
    done = row.state == "done" and row.started is not None
    return {
        "t": row.arrived,
        "kind": row.gate,
        "class": row.cls,
        "rank": row.rank,
        "tenant": None if row.tenant is None else name_of(row.tenant),
        "workload": workload_of(row.workload),
        "priority": row.priority,
        "tokens": row.cost,
        "service_ms": (row.ended - (row.started or 0.0)) * 1000 if done else None,
        "deps": [],
        "deadline": row.deadline,
        "key": name_of(row.key),
        "state": row.state,
        "started": row.started,
        "ended": row.ended,
    }
