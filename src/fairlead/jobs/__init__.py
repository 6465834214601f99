"""Durable DAGs of jobs with SLAs, planned onto executors."""

try:
    from fairlead.jobs.context import current_job
    from fairlead.jobs.graph import Dag
    from fairlead.jobs.outcome import Outcome, Run
    from fairlead.jobs.planners import (
        EarliestDeadlineExecutionPlanner,
        ExecutionPlanner,
        FlatJob,
        GlobalPriorityExecutionPlanner,
        HRRNExecutionPlanner,
        LeastSlackExecutionPlanner,
        SJFSExecutionPlanner,
    )
    from fairlead.jobs.service import Jobs
    from fairlead.jobs.sla import sla_priority
except ModuleNotFoundError as error:
    error.add_note("fairlead.jobs is an extra: pip install 'fairlead[jobs]'")
    raise

__all__ = [
    "Dag",
    "EarliestDeadlineExecutionPlanner",
    "ExecutionPlanner",
    "FlatJob",
    "GlobalPriorityExecutionPlanner",
    "HRRNExecutionPlanner",
    "Jobs",
    "LeastSlackExecutionPlanner",
    "Outcome",
    "Run",
    "SJFSExecutionPlanner",
    "current_job",
    "sla_priority",
]
