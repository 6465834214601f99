"""Flows as a process: HTTP and gRPC over one scheduler on one event loop, from start-up to a graceful end.

On the first SIGTERM or SIGINT every new check is refused, `/readyz` says so, and flows can still be ended, so that
those who wait get their turn, for as long as `GRACE` allows; then, or on the second signal, they are refused.  Nobody
is left without an answer: to most clients that would be as good as a yes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from fairlead.config import secret
from fairlead.core.ticket import WITHDRAWN
from fairlead.documents.addresses import is_loopback, split_address
from fairlead.documents.watching import Watch
from fairlead.errors import ConfigError
from fairlead.flows.loading import load, load_content
from fairlead.flows.scheduler import AsyncFlow, FlowScheduler
from fairlead.flows.service import FlowService
from fairlead.flows.table import FlowTable
from fairlead.runtime import plain_gates
from fairlead.runtime.viewing import GateView
from fairlead.serving import process
from fairlead.serving.limits import USUAL
from fairlead.serving.listener import LAST_MOMENT, Listener, written_address
from fairlead.serving.locality import notice
from fairlead.serving.logs import set_up_logging

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from fairlead.flows.flow import Flow
    from fairlead.flows.loading import Loaded
    from fairlead.flows.point import Point
    from fairlead.runtime import MakeGates
    from fairlead.serving.limits import Limits

HTTP = "127.0.0.1:8088"  # if nothing else is asked for
GRACE = 10.0  # seconds for what waits or runs when the end is near
LOOK = 0.05  # seconds between two looks at whether anything still does
LONGEST_END = 86_400.0


class LateFlow(AsyncFlow):
    """A flow that comes when the end is near: it is refused without waiting."""

    async def __aenter__(self) -> Self:
        point = self.point
        if point is None:
            return await super().__aenter__()  # nothing limits it, and nothing is to be ended
        self.line_up()
        point.prepare(self, self.scheduler.now())
        _turn_away(self)
        self.state = WITHDRAWN
        point.answered(self, self.scheduler.now())
        return self


class EndingFlows(FlowScheduler):
    """A scheduler that can come to its end: then it lets nobody new in."""

    draining = False

    def flow(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncFlow:
        if self.draining:
            return LateFlow(control_point, labels, self, self.points.get(control_point))
        return super().flow(control_point, labels, timeout)

    def unfinished(self) -> bool:
        """Tell whether anybody waits, or holds what others could have."""
        return any(
            point.gate.waiting or (point.gate.active and _is_held(point))
            for point in self.points.values()
        )


def _is_held(point: Point) -> bool:
    """Tell whether what runs at a point gives anything back when it ends; else many never say that they have."""
    return point.parts.concurrency is not None or isinstance(point.gate, GateView)


def _turn_away(flow: Flow) -> None:
    flow.reason, flow.retry_after = "the service is shutting down", 1.0


class GrpcListener:
    """A gRPC server on one address."""

    def __init__(self, flows: FlowScheduler, table: FlowTable, address: str, token: str | None):
        import grpc.aio

        from fairlead.flows.grpc_service import OPTIONS, GrpcFlows

        host, port = split_address(address)
        self.service = GrpcFlows(flows, token=token, table=table)
        self._server = grpc.aio.server(options=OPTIONS)
        self.service.add_to(self._server)
        try:
            given = self._server.add_insecure_port(written_address(host or "[::]", port))
        except RuntimeError:
            given = 0
        if not given:
            raise OSError(0, f"cannot listen on {address}: it is taken, or not of this machine")
        self.address = written_address(host or "0.0.0.0", given)  # noqa: S104 - it is shown, not bound

    async def begin(self) -> None:
        """Accept calls from now on."""
        await self._server.start()

    async def end(self) -> None:
        """Accept no more, and finish what runs; `hurry` cuts it."""
        await self._server.stop(LONGEST_END)

    def hurry(self) -> None:
        """Cut what still runs."""
        self._cutting = asyncio.create_task(self._server.stop(0))


class FlowServer:
    """The whole service: `async with FlowServer(load("flows.yaml")) as server: ...` serves while inside."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        http: str | None = HTTP,
        grpc: str | None = None,
        token: str | None = None,
        limits: Limits = USUAL,
        gates: MakeGates = plain_gates,
    ) -> None:
        token = secret(token, "token")
        for address in (http, grpc):
            if address is not None and token is None and not is_loopback(address):
                raise ConfigError(
                    f"{address} can be reached from other machines: set a token that clients must show (--token, or "
                    "FAIRLEAD_FLOWS_TOKEN), or listen on 127.0.0.1"
                )
        self._loaded = loaded
        self._http, self._grpc, self._token, self._limits = http, grpc, token, limits
        self.flows = EndingFlows(loaded.settings, gates)
        self.table = FlowTable()
        self.service = FlowService(self.flows, token=token, table=self.table)
        self.http: Listener | None = None
        self.grpc: GrpcListener | None = None
        self.grace = GRACE
        self._hurried = asyncio.Event()

    async def __aenter__(self) -> Self:
        if self._http is not None:
            self.http = Listener(self.service, self._http, limits=lambda: self._limits)
            self.http.bind()
        try:
            if self._grpc is not None:
                self.grpc = GrpcListener(self.flows, self.table, self._grpc, self._token)
        except BaseException:
            if self.http is not None:
                self.http.close()
            raise
        await _call(self.flows, "start")
        for listener in (self.grpc, self.http):
            if listener is not None:
                await listener.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.service.draining = self.flows.draining = True
        clock = asyncio.get_running_loop().time
        until = clock() + self.grace
        hurried = asyncio.create_task(self._hurried.wait())
        while self.flows.unfinished() and not hurried.done() and clock() < until:
            await asyncio.wait({hurried}, timeout=min(LOOK, until - clock()))
        listeners = [one for one in (self.http, self.grpc) if one is not None]
        ending = asyncio.gather(*(one.end() for one in listeners))
        soon: set[asyncio.Future[Any]] = {ending, hurried}
        left = max(0.0, until - clock())
        await asyncio.wait(soon, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ending.done():
            self._turn_away()
            await asyncio.wait({ending}, timeout=LAST_MOMENT)
        if not ending.done():
            for listener in listeners:
                listener.hurry()
        await ending
        await _call(self.flows, "close")

    def _turn_away(self) -> None:
        """Refuse everybody who waits."""
        for point in self.flows.points.values():
            waiters: list[Any] = point.gate.waiters()
            point.runtime.withdraw(waiters)
            for flow in waiters:
                _turn_away(flow)
                flow.told()

    def hurry(self) -> None:
        """Wait for nobody any more."""
        self._hurried.set()

    def left(self) -> str:
        """Say how many have not been answered."""
        waiting = sum(point.gate.waiting for point in self.flows.points.values())
        return f"{waiting or 'no'} check{'s' * (waiting != 1)} left without an answer"

    def retune(self, loaded: Loaded) -> None:
        """Follow a changed configuration."""
        self.flows.retune(loaded)
        self._loaded = loaded

    def describe(self) -> str:
        """Say what is served where, and whom it answers."""
        where = [self.http.url] if self.http is not None else []
        if self.grpc is not None:
            where.append(f"grpc {self.grpc.address}")
        count = len(self._loaded.settings.control_points)
        said = f"fairlead flows: {'; '.join(where)}; {count} control point{'s' * (count != 1)}"
        return said if self._token is not None else f"{said}\n{notice('it', setting='--token')}"


def follow(
    server: FlowServer, config: str | os.PathLike[str], since: Loaded | None
) -> Watch[Loaded]:
    """Have a service follow its file."""
    return Watch(config, load_content, server.retune, losses=server.flows.losses, since=since)


async def serve(
    server: FlowServer,
    stop: asyncio.Event,
    *,
    watch: str | os.PathLike[str] | None = None,
    since: Loaded | None = None,
    started: Callable[[FlowServer], None] = lambda server: None,
) -> None:
    """Serve until told to stop; with `watch`, follow that file."""
    following = None if watch is None else follow(server, watch, since)
    await process.serve(server, stop, following=following, on_started=started)


def run(
    config: str | os.PathLike[str],
    *,
    http: str | None = None,
    grpc: str | None = None,
    token: str | None = None,
) -> int:
    """Serve flows from their file until a signal ends it; return the exit code."""
    loaded = load(config)
    if loaded.problems:
        process.say(*loaded.lines)
        return 2
    if http is None and grpc is None:
        http = HTTP
    try:
        for address in (http, grpc):
            if address is not None:
                split_address(address)
        server = FlowServer(loaded, http=http, grpc=grpc, token=token)
    except ValueError as error:
        process.say(f"fairlead flows: {error}")
        return 2
    with set_up_logging():
        return process.run(
            lambda: server,
            name="fairlead flows",
            following=lambda server: follow(server, config, loaded),
        )


async def _call(flows: Any, verb: str) -> None:
    """Have a scheduler begin or end what it does beside deciding, if it does anything."""
    deed = getattr(flows, verb, None)
    result = None if deed is None else deed()
    if asyncio.iscoroutine(result):
        await result
