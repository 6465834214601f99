"""A proxy and its fleet before backends, without admission."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fairlead.gateway.fleet import Fleet
from fairlead.gateway.proxy import Proxy
from fairlead.gateway.settings import Settings
from tests.gateway.rig import Backend, served, until


@asynccontextmanager
async def proxied(*backends: Backend | str, **more: Any) -> AsyncIterator[tuple[str, Fleet]]:
    """Serve a proxy before backends; give its URL and its fleet."""
    urls = [each if isinstance(each, str) else each.url for each in backends]
    settings = Settings(upstreams=[{"url": url, "capacity": 8} for url in urls], **more)  # type: ignore[misc]
    fleet = Fleet(settings, lambda: None)
    await fleet.start()
    proxy = Proxy(fleet, settings)
    try:
        async with served(proxy) as url:
            yield url, fleet
            await until(lambda: idle(fleet))
    finally:
        await proxy.close()
        await fleet.stop()


def idle(fleet: Fleet) -> bool:
    return all(each["in_flight"] == 0 for each in fleet.describe())
