"""What the processes of a storm do.  Each runs in a fork of the nursery and may be killed at any moment."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.jobs.chaos.graphs import made
from tests.jobs.chaos.ledger import ACK, INTENT, NOTE, OUTCOME, UP, read


def play(role: str, settings: dict[str, Any]) -> int:
    """Become a process of that role; gives its exit code."""
    os.environ["FAIRLEAD_CHAOS"] = json.dumps(settings)
    if skew := settings.get("skew"):
        play_with_the_clock(skew)
    from tests.jobs.chaos import app

    if role == "submitter":
        asyncio.run(submit_all(app, settings))
        return 0
    if role == "scheduler":
        slots = {name: n for name, n in settings["executors"].items() if isinstance(n, int)}
        app.ledger.write(UP, role=role, slots=slots)
        asyncio.run(serve(app))
        return 0
    if role == "worker":
        slots = settings["worker"]
        app.ledger.write(UP, role=role, slots=slots)
        from fairlead.cli import main

        words = ["worker", "--app", "tests.jobs.chaos.app:jobs"]
        for executor, count in slots.items():
            words += ["--executor", executor, "--slots", str(count)]
        sys.argv = ["fairlead", *words]
        code = 1
        # It leaves with 1 if the database is away; its supervisor starts it again.
        for _ in range(200):
            code = main(words) or 0
            if code != 1:
                break
            app.ledger.write(NOTE, text="worker: started again")
            time.sleep(0.1)
        return code
    raise ValueError(role)


def play_with_the_clock(skew: float) -> None:
    """Let the wall clock of this process be wrong, and jump there and back every few seconds."""
    true = time.time

    def wrong() -> float:
        now = true()
        return now + (skew if int(now) % 4 < 2 else -skew / 2)

    time.time = wrong
    time.time_ns = lambda: int(wrong() * 1e9)


async def serve(app: Any) -> None:
    """Schedule, and run local jobs, until told to stop."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    while True:
        try:
            async with app.jobs:
                await ended.wait()
            return
        except Exception as error:  # the database may be away while this starts
            if ended.is_set():
                raise
            app.ledger.write(NOTE, text=f"serve: {type(error).__name__}: {error}")
            await asyncio.sleep(0.1)


class Plan:
    """Which runs are still to be submitted or waited for; a new submitter goes on where the dead one was."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.prefix = settings["prefix"]
        self.stop = Path(settings["stop"])
        self.most = settings["runs"]
        lines = read(Path(settings["ledger"]))
        mine = [line for line in lines if line.what in {INTENT, ACK, OUTCOME}]
        mine = [line for line in mine if line.run.startswith(f"{self.prefix}-")]
        ended = {line.run for line in mine if line.what == OUTCOME}
        self.ids = {line.run: str(line.more["id"]) for line in mine if line.what == ACK}
        begun = {line.run: None for line in mine if line.what == INTENT}
        self.left = [run for run in begun if run not in ended]
        self.count = len(begun)

    def next(self) -> str | None:
        """The next run's key; None if there is to be no other."""
        if self.left:
            return self.left.pop(0)
        if self.stop.exists() or self.count >= self.most:
            return None
        self.count += 1
        return f"{self.prefix}-{self.count}"


async def submit_all(app: Any, settings: dict[str, Any]) -> None:
    """Submit runs and wait for them, a few at a time."""
    plan = Plan(settings)

    async def lane() -> None:
        while (key := plan.next()) is not None:
            dag = made(
                key, settings["nodes"], settings["places"], settings["longest"], settings["kinds"]
            )
            known = plan.ids.get(key)
            if known is None:
                app.ledger.write(INTENT, run=key, needs=dag.needs, ends=dag.ends)
                run = await insist(app, "submit", lambda dag=dag: app.jobs.submit(app.dag_of(dag)))
                known = run.id
                app.ledger.write(ACK, run=key, id=known)
            if not settings["wait"]:
                await asyncio.sleep(0.1)
                continue
            outcome = await insist(app, "wait", lambda known=known: app.jobs.wait(known))
            app.ledger.write(OUTCOME, run=key, state=outcome.state)

    await asyncio.gather(*(lane() for _ in range(settings["lanes"])))
    await app.jobs.close()
    app.ledger.write(NOTE, text="submitter: done")


async def insist(app: Any, what: str, deed: Any) -> Any:
    """Do it again until it works: the database may be away."""
    while True:
        try:
            return await deed()
        except Exception as error:
            app.ledger.write(NOTE, text=f"{what}: {type(error).__name__}: {error}"[:300])
            await asyncio.sleep(0.1)
