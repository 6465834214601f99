"""The doors a configuration names, made; each is loaded only if it is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.server import apps, demo
from fairlead.server.hosted_pool import HostedPool

if TYPE_CHECKING:
    from fairlead.observe.watched import Feed
    from fairlead.server.hosting import Hosted
    from fairlead.server.loading import Loaded


def doors_of(loaded: Loaded, feed: Feed) -> list[Hosted]:
    """Make them, pools first: others join these."""
    settings = loaded.settings
    pools = [HostedPool(name, said, feed) for name, said in settings.pools.items()]
    doors: list[Hosted] = [*pools]
    if loaded.gateway is not None:
        from fairlead.server.hosted_gateway import HostedGateway

        doors.append(HostedGateway(loaded.gateway, feed, pools))
    if loaded.flows is not None:
        from fairlead.server.hosted_flows import HostedFlows

        doors.append(HostedFlows(loaded.flows, loaded.flows_listening, feed, pools))
    if settings.jobs is not None:
        from fairlead.server.hosted_jobs import HostedJobs

        prepare = demo.add_tasks if demo.shows_jobs(loaded) else lambda jobs: None
        grace = settings.server.shutdown_grace
        doors.append(HostedJobs(settings.jobs, feed, grace=grace, prepare=prepare, pools=pools))
    if settings.streams is not None:
        from fairlead.server.hosted_streams import HostedStreams
        from fairlead.streams import StreamApp

        app = apps.find(settings.streams.app, StreamApp, "streams.app")
        doors.append(HostedStreams(app, feed, settings.streams, pools))
    elif loaded.demo.traffic:
        from fairlead.server.demo_stream import stream_app
        from fairlead.server.hosted_streams import HostedStreams

        doors.append(HostedStreams(stream_app(), feed))
    return doors
