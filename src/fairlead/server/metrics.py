"""The metrics of all doors together, and of the server itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from fairlead.server.service import Server

PREFIX = "fairlead_server_"


class Families:
    """A registry of one collector: every family of every door, once."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def gathered(self) -> Families:
        """Have what must be counted first counted."""
        for door in self._server.doors:
            await door.refresh()
        return self

    def collect(self) -> Iterator[Metric]:
        """Tell everything."""
        yield from self._own()
        yield from self._gates()
        for door in self._server.doors:
            yield from door.families()

    def _own(self) -> Iterator[Metric]:
        server = self._server
        text = "Whether a door runs (1)."
        doors = GaugeMetricFamily(PREFIX + "door_up", text, labels=["door"])
        for door in server.doors:
            doors.add_metric([door.name], door.state == "running")
        yield doors
        text = "Whether the server takes nothing new (1)."
        yield GaugeMetricFamily(PREFIX + "draining", text, value=server.draining)
        text = "When the server started, in seconds since the epoch."
        yield GaugeMetricFamily(PREFIX + "start_time_seconds", text, value=server.started_at)
        text = "Those who follow the events."
        yield GaugeMetricFamily(PREFIX + "followers", text, value=server.history.followers)
        text = "Times the configuration was read again."
        reloads = CounterMetricFamily(PREFIX + "reloads", text, labels=["outcome"])
        reloads.add_metric(["applied"], server.reloads)
        reloads.add_metric(["refused"], server.refused_reloads)
        yield reloads

    def _gates(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "fairlead_gate_waiting", "Tickets that wait at a gate.", labels=["gate", "class"]
        )
        running = GaugeMetricFamily(
            "fairlead_gate_running", "Tickets that hold room.", labels=["gate", "class"]
        )
        slots = GaugeMetricFamily(
            "fairlead_gate_slots", "The room of a gate, where it is counted.", labels=["gate"]
        )
        decisions = CounterMetricFamily(
            "fairlead_gate_decisions",
            "What became of tickets at a gate.",
            labels=["gate", "outcome"],
        )
        for door in self._server.doors:
            for view in door.views():
                total = view.total()
                if total is not None:
                    slots.add_metric([view.id], total)
                reading = view.channel.reading()  # of one instant, as a snapshot has it
                for one in reading.standing:
                    waiting.add_metric([view.id, one.name], one.waiting)
                    running.add_metric([view.id, one.name], one.running)
                for outcome, count in reading.totals.items():
                    decisions.add_metric([view.id, outcome], count)
        yield from (waiting, running, slots, decisions)
