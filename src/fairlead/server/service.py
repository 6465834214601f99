"""The whole server: the doors a configuration names, watched, behind one control API; from start-up to a graceful end.

On the first signal nothing more is accepted at any door, `/readyz` says so, and what runs may finish for as long as
`shutdown_grace` allows; the control API answers until all of that is done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Self

from fairlead.config import shown
from fairlead.documents.addresses import is_loopback
from fairlead.observe.watched import Feed
from fairlead.server import demo, demo_traffic
from fairlead.server.acting import Acting
from fairlead.server.api import ControlApi
from fairlead.server.configuring import Configuring
from fairlead.server.doors import doors_of
from fairlead.server.history import INTERVAL, History
from fairlead.server.hosted_pool import KIND as POOL
from fairlead.server.job_deeds import JobDeeds
from fairlead.server.looking import Looking
from fairlead.server.losses import DOORS, Keeping, Settings, settings_of
from fairlead.server.metrics import Families
from fairlead.server.overrides import Overriding
from fairlead.server.snapshots import Decisions, Snapshots
from fairlead.serving.access import Access, Role, Token
from fairlead.serving.aside import Aside
from fairlead.serving.auditing import Audit, Note
from fairlead.serving.http import Problem
from fairlead.serving.limits import Limits
from fairlead.serving.listener import Listener, Tls
from fairlead.serving.locality import notice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlead.documents.losses import Loss
    from fairlead.server.hosting import Hosted, View
    from fairlead.server.loading import Loaded
    from fairlead.server.settings import Demo, ServerSettings
    from fairlead.server.tracing import Tracing

log = logging.getLogger("fairlead.server")

HURRIED = 5.0  # seconds for a door that is hurried
LAST_MOMENT = 1.0  # seconds for the last answers to be sent
# What one client of the control API may bring, and the time it may take for that.
LIMITS = Limits(header_bytes=16 * 1024, body_bytes=4 * 1024 * 1024)


class Server:
    """`async with Server(load("fairlead.yaml")) as server: ...` serves while inside."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        path: str | None = None,
        text: str = "",
        upstream: demo.Upstream | None = None,
    ) -> None:
        loaded = demo.with_upstream(loaded, upstream)
        self.loaded = loaded
        self.path = path  # of the configuration file, if there is one
        self.text = text  # of the configuration that stands in for a file
        self.feed = Feed()
        self.history = History()
        self.started_at = time.time()
        self.draining = False
        self.reloads = 0
        self.refused_reloads = 0
        self.traffic: demo_traffic.Traffic | None = None
        self._traffic_ends: asyncio.Task[None] | None = None
        self.upstream = upstream
        self.doors = doors_of(loaded, self.feed)
        settings = loaded.settings.server
        self.audit = Audit(settings.audit_log)
        for door in self.doors:
            door.record_in(self.audit)
        deeds = [
            *Looking(self).deeds(),
            *Acting(self).deeds(),
            *JobDeeds(self).deeds(),
            *Configuring(self).deeds(),
            *Overriding(self).deeds(),
        ]
        self.families = Families(self)
        self.api = ControlApi(
            deeds,
            access_of(settings),
            readiness=self._readiness,
            draining=lambda: self.draining,
            metrics=self.families.gathered,
            audit=self.audit,
        )
        tls = None if settings.tls is None else Tls(settings.tls.certificate, settings.tls.key)
        self.listener = Listener(
            self.api, settings.listen, limits=lambda: LIMITS, tls=tls, share=1 / 16
        )
        self._decisions = Decisions(self.feed)
        self._snapshots = Snapshots()
        self._tracing: Tracing | None = None
        if settings.otel is not None:
            from fairlead.server.tracing import Tracing

            self._tracing = Tracing(self.feed, settings.otel)
        self._sampling: asyncio.Task[None] | None = None
        self._keeping = Keeping()
        self.aside = Aside()
        self._hurried = asyncio.Event()
        self._ends: dict[asyncio.Task[None], Hosted] = {}
        # Told of each configuration that is followed now, whoever brought it.
        self.on_retuned: Callable[[Loaded], object] = lambda loaded: None

    def door(self, kind: type[Any]) -> Any:
        """Find the door of a kind, if it is hosted."""
        return next((door for door in self.doors if isinstance(door, kind)), None)

    def view(self, gate: str) -> View:
        """Find a gate by its id."""
        views = {view.id: view for door in self.doors for view in door.views()}
        found = views.get(gate)
        if found is None:
            known = ", ".join(sorted(views)) or "none"
            raise Problem(404, "not_found", f"there is no gate {shown(gate)}; there are {known}")
        return found

    def door_of(self, view: View) -> Hosted:
        """Find the door that a gate is of."""
        return next(door for door in self.doors if door.name == view.door)

    def _readiness(self) -> tuple[bool, dict[str, str]]:
        """Return whether traffic is welcome, and why doors do less than they should."""
        doors = [door for door in self.doors if door.kind != POOL]
        starting = [door.name for door in doors if door.state == "starting"]
        told = {door.name: door.degraded() for door in doors} | dict.fromkeys(starting, "it starts")
        up = [door for door in doors if door.unready() is None]
        ready = not starting and (bool(up) or not doors)
        return ready, {name: reason for name, reason in told.items() if reason is not None}

    # Life

    async def __aenter__(self) -> Self:
        begun: list[Hosted] = []
        try:
            self.audit.open()
            self.listener.bind()
            if self.upstream is not None:
                await self.upstream.start()
            for door in self.doors:
                begun.append(door)
                await door.start()
            self._sampling = asyncio.create_task(self._sample(), name="fairlead snapshots")
            if self.loaded.demo.traffic:
                self.traffic = demo_traffic.begin(self.doors, self.loaded, self.upstream)
            await self.listener.begin()
        except BaseException:
            await self._abandon(begun)
            raise
        return self

    async def _abandon(self, begun: list[Hosted]) -> None:
        """Undo a start that failed half way."""
        await self._end_traffic()
        for door in begun:
            if door.state == "running":
                door.hurry()
                await door.stop(0.0)
        await self._end_sampling()
        if self.upstream is not None:
            await self.upstream.stop()
        self.listener.close()

    async def __aexit__(self, *_: object) -> None:
        self.draining = True
        grace = self.loaded.settings.server.shutdown_grace
        await self._end_traffic()
        cut = asyncio.get_running_loop().call_later(grace, self.hurry)
        await self._end_doors(grace)
        cut.cancel()
        await self._end_sampling()
        self.history.close()
        await self.listener.end(LAST_MOMENT)
        await self.aside.close()
        if self.upstream is not None:
            await self.upstream.stop()
        if self._tracing is not None:
            self._tracing.follow()
            await asyncio.to_thread(self._tracing.close)

    async def _end_traffic(self) -> None:
        self._stop_traffic()
        if self._traffic_ends is not None:
            await self._traffic_ends

    def _stop_traffic(self) -> None:
        if self.traffic is not None:
            self._traffic_ends = asyncio.create_task(self.traffic.stop())
            self.traffic = None

    async def _end_doors(self, grace: float) -> None:
        """End all doors; once hurried, one that still waits for somebody, such as a database, is left behind."""
        self._ends = ends = {asyncio.create_task(door.stop(grace)): door for door in self.doors}
        hurried = asyncio.create_task(self._hurried.wait())
        left = set(ends)
        while left and not hurried.done():
            done, _ = await asyncio.wait({*left, hurried}, return_when=asyncio.FIRST_COMPLETED)
            left -= done
        hurried.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=HURRIED)
        for task, door in ends.items():
            if task in left:
                task.cancel()
                log.error("%s did not end within %g s of being hurried", door.name, HURRIED)
            elif error := task.exception():
                log.error("%s did not end well: %s", door.name, error, exc_info=error)
        if left:
            await asyncio.wait(left, timeout=LAST_MOMENT)

    def hurry(self) -> None:
        """Wait for nothing any more."""
        self._hurried.set()
        for door in self.doors:
            door.hurry()

    def left(self) -> str:
        """Say what doors that have not ended leave undone."""
        doors = [door for end, door in self._ends.items() if not end.done()]
        return "; ".join(f"{door.name}: {door.left()}" for door in doors) or "nothing of a door"

    async def _end_sampling(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    async def _sample(self) -> None:
        """Take a snapshot twice a second."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            try:
                self.sample()
            except Exception:  # a door that cannot be looked at does not end the others
                log.exception("no snapshot could be taken")
            due = max(due + INTERVAL, clock())
            await asyncio.sleep(due - clock())

    def sample(self) -> None:
        """Take a snapshot now."""
        snapshot = self._snapshots.take(self.doors, self.history.next_seq)
        self.history.add(snapshot, self._decisions.take())
        if self._tracing is not None:
            self._tracing.follow()

    # Following a changed configuration

    def _in_force(self) -> Settings:
        """The settings of the doors that run, and of the server."""
        doors = {door.kind: door.settings for door in self.doors if door.kind in DOORS}
        return Settings(self.loaded.settings.server, **doors)

    def losses(self, loaded: Loaded, allowed: Iterable[str] = ()) -> tuple[Loss, ...]:
        """Find what a configuration would lose of what is in force, beside what is allowed."""
        after = settings_of(demo.with_upstream(loaded, self.upstream))
        return self._keeping.losses(self._in_force(), after, allowed)

    def strange_losses(self, allowed: Iterable[str]) -> list[str]:
        """Find paths among those allowed that nothing here could have."""
        return self._keeping.strange(self._in_force(), allowed)

    @property
    def digest(self) -> str | None:
        """The digest of the configuration in force, if it was read from bytes."""
        return self.loaded.digest or None

    def retune(self, loaded: Loaded, *, by: str | None = "the configuration file") -> list[str]:
        """Follow a valid configuration; what can change only at a start is told, and stays.

        `by` is the caller in the audit trail; None where a request has its own entry.
        """
        former = self.digest
        loaded = demo.with_upstream(loaded, self.upstream)
        before, after = self.loaded.settings, loaded.settings
        self._keeping.follow(self._in_force(), settings_of(loaded))
        notes = [note for door in self.doors for note in door.retune(loaded)]
        hosted = {door.kind for door in self.doors}
        named = {
            "gateway": loaded.gateway,
            "flows": loaded.flows,
            "jobs": after.jobs,
            "streams": after.streams,
        }
        notes += [
            f"{kind}: a new section counts at the next start"
            for kind, section in named.items()
            if section is not None and kind not in hosted
        ]
        for name in ("listen", "tls", "logs", "otel", "audit_log"):
            if getattr(before.server, name) != getattr(after.server, name):
                notes.append(f"server.{name} changes only at the next start")
        if set(before.pools) != set(after.pools):
            notes.append("pools come and go only at the next start")
        if before.server.tokens != after.server.tokens:
            notes += self._follow_tokens(after.server)
        notes += self._follow_demo(self.loaded.demo, loaded.demo)
        self.loaded = loaded
        self.reloads += 1
        if by is not None:
            change = Note("applied a changed configuration", former, self.digest)
            self.audit.add(by, change, request="reload")
        self.on_retuned(loaded)
        for note in notes:
            log.warning("%s", note)
        return notes

    def _follow_demo(self, before: Demo, after: Demo) -> list[str]:
        """End the traffic that is no longer wanted; the doors it would come to are made only at a start."""
        notes = []
        if before.upstream != after.upstream:
            notes.append("demo.upstream changes only at the next start")
        if not after.traffic:
            self._stop_traffic()
        elif not before.traffic:
            notes.append("demo.traffic begins only at the next start")
        return notes

    def _follow_tokens(self, settings: ServerSettings) -> list[str]:
        """Have other tokens; but where it listens now may not be where a file without any says it does."""
        if not settings.tokens and not is_loopback(self.listener.address):
            said = f"{self.listener.address} can be reached from other machines"
            return [f"server.tokens: the last of them go only at the next start: {said}"]
        self.api.access = access_of(settings)
        self.history.dismiss()
        return []

    def _open_ports(self) -> list[str]:
        """Name the ports that ask for no token."""
        loaded = self.loaded
        jobs, flows = loaded.settings.jobs, loaded.flows_listening
        found = ["the dashboard"] if self.api.access.open else []
        if loaded.gateway is not None and loaded.gateway.settings.admin.token is None:
            found.append("gateway.admin")
        if loaded.flows is not None and flows.token is None and (flows.http or flows.grpc):
            found.append("flows")
        if jobs is not None and jobs.http is not None and jobs.token is None:
            found.append("jobs.http")
        return found

    def count_refused_reload(self) -> None:
        """Count a configuration that was read and not applied."""
        self.refused_reloads += 1

    def describe(self) -> str:
        """Say what is served where, a line for each."""
        lines = [f"fairlead: dashboard {self.listener.url}/"]
        for door in self.doors:
            where = ", ".join(f"{what} {link}" for what, link in door.links().items())
            lines.append(f"  {door.name:<8} {where or door.detail}")
        if self.upstream is not None:
            said = "a demonstration, until gateway.upstreams names yours"
            lines.append(f"  {'upstream':<8} {self.upstream.url} ({said})")
        if open_ports := self._open_ports():
            lines.append(notice(*open_ports, setting="one each"))
        if self.loaded.settings.jobs is not None and self.traffic is not None:
            lines.append(
                "  demo traffic runs; switch it off with fairlead serve --no-demo or demo: {traffic: false}"
            )
        return "\n".join(lines)


def access_of(settings: ServerSettings) -> Access:
    """Read who may do what."""
    return Access(
        Token(token.name, Role[token.role.upper()], token.sha256) for token in settings.tokens
    )
