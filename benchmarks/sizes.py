"""How much each suite does: a real run, and a smoke run that only shows that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    tasks: int = 100_000  # per case of the tasks suite
    slow_tasks: int = 20_000  # the same, for the slowest peers
    free: int = 50_000  # units of work that find a free slot
    tickets: int = 20_000  # through the gate, per case and round
    waiting: int = 1_000
    planned: int = 100  # tickets a planner sorts each time
    scale: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    keys: int = 10_000  # exhausted, beside one offer
    holders: int = 10_000  # that may be evicted
    kills: int = 1_000
    memory: int = 1_000_000  # units of work that wait
    load: float = 1.0  # seconds that a server is under load, per case and round
    storm: float = 5.0  # seconds of overload
    jobs: int = 10_000  # stored and drained, a tenth for the slowest peers
    stored: int = 1_000_000  # ready jobs that a service finds when it starts
    records: int = 480_000  # of a stream
    simulated: int = 100_000  # tickets of a simulation
    plot: str = "docs/gateway-overload.svg"  # drawn by the overload, if named


FULL = Sizes()
QUICK = Sizes(
    tasks=5_000,
    slow_tasks=1_000,
    free=5_000,
    tickets=2_000,
    scale=(1_000, 10_000),
    keys=1_000,
    holders=1_000,
    kills=200,
    memory=100_000,
    load=0.3,
    storm=1.5,
    jobs=1_000,
    stored=20_000,
    records=40_000,
    simulated=10_000,
    plot="",
)
