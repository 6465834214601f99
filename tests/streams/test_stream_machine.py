"""Random lives of an app on the in-memory broker: records, rebalances, losses, failures; against a ledger.

What holds whatever happens: every job given is queued exactly once or cleared; a group is not polled while a blocking
job of it is open; records of a partition (of a key) run in order and never beside each other; nothing is committed
that is not finished, with everything before it; in the end every record was consumed.
"""

import random
import threading
import time
from typing import cast

import pytest

from fairlead.streams import Consumer, StreamScheduler
from fairlead.streams.broker import Tp
from fairlead.streams.schedulers import FairByTopic, OneAtATime
from fairlead.testing.stream_client import MemoryClient
from fairlead.testing.streams import Log, MemoryBroker
from tests.sizes import REPEATS
from tests.streams.staging import app_on, running


class Ledger:
    """What was consumed, and whether it was right to."""

    def __init__(self, rng: random.Random, keyed: bool):
        self.rng = rng
        self.keyed = keyed
        self.lock = threading.Lock()
        self.done: dict[Tp, set[int]] = {}
        self.inside: dict[object, int] = {}
        self.wrong: list[str] = []

    def lane(self, message, consumer) -> object:
        tp = (message.topic, message.partition, id(consumer))
        return (*tp, message.key) if self.keyed else tp

    def enter(self, messages, consumer):
        lanes = {self.lane(message, consumer) for message in messages}
        with self.lock:
            for lane in lanes:
                if lane in self.inside:
                    self.wrong.append(f"{lane} in two calls")
                self.inside[lane] = 1
            offsets = [message.offset for message in messages]
            if offsets != sorted(set(offsets)):
                self.wrong.append(f"{offsets} out of order")
        return lanes

    def leave(self, lanes, messages, ok):
        with self.lock:
            for lane in lanes:
                del self.inside[lane]
            if ok:
                for message in messages:
                    tp = Tp(message.topic, message.partition)
                    self.done.setdefault(tp, set()).add(message.offset)

    def check_commits(self, broker):
        for commit in broker.commits:
            if not commit.owned:
                self.wrong.append(f"{commit} of a partition that was gone")
            if not set(range(commit.offset)) <= self.done.get(commit.tp, set()):
                self.wrong.append(f"{commit} beyond what is finished")


def consumer_of(ledger: Ledger, kind: str) -> type[Consumer]:
    def begin(self, messages):
        lanes = ledger.enter(messages, self)
        with ledger.lock:
            fails, nap = ledger.rng.random() < 0.1, ledger.rng.choice((0, 0, 0.001, 0.004))
        return lanes, fails, nap

    class Threads(Consumer):
        def consume(self, messages):
            lanes, fails, nap = begin(self, messages)
            time.sleep(nap)
            ledger.leave(lanes, messages, not fails)
            if fails:
                raise ValueError("by chance")

    class Coroutines(Consumer):
        async def consume(self, messages):
            import asyncio

            lanes, fails, nap = begin(self, messages)
            await asyncio.sleep(nap)
            ledger.leave(lanes, messages, not fails)
            if fails:
                raise ValueError("by chance")

    return Threads if kind == "threads" else Coroutines


class Whimsical(StreamScheduler):
    """Withholds by chance, in any order, and sometimes raises; it checks its own books."""

    seed = 0

    def __init__(self, queue):
        super().__init__(queue)
        self.rng = random.Random(self.seed)
        self.held = []
        self.given = []
        self.raised = 0

    def schedule_consumption(self, jobs):
        self.given.extend(jobs)
        for job in jobs:
            assert self.queue.blocked(job.group_id) == any(
                one.blocking and not one.finished and not one.cleared
                for one in self.queue.given(job.group_id)
            )
            self.queue.lock(job)
            self.held.append(job)
        if self.rng.random() < 0.03 and self.raised < 3:
            self.raised += 1
            raise RuntimeError("by chance")
        self.manage()

    def manage(self):
        self.rng.shuffle(self.held)
        for job in list(self.held):
            if self.rng.random() < 0.7:
                self.held.remove(job)
                if self.rng.random() < 0.5:
                    self.queue.release(job)
                else:
                    self.queue << job
                    self.queue.unlock(job)

    def clear(self, group_id):
        assert all(job.cleared or job.overruled for job in self.held if job.group_id == group_id)
        self.held = [job for job in self.held if job.group_id != group_id]


