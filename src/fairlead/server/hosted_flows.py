"""The flows service in the server's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.flows.serving import FlowServer
from fairlead.server.hosted_pool import shared
from fairlead.server.hosting import Hosted, View, resize_to
from fairlead.server.overrides import AT_A_RELOAD, Override
from fairlead.server.recording import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client import Metric

    from fairlead.core import Ticket
    from fairlead.flows.loading import Loaded as FlowsLoaded
    from fairlead.flows.point import Point
    from fairlead.observe.channel import Channel
    from fairlead.observe.passed import Passed
    from fairlead.observe.watched import Feed
    from fairlead.runtime import MakeGate
    from fairlead.server.hosted_pool import HostedPool
    from fairlead.server.loading import Loaded
    from fairlead.server.settings import FlowsListening


def class_of(ticket: Ticket) -> str:
    """Name the class of a flow: its workload."""
    workload: Any = ticket.workload
    return str(workload[0] if isinstance(workload, tuple) and workload else workload)


def tenant_of(ticket: Ticket) -> str:
    """Name whom a flow is for: its tenant, or where there are none the user among whom it is fair."""
    flow: Any = ticket
    return flow.tenant or flow.user or ""


class HostedFlows(Hosted):
    """Flows over HTTP and gRPC, their control points watched."""

    name = kind = "flows"

    def __init__(
        self,
        loaded: FlowsLoaded,
        listening: FlowsListening,
        feed: Feed,
        pools: Sequence[HostedPool] = (),
    ) -> None:
        self._feed = feed
        self._listening = listening
        self.server = FlowServer(
            loaded,
            http=listening.http,
            grpc=listening.grpc,
            token=listening.token,
            gates=shared(pools, self.name, class_of, self._gates),
        )

    def _gates(self, name: str) -> MakeGate:
        gate = f"{self.name}/{name}"
        self._feed.channel(gate).tenant_of = tenant_of
        return self._feed.gate(gate, class_of)

    async def start(self) -> None:
        """Take the addresses and begin."""
        await self.server.__aenter__()
        self.state, self.detail = "running", self.server.describe().partition("\n")[0]

    async def stop(self, grace: float) -> None:
        """Let those who wait get their turn, and those who run end, for a while; then refuse whoever waits."""
        self.state = "stopped"
        self.server.grace = grace
        await self.server.__aexit__()

    def hurry(self) -> None:
        """Refuse whoever waits now."""
        self.server.hurry()

    def left(self) -> str:
        """Tell of checks."""
        return self.server.left()

    @property
    def settings(self) -> Any:
        return self.server.flows.settings

    def retune(self, loaded: Loaded) -> list[str]:
        """Follow other limits; whoever waits goes on waiting."""
        if loaded.flows is None:
            return ["flows: the section is gone; they are served until the next start"]
        notes = []
        if loaded.flows_listening != self._listening:
            notes.append("flows.http, flows.grpc and flows.token change only at the next start")
        try:
            self.server.retune(loaded.flows)
        except ConfigError as error:
            notes.append(f"flows: {error}")
        return notes

    def views(self) -> list[View]:
        """One gate for each control point."""
        found = []
        for name, point in list(self.server.flows.points.items()):
            gate = f"flows/{name}"
            channel = self._feed.channels.get(gate)
            if channel is None:
                continue
            concurrency = point.parts.concurrency
            limit = getattr(concurrency, "limit", None)
            found.append(self._view(gate, point, channel, limit is not None))
        return found

    def _view(self, gate: str, point: Point, channel: Channel, limited: bool) -> View:
        def limit() -> Any:
            return getattr(point.parts.concurrency, "limit", None)

        def overrides() -> list[Override]:
            said = point.settings.concurrency
            configured = None if said is None else said.max_concurrency
            if isinstance(configured, str | None):  # learned: no number is configured
                return []
            return view.resized("concurrency", configured, AT_A_RELOAD)

        view = View(
            gate,
            self.name,
            channel,
            now=point.runtime.now,
            total=limit,
            adjust=point.runtime.adjust,
            adjustable={("concurrency", "resize"): resize_to} if limited else {},
            values=lambda part, verb, args: limit(),
            overrides=overrides,
        )
        return view

    def links(self) -> dict[str, str]:
        """Where flows are asked for."""
        found = {}
        if self.server.http is not None:
            found["http"] = f"http://{self.server.http.address}"
        if self.server.grpc is not None:
            found["grpc"] = self.server.grpc.address
        return found

    def policy(self, gate: str) -> dict[str, Any] | None:
        """The control point as it is set now; workload and tokens are those that were recorded."""
        point = self.server.flows.points.get(gate.partition("/")[2])
        if point is None:
            return None
        said = point.settings.model_dump(mode="json", by_alias=True, exclude_none=True)
        said["scheduler"] |= {"workload_label_key": "workload", "tokens_label_key": "tokens"}
        return {"preset": "flows", **said}

    async def recorded(self, rows: Sequence[Passed]) -> Iterable[dict[str, Any]]:
        """A line for each ticket."""
        return lines_of(rows)

    def families(self) -> Iterable[Metric]:
        """The flows' own metrics."""
        from fairlead.flows.metrics import families

        return families(self.server.flows)
