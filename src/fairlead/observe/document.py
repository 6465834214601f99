"""The metrics of a scheduler as a JSON document; programs read its names, so they stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.tasks import SchedulerStats


def document(stats: SchedulerStats) -> dict[str, Any]:
    """Make the document; a scheduler without bounds has nothing to show but that it is one."""
    if not stats.enabled:
        return {"scheduler": {"enabled": False}}
    return {
        "scheduler": {
            "enabled": True,
            "activeCount": stats.active_count,
            "queuedCount": stats.queued_count,
            "totalSubmitted": stats.total_submitted,
            "totalCompleted": stats.total_completed,
            "highPriorityCompleted": stats.high_priority_completed,
            "lowPriorityCompleted": stats.low_priority_completed,
            "starvationPromotions": stats.starvation_promotions,
            "totalFailed": stats.total_failed,
            "totalCancelled": stats.total_cancelled,
            "totalRefused": stats.total_refused,
            "totalClamped": stats.total_clamped,
            "totalExpired": stats.total_expired,
            "maxConcurrency": stats.max_concurrency,
            "maxQueueSize": stats.max_queue_size,
            "shuttingDown": stats.shutting_down,
        }
    }
