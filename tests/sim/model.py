"""What the simulator is measured by: a queue with servers, written as simply as can be, and books that balance."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from fairlead.sim import Arrival, Result, Scenario, read_policy, simulate

# Times on a grid of powers of two, so that sums are exact; many instants are shared.
TIMES = st.integers(0, 80).map(lambda n: n / 8)
SERVICES = st.integers(0, 40).map(lambda n: n / 8)
# No two events at one instant: the order of a real loop is then the order of time.
FINE = st.floats(0.001, 10, allow_nan=False)


def arrivals(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Arrival]]:
    """Some arrivals in order of time."""
    one = st.builds(Arrival, at=TIMES, service=SERVICES, **fields)
    return st.lists(one, max_size=30).map(lambda many: sorted(many, key=lambda each: each.at))


def run(given: Sequence[Arrival], policy: Any, **options: Any) -> Result:
    return simulate(Scenario.of(given, **options), read_policy(policy), 0)


def served(
    given: Sequence[Arrival], servers: int, rank: Callable[[int, Arrival], Any]
) -> list[tuple[float, float]]:
    """When each starts and ends: at every instant free servers take whoever ranks first of those who wait."""
    times: dict[int, tuple[float, float]] = {}
    instants = sorted({arrival.at for arrival in given})
    while instants:
        now = instants.pop(0)
        # One at a time, as the gate is asked: whoever comes finds the servers that are free by then.
        for newcomer in [-1, *(n for n, arrival in enumerate(given) if arrival.at == now)]:
            while True:
                busy = sum(start <= now < end for start, end in times.values())
                waiting = [
                    number
                    for number, arrival in enumerate(given)
                    if number not in times
                    and (arrival.at < now or (arrival.at == now and number <= newcomer))
                ]
                if not waiting or busy >= servers:
                    break
                number = min(waiting, key=lambda number: rank(number, given[number]))
                times[number] = (now, now + given[number].service)
                instants = sorted({*instants, times[number][1]} - {now})
    return [times[number] for number in range(len(given))]


def balanced(result: Result) -> None:
    """See that every ticket has come to exactly one end, and that no instant has more at work than there are slots."""
    totals = result.totals
    ends = "done refused expired evicted withdrawn waiting running".split()
    assert totals["arrived"] == len(result.tickets) == sum(totals[end] for end in ends)
    for row in result.tickets:
        if row.state == "done":
            assert row.started is not None
            assert row.ended is not None
            assert row.at <= row.started <= row.ended
        if row.state in ("refused", "expired", "withdrawn"):
            assert row.started is None, row
    if result.slots is not None:
        changes = []
        for row in result.tickets:
            if row.started is not None and row.ended is not None and row.ended > row.started:
                changes += [(row.started, 1), (row.ended, -1)]
        level = 0
        for _, change in sorted(changes):
            level += change
            assert level <= result.slots


def conserves_work(result: Result, servers: int) -> None:
    """See that nobody waits while a server is free."""
    spans = [
        (row.started, row.ended)
        for row in result.tickets
        if row.started is not None and row.ended is not None
    ]
    for row in result.tickets:
        if row.started is None or row.started == row.at:
            continue
        # Busy in the middle of each stretch between two events, for as long as it waits.
        edges = sorted({t for span in spans for t in span if row.at <= t <= row.started})
        for before, after in zip([row.at, *edges], [*edges, row.started], strict=True):
            if before < after:
                middle = (before + after) / 2
                assert sum(start <= middle < end for start, end in spans) >= servers, row
