"""Streams beside Kafka clients and frameworks: draining records of 100 bytes, what scheduling costs, and disturbances.

The broker is librdkafka's mock cluster in a child process, on real sockets; it serves every case alike and is no
measure of a real one.  Each case is a process of its own and the only member of a new group.  The clock starts with
the first records it is given, so that joining the group does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec

from benchmarks.gateway_kept import Kept, Shared
from benchmarks.harness import Measure, Table, Target
from benchmarks.sizes import Sizes
from benchmarks.streams_faults import EARLY, LATE, P99
from benchmarks.streams_meter import CPU, WALL
from benchmarks.streams_run import QUIX, measured, quix_is_here
from benchmarks.streams_scheduling import CONCURRENCY, PARTITIONS, TOPICS, cost
from benchmarks.streams_zoo import BASES, BATCH, WORK, ZOO

ROUNDS = 5
SPREAD = 16  # partitions of the topic that is drained
HELD = 1000  # partitions of the topic that is held

RAW = "confluent-kafka, consume(100)"
AIOKAFKA = "aiokafka, getmany to a coroutine"
FASTSTREAM = "FastStream, batches"
FASTSTREAM_ONE = "FastStream, one message a call"
QUIXSTREAMS = "QuixStreams"
OURS = "fairlead, async batches"
THREADS = "fairlead, batches on threads"
FAIR = "fairlead, FairByTopic"
ONE = "fairlead, OneAtATime"
PLANS = {
    RAW: "raw",
    AIOKAFKA: "aiokafka",
    FASTSTREAM: "faststream-batch",
    FASTSTREAM_ONE: "faststream",
    QUIXSTREAMS: "quixstreams",
    OURS: "loop",
    THREADS: "threads",
    FAIR: "FairByTopic",
    ONE: "OneAtATime",
}
GATE = "built-in"
SCHEDULING = {GATE: "gate", "FairByTopic": "FairByTopic", "OneAtATime": "OneAtATime"}
ALONE, FLOODED = "alone", "under a flood of a less urgent topic"
HELD_EARLY, HELD_LATE = "after a fifth of the records", "after all of them"


def tables(sizes: Sizes) -> Iterator[Table]:
    yield scheduling(sizes)
    if find_spec("confluent_kafka") is None:
        return
    from benchmarks.streams_cluster import Cluster

    with Cluster() as cluster:
        topic = cluster.filled(SPREAD, sizes.records)
        yield from draining(sizes, cluster.servers, topic)
        yield looking(sizes, cluster.servers, topic)
        yield bad_schedulers(sizes, cluster.servers, topic, cluster.filled(2, 2000))
        yield flooded(sizes, cluster.servers, cluster, topic)
    with Cluster() as cluster:
        yield held(sizes, cluster.servers, cluster.filled(HELD, sizes.records))


def draining(sizes: Sizes, servers: str, topic: str) -> Iterator[Table]:
    """Handlers that do nothing; on the wall, and the CPU of the same runs."""
    plans = dict(PLANS)
    notes = []
    for peer, package in ((AIOKAFKA, "aiokafka"), (FASTSTREAM, "faststream")):
        if find_spec(package) is None:
            notes.append(f"{package} is not installed: left out.")
            plans = {name: case for name, case in plans.items() if peer.split(",")[0] not in name}
    if not quix_is_here():
        notes.append(f"{QUIX} could not be installed: left out.")
        del plans[QUIXSTREAMS]
    kept = Kept()

    def drain(name: str) -> float:
        few = name in (FASTSTREAM, FASTSTREAM_ONE, QUIXSTREAMS)
        records = sizes.records // 8 if few else sizes.records
        figures = measured(plans[name], servers, topic, records)
        kept.note(name, figures[CPU])
        return figures[WALL]

    def targets(names: tuple[str, ...]) -> list[Target]:
        found = [Target(name, 2.0, (RAW,)) for name in names]
        for peer, limit in (
            (AIOKAFKA, 1 / 1.5),
            (FASTSTREAM, 0.25),
            (FASTSTREAM_ONE, 0.25),
            (QUIXSTREAMS, 0.25),
        ):
            found += [Target(name, limit, (peer,)) for name in names if peer in plans]
        return found

    yield Table(
        title="Streams: draining records of 100 bytes, handlers that do nothing",
        unit="µs per record on the wall, from the first to the last",
        cases={name: partial(drain, name) for name in plans},
        base=RAW,
        targets=targets((OURS, THREADS)),
        notes=[
            "Half the rate is 2× the time, 1.5× the rate 0.667×, 4× the rate 0.25×. "
            f"{sizes.records:,} records in {SPREAD} partitions, an eighth of them for FastStream and QuixStreams. "
            "fairlead as it is by default: 500 records a call at most, eight calls at once, scheduled, committed only "
            "when finished. confluent-kafka and aiokafka commit what they handed out, every five seconds. FastStream "
            "and aiokafka read up to 1,000 at a time. QuixStreams has a call per record and no other; it lives in an "
            "environment of its own, with an older client library.",
            *notes,
        ],
        at_most=ROUNDS,
    )
    yield Table(
        title="Streams: CPU of the same drains",
        unit="CPU µs per record of the whole process, threads of the client library included",
        cases={name: kept.again(name) for name in plans},
        base=RAW,
        at_most=ROUNDS,
    )


def looking(sizes: Sizes, servers: str, topic: str) -> Table:
    """Handlers that look at every value."""

    def drain(case: str) -> float:
        return measured(case, servers, topic, sizes.records, look=True)[WALL]

    names = [RAW, OURS, THREADS]
    if find_spec("aiokafka") is not None:
        names.insert(1, AIOKAFKA)
    return Table(
        title="Streams: the same with handlers that look at every value",
        unit="µs per record on the wall, from the first to the last",
        cases={name: partial(drain, PLANS[name]) for name in names},
        base=RAW,
        notes=["A record becomes an object of ours when a handler looks at it, not before."],
        at_most=ROUNDS,
    )


def scheduling(sizes: Sizes) -> Table:
    """Scheduler and queue alone."""
    rounds = max(20, sizes.tickets // 40)
    return Table(
        title="Streams: what scheduling costs",
        unit="CPU µs per batch",
        cases={name: partial(cost, case, rounds) for name, case in SCHEDULING.items()},
        targets=[Target(name, 30.0) for name in SCHEDULING],
        notes=[
            f"{TOPICS} topics of {PARTITIONS} partitions with a batch each, {CONCURRENCY} workers that do nothing: a "
            "batch is given, scheduled, started and ended, and the scheduler is asked again. Broker, threads and "
            "handlers are not in it."
        ],
    )


def bad_schedulers(sizes: Sizes, servers: str, good: str, bad: str) -> Table:
    """One group, while the scheduler is bad to another."""
    records = sizes.records * 5 // 12

    failed: dict[str, str] = {}

    def side_by_side(number: int) -> dict[str, float]:
        """All at the same time, so that whatever else the machine does hits all alike."""
        paces = {}
        with ThreadPoolExecutor(len(ZOO)) as pool:
            runs = {
                name: pool.submit(measured, f"zoo-{name}", servers, f"{good},{bad}", records)
                for name in ZOO
            }
        for name, run in runs.items():
            if (error := run.exception()) is None:
                paces[name] = run.result()[WALL]
            else:
                failed[name] = str(error)
        return paces

    shared = Shared(side_by_side)

    def case(name: str) -> Measure:
        pace = shared.figure(name)

        def told() -> float:
            try:
                return pace()
            except KeyError:
                raise RuntimeError(failed[name]) from None

        return told

    return Table(
        title="Streams: a group whose scheduler is bad to another group",
        unit="µs per record of the good group on the wall",
        cases={name: case(name) for name in ZOO},
        base=next(iter(ZOO)),
        targets=[Target(name, 1 / 0.95, (base,)) for name, base in BASES.items()],
        notes=[
            f"95 % of the rate is 1.053× the time. {records:,} records, in calls of {BATCH} that take "
            f"{WORK * 1000:.0f} ms, one at a time, as they come: about 20 s. All cases run at the same time, each in a "
            "process of its own. The bad group is a listener of the same process and a member of the same Kafka group. "
            "Meanwhile it is ticked, has a dead letter and reaches the end; in those compared to RightVisited somebody "
            "joins the Kafka group, takes a partition of it, and leaves. Each scheduler was bad in every method it is "
            "there for, or the run would have failed. Those that hang do so once, for good, in the midst of the run.",
        ],
    )


def flooded(sizes: Sizes, servers: str, cluster: object, low: str) -> Table:
    """The latency of an urgent topic."""
    from benchmarks.streams_cluster import Cluster

    assert isinstance(cluster, Cluster)
    empty = cluster.topic(4)
    records = max(50, int(sizes.storm * 200))

    def p99(flood: bool) -> float:
        # A new one each time: the group is new, and would read what was written before.
        topics = f"{cluster.topic(4)},{low if flood else empty}"
        return measured("urgent", servers, topics, records)[P99]

    return Table(
        title="Streams: p99 of an urgent topic, from writing a record to its end",
        unit="ms",
        cases={ALONE: partial(p99, False), FLOODED: partial(p99, True)},
        base=ALONE,
        targets=[Target(FLOODED, 1.5, (ALONE,))],
        notes=[
            "Every call takes 10 ms; eight at once. About 200 urgent records a second. Up to 100 ms are the mock "
            "cluster's, which answers a fetch that finds nothing only when its time is up."
        ],
        at_most=3,
    )


def held(sizes: Sizes, servers: str, topic: str) -> Table:
    """Memory while very many partitions are held."""
    kept = Kept()

    def early() -> float:
        figures = measured("hold", servers, topic, sizes.records)
        kept.note(LATE, figures[LATE])
        return figures[EARLY]

    return Table(
        title=f"Streams: memory of a process that holds {HELD:,} partitions",
        unit="MB, the whole process",
        cases={HELD_EARLY: early, HELD_LATE: kept.again(LATE)},
        base=HELD_EARLY,
        targets=[Target(HELD_LATE, 1.1, (HELD_EARLY,))],
        notes=[f"{sizes.records:,} records in all."],
        at_most=1,
    )
