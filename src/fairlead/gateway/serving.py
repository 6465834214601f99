"""The gateway as a process: two listeners on one event loop, from start-up to a graceful end.

On the first SIGTERM or SIGINT nothing more is accepted, `/readyz` says so, and what runs or waits is finished, for as
long as `shutdown_grace` allows; on the second everything ends at once.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.documents.addresses import is_loopback
from fairlead.documents.watching import Watch
from fairlead.gateway import access
from fairlead.gateway.admin import Admin
from fairlead.gateway.admission import Admission
from fairlead.gateway.fleet import Fleet
from fairlead.gateway.forwarding import trust
from fairlead.gateway.front.app import Front
from fairlead.gateway.front.catalog import Catalog
from fairlead.gateway.loading import load, load_content
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.gateway.protocol import GatewayProtocol
from fairlead.gateway.proxy import CutShort, Proxy
from fairlead.runtime import plain_gates
from fairlead.serving import process
from fairlead.serving.listener import LAST_MOMENT, Listener
from fairlead.serving.locality import notice
from fairlead.serving.logs import set_up_logging

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from fairlead.gateway.limits import GatewayLimits
    from fairlead.gateway.loading import Loaded
    from fairlead.gateway.settings import Settings
    from fairlead.runtime import MakeGates
    from fairlead.serving.framing import Refusal

# Of the descriptors of the process.  A client may cost another one, to a backend; with the ports of the other doors and
# of the server they are not more than there are.
DATA_SHARE = 5 / 16
OPERATORS_SHARE = 1 / 32

log = logging.getLogger("fairlead.gateway")


def listener_of(
    app: Any,
    address: str,
    settings: Callable[[], Settings],
    refused: Callable[[Refusal], object] = lambda refusal: None,
) -> Listener:
    """Listen for clients as a gateway does: within its limits, which may change meanwhile."""
    protocol = partial(GatewayProtocol, refused=refused)

    def trusted(address: str) -> bool:
        return trust(settings().tenants.trusted_proxies)(address)

    return Listener(
        app,
        address,
        protocol=protocol,
        limits=lambda: settings().limits,
        share=DATA_SHARE,
        exempt=trusted,
    )


def operators_listener(app: Any, address: str, settings: Callable[[], Settings]) -> Listener:
    """Listen for operators: the limits of clients, but descriptors of its own."""

    def limits() -> GatewayLimits:
        own = {"connections": None, "connections_per_address": None}
        return settings().limits.model_copy(update=own)

    return Listener(app, address, protocol=GatewayProtocol, limits=limits, share=OPERATORS_SHARE)


class Gateway:
    """A whole gateway: `async with Gateway(load("gateway.yaml")) as gateway: ...` serves while inside."""

    def __init__(self, loaded: Loaded, gates: MakeGates = plain_gates) -> None:
        self._loaded = loaded
        self.admission = Admission(loaded, gates)
        self.fleet = Fleet(loaded.settings, self._follow_capacity)
        self.admission.metrics.backends = self.fleet.states
        self.proxy = Proxy(self.fleet, loaded.settings)
        self.admin = Admin(self.fleet, self.admission, loaded.settings.admin.token)
        self.catalog = Catalog(self.proxy, self.fleet, loaded.settings)
        guarded = PriorityMiddleware(self.catalog, self.admission)
        self.front = Front(guarded, self.catalog, self.admission, self.fleet, self._refused)
        listen = loaded.settings.listen
        self.data_listener = listener_of(self.front, listen, self._settings, self._refused)
        self.admin_listener = operators_listener(
            self.admin, loaded.settings.admin.listen, self._settings
        )

    def _settings(self) -> Settings:
        return self._loaded.settings

    def _refused(self, refusal: Refusal) -> None:
        """Count and log what a connection refused by itself."""
        if refusal.begun:
            return  # an app serves the request already: its exchange counts and logs it
        self.admission.metrics.refuse_unread(refusal.code)
        if self.admission.logs:
            access.write_refusal(refusal)

    def _follow_capacity(self) -> None:
        self.admission.follow_fleet(self.fleet)

    async def __aenter__(self) -> Gateway:
        self.data_listener.bind()
        try:
            self.admin_listener.bind()
        except OSError:
            self.data_listener.close()
            raise
        self.admission.follow(self.fleet)
        self._follow_capacity()
        await self.fleet.start()
        self._follow_capacity()
        if self.admission.sharing is not None:
            await self.admission.sharing.start()
        await self.admin_listener.begin()
        await self.data_listener.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.admin.draining = True
        await self.data_listener.end(self._settings().shutdown_grace)
        await self.admin_listener.end(LAST_MOMENT)
        await self.catalog.close()
        await self.proxy.close()
        await self.fleet.stop()
        if self.admission.sharing is not None:
            await self.admission.sharing.stop()

    def hurry(self) -> None:
        """End at once what still runs."""
        self.data_listener.hurry()

    def left(self) -> str:
        """Say how many requests have not been answered."""
        running = sum(pool.gate.active for pool in self.admission.pools.values())
        return f"{running or 'no'} request{'s' * (running != 1)} left without an answer"

    def retune(self, loaded: Loaded) -> None:
        """Follow a changed configuration; listeners stay where they are."""
        before, after = self._settings(), loaded.settings
        if (before.listen, before.admin.listen) != (after.listen, after.admin.listen):
            log.warning("listen and admin.listen change only when the gateway starts anew")
        self._loaded = loaded
        if after.admin.token is None and not is_loopback(self.admin_listener.address):
            log.warning(
                "admin.token goes only when the gateway starts anew: %s can be reached from other machines",
                self.admin_listener.address,
            )
        else:
            self.admin.token = after.admin.token
        self.front.retune(after)
        self.catalog.retune(after)
        self.proxy.retune(after)
        self.admission.retune(loaded)
        self.fleet.retune(after)
        self._follow_capacity()  # also where only what is declared has changed

    def describe(self) -> str:
        """Say what is served where, and whom it answers."""
        count = len(self.fleet.describe())
        pools = self.admission.pools.values()
        slots = f"{sum(pool.slots for pool in pools)} slots"
        short = [shortage for pool in pools if (shortage := pool.shortage()) is not None]
        if short:
            asked = sum(one.asked for one in short)
            reserved = sum(one.reserved for one in short)
            slots += f", reservations reduced from {asked} to {reserved}"
        return (
            f"fairlead gateway: {self.data_listener.url} → {count} upstream{'s' * (count != 1)}, "
            f"{slots}; admin {self.admin_listener.url}{self._notice()}"
        )

    def _notice(self) -> str:
        if self.admission.settings.admin.token is not None:
            return ""
        return "\n" + notice("the admin port", setting="admin.token")


def follow(gateway: Gateway, loaded: Loaded, config: str | os.PathLike[str]) -> Watch[Loaded]:
    """Have a gateway follow its file."""
    count = gateway.admission.metrics.count_refused_reload
    return Watch(
        config,
        load_content,
        gateway.retune,
        losses=gateway.admission.losses,
        since=loaded,
        refused=count,
    )


async def serve(
    loaded: Loaded,
    stop: asyncio.Event,
    *,
    watch: str | os.PathLike[str] | None = None,
    started: Callable[[Gateway], None] = lambda gateway: None,
) -> None:
    """Serve until told to stop; with `watch`, follow that file."""
    gateway = Gateway(loaded)
    following = None if watch is None else follow(gateway, loaded, watch)
    await process.serve(gateway, stop, following=following, on_started=started)


def run(config: str | os.PathLike[str]) -> int:
    """Run a gateway from its file until a signal ends it; return the exit code."""
    loaded = load(config)
    if loaded.fatal or (loaded.settings.strict and loaded.problems):
        process.say(*loaded.lines)
        return 2
    # Whether a line is written is up to the settings, which a reload may change.
    with set_up_logging(access=True, quiet=(CutShort,)):
        return process.run(
            lambda: Gateway(loaded),
            name="fairlead gateway",
            following=lambda gateway: follow(gateway, loaded, config),
        )
