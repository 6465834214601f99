"""Read all ready jobs, page by page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fairlead.jobs.records import ReadyJob
    from fairlead.jobs.stores.base import Store

PAGE = 5_000  # ready jobs read at once
FIRST_PAGE = 1_000  # so that there is soon something to take in while the next are read


async def ready_pages(store: Store) -> AsyncGenerator[list[ReadyJob], None]:
    """Read all that is ready; the database looks for the next page while the caller works on one."""
    size = FIRST_PAGE
    asked = asyncio.ensure_future(store.ready(None, size))
    try:
        while len(page := await asked) == size:
            size = PAGE
            asked = asyncio.ensure_future(store.ready((page[-1].dag, page[-1].node), size))
            await asyncio.sleep(0)  # it is sent now
            yield page
        yield page
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
