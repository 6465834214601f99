"""A control point of flows, for the simulator: `Point` is the door's own, with virtual time for a runtime."""

from __future__ import annotations

from contextlib import nullcontext
from math import inf
from typing import TYPE_CHECKING, Any

from fairlead.core.ticket import WAITING, WITHDRAWN, Outcome
from fairlead.flows.flow import Flow
from fairlead.flows.point import Point
from fairlead.flows.points import tick_of
from fairlead.flows.settings import ControlPoint, Settings
from fairlead.flows.signals import PostedSignals
from fairlead.sim.site import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from fairlead.core import Change, Gate
    from fairlead.core.ticket import Ticket
    from fairlead.errors import PolicyError
    from fairlead.sim.reading import Draft
    from fairlead.sim.result import Arrival


class SimFlow(Flow):
    """A flow of one arrival."""

    # Its workload and its priority, if the arrival names one.
    named: tuple[str, float] | None = None

    def __init__(
        self, number: int, arrival: Arrival, now: float, labels: Mapping[str, str]
    ) -> None:
        super().__init__("sim", labels)
        self.line_up()
        self.work: Any = number
        self.timeout = arrival.patience
        self.asked = now
        self.ended_at = inf
        self.over = False
        self.answered = False


class VirtualRuntime:
    """What a point asks of a runtime, on virtual time; `told` are those whom its verbs have changed."""

    lock: AbstractContextManager[None] = nullcontext()

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.time = 0.0
        self.timer_at = -inf  # whoever simulates advances the gate
        self.told: list[Any] = []

    def now(self) -> float:
        """Read the clock."""
        return self.time

    clock = now

    def after(self, changed: Iterable[Any]) -> None:
        """Note who was changed."""
        self.told += changed

    def report(self, error: PolicyError) -> None:
        """Let the simulation fail."""
        raise error

    def adjust(self, change: Change) -> None:
        """Change a setting."""
        self.told += self.gate.adjust(change, self.time)

    def withdraw(self, flows: Iterable[Any]) -> None:
        """Stop waiting."""
        self.told += self.gate.withdraw(flows, self.time)

    def finish(self, flow: Any, outcome: Outcome = Outcome.OK, spent: float | None = None) -> None:
        """End a flow's work."""
        self.told += self.gate.finish(flow, self.time, outcome, spent)


class PointGate:
    """The verbs of a gate, as a control point carries them out."""

    def __init__(self, settings: ControlPoint) -> None:
        self.point = Point("sim", settings, VirtualRuntime, PostedSignals())
        self._gate = self.point.gate
        self._runtime: VirtualRuntime = self.point.runtime
        self._tick = tick_of([self.point])
        self._next_tick = inf  # from the first flow on

    @property
    def due(self) -> float:
        """When something may happen by itself; a point is looked after while anybody is there."""
        if self._gate.active or self._gate.waiting:
            return min(self._gate.due, self._next_tick)
        return self._gate.due

    def next_wakeup(self, now: float) -> float:
        """Tell when to call `advance`."""
        self._gate.next_wakeup(now)
        return self.due

    def _arrive(self, now: float) -> None:
        runtime = self._runtime
        while self._next_tick <= now:
            runtime.time = max(runtime.time, self._next_tick)
            self.point.tick(runtime.time)
            self._next_tick += self._tick
        runtime.time = max(runtime.time, now)

    def offer(self, flow: Any, now: float) -> Sequence[Any]:
        """Ask as `async with flows.flow(...)` does."""
        self._arrive(now)
        if self._next_tick == inf:
            self._next_tick = now + self._tick
        self.point.prepare(flow, now)
        if flow.named is not None and flow.workload[0] == "default":
            flow.workload = flow.named
        self._runtime.told += self._gate.offer(flow, now)
        if flow.state is not WAITING or not self.point.waits(flow):
            flow.answered = True
            self.point.answered(flow, now)
        return self._changed(flow)

    def finish(self, flow: Any, now: float) -> Sequence[Any]:
        """End as `flow.end()` does."""
        self._arrive(now)
        self.point.end(flow, Outcome.OK, None)
        return self._changed(flow)

    def withdraw(self, flows: Iterable[Any], now: float) -> Sequence[Any]:
        """Stop waiting as a caller does who is cancelled."""
        self._arrive(now)
        flows = list(flows)
        self._runtime.withdraw(flows)
        for flow in flows:
            if flow.state is WITHDRAWN:
                flow.answered = True
                self.point.left(flow)
        return self._changed(None)

    def advance(self, now: float) -> Sequence[Any]:
        """Let time pass."""
        self._arrive(now)
        self._runtime.told += self._gate.advance(now)
        return self._changed(None)

    def commit(self, flow: Any) -> bool:
        """Nobody preempts a flow."""
        return True

    def _changed(self, own: Any) -> list[Any]:
        """Answer those whose wait has ended, and tell of all but the caller's own."""
        changed: dict[int, Any] = {}
        runtime = self._runtime
        while runtime.told:
            told, runtime.told = runtime.told, []
            for flow in told:
                if not flow.answered and flow.state is not WAITING:
                    flow.answered = True
                    self.point.answered(flow, runtime.time)
                if flow is not own:
                    changed[flow.work] = flow
        return list(changed.values())


