"""Random verbs on a self-checking, recording gate, and what must hold of any run.

After every verb `CheckedGate` checks the invariants of the core, and this machine, from the holders alone: that room is
never exceeded, that equals start in order of arrival, and that a verb evicts at most one.  At the end all tickets are
let go, and the recording is replayed: as it was, with a punctual timer, and with idle looks in between.  Verdicts and
start times must be the same each time, which also means that no wake-up was late."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fairlead.capacities import Both, InFlight, Pools, Reserved, Slots, TokenBucket
from fairlead.core import Capacity, Change, Gate, Outcome, Policy, Recorder, State, Ticket, replay
from fairlead.testing import CheckedGate
from tests.properties.shapes import CAPACITIES, POLICIES

STEPS = st.sampled_from((0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 7.0, 45.0))
SOON = st.sampled_from((inf, inf, inf, 0.0, 0.5, 3.0, 20.0))
TICKET = st.fixed_dictionaries(
    {
        "rank": st.integers(0, 2),
        "cost": st.sampled_from((1, 1, 1, 2, 3, 5)),
        "tenant": st.sampled_from("aab"),
        "pool": st.sampled_from(("ocr", "gpu")),
        "can_preempt": st.booleans(),
        "evictable": st.booleans(),
    },
    optional={
        "priority": st.sampled_from((0, 95, 100)),
        "workload": st.sampled_from("xy"),
        "estimate": st.sampled_from((1.0, 5.0)),
        "deadline": st.sampled_from((1.0, 5.0)),
        "wait_until": SOON,
        "hold_until": SOON,
        "evictions": st.sampled_from((0, 3)),
    },
)
RESIZE = {Slots: (0, 1, 3), Reserved: (0, 2, 4, 5), InFlight: (0, 2, 5)}


class CheckedRecorder(Recorder, CheckedGate):
    """Checks every verb and records it too."""


def parts(capacity: Capacity) -> Iterable[Capacity]:
    if isinstance(capacity, Both):
        for part in capacity.parts:
            yield from parts(part)
    else:
        yield capacity


def sort_of(ticket: Ticket) -> tuple[object, ...]:
    """Tickets of one sort differ in nothing a policy or a capacity may look at."""
    return (
        ticket.rank,
        ticket.priority,
        ticket.cost,
        ticket.tenant,
        ticket.workload,
        ticket.pool,
        ticket.estimate,
        ticket.deadline,
        ticket.can_preempt,
    )


class GateMachine(RuleBasedStateMachine):
    gate_type: type[CheckedGate] = CheckedRecorder
    policies: dict[str, Callable[[], Policy]] = POLICIES
    capacities: dict[str, Callable[[], Capacity]] = CAPACITIES
    preempting = True

    @initialize(data=st.data(), reserve_after=st.sampled_from((inf, inf, 0.0, 3.0)))
    def open_gate(self, data, reserve_after: float) -> None:
        self.policy_name = data.draw(st.sampled_from(sorted(self.policies)), "policy")
        policy = self.policies[self.policy_name]
        capacity = self.capacities[data.draw(st.sampled_from(sorted(self.capacities)), "capacity")]
        self.fresh = lambda gate_type: gate_type(policy(), capacity(), reserve_after=reserve_after)
        self.gate: Any = self.fresh(self.gate_type)
        self.now = 0.0
        self.tickets: list[Ticket] = []
        self.drawn: dict[object, float] = {}

    def waiting(self) -> list[Ticket]:
        return [ticket for ticket in self.tickets if ticket.state is State.WAITING]

    def do(self, verb: Callable[..., Sequence[Ticket]], *args: Any, step: float = 0.0) -> None:
        punctual = self.gate.due >= self.now + step
        self.now += step
        before = {ticket: ticket.state for ticket in self.tickets}
        verb(*args)
        started = [
            ticket
            for ticket in self.tickets
            if before[ticket] in (State.NEW, State.WAITING) and ticket.started_at < inf
        ]
        self.check_tokens(started)
        if punctual:
            self.check_room([ticket for ticket in started if ticket.state is State.RUNNING])
            self.check_order(started)
            evicted = [
                ticket
                for ticket in self.tickets
                if ticket.state is State.EVICTED and before[ticket] is not State.EVICTED
            ]
            assert len(evicted) <= 1, f"one verb evicted {evicted}"
            for victim in evicted:
                assert any(
                    claim.rank > victim.rank and claim.pool == victim.pool
                    for claim in self.gate._claims
                ), f"{victim!r} was evicted for {list(self.gate._claims)}"

    def check_room(self, started: list[Ticket]) -> None:
        """Counted from the holders: what has just started stands within every limit."""
        holders = list(self.gate.holders)
        for part in parts(self.gate.capacity):
            if started and isinstance(part, Slots | Reserved):
                assert len(holders) <= part.total
            for ticket in started:
                if isinstance(part, Pools):
                    same = sum(holder.pool == ticket.pool for holder in holders)
                    assert same <= part.room()[ticket.pool] + part._used[ticket.pool]
                if isinstance(part, InFlight):
                    costs = [
                        holder.cost for holder in holders if part._key(holder) == part._key(ticket)
                    ]
                    assert sum(costs) <= part.limit or len(costs) == 1

    def check_tokens(self, started: list[Ticket]) -> None:
        """Never more than the burst and what the time brought (and one debt) is drawn, refunds included."""
        for number, part in enumerate(parts(self.gate.capacity)):
            if isinstance(part, TokenBucket):
                touched = set()
                for ticket in started:
                    if part._key(ticket) is None:
                        continue  # without the label it bypasses the limit
                    key = (number, part._key(ticket))
                    self.drawn[key] = self.drawn.get(key, 0.0) + ticket.cost
                    touched.add(key)
                # One verb may start several, in an order of its own: the debt is the last one's, so the sum is judged.
                for key in touched:
                    costs = [t.cost for t in started if (number, part._key(t)) == key]
                    allowed = part.burst + part.rate * self.now + max(0.0, max(costs) - part.burst)
                    assert self.drawn[key] <= allowed + 1e-6, (
                        f"{self.drawn[key]} of {allowed} tokens"
                    )

    def check_order(self, started: list[Ticket]) -> None:
        """Equals start in order of arrival, promotions (which pass reservations) aside; in one line, all do."""
        waiting = self.waiting()
        if "fifo" in self.policy_name and not self.gate.capacity.scoped:
            for ticket in started:
                assert all(ticket.seq < other.seq for other in waiting), (
                    f"{ticket!r} jumped the line"
                )
        for ticket in started:
            if not ticket.promoted:
                for other in waiting:
                    assert other.seq > ticket.seq or sort_of(other) != sort_of(ticket), (
                        f"{ticket!r} started before {other!r}"
                    )

    @rule(specs=st.lists(st.tuples(STEPS, TICKET), min_size=1, max_size=8))
    def offer(self, specs):
        for step, spec in specs:
            ticket = Ticket(len(self.tickets), **spec)
            ticket.wait_until += self.now + step
            ticket.hold_until += self.now + step
            if not self.preempting:
                ticket.can_preempt = ticket.evictable = False
            self.tickets.append(ticket)
            self.do(lambda: self.gate.offer(self.tickets[-1], self.now), step=step)
            assert ticket.state is not State.NEW

    @rule(step=STEPS, specs=st.lists(TICKET, min_size=1, max_size=8))
    def enlist(self, step, specs):
        tickets = [Ticket(len(self.tickets) + place, **spec) for place, spec in enumerate(specs)]
        for ticket in tickets:
            ticket.wait_until += self.now + step
            ticket.hold_until += self.now + step
            if not self.preempting:
                ticket.can_preempt = ticket.evictable = False
        self.tickets += tickets
        self.do(lambda: self.gate.enlist(tickets, self.now), step=step)
        assert all(ticket.state is not State.NEW for ticket in tickets)

    @precondition(lambda self: self.gate.holders)
    @rule(step=STEPS, chosen=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def finish_all(self, step, chosen):
        holders = list(self.gate.holders)
        tickets = [holders[number % len(holders)] for number in chosen]
        self.do(lambda: self.gate.finish_all(tickets, self.now), step=step)

    @precondition(lambda self: self.gate.holders)
    @rule(
        step=STEPS,
        which=st.integers(0, 99),
        outcome=st.sampled_from(Outcome),
        spent=st.sampled_from((None, None, 0.5)),
    )
    def finish(self, step, which, outcome, spent):
        ticket = list(self.gate.holders)[which % len(self.gate.holders)]
        for number, part in enumerate(parts(self.gate.capacity)):
            refunds = spent is not None or outcome is Outcome.LOST
            if isinstance(part, TokenBucket) and refunds and part._key(ticket) is not None:
                # At most; looser, never wrong.
                self.drawn[number, part._key(ticket)] -= ticket.cost
        self.do(lambda: self.gate.finish(ticket, self.now, outcome, spent), step=step)

    @precondition(lambda self: self.tickets)
    @rule(step=STEPS, which=st.integers(0, 99))
    def finish_what_holds_nothing(self, step, which):
        ticket = self.tickets[which % len(self.tickets)]
        if ticket not in self.gate.holders and ticket.state is not State.WAITING:
            late = self.gate.late
            self.do(lambda: self.gate.finish(ticket, self.now), step=step)
            assert self.gate.late == late + 1

    @precondition(lambda self: self.gate.waiting)
    @rule(step=STEPS, chosen=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def withdraw(self, step, chosen):
        waiting = self.waiting()
        tickets = [waiting[number % len(waiting)] for number in chosen]
        self.do(lambda: self.gate.withdraw(tickets, self.now), step=step)

    @precondition(lambda self: self.gate.holders)
    @rule(which=st.integers(0, 99))
    def commit(self, which):
        ticket = list(self.gate.holders)[which % len(self.gate.holders)]
        assert self.gate.commit(ticket) is (ticket.state is State.RUNNING)

    @rule(step=STEPS)
    def advance(self, step):
        self.do(lambda: self.gate.advance(self.now), step=step)

    @precondition(lambda self: self.gate.next_wakeup(self.now) < inf)
    @rule()
    def wake(self):
        step = max(0.0, self.gate.next_wakeup(self.now) - self.now)
        self.do(lambda: self.gate.advance(self.now), step=step)

    @rule(step=STEPS, which=st.integers(0, 99), size=st.integers(0, 99))
    def resize(self, step, which, size):
        found = [part for part in parts(self.gate.capacity) if hasattr(part, "resize")]
        if found:
            part = found[which % len(found)]
            sizes = RESIZE.get(type(part), (0, 1, 2))
            args: tuple[Any, ...] = (sizes[size % len(sizes)],)
            if isinstance(part, Pools):
                args = ("gpu", *args)
            self.do(
                lambda: self.gate.adjust(Change(part.name, "resize", args), self.now), step=step
            )

    @rule(rank=st.sampled_from((-1, 7)))
    def offer_a_class_that_is_not_there(self, rank):
        """Whether it is refused with an error or taken, the gate stands."""
        ticket = Ticket(
            f"bad {len(self.gate.entries)}", rank=rank, tenant="a", workload="x", pool="ocr"
        )
        try:
            self.gate.offer(ticket, self.now)
        except ValueError:
            assert ticket.state is State.NEW
        else:
            self.gate.withdraw([ticket], self.now)
            self.gate.finish(ticket, self.now)

    def teardown(self) -> None:
        if not hasattr(self, "gate"):
            return
        self.let_go()
        told = {ticket.key: verdict(ticket) for ticket in self.gate._numbers}
        again = {"as it was": Gate, "with a punctual timer": Punctual, "with idle looks": Restless}
        if any(name in self.policy_name for name in ("aging", "elders", "ranked", "ratio")):
            # They reorder by themselves: at the ceiling, with age, as scores rise, as ratios grow.  Behind a refusal, a
            # ticket that comes to the head so and fits is seen by the next verb, not by a timer.
            del again["with idle looks"]
        for name, gate_type in again.items():
            assert replayed(self.gate.entries, self.fresh(gate_type)) == told, f"replayed {name}"

    def let_go(self) -> None:
        """Make room for everything: every ticket ends, and nothing is left behind."""
        gate = self.gate
        for part in parts(gate.capacity):
            if isinstance(part, Pools):
                for pool in ("ocr", "gpu"):
                    gate.adjust(Change(part.name, "resize", (pool, 3)), self.now)
            elif hasattr(part, "resize"):
                gate.adjust(Change(part.name, "resize", (5,)), self.now)
        while gate.waiting or gate.holders:
            if gate.holders:
                gate.finish(next(iter(gate.holders)), self.now)
            else:
                wakeup = gate.next_wakeup(self.now)
                assert wakeup < inf, f"{gate.waiting} wait for ever beside an empty capacity"
                self.now = wakeup
                gate.advance(self.now)
        for ticket in self.tickets:
            assert ticket.state not in (State.NEW, State.WAITING, State.RUNNING)


def verdict(ticket: Ticket) -> tuple[object, ...]:
    return ticket.state, ticket.started_at, ticket.reason


def replayed(entries: Sequence[tuple[Any, ...]], gate: Gate) -> dict[object, tuple[object, ...]]:
    tickets: list[Ticket] = []

    def make(**fields: Any) -> Ticket:
        tickets.append(Ticket(**fields))
        return tickets[-1]

    replay(entries, gate, make)
    return {ticket.key: verdict(ticket) for ticket in tickets if ticket.key is not None}


class Punctual(Gate):
    """Has its timer fire at every wake-up, before any later verb."""

    def _arrive(self, now: float, own: Ticket | None = None) -> list[Ticket]:
        changed = []
        while (at := self.next_wakeup(self.now)) < now:
            changed += super()._arrive(at)
            self._settle(self.now, changed)
        return changed + super()._arrive(now, own)


class Restless(Gate):
    """Looks in between, when nothing should happen."""

    def _arrive(self, now: float, own: Ticket | None = None) -> list[Ticket]:
        changed: list[Ticket] = []
        if -inf < self.now < now:
            for at in (self.now, (self.now + now) / 2):
                changed += super()._arrive(at)
                self._settle(self.now, changed)
        return changed + super()._arrive(now, own)
