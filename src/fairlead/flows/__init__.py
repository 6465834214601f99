"""The flows door: weighted fair queueing over quota, concurrency and load, in one process or many."""

try:
    from fairlead.flows.blocking import SyncFlowScheduler
    from fairlead.flows.client import FlowClient, SyncFlowClient
    from fairlead.flows.flow import Flow
    from fairlead.flows.loading import Loaded, load
    from fairlead.flows.middleware import FlowMiddleware
    from fairlead.flows.scheduler import FlowScheduler
    from fairlead.flows.settings import Settings
except ModuleNotFoundError as error:
    error.add_note("fairlead.flows is an extra: pip install 'fairlead[flows]'")
    raise

__all__ = [
    "Flow",
    "FlowClient",
    "FlowMiddleware",
    "FlowScheduler",
    "Loaded",
    "Settings",
    "SyncFlowClient",
    "SyncFlowScheduler",
    "load",
]
