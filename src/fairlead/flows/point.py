"""One control point: a gate over its limits, fair among workloads and users, and what is counted there.

It knows neither loop nor thread: `runtime` is whichever of the two twins carries verdicts out.
"""

from __future__ import annotations

from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from fairlead.capacities import LeasedSlots
from fairlead.core import Gate
from fairlead.core.capacity import NEVER
from fairlead.core.ticket import EXPIRED, REFUSED, RUNNING, UNSET, WAITING, WITHDRAWN, Outcome
from fairlead.flows.ending import Ending
from fairlead.flows.flow import DEFAULT
from fairlead.flows.leavers import Leavers
from fairlead.flows.order import beyond_limit, order_of, policy_of
from fairlead.flows.parts import RETRY, Parts
from fairlead.flows.signals import PostedSignals
from fairlead.flows.workloads import Resolver
from fairlead.policies import Classes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead.core import Change
    from fairlead.core.ticket import Ticket
    from fairlead.flows.flow import Flow
    from fairlead.flows.settings import ControlPoint
    from fairlead.ledger.ledger import Ledger
    from fairlead.runtime import MakeGate

LOST = Outcome.LOST
NOWHERE = object()


class Point(Ending):
    """A control point at work."""

    def __init__(
        self,
        name: str,
        settings: ControlPoint,
        runtime_of: Callable[[Gate], Any],
        posted: PostedSignals,
        gate: MakeGate = Gate,
        *,
        shared: bool = False,
    ) -> None:
        self.name = name
        self.retired = False  # another one, or none, has taken its place
        self.home: Any = NOWHERE  # the loop whose tasks may ask here without further ado
        self.parts = Parts(settings, posted, lambda: self.gate.waiting, shared=shared)
        self.capacity = self.parts.capacity()
        self.load, self.learner = self.parts.load, self.parts.learner
        self.policy = policy_of(settings.scheduler)
        self.gate = gate(self.policy, self.capacity)
        self.runtime = runtime_of(self.gate)
        super().__init__()
        self.queued = 0.0  # tokens that wait
        self.leavers = Leavers()
        self.admitted = (
            0.0  # tokens admitted, all told, but for flows that were drawn: then nobody waits
        )
        self._zero = isinstance(self.policy, Classes)
        self._alike: tuple[Any, float] | None
        self._follow(settings)

    def _follow(self, settings: ControlPoint) -> None:
        self.settings = settings
        scheduler = settings.scheduler
        if settings.load is not None and settings.load.workload_latency_based_tokens:
            scheduler = scheduler.model_copy(update={"workload_latency_based_tokens": True})
        self.resolver = Resolver(scheduler)
        self._margin = scheduler.decision_deadline_margin
        self._fair = scheduler.fairness_label_key is not None
        if scheduler.workload_latency_based_tokens:
            self._costs = self._costs or {}
            self.resolver.estimate = self._estimate
        learners = (self.load, self.learner, self._costs)
        self._learns = any(one is not None for one in learners)
        # The workload and tokens of every flow, where neither labels nor time have a say in what one asks with.
        self._alike = None
        fixed, varied = self.resolver.fixed, scheduler.workloads or self._fair or self.load
        if fixed is not None and not varied and fixed.queue_timeout is None and fixed.workload[1]:
            self._alike = (fixed.workload, fixed.tokens)
        plain = self._alike == (DEFAULT, 1.0) and self.capacity.spends
        self.drawing = self.drawn if plain else None

    def _estimate(self, workload: str) -> float | None:
        mean = self._costs.get(workload) if self._costs is not None else None
        read = None if mean is None else mean.read(self.runtime.now())
        return None if read is None else read * 1000.0  # a token is a millisecond of work

    def retune(self, settings: ControlPoint, now: float) -> bool:
        """Follow other settings with everybody who waits; False if they are too different for that."""
        said, former = settings.scheduler, self.settings.scheduler
        if order_of(said) != order_of(former) or Resolver(said).regroups(self.gate.waiters()):
            return False
        changes = self.parts.retuned(settings, now)
        if changes is None:
            return False
        for change in changes:
            self.runtime.adjust(change)
        self.policy.limit = settings.scheduler.max_queue
        self._turn_away(self._never_fits, now)
        before = self.resolver
        self._follow(settings)
        self.resolver.count_on_from(before)
        if self.drawing is None:
            self.gate.adopt(self._drawn_before(), now)
        return True

    def join(self, ledger: Ledger, former: Point | None = None, now: float = 0.0) -> None:
        """Keep the limits in common with other processes, as the former point did."""
        before = None if former is None else former.parts
        self.parts.join(ledger, self.name, self._adjust, self.runtime.lock, before, now)

    def succeed(self, former: Point, now: float) -> None:
        """Take the place of a point that could not be retuned, with those who hold its tokens and what was counted."""
        self.continue_from(former)
        self.resolver.count_on_from(former.resolver)
        holders: list[Any] = former.gate.surrender()
        if self.drawing is None:
            holders = sorted([*holders, *self._drawn_before()], key=attrgetter("started_at"))
        slots = former.parts.concurrency
        for flow in holders:
            if not flow.accepted:  # it has not woken since it was granted
                former.answered(flow, now)
            if isinstance(slots, LeasedSlots):  # its ledger is told of them from here
                slots.give(flow, now)
            flow.point = self
        self.gate.adopt(holders, now)
        self.parts.inherit(former.parts, now)
        self.load, self.learner = self.parts.load, self.parts.learner
        if self._costs is not None:
            self._costs = former._costs or self._costs

    def _drawn_before(self) -> list[Flow]:
        """Make tickets that run of the flows that were drawn: from here on they are held."""
        moved = self.drawn.move()
        for flow in moved:
            arrived_at, started_at = flow.arrived_at, flow.started_at
            flow.line_up()
            flow.arrived_at, flow.started_at = arrived_at, started_at
            flow.drawn = None
        return moved

    def receive(self, flow: Flow) -> None:
        """Let a flow go on here that waited at the point before this one."""
        flow.move(self)
        with beyond_limit(self.policy):
            changed = self.ask(flow, self.runtime.now())
        self.runtime.after(changed)
        if flow.state is not WAITING or not self.waits(flow):
            flow.told()

    def retire(self) -> None:
        """Let nobody ask here any more."""
        self.retired, self.home, self.drawing = True, NOWHERE, None

    def tick(self, now: float) -> None:
        """Do what is due now and then: step the controller, forget what nobody ends."""
        if self.load is not None:
            for change in self.load.step(now):
                self.runtime.adjust(change)
        self.pace(now)
        self.forget_unended(now)

    # Asking

    def ask(self, flow: Flow, now: float) -> Sequence[Ticket]:
        """Ask for tokens, and note it if they are there; return the others who were changed by that."""
        alike = self._alike
        if alike is None:
            self.prepare(flow, now)
        else:
            flow.workload, flow.cost = alike
            if flow.timeout is not None:
                self._limit_wait(flow, None, now)
        changed = self.gate.offer(flow, now)
        if flow.state is RUNNING:
            self._accept(flow, now)
        return changed

    def prepare(self, flow: Flow, now: float) -> None:
        """Read what a flow asks with."""
        workload, cost, tenant, most, ignored = self.resolver.parameters(flow.labels)
        flow.point = self
        flow.workload = workload
        flow.cost = cost
        if self._fair:
            flow.user = self.resolver.user(flow.labels)
        flow.tenant = tenant
        if ignored:
            flow.ignored = ignored
        if self._zero and workload[1] == 0:
            flow.rank = 0
        if most is not None or flow.timeout is not None:
            self._limit_wait(flow, most, now)
        if self.load is not None and flow.arrived_at == UNSET:  # else counted before it moved
            for change in self.load.arrived(cost, now):
                self.runtime.adjust(change)

    def _limit_wait(self, flow: Flow, most: float | None, now: float) -> None:
        """Set how long a flow waits: no longer than it would, less the margin, and than its workload lets it."""
        timeout = most
        if flow.timeout is not None:
            timeout = flow.timeout - self._margin
            if timeout < 0.0:
                timeout = 0.0
            if most is not None and most < timeout:
                timeout = most
        if timeout is not None:
            # A flow that was moved here from another gate has waited there already.
            flow.wait_until = (now if flow.arrived_at == UNSET else flow.arrived_at) + timeout

    def ask_ledger(self, flow: Flow, patience: float) -> tuple[Any, Any]:
        """Offer a flow again, to wait for one answer of the ledger: beyond the line, in which it takes no place.

        Returns what it was told before, for `stand_by`.
        """
        told = flow.state, flow.reason
        flow.renew()
        flow.wait_until = self.runtime.now() + patience
        with beyond_limit(self.policy):
            self.runtime.offer(flow)
        return told

    def stand_by(self, told: tuple[Any, Any], flow: Flow) -> None:
        """Let a flow that asked the ledger in vain be refused as it was before."""
        waited = flow.state is WAITING
        if waited:
            self.runtime.withdraw([flow])
        if flow.state is EXPIRED or (waited and flow.state is WITHDRAWN):
            flow.state, flow.reason = told

    def waits(self, flow: Flow) -> bool:
        """Note that a flow has to wait; False if it need not, for that would be of no use."""
        if self._never_fits(flow, self.gate.now) or self._shut_out(flow, self.gate.now):
            return False
        flow.queued_ahead, flow.admitted_before = self.queued, self.admitted
        self.queued += flow.cost
        self.leavers.enter(flow)
        return True

    def _never_fits(self, flow: Flow, now: float) -> bool:
        """Refuse a waiter that can never fit at once; the gate would do so when its turn has come."""
        if self.capacity.refusal(flow, now) is not NEVER:
            return False
        self.runtime.withdraw([flow])
        flow.state, flow.reason = REFUSED, self.capacity.describe(flow, now, NEVER)
        return True

    def _shut_out(self, flow: Flow, now: float) -> bool:
        """Refuse a waiter at a limit that is closed while its ledger is lost: nobody knows for how long."""
        if not self.parts.leases or self.parts.shut_out(flow, now) is None:
            return False
        self.runtime.withdraw([flow])
        flow.state = EXPIRED
        return True

    def _turn_away(self, hopeless: Callable[[Flow, float], bool], now: float) -> None:
        """Tell those who wait in vain since something changed."""
        for waiter in self.gate.waiters():
            flow = cast("Flow", waiter)
            if hopeless(flow, now):
                flow.told()

    def _adjust(self, change: Change) -> None:
        """Follow the ledger; when it is lost, nobody is left to wait at a limit that is closed without it."""
        self.runtime.adjust(change)
        if change.verb == "lose":
            self._turn_away(self._shut_out, self.gate.now)

    def answered(self, flow: Flow, now: float) -> None:
        """Note how the wait of a flow ended, or that it was refused without any."""
        waited = flow.queued_ahead >= 0
        if waited:
            self.queued -= flow.cost
        if flow.state is RUNNING:
            self._accept(flow, now)
            if waited:
                gone = self.leavers.admit(flow)
                others = self.admitted - flow.cost - flow.admitted_before
                self._counts.waited(flow, flow.queued_ahead - others - gone)
            return
        if waited:
            self.leavers.leave(flow)
        self._counts.rejected(flow)
        if flow.state is EXPIRED or flow.state is REFUSED:
            flow.retry_after = self.retry_after(flow, now)
        if self.load is not None:
            self.load.throttle.answered(flow.cost, False, now)

    def _accept(self, flow: Flow, now: float) -> None:
        cost = flow.cost
        flow.accepted = True
        self.admitted += cost
        workload = self._counts.workloads.get(flow.workload) or self._counts.of(flow.workload)
        workload.accepted_flows += 1
        workload.accepted_tokens += cost
        if self.load is not None:
            self.load.throttle.answered(cost, True, now)

    def take_out(self, flow: Flow) -> None:
        """Let a flow neither wait nor run: nobody is there to use what it would be granted."""
        if flow.state is WAITING:
            self.runtime.withdraw([flow])
        if flow.state is RUNNING:  # also since just now: a verb lets first happen what was due
            self.runtime.finish(flow, LOST)

    def left(self, flow: Flow) -> None:
        """Note that the caller of a flow stopped waiting."""
        self.take_out(flow)
        if flow.accepted:  # in the course of a reload, and counted
            flow.accepted = False
            return
        if flow.queued_ahead >= 0:
            self.queued -= flow.cost
            self.leavers.leave(flow)
        self._counts.rejected(flow)
        if self.load is not None:
            self.load.throttle.answered(flow.cost, False, self.runtime.now())

    def retry_after(self, flow: Flow, now: float) -> float | None:
        """Tell when it may be worth asking again: never, if it can never fit."""
        refusal = self.capacity.refusal(flow, now)
        if refusal is NEVER:
            return None
        at = now if refusal is None else self.capacity.ready_at(flow, now, refusal)
        expected = self.parts.expected_at(flow, now)
        wait = max(at - now if at < inf else 0.0, expected - now if expected < inf else 0.0)
        wait += self.parts.time_of(self.queued)
        if self.parts.leases and (shut := self.parts.shut_out(flow, now)) is not None:
            flow.shut, wait = shut, max(wait, RETRY)
        if (rate := self.rate(now)) is not None:
            wait = max(wait, min(60.0, (self.queued + flow.cost) / max(rate, 1e-9)))
        return max(wait, 0.001)
