"""Processes that work on a SQLite store, to be run beside each other and to be killed.

They are forked from a server that has imported everything, so that dozens of lives cost seconds; and they write what
they have been told into a ledger outside the store, one line in one write, so that a kill never cuts one.
"""

import asyncio
import itertools
import multiprocessing
import os
import random
import time
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from fairlead.jobs.records import Claim, Ending
from fairlead.jobs.states import COMPLETED, FAILED, RETRY
from fairlead.jobs.stores.base import Store
from fairlead.jobs.stores.opening import open_store
from tests.jobs.store_contract import CHAIN, DIAMOND, new_run
from tests.sizes import REPEATS

ROUNDS = 6 * REPEATS


class Ledger:
    """What a process has said, outside the store."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def say(self, *words: object) -> None:
        line = " ".join(map(str, words)) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)

    def read(self) -> list[list[str]]:
        if not self.path.exists():
            return []
        return [line.split() for line in self.path.read_text().splitlines()]


async def hammer(store: Store, name: str, ledger: Ledger) -> None:
    worker = (await store.register(name, name, {"ocr": 2}, 60.0))["ocr"]
    for turn in range(ROUNDS):
        (mine,), (shared,) = await asyncio.gather(
            store.submit([new_run(DIAMOND)]),
            store.submit([new_run(key=f"k{turn}")]),
        )
        await store.beat([worker], 60.0)
        epoch = await store.lead(name, 0.0)
        if epoch is not None:
            claims = [Claim(mine.dag, 0, worker, random.getrandbits(62)) for _ in range(1)]
            for job in await store.claim(name, epoch, claims, acked=True):
                await store.finish(name, [Ending(job.dag, job.node, job.fence, COMPLETED, "1")])
            await store.take_news(name)
        await asyncio.gather(
            store.cancel(mine.dag), store.run(shared.dag), store.ready(None, 10), store.states()
        )
    ledger.say("done", name)


async def submit(store: Store, name: str, ledger: Ledger) -> None:
    for turn in itertools.count():
        key = f"{name}-{turn}"
        (submitted,) = await store.submit([new_run(random.choice([CHAIN, DIAMOND]), key=key)])
        ledger.say("stored", submitted.dag, key)


async def drain(store: Store, name: str, ledger: Ledger) -> None:
    worker = (await store.register(name, name, {"ocr": 2}, 0.0))["ocr"]
    while True:
        epoch = await store.lead(name, 0.0)
        await store.take_news(name)
        ready = await store.ready(None, 50)
        claims = [Claim(job.dag, job.node, worker, random.getrandbits(62)) for job in ready]
        claimed = await store.claim(name, epoch or 0, claims, acked=True)
        states = random.choices([COMPLETED, RETRY, FAILED], [8, 1, 1], k=len(claimed))
        told = await store.finish(
            name,
            [
                Ending(job.dag, job.node, job.fence, state, "1" if state == COMPLETED else None)
                for job, state in zip(claimed, states, strict=True)
            ],
        )
        applied = set(told.applied)
        for job, state in zip(claimed, states, strict=True):
            if state != RETRY and (job.dag, job.node) in applied:
                ledger.say("ended", job.dag, job.node, state)
        for orphan in await store.orphans(0.0):
            await store.finish(name, [Ending(orphan.dag, orphan.node, orphan.fence, RETRY)])
        await store.bury([row.id for row in await store.workers() if row.id != worker])


VERBS = {"hammer": hammer, "submit": submit, "drain": drain}


async def life(url: str, what: str, name: str, ledger: Ledger) -> None:
    store = open_store(url)
    await store.open()
    ledger.say("open", name)
    try:
        await VERBS[what](store, name, ledger)
    finally:
        await store.close()


def live(url: str, what: str, name: str, path: Path) -> None:
    """Be such a process."""
    asyncio.run(life(url, what, name, Ledger(path)))


def context() -> ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.jobs.sqlite_process", "fairlead.jobs.stores.sqlite"])
    return made


class Beast:
    """One such process, seen from outside."""

    def __init__(self, database: Path, what: str, name: str) -> None:
        self.ledger = Ledger(database.with_name(f"{what}-{name}.ledger"))
        url = f"sqlite:///{database}"
        self.process: ForkServerProcess = context().Process(
            target=live, args=(url, what, name, self.ledger.path), daemon=True
        )
        self.process.start()

    def wait_open(self) -> None:
        """Wait until it has opened the store."""
        deadline = time.monotonic() + 60
        while not self.ledger.read():
            assert self.process.is_alive(), "it died before it began"
            assert time.monotonic() < deadline, "it never began"
            time.sleep(0.002)

    def wait(self) -> list[list[str]]:
        """Wait for its end."""
        self.process.join(240)
        return self.ledger.read()

    def kill(self) -> list[list[str]]:
        """End it at once, and tell what it had said."""
        self.process.kill()
        self.process.join(60)
        self.process.close()
        return self.ledger.read()
