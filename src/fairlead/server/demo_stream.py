"""The demonstration's stream: two topics of a broker in memory, of which one should not wait and the other may."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairlead.streams import Consumer, StreamApp
from fairlead.testing.streams import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.streams.broker import Message

GROUP = "demo"
TOPICS = {"orders": 3, "audit": 2}
EACH = 0.025  # seconds a record takes: at the crest of the traffic a little more comes than can be done


class _Slow(Consumer):
    async def consume(self, messages: Sequence[Message]) -> None:
        await asyncio.sleep(EACH * len(messages))


class Orders(_Slow):
    """Records that should not wait."""


class Audit(_Slow):
    """Records that may."""


def stream_app() -> StreamApp:
    """Make a stream app over a broker in memory."""
    app = StreamApp(group=GROUP, concurrency=3, broker=MemoryBroker(TOPICS))
    app.topic("orders", Orders, priority=80, weight=3, batch_size=20)
    app.topic("audit", Audit, priority=20, batch_size=20)
    return app
