"""A stream storm: members of one group under load, someone who does them harm, an onlooker, and the verdict."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests import sizes
from tests.jobs.chaos.nursery import Child, Nursery
from tests.streams.chaos.checker import Figures, check
from tests.streams.chaos.ledger import KILLED, NOTE, SEEN, Ledger, Line, read
from tests.streams.mock_cluster import OFFSET_COMMIT, MockCluster
from tests.streams.test_kafka_port import REAL, RealCluster

TIMES = 10 * sizes.TIMES if sizes.FULL else 0.5  # ten storms are the size that was promised
SESSION = 6.0 if REAL else 2.0  # the mock needs it less a second for a rebalance
POLL_INTERVAL = SESSION + 1.0
KEYS = 7
PATIENCE = 45.0  # seconds without anything being committed; nobody is harmed any more
LOOK = 0.1  # seconds between two looks of the onlooker
# Errors that a commit may meet: in a rebalance, coordinator away or loading, too slow, member or generation unknown.
COMMIT_ERRORS = (27, 14, 15, 16, 7, 22, 25)


class Storm:
    """The members of one group, and what happens to them."""

    def __init__(
        self,
        folder: Path,
        cluster: MockCluster | RealCluster,
        *,
        partitions: int = 8,  # of each of the two topics
        batch_size: int = 20,
        work: tuple[float, float] = (0.02, 0.2),
        concurrency: int = 4,
        kafka: dict[str, Any] | None = None,
        seed: int | None = None,
        scheduler: str = "gate",
        second_group: str = "default",
        unlucky: float = 0.01,
        commit_interval: str = "300ms",
        options: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.cluster = cluster
        self.seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
        self.random = Random(self.seed)
        self.ledger = Ledger(folder / "ledger")
        self.deeds: Counter[str] = Counter()
        self.topics = [cluster.fresh(partitions), cluster.fresh(partitions)]
        self.places = [
            TopicPartition(topic, number) for topic in self.topics for number in range(partitions)
        ]
        self.written = dict.fromkeys(map(self.name, self.places), 0)
        limits = {"max.poll.interval.ms": int(POLL_INTERVAL * 1000)}
        if (kafka or {}).get("group.protocol") != "consumer":  # there the broker says how long
            limits["session.timeout.ms"] = int(SESSION * 1000)
        self.settings: dict[str, Any] = {
            "bootstrap": cluster.bootstrap,
            "group": f"storm-{os.getpid()}-{time.time_ns()}",
            "kafka": {**limits, **(kafka or {})},
            "ledger": str(folder / "ledger"),
            "ordered": self.topics[0],
            "keyed": self.topics[1],
            "batch_size": batch_size,
            "work": work,
            "unlucky": unlucky,
            "stall": 0.0,
            "stall_after": 0.0,
            "broken": "",
            "scheduler": scheduler,
            "second_group": second_group,
            "concurrency": concurrency,
            "commit_interval": commit_interval,
            "options": options or {},
        }
        self.nursery = Nursery(folder, "tests.streams.chaos.roles")
        self.stored: dict[str, int] = {}
        self._over = threading.Event()
        self._helpers: list[threading.Thread] = []
        self._trouble: list[str] = []

    @staticmethod
    def name(place: TopicPartition) -> str:
        return f"{place.topic}:{place.partition}"

    # Helpers: who writes records, and who looks at what is stored

    def _help(self, deed: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                deed()
            except BaseException as error:
                self._trouble.append(f"{deed}: {error!r}")

        self._helpers.append(threading.Thread(target=guarded, daemon=True))
        self._helpers[-1].start()

    def load(self, records: int, over: float) -> None:
        """Have records written: a half at once, the others evenly over so many seconds."""
        each = records // len(self.places)
        chunk = max(1, each // 100)
        self._write(each // 2)
        left = each - each // 2

        def write() -> None:
            nonlocal left
            while left and not self._over.wait(over * chunk / (each / 2)):
                now = min(chunk, left)
                self._write(now)
                left -= now

        self._help(write)

    def _write(self, each: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "enable.idempotence": True,
                "log.connection.close": False,
                "log_level": 0,
            }
        )
        for place in self.places:
            name = self.name(place)
            for number in range(self.written[name], self.written[name] + each):
                producer.produce(
                    place.topic,
                    b"%0100d" % number,
                    key=b"%d" % (number % KEYS),
                    partition=place.partition,
                )
            self.written[name] += each
        assert producer.flush(60) == 0, "records could not be written"

    def watch(self) -> None:
        """Have somebody look, again and again, at what the broker stores."""

        def look() -> None:
            while not self._over.wait(LOOK):
                self.look()

        self._help(look)

    def look(self) -> None:
        """Write down what is stored, where that has changed."""
        try:
            answers = self._onlooker.committed(self.places, timeout=5)
        except KafkaException:
            return  # its broker is away
        found = {self.name(one): one.offset for one in answers if one.error is None}
        fresh = {
            at: offset
            for at, offset in found.items()
            if offset >= 0 and self.stored.get(at) != offset
        }
        if fresh:
            self.ledger.write(SEEN, offsets=fresh)
            self.stored.update(fresh)

    # Members

    def start(self, **changed: Any) -> Child:
        seed = self.random.randrange(1 << 30)
        return self.nursery.start("member", {**self.settings, "seed": seed, **changed})

    @property
    def members(self) -> list[Child]:
        return list(self.nursery.children.values())

    def any(self) -> Child:
        return self.random.choice(self.members)

    def kill(self) -> None:
        """Kill a member; another comes."""
        victim = self.any()
        self.nursery.kill(victim)
        self.ledger.write(KILLED, victim=victim.pid)
        self.deeds["kill"] += 1
        self.start()

    def leave(self) -> None:
        """Let a member leave as it should; another comes, before or after."""
        member = self.any()
        first = self.random.random() < 0.5
        if first:
            self.start()
        self.let_go(member)
        self.deeds["leave"] += 1
        if not first:
            self.start()

    def let_go(self, member: Child) -> None:
        self.nursery.signal(member, signal.SIGTERM)
        code = self.nursery.bury(member)
        assert code == 0, f"a member left with {code}:\n{member.log.read_text()[-3000:]}"

    def stall(self) -> None:
        """Bring a member whose call takes so long that the group expels it; for it, another one goes."""
        self.start(stall=POLL_INTERVAL + 2.5, stall_after=SESSION)
        self.let_go(self.members[0])
        self.deeds["stall"] += 1

    def drop_a_broker(self) -> None:
        """A broker goes, and comes back."""
        if isinstance(self.cluster, MockCluster):
            broker = self.random.randint(1, self.cluster.brokers)
            self.ledger.write(NOTE, text=f"broker {broker} is down")
            self.cluster.down(broker)
            self._over.wait(self.random.uniform(0.1, 1.5))
            self.cluster.up(broker)
            self.deeds["broker"] += 1

    def refuse_commits(self) -> None:
        """The next commits, whosever, are answered with errors."""
        if isinstance(self.cluster, MockCluster):
            codes = [self.random.choice(COMMIT_ERRORS) for _ in range(self.random.randint(1, 6))]
            self.cluster.errors(OFFSET_COMMIT, codes)
            self.deeds["refusals"] += len(codes)

    def check(self) -> None:
        """See that nobody ended who was not told to."""
        for child in self.members:
            code = self.nursery.gone(child)
            assert code is None, f"a member ended with {code}:\n{child.log.read_text()[-3000:]}"
        assert not self._trouble, self._trouble

    # The storm, the calm and the verdict

    def rage(self, deeds: dict[str, int], least: float, most: float) -> None:
        """Do all these things, so many times each, in any order."""
        order = [deed for deed, times in deeds.items() for _ in range(times)]
        self.random.shuffle(order)
        for deed in order:
            self._over.wait(self.random.uniform(least, most))
            self.check()
            getattr(self, deed)()

    def calm(self) -> None:
        """Let everything be committed, and everybody go."""
        writer = self._helpers[0]
        lag, by = -1, time.monotonic() + PATIENCE
        while writer.is_alive() or self.stored != self.written:
            self.check()
            if (now := sum(self.lag().values())) != lag:
                lag, by = now, time.monotonic() + PATIENCE
            assert time.monotonic() < by, f"stuck: {self.lag()} are not committed; {self.story()}"
            self._over.wait(0.05)
        self.leave_all()

    def leave_all(self) -> None:
        for member in self.members:
            self.nursery.signal(member, signal.SIGTERM)
        for member in self.members:
            code = self.nursery.bury(member)
            assert code == 0, f"a member left with {code}:\n{member.log.read_text()[-3000:]}"
        self.look()

    def wait(self, happened: Callable[[], object], patience: float = PATIENCE) -> None:
        by = time.monotonic() + patience
        while not happened():
            self.check()
            assert time.monotonic() < by, f"it never happened; {self.story()}"
            self._over.wait(0.1)

    def lag(self) -> dict[str, int]:
        return {
            at: number - self.stored.get(at, 0)
            for at, number in self.written.items()
            if self.stored.get(at, 0) != number
        }

    @property
    def lines(self) -> list[Line]:
        return read(self.folder / "ledger")

    def complaints(self) -> tuple[list[str], Figures]:
        return check(self.lines, self.written, self.stored)

    def judge(self) -> Figures:
        """Raise what is wrong; gives what the storm was like."""
        complaints, figures = self.complaints()
        assert not complaints, "\n".join([f"{len(complaints)}", *complaints[:20], self.story()])
        return figures

    def story(self) -> str:
        return f"seed {self.seed}, {dict(self.deeds)}, in {self.folder}"

    def __enter__(self) -> "Storm":
        settings = {"bootstrap.servers": self.cluster.bootstrap, "group.id": self.settings["group"]}
        self._onlooker = Consumer({**settings, "log_level": 0})
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for helper in self._helpers:
            helper.join(10)
        self._onlooker.close()
        self.nursery.close()
        self.ledger.close()


@contextmanager
def storm(folder: Path, brokers: int = 3, **options: Any) -> Iterator[Storm]:
    """A storm on a cluster of its own, or on the one that FAIRLEAD_TEST_KAFKA names."""
    cluster = RealCluster(REAL) if REAL else MockCluster(brokers)
    try:
        with Storm(folder, cluster, **options) as one:
            yield one
    finally:
        cluster.close()
