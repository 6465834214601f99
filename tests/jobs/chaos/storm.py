"""A storm: processes that submit, schedule and work, someone who kills them, and the verdict when it is quiet again."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.jobs.chaos.audit import Audit, PostgresAudit, SqliteAudit
from tests.jobs.chaos.checker import Rescue, check, inside, rescues
from tests.jobs.chaos.graphs import KINDS
from tests.jobs.chaos.ledger import FROZEN, KILLED, NOTE, Ledger, Line, Tail, read
from tests.jobs.chaos.nursery import Child, Nursery

LEASE, SWEEP, POLL = 0.6, 0.2, 0.1
SLACK = 1.0
SLOTS = 4
PATIENCE = 60.0  # seconds for everything to end once nobody is killed any more
ROLES = {"submitter": 1, "scheduler": 2, "worker": 2}


class Storm:
    """The processes of one storm on one database."""

    def __init__(
        self,
        folder: Path,
        url: str,
        audit: Audit,
        *,
        roles: dict[str, int] = ROLES,
        nodes: int = 200,
        lanes: int = 6,
        longest: int = 40,
        runs: int = 1_000_000,
        kinds: dict[str, float] = KINDS,
        places: tuple[str, ...] = ("near", "far"),
        seed: int | None = None,
        **jobs: Any,
    ) -> None:
        self.folder = folder
        self.audit = audit
        self.roles = roles
        self.path = folder / "ledger"
        self.ledger = Ledger(self.path)
        self._tail = Tail(self.path)
        self._running: dict[int, set[tuple[str, str]]] = {}
        self.seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
        self.random = Random(self.seed)
        self.kills: Counter[str] = Counter()
        self.stop = folder / "stop"
        limits = {"lease": LEASE, "sweep": SWEEP, "poll": POLL, "ack": 1.0, "max_crashes": 1000}
        self.settings: dict[str, Any] = {
            "url": url,
            "ledger": str(self.path),
            "stop": str(self.stop),
            "prefix": "run",
            "wait": True,
            "nodes": nodes,
            "lanes": lanes,
            "longest": longest,
            "runs": runs,
            "kinds": kinds,
            "places": places,
            "executors": {"near": SLOTS, "far": "worker"},
            "worker": {"far": SLOTS},
            "jobs": {**limits, **jobs},
        }
        self.nursery = Nursery(folder)

    # Processes

    def start(self, role: str, **changed: Any) -> Child:
        """Start a process of a role."""
        return self.nursery.start(role, {**self.settings, **changed})

    def start_all(self) -> None:
        for role, count in self.roles.items():
            for _ in range(count):
                self.start(role)

    def of(self, role: str) -> list[Child]:
        return [child for child in self.nursery.children.values() if child.role == role]

    def kill(self, child: Child) -> None:
        """Kill a process, and note when."""
        when = time.monotonic()
        self.nursery.kill(child)
        self.ledger.write(KILLED, victim=child.pid, role=child.role, when=when)
        self.kills[child.role] += 1

    def freeze(self, child: Child) -> None:
        """Stop a process in its tracks."""
        when = time.monotonic()
        self.nursery.signal(child, signal.SIGSTOP)
        self.ledger.write(FROZEN, victim=child.pid, role=child.role, when=when)

    def thaw(self, child: Child) -> None:
        self.nursery.signal(child, signal.SIGCONT)

    def watch(self) -> None:
        """See that nobody ended who was not killed."""
        for child in list(self.nursery.children.values()):
            code = self.nursery.gone(child)
            if code is not None:
                said = child.log.read_text()[-3000:]
                raise AssertionError(
                    f"{child.role} {child.pid} ended by itself with {code}:\n{said}"
                )

    # The storm and the calm

    def rage(self, kills: int, least: float, most: float) -> None:
        """Kill at random, so many times, half of them aimed at those who work; a victim is replaced at once."""
        for _ in range(kills):
            time.sleep(self.random.uniform(least, most))
            self.watch()
            child = self.busy(1.0) if self.random.random() < 0.5 else None
            child = child or self.random.choice(list(self.nursery.children.values()))
            self.kill(child)
            self.start(child.role)

    def busy(self, patience: float) -> Child | None:
        """A process in which bodies run; None if there is none for so long."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            running = self.running
            found = [child for pid, child in self.nursery.children.items() if running.get(pid)]
            if found:
                return self.random.choice(found)
            time.sleep(0.02)
        return None

    def calm(self, stop: bool = True) -> None:
        """Let what was begun come to its end, then let everybody go; `stop` what has no end of its own."""
        if stop:
            self.stop.touch()
        for submitter in self.of("submitter"):
            self.wait(
                lambda one=submitter: self.nursery.gone(one) is not None,  # type: ignore[misc]
                PATIENCE,
                "the submitter",
            )
        self.wait(lambda: not self.audit.open_runs(), PATIENCE, "open runs")
        self.leave()

    def leave(self) -> None:
        """Ask everybody to go, and see that they do."""
        left = list(self.nursery.children.values())
        for child in left:
            self.nursery.signal(child, signal.SIGTERM)
        for child in left:
            code = self.nursery.bury(child)
            assert code == 0, f"{child.role} left with {code}:\n{child.log.read_text()[-3000:]}"

    def wait(self, condition: Callable[[], bool], patience: float, what: str) -> None:
        until = time.monotonic() + patience
        while not condition():
            if time.monotonic() > until:
                raise AssertionError(f"stuck: {what}, after {patience:g} s; {self.story()}")
            time.sleep(0.05)

    @property
    def running(self) -> dict[int, set[tuple[str, str]]]:
        """The jobs whose bodies run now, by process."""
        self._running = inside(self._tail.read(), self._running)
        return self._running

    def inside(self, child: Child) -> set[tuple[str, str]]:
        """The jobs whose bodies run in a process now."""
        return set(self.running.get(child.pid, ()))

    # The verdict

    @property
    def lines(self) -> list[Line]:
        return read(self.path)

    def judge(self) -> list[Line]:
        """Raise what is wrong; gives the ledger."""
        lines = self.lines
        complaints = check(lines, self.audit.read())
        assert not complaints, "\n".join([*complaints[:20], self.story()])
        return lines

    def rescued(self) -> list[Rescue]:
        return rescues(self.lines)

    def story(self) -> str:
        """What a person needs to find out what happened."""
        counted = Counter(line.what for line in self.lines)
        notes = Counter(line.more["text"][:100] for line in self.lines if line.what == NOTE)
        return f"seed {self.seed}, kills {dict(self.kills)}, ledger {dict(counted)}, {dict(notes)}, in {self.folder}"

    def close(self) -> None:
        self.nursery.close()
        self.ledger.close()


def migrate(url: str) -> None:
    """Bring a database up to date, as `fairlead db migrate` does."""
    from fairlead.jobs.stores.opening import open_store

    async def run() -> None:
        store = open_store(url)
        await store.migrate()
        await store.close()

    asyncio.run(run())


@contextmanager
def on_sqlite(folder: Path, **options: Any) -> Iterator[Storm]:
    """A storm on a SQLite file."""
    path = folder / "jobs.db"
    url = f"sqlite:///{path}"
    migrate(url)
    audit = SqliteAudit(path)
    audit.prepare()
    storm = Storm(folder, url, audit, **options)
    try:
        yield storm
    finally:
        storm.close()


@contextmanager
def on_postgres(folder: Path, url: str, extra: str = "", **options: Any) -> Iterator[Storm]:
    """A storm on a database of its own."""
    migrate(url)
    audit = PostgresAudit(url)
    audit.prepare()
    storm = Storm(folder, url + extra, audit, **options)
    try:
        yield storm
    finally:
        storm.close()
