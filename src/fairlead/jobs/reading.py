"""Reading all that is ready, however much it is: a page is on its way while the one before is worked on."""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from fairlead.jobs.records import ReadyJob
    from fairlead.jobs.stores.base import Store

PAGE = 5_000  # jobs read at once


async def pages_of(store: Store) -> AsyncGenerator[list[ReadyJob], None]:
    """Read all that is ready; close it when done, for a page may be on its way."""
    asked = asyncio.ensure_future(store.ready(None, PAGE))
    try:
        while len(page := await asked) == PAGE:
            asked = asyncio.ensure_future(store.ready((page[-1].dag, page[-1].node), PAGE))
            await asyncio.sleep(0)  # it is sent now
            yield page
        yield page
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


@contextmanager
def no_collecting() -> Iterator[None]:
    """Collect no garbage while very much is read that stays: looking through it again and again takes half the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