class Drowsy(Whimsical):
    """Is taken to hang again and again, in the midst of its work, and wakes in the midst of others doing it."""

    def manage(self):
        for _ in range(3):
            time.sleep(self.rng.choice((0, 0, 0.005)))
            super().manage()


SCHEDULERS = [None, OneAtATime, FairByTopic, Whimsical, Drowsy]


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda one: one.__name__ if one else "gate")
@pytest.mark.parametrize("keyed", [False, True], ids=["ordered", "keyed"])
def test_a_random_life(scheduler, kind, keyed, caplog):
    caplog.set_level("CRITICAL", "fairlead.streams")
    for seed in range(REPEATS):
        live(seed, scheduler, kind, keyed)


def live(seed: int, scheduler, kind: str, keyed: bool) -> None:
    rng = random.Random(seed * 31 + keyed)
    Whimsical.seed = seed
    eager = rng.random() < 0.5
    broker = MemoryBroker({"a": 3, "b": 2}, assignor="eager" if eager else "cooperative")
    ledger = Ledger(random.Random(seed), keyed)
    consumer = consumer_of(ledger, kind)
    written = 0

    def write(number: int) -> None:
        nonlocal written
        for _ in range(number):
            broker.write(
                rng.choice("ab"), key=rng.choice((b"x", b"y", b"z")), partition=rng.randrange(2)
            )
        written += number

    write(60)
    app = app_on(
        broker,
        scheduler=scheduler,
        concurrency=3,
        commit_interval="3ms",
        tick_interval="5ms",
        scheduler_patience="1ms" if scheduler is Drowsy else "500ms",
    )
    options = {"parallel_by": lambda message: message.key} if keyed else {}
    app.topic("a", consumer, batch_size=4, retry_backoff="1ms", **options)
    app.topic(
        "b",
        consumer,
        batch_size=3,
        retry_backoff="1ms",
        long_running=rng.random() < 0.5,
        subscription_group=rng.choice(("default", "own")),
        **options,
    )
    with running(app):
        ghosts = 0
        for _ in range(12):
            deed = rng.random()
            listener = rng.choice(list(app.runtime.listeners.values()))
            client = cast("MemoryClient | None", listener._client)
            if deed < 0.3:
                write(rng.randrange(30))
            elif deed < 0.45 and client is not None:
                broker.revoke(client)
            elif deed < 0.6 and client is not None:
                broker.lose(client)
            elif deed < 0.7 and client is not None:
                broker.expire(client)
            elif deed < 0.8:
                broker.rebalance("g")
            elif deed < 0.9:
                ghosts += 1
                broker.add_member("g", ["a", "b"], f"ghost-{ghosts}")
                broker.wait_for(lambda: not broker.rebalancing("g"), 0.05)
                broker.remove_member("g", f"ghost-{ghosts}")
            elif deed < 0.97:
                listener.reset("by chance")
            time.sleep(rng.choice((0.0, 0.002, 0.01)))
        ends = {
            tp: cast(Log, broker.log(tp)).end
            for tp in (Tp("a", 0), Tp("a", 1), Tp("b", 0), Tp("b", 1))
        }

        def through() -> bool:
            offsets = broker.offsets("g")
            return all(offsets.get(tp, 0) == end for tp, end in ends.items())

        assert broker.wait_for(through, 20.0), (seed, broker.offsets("g"), ends, app.statistics())
        queue = app.runtime.queue
        made = app.runtime.calls.scheduler
    ledger.check_commits(broker)
    assert not ledger.wrong, (seed, ledger.wrong[:3])
    for tp, end in ends.items():
        assert ledger.done.get(tp, set()) == set(range(end))
    if isinstance(made, Whimsical):
        for job in made.given:
            ended = job.finished or job.cleared
            assert ended, (seed, job)
            assert (job.queued_at is not None) or job.cleared, (seed, job)
    assert queue.statistics["busy"] == 0, (seed, queue.running())
