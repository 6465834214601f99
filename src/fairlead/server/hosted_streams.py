"""A stream app in the server's process: it lives in threads of its own."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.server.batch_keys import BatchKeys
from fairlead.server.hosted_pool import borrowing
from fairlead.server.hosting import Hosted, View, resize_to
from fairlead.server.overrides import AT_A_START
from fairlead.server.recording import batch_lines
from fairlead.streams.gating import GateScheduler
from fairlead.streams.lag import LagWatch
from fairlead.streams.ordering import TopicOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client import Metric

    from fairlead.core import Ticket
    from fairlead.observe.passed import Passed
    from fairlead.observe.watched import Feed
    from fairlead.server.hosted_pool import HostedPool
    from fairlead.server.loading import Loaded
    from fairlead.server.settings import StreamsSettings
    from fairlead.streams import StreamApp

WORKERS = "streams/workers"


def class_of(ticket: Ticket) -> str:
    """Name the class of a batch: its topic."""
    return str(ticket.workload)


class HostedStreams(Hosted):
    """A stream app; `start` and `stop` are its own."""

    name = kind = "streams"

    def __init__(
        self,
        app: StreamApp,
        feed: Feed,
        settings: StreamsSettings | None = None,
        pools: Sequence[HostedPool] = (),
    ) -> None:
        self.app = app
        self._settings = settings
        self._feed = feed
        self._lag = LagWatch(app)
        watched = feed.gate(WORKERS, class_of)
        feed.channel(WORKERS).more_of = BatchKeys().held_by
        shared = borrowing(pools, self, WORKERS, watched)
        if shared is not None and app.settings.scheduler is not None:
            own = app.settings.scheduler.__name__
            raise ConfigError(
                f"{WORKERS} cannot be in a pool: {own}, the app's own scheduler, has no gate"
            )
        joins = app.settings.capacity is not None and app.settings.capacity.gated
        if shared is not None and joins:
            raise ConfigError(
                f"{WORKERS} cannot be in a pool: the app's capacity has a gate already, which it joins; "
                "give the app a capacity of its own"
            )
        if not joins:
            app.make_gate = shared or watched

    async def start(self) -> None:
        """Begin to consume."""
        await asyncio.to_thread(self.app.start)
        self._lag.start()
        topics = ", ".join(sorted(self.app.topics))
        self.state, self.detail = "running", f"topics {topics}"

    async def stop(self, grace: float) -> None:
        """Finish what runs, hand back what waits, commit and leave."""
        self.state = "stopped"
        await asyncio.to_thread(self.app.stop, min(grace, self.app.settings.grace))
        await asyncio.to_thread(self._lag.stop)

    def hurry(self) -> None:
        """Wait no longer for what runs: its records are read again by the next owner."""
        if self.app.started is not None:
            self.app.started.hurry()

    def left(self) -> str:
        """What ran is not committed."""
        return "what ran is read again by the next owner"

    @property
    def settings(self) -> StreamsSettings | None:
        """The section it runs by; None for the demonstration's stream."""
        return self._settings

    def retune(self, loaded: Loaded) -> list[str]:
        """A stream app is code: it changes at a start."""
        if loaded.settings.streams != self._settings:
            return ["streams: the section changes only at the next start"]
        return []

    def views(self) -> list[View]:
        """The gate of the built-in scheduler; a scheduler of the user's own has none."""
        scheduler = self._scheduler()
        channel = self._feed.channels.get(WORKERS)
        if scheduler is None or channel is None or channel.gate is None:
            return []
        gate = scheduler.gate

        most = self.app.settings.concurrency
        slots: Any = gate.gate.capacity.part("workers")  # none where the room is shared with others

        def adjust(change: Any) -> None:
            with gate.lock:
                gate.adjust(change)

        def resize_within(args: list[Any]) -> tuple[Any, ...]:
            read = resize_to(args)
            if read[0] > most:
                raise ValueError(
                    f"there are {most} workers (concurrency), and no more can be started while "
                    f"the app runs; got {read[0]}"
                )
            return read

        view = View(
            WORKERS,
            self.name,
            channel,
            now=time.monotonic,
            total=lambda: float(most if slots is None else slots.total),
            adjust=adjust,
            adjustable={} if slots is None else {("workers", "resize"): resize_within},
            values=lambda part, verb, args: None if slots is None else slots.total,
            overrides=lambda: view.resized("workers", most, AT_A_START),
            lock=lambda: gate.lock,
        )
        return [view]

    def _scheduler(self) -> GateScheduler | None:
        if self.state != "running" or self.app.state != "running":
            return None
        found = self.app.runtime.calls.scheduler
        return found if isinstance(found, GateScheduler) else None

    def policy(self, gate: str) -> dict[str, Any] | None:
        """The topics, over the workers there are now; their partitions are those held here."""
        scheduler = self._scheduler()
        if scheduler is None:
            return None
        slots: Any = scheduler.gate.gate.capacity.part("workers")
        if slots is None or not isinstance(scheduler.gate.gate.policy, TopicOrder):
            raise ConfigError("the simulator knows neither the policy nor the capacity of this app")
        topics = {}
        for topic in self.app.topics.values():
            held = self.app.runtime.assignments.get(topic.name, ())
            topics[topic.name] = {
                "priority": topic.priority,
                "weight": topic.weight,
                "batch_size": topic.batch_size,
                "partitions": max(held, default=0) + 1,
                "by_key": topic.parallel_by is not None,
            }
        return {"preset": "streams", "concurrency": max(1, slots.total), "topics": topics}

    async def recorded(self, rows: Sequence[Passed]) -> Iterable[dict[str, Any]]:
        """A line for each batch."""
        return batch_lines(rows)

    def summary(self) -> dict[str, Any] | None:
        """What the app tells of itself: assignment, lag, what is withheld and why."""
        if self.state == "running" and self.app.state != "running":
            self.state, self.detail = "failed", f"the stream app is {self.app.state}"
        return self.app.snapshot() if self.state != "starting" else None

    def families(self) -> Iterable[Metric]:
        """The streams' own metrics."""
        from fairlead.streams.metrics import StreamMetrics

        return StreamMetrics(self.app).collect()
