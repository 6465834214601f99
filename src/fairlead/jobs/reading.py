"""Reading very much that stays: page by page, and nobody looks through it for garbage meanwhile."""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from fairlead.jobs.records import ReadyJob
    from fairlead.jobs.stores.base import Store

PAGE = 5_000  # ready jobs read at once
FIRST_PAGE = 1_000  # so that there is soon something to take in while the next are read
# Frozen objects that may thaw: Python 3.12 has a few hundred of its own; more than that were frozen on purpose.
THAWED = 1_000


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


@contextmanager
def no_collecting() -> Iterator[None]:
    """Collect no garbage while very much is made that is none: looking through it over and over takes half the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count_as_old() -> None:
    """Have all there is count as old: else three collections go through what was read before the first job runs."""
    if gc.get_freeze_count() < THAWED:
        gc.freeze()
        gc.unfreeze()  # to the oldest generation, where the next full collection finds what is garbage
