"""The gate alone: what one ticket costs from offer to finish, without loop, task or future."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from time import process_time

from benchmarks.harness import HEAP, Measure, Table, Target
from benchmarks.shapes import FAIR, NESTED, PLANNER, SHAPES, Shape, classes, plain
from benchmarks.sizes import Sizes
from benchmarks.steady import Expiring, Steady, Withdrawing
from benchmarks.trial import TrialSteady, trial
from benchmarks.trial import shapes as trial_shapes
from fairlead.capacities import Slots, TokenBucket
from fairlead.core import Gate, State, Ticket
from fairlead.policies import FIFO, FairQueue

RUNNING = State.RUNNING
UNIT = "CPU µs per ticket"
# Logarithms and cache misses are allowed for, a walk over what waits is not.
GROWTH = 10.0

TARGETS = (Target("FIFO", 3.0), Target("Aging", 3.0))
# What issue 2 quotes for the trial gate, over a heapq loop, and wants beaten.  The gate itself has other ratios to our
# loop; so if it is at hand it runs beside ours as well.
QUOTED = {
    "Classes (4)": 3.6,
    "Classes (4) + Reserved": 6.0,
    FAIR: 5.0,
    "Classes of FairQueues": 9.0,
}


def tables(sizes: Sizes) -> Iterator[Table]:
    yield contended(sizes, making=False)
    yield contended(sizes, making=True)
    yield uncontended(sizes)
    yield scaling(sizes)
    yield filled_and_drained(sizes)
    yield exhausted_keys(sizes)
    yield preemption(sizes)


def contended(sizes: Sizes, *, making: bool) -> Table:
    cases: dict[str, Measure] = {
        name: Steady(shape, sizes.waiting, sizes.tickets, making=making)
        for name, shape in SHAPES.items()
    }
    for planned in (sizes.planned // 10, sizes.planned):
        name = f"Planner, a sort of {planned}"
        cases[name] = Steady(PLANNER, planned, sizes.tickets // 20, making=making)
    targets: list[Target] = []
    notes: list[str] = []
    if making:
        cases["(making a ticket)"] = lambda: making_tickets(sizes.tickets)
    else:
        targets += [*TARGETS, *(Target(name, quoted, (HEAP,)) for name, quoted in QUOTED.items())]
    if not making and (module := trial()) is not None:
        for name, shape in trial_shapes(module).items():
            theirs = f"the trial gate, {name}"
            cases[theirs] = TrialSteady(module, shape, sizes.waiting, sizes.tickets)
            targets.append(Target(name, 1.0, (theirs,)))
        notes.append(
            "The trial gate is the one whose ratios to a heapq loop are the targets; here it has others, for it was "
            "measured by another loop."
        )
    return Table(
        title=f"Gate, {sizes.waiting:,} waiting{', tickets made as they come' if making else ''}",
        unit=f"{UNIT}, offer to finish, making it {'included' if making else 'excluded'}",
        cases=cases,
        base=HEAP,
        targets=targets,
        notes=notes,
    )


def making_tickets(tickets: int) -> float:
    began = process_time()
    for i in range(tickets):
        plain(i)
    return (process_time() - began) / tickets * 1e6


def uncontended(sizes: Sizes) -> Table:
    def case(shape: Shape) -> Measure:
        def measure() -> float:
            gate = shape.gate()
            tickets = [shape.ticket(i) for i in range(sizes.tickets)]
            offer, finish, step, now = gate.offer, gate.finish, shape.step, 0.0
            began = process_time()
            for ticket in tickets:
                now += step
                offer(ticket, now)
                finish(ticket, now)
            return (process_time() - began) / sizes.tickets * 1e6

        return measure

    names = ("FIFO", "Aging", "Classes (4)", "Classes (4) + Reserved", FAIR, NESTED)
    return Table(
        title="Gate, nobody waits: offer and finish",
        unit=f"{UNIT}, making it excluded",
        cases={name: case(SHAPES[name]) for name in names},
        base=HEAP,
    )


def scaling(sizes: Sizes) -> Table:
    """What a ticket costs as more and more wait.  The targets at the largest size are those of the issue."""
    fewest, most = f"{sizes.scale[0]:,}", f"{sizes.scale[-1]:,}"
    rows: dict[str, Callable[[int], Steady]] = {
        name: lambda n, shape=shape: Steady(shape, n, sizes.tickets)  # type: ignore[misc]
        for name, shape in SHAPES.items()
        if "starved" not in name
    }
    rows["Aging, offer and withdraw"] = lambda n: Withdrawing(SHAPES["Aging"], n, sizes.tickets)
    rows["Aging, offer and expire"] = lambda n: Expiring(SHAPES["Aging"], n, sizes.tickets)
    cases = {f"{row}, {n:,}": make(n) for row, make in rows.items() for n in sizes.scale}

    def done() -> None:
        for case in cases.values():
            case.empty()

    return Table(
        title=f"Gate, {fewest} to {most} waiting",
        unit=f"{UNIT}, offer to finish, making it excluded",
        cases=cases,
        columns=[f"{n:,}" for n in sizes.scale],
        targets=[
            Target(f"FIFO, {most}", 5.0),
            Target(f"Aging, {most}", 5.0),
        ],
        growth=GROWTH,
        done=done,
        notes=["An operation that walked over what waits would grow as the columns do, 10× each."],
    )


def filled_and_drained(sizes: Sizes) -> Table:
    """The whole way from empty to full and back."""
    most = sizes.scale[-1]

    def case(shape: Shape) -> Measure:
        def measure() -> float:
            gate = shape.gate()
            tickets = [shape.ticket(i) for i in range(most)]
            running: deque[Ticket] = deque()
            began = process_time()
            for ticket in tickets:
                gate.offer(ticket, 0.0)
                if ticket.state is RUNNING:
                    running.append(ticket)
            while running:
                running.extend(gate.finish(running.popleft(), 1.0))
            return (process_time() - began) / most * 1e6

        return measure

    return Table(
        title=f"Gate, filled with {most:,} and drained",
        unit=f"{UNIT}, offer to finish, making it excluded",
        cases={name: case(SHAPES[name]) for name in ("FIFO", "Aging")},
        base=HEAP,
        targets=[Target("FIFO", 5.0), Target("Aging", 5.0)],
        at_most=3,
    )


def exhausted_keys(sizes: Sizes) -> Table:
    """Many keys have used up their tokens and wait; what do others notice of it?"""
    few = max(2, sizes.keys // 1000)
    tickets = sizes.tickets // 4

    def crowd(policy: FIFO | FairQueue, keys: int) -> Gate:
        gate = Gate(policy, TokenBucket(1e-6, burst=1.0, by=attrgetter("tenant")))
        for turn in range(2):
            for key in range(keys):
                gate.offer(Ticket((turn, key), tenant=key), 0.0)
        return gate

    def beside(policy: Callable[[], FIFO | FairQueue], keys: int) -> Measure:
        def measure() -> float:
            gate = crowd(policy(), keys)
            made = [Ticket(i, tenant=("other", i)) for i in range(tickets)]
            began = process_time()
            for ticket in made:
                gate.offer(ticket, 1.0)
                gate.finish(ticket, 1.0)
            return (process_time() - began) / tickets * 1e6

        return measure

    def behind(policy: Callable[[], FIFO | FairQueue], keys: int) -> Measure:
        def measure() -> float:
            gate = crowd(policy(), keys)
            made = [Ticket(i, tenant=i % keys) for i in range(tickets)]
            began = process_time()
            for ticket in made:
                gate.offer(ticket, 1.0)
                gate.withdraw((ticket,), 1.0)
            return (process_time() - began) / tickets * 1e6

        return measure

    rows: dict[str, Callable[[int], Measure]] = {
        "FIFO, offer and finish beside them": lambda n: beside(FIFO, n),
        "FIFO, offer behind one of them and withdraw": lambda n: behind(FIFO, n),
        "FairQueue, offer and finish beside them": lambda n: beside(FairQueue, n),
        "FairQueue, offer behind one of them and withdraw": lambda n: behind(FairQueue, n),
    }
    sized = (few, sizes.keys)
    return Table(
        title=f"Gate, {sizes.keys:,} exhausted keys",
        unit=f"{UNIT}, making it excluded",
        cases={f"{row}, {n:,} keys": make(n) for row, make in rows.items() for n in sized},
        columns=[f"{n:,} keys" for n in sized],
        growth=GROWTH,
    )


def preemption(sizes: Sizes) -> Table:
    """Evictions: an important newcomer finds every slot held by something that may be evicted."""

    def filled(holders: int) -> tuple[Gate, list[Ticket]]:
        gate = Gate(classes(), Slots(holders))
        for i in range(holders):
            gate.offer(Ticket(i, evictable=True), 0.0)
        return gate, [Ticket(i, rank=3, can_preempt=True) for i in range(sizes.kills)]

    def one_by_one(holders: int) -> Measure:
        def measure() -> float:
            gate, newcomers = filled(holders)
            began = process_time()
            for ticket in newcomers:
                (victim,) = gate.offer(ticket, 1.0)
                gate.finish(victim, 1.0)
            return (process_time() - began) / sizes.kills * 1e6

        return measure

    def storm(holders: int, kills: int) -> Measure:
        def measure() -> float:
            gate, newcomers = filled(holders)
            began = process_time()
            victims = [victim for ticket in newcomers[:kills] for victim in gate.offer(ticket, 1.0)]
            for victim in victims:
                gate.finish(victim, 1.0)
            return (process_time() - began) / kills * 1e6

        return measure

    few, many = sizes.kills, sizes.holders
    cases = {f"each victim ends at once, {n:,} holders": one_by_one(n) for n in (few, many)}
    calm, wild = (f"{n:,} kills before a victim ends" for n in (sizes.kills // 10, sizes.kills))
    cases |= {calm: storm(many, sizes.kills // 10), wild: storm(many, sizes.kills)}
    least, most = list(cases)[:2]
    return Table(
        title=f"Gate, preemption with {many:,} holders",
        unit="CPU µs per kill: the offer, the eviction, the victim's finish, the start",
        cases=cases,
        base=HEAP,
        targets=[Target(most, 3.0, (least,)), Target(wild, 3.0, (calm,))],
    )
