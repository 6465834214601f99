"""Durable jobs beside durable queues: draining and enqueueing no-op jobs, DAGs, and a database that is full.

Every case runs in a process of its own, on a PostgreSQL that the suite starts with its defaults (fsync and synchronous
commit on), or on a SQLite file.  Peers promise what they promise by default.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gateway_kept import Kept
from benchmarks.harness import Measure, Table, Target
from benchmarks.jobs_engine import Engine, installed
from benchmarks.jobs_fairlead import BYTES, FILL, GRAPH_NODES, SLOTS, SQLITE, START
from benchmarks.jobs_floors import NODE
from benchmarks.jobs_meter import CLIENT, DRAIN, ENQUEUE, STEADY
from benchmarks.jobs_run import measured
from benchmarks.sizes import Sizes

ROUNDS = 5

FLOOR = "asyncpg, claim and complete 100 at a time (floor)"
COPY = "asyncpg, COPY of the smallest row (floor)"
PAIRS = "asyncpg, INSERT of the smallest run and job (floor)"
PGQUEUER = "PgQueuer, batches of 100, 200 at once"
PGQUEUER_FREE = "PgQueuer, batches of 100, no limit"
PROCRASTINATE = "Procrastinate"
HUEY = "huey"
RUNS = "fairlead, runs of one job"
NODES = "fairlead, jobs of one wide DAG"
STORE = "fairlead, a thousand jobs per submission"

LAYERS = f"fairlead, {GRAPH_NODES:,} nodes in 10 layers"
RANDOM = f"fairlead, {GRAPH_NODES:,} nodes at random"
CHAIN = "fairlead, a chain of 100"
FLOOR_LAYERS = f"asyncpg, {GRAPH_NODES:,} nodes in 10 layers (floor)"
FULL_POSTGRES, FULL_SQLITE = "fairlead, PostgreSQL", "fairlead, SQLite"
FLOOR_RANDOM = f"asyncpg, {GRAPH_NODES:,} nodes at random (floor)"

Plans = Mapping[str, tuple[str, int]]  # a case by its name: what is measured, with how many jobs


def tables(sizes: Sizes) -> Iterator[Table]:
    if installed():
        engine = Engine()
        try:
            yield from draining(sizes, engine)
            yield graphs(sizes, engine)
            yield from full(sizes, engine)
        finally:
            engine.close()
    yield from embedded(sizes)


def draining(sizes: Sizes, engine: Engine) -> Iterator[Table]:
    """Drain; and from the same runs enqueueing, and what client and server worked."""
    many, few = sizes.jobs, max(sizes.jobs // 10, 10)
    plans = {
        FLOOR: ("floor", many),
        PGQUEUER: ("pgqueuer", many),
        PGQUEUER_FREE: ("pgqueuer-unlimited", many),
        PROCRASTINATE: ("procrastinate", few),
        RUNS: ("runs", many),
        NODES: ("nodes", many),
    }
    notes = [
        "Twice the rate is 0.5× the time, 0.4× the rate is 2.5× the time. "
        f"{many:,} jobs are stored first ({few:,} for Procrastinate), then one process drains them. PgQueuer runs "
        f"at once the fewest that it takes with its batch, or any number; Procrastinate 16, fairlead {SLOTS}. "
        "fairlead's end is a look into the database, the others' the last function."
    ]
    for package, peers in (
        ("pgqueuer", (PGQUEUER, PGQUEUER_FREE)),
        ("procrastinate", (PROCRASTINATE,)),
    ):
        if find_spec(package) is None:
            notes.append(f"{package} is not installed: left out.")
            for peer in peers:
                del plans[peer]
    kept = Kept()
    yield drained(engine, plans, kept, notes)
    yield drained_whole(plans, kept)
    yield enqueued(engine, plans, kept, many)
    yield worked(plans, kept)


def drained(engine: Engine, plans: Plans, kept: Kept, notes: Sequence[str]) -> Table:
    """The drain itself; what else its runs bring is kept."""

    def drain(name: str) -> float:
        case, jobs = plans[name]
        before = engine.cpu()
        figures = measured(case, engine.url(), jobs)
        kept.note(f"whole {name}", figures[DRAIN])
        kept.note(f"enqueue {name}", figures[ENQUEUE])
        kept.note(f"client {name}", figures[CLIENT])
        kept.note(f"server {name}", (engine.cpu() - before) / jobs * 1e6)
        return figures[STEADY]

    return Table(
        title="Jobs: drain of no-op jobs, PostgreSQL",
        unit="µs per job on the wall, from the first job's run to the last end",
        cases={name: partial(drain, name) for name in plans},
        base=FLOOR,
        targets=[
            Target(name, limit, (peer,))
            for peer, limit in ((FLOOR, 2.5), (PGQUEUER, 0.5), (PROCRASTINATE, 0.05))
            for name in (RUNS, NODES)
            if peer in plans
        ],
        notes=notes,
        at_most=ROUNDS,
    )


def drained_whole(plans: Plans, kept: Kept) -> Table:
    """The drain, and what a worker does before it."""
    return Table(
        title="Jobs: the same drain with the start of the worker, PostgreSQL",
        unit="µs per job on the wall, from starting the worker to the last end",
        cases={name: kept.again(f"whole {name}") for name in plans},
        base=FLOOR,
        notes=["In the runs of the table above, with what a worker does before its first job."],
        at_most=ROUNDS,
    )


def enqueued(engine: Engine, plans: Plans, kept: Kept, many: int) -> Table:
    """Enqueueing, beside the smallest rows that could be stored."""
    batched = [name for name in plans if name not in (NODES, PGQUEUER_FREE)]
    cases: dict[str, Measure] = {name: kept.again(f"enqueue {name}") for name in batched}
    for name, case in {STORE: "store", COPY: "floor-copy", PAIRS: "floor-pairs"}.items():
        cases[name] = partial(lambda case: measured(case, engine.url(), many)[ENQUEUE], case)
    return Table(
        title="Jobs: enqueue in batches of 1,000, PostgreSQL",
        unit="µs per job on the wall",
        cases=cases,
        base=FLOOR,
        targets=[Target(name, 0.5, (PGQUEUER,)) for name in (RUNS, STORE) if PGQUEUER in plans],
        notes=[
            "In the runs of the table above. A thousand runs of one job each go by one `submit_all`, a DAG of "
            "a thousand jobs by one `submit`; they were built before, as were the lists of the others. Everybody has "
            "stored one job before. The smallest row is a number, a state and a payload, with one index; of runs of "
            "one job there are two rows, and an index of those that are open."
        ],
        at_most=ROUNDS,
    )


def worked(plans: Plans, kept: Kept) -> Table:
    """What client and server worked."""
    return Table(
        title="Jobs: CPU per job, PostgreSQL",
        unit="CPU µs per job, in the runs of the first table",
        cases={
            f"{name}: {side}": kept.again(f"{side} {name}")
            for name in plans
            for side in ("client", "server")
        },
        notes=["The client's is of draining, the server's of enqueueing and draining."],
        at_most=ROUNDS,
    )


def graphs(sizes: Sizes, engine: Engine) -> Table:
    """DAGs of no-op nodes, from submission to the outcome."""
    plans = {
        FLOOR_LAYERS: "floor-layers",
        FLOOR_RANDOM: "floor-random",
        LAYERS: "layers",
        RANDOM: "random",
        CHAIN: "chain",
    }
    times = 1 if sizes.jobs < 1_000 else 3

    def graph(case: str) -> float:
        return measured(case, engine.url(), times)[NODE]

    return Table(
        title="Jobs: a DAG of no-op nodes, durable on PostgreSQL",
        unit="µs per node on the wall, from submission to the outcome",
        cases={name: partial(graph, case) for name, case in plans.items()},
        base=FLOOR_LAYERS,
        targets=[Target(LAYERS, 300.0), Target(RANDOM, 300.0)],
        notes=[
            "10 layers of 100 nodes, each with three dependencies in the layer before; or one to three among the "
            "hundred before it, which makes it deep; in the chain every node costs two commits by itself. "
            "Elsewhere on such a machine, per node in layers: DBOS 5,100, Ray 4,100, Dask's threads (not durable) 100."
        ],
        at_most=ROUNDS,
    )


def full(sizes: Sizes, engine: Engine) -> Iterator[Table]:
    """A service that starts on a database full of ready jobs."""
    kept = Kept()
    ours, file = FULL_POSTGRES, FULL_SQLITE

    def started(name: str, url: str) -> float:
        kept.note(f"fill {name}", measured("fill", url, sizes.stored)[FILL])
        figures = measured("start", url, sizes.stored)
        kept.note(f"bytes {name}", figures[BYTES])
        return figures[START]

    def on_file() -> float:
        with tempfile.TemporaryDirectory() as folder:
            return started(file, f"sqlite:///{Path(folder, 'jobs.db')}")

    yield Table(
        title="Jobs: start-up on a full database",
        unit="seconds from starting the service to its first job",
        cases={ours: lambda: started(ours, engine.url()), file: on_file},
        targets=[Target(ours, 10.0), Target(file, 10.0)],
        notes=[f"{sizes.stored:,} ready jobs. One round: it takes minutes to fill."],
        at_most=1,
    )
    yield Table(
        title="Jobs: memory of ready jobs",
        unit="bytes per ready job, all of the process, in the runs of the table above",
        cases={name: kept.again(f"bytes {name}") for name in (ours, file)},
        targets=[Target(name, 1024.0) for name in (ours, file)],
        at_most=1,
    )


def embedded(sizes: Sizes) -> Iterator[Table]:
    """SQLite."""
    plans = {RUNS: ("runs", sizes.jobs), NODES: ("nodes", sizes.jobs)}
    notes = []
    if find_spec("huey") is None:
        notes.append("huey is not installed: left out.")
    else:
        plans[HUEY] = ("huey", max(sizes.jobs // 5, 10))
    targets = [Target(name, 100.0) for name in (RUNS, NODES)]
    if HUEY in plans:
        targets += [Target(name, 0.2, (HUEY,)) for name in (RUNS, NODES)]

    def drain(case: str, jobs: int) -> float:
        return measured(case, SQLITE, jobs)[DRAIN]

    yield Table(
        title="Jobs: drain of no-op jobs, SQLite",
        unit="µs per job on the wall, from starting the worker to the last end",
        cases={name: partial(drain, case, jobs) for name, (case, jobs) in plans.items()},
        base=HUEY if HUEY in plans else "",
        targets=targets,
        notes=[
            "10,000 jobs a second are 100 µs each, 5× the rate is 0.2× the time. huey deletes a job when it is taken "
            "and so loses it if the process dies; it stores no results here.",
            *notes,
        ],
        at_most=ROUNDS,
    )