class FlowsSite(Site):
    """One control point."""

    def __init__(self, settings: ControlPoint) -> None:
        gate = PointGate(settings)
        super().__init__(gate)
        said = settings.concurrency
        if said is not None:
            self.weighs = True
            limit = said.max_concurrency
            if not isinstance(limit, str) and said.limit_by_label_key is None:
                self.slots = limit
        self._names = {one.name: one.priority for one in settings.scheduler.workloads if one.name}
        self._labels = _labels_read(settings)

    def ticket(self, number: int, arrival: Arrival, now: float) -> Ticket:
        said = {
            "class": arrival.cls,
            "tenant": arrival.tenant,
            "workload": arrival.workload,
            "priority": str(arrival.priority),
            "tokens": repr(arrival.cost),
        }
        labels = {key: said[meaning] for key, meaning in self._labels.items()}
        flow: Any = SimFlow(number, arrival, now, said | labels | dict(arrival.labels or {}))
        if arrival.workload in self._names and arrival.labels is None:
            flow.named = (arrival.workload, self._names[arrival.workload])
        return flow  # type: ignore[no-any-return]


def _labels_read(settings: ControlPoint) -> dict[str, str]:
    """Tell the labels a point reads, and what of an arrival stands for each unless it has labels of its own."""
    scheduler = settings.scheduler
    keys = {
        scheduler.priority_label_key: "priority",
        scheduler.tokens_label_key: "tokens",
        scheduler.workload_label_key: "workload",
        scheduler.fairness_label_key: "tenant",
        scheduler.tenant_label_key: "tenant",
    }
    for limit in (settings.quota, settings.concurrency):
        if limit is not None:
            keys[limit.limit_by_label_key] = "tenant"
    return {key: meaning for key, meaning in keys.items() if key is not None}


def read(draft: Draft, own: Iterable[str]) -> Callable[[], Site] | None:
    """Read a control point: its own keys at the top, or a whole file and `point`, the name of one."""
    path: tuple[str, ...] = ()
    if "control_points" in draft.plain:
        whole = draft.read(Settings, without=(*own, "point"))
        if whole is None:
            return None
        points, name = whole.control_points, draft.plain.get("point")
        if name is None and len(points) == 1:
            (name,) = points
        if not isinstance(name, str) or name not in points:
            draft.wrong(("point",), f"point must be one of {', '.join(points) or 'none'}")
            return None
        said, path = points[name], ("control_points", name)
    else:
        read = draft.read(ControlPoint, without=own)
        if read is None:
            return None
        said = read
    load = said.load
    if load is not None:
        for field in ("signal", "confirmation"):
            if getattr(load, field) == "cpu":
                draft.wrong((*path, "load", field), "a simulation has no cpu; use a latency")
    return lambda: FlowsSite(said)
