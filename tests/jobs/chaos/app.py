"""The application that storms run: its processes find what they need in FAIRLEAD_CHAOS, its bodies write the ledger."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from fairlead.jobs import Dag, Jobs, current_job, worker
from tests.jobs.chaos.checker import total
from tests.jobs.chaos.graphs import Made
from tests.jobs.chaos.ledger import END, START, STOPPED, Ledger

settings: dict[str, Any] = json.loads(os.environ["FAIRLEAD_CHAOS"])
ledger = Ledger(Path(settings["ledger"]))
# A body in a process of its own leaves no line when it is killed, and the judge would think that it still runs: here
# what was run beside a death runs where it ran before.  test_poison.py tries processes of their own.
worker.apart_of = lambda *_: None  # type: ignore[attr-defined]
jobs = Jobs(settings["url"], executors=settings["executors"], **settings["jobs"])


class Body:
    """Writes what one try of a job does."""

    def __init__(self, run: str, node: str, executor: str) -> None:
        self.job = current_job()
        self.known = {
            "run": run,
            "node": node,
            "executor": executor,
            "attempt": self.job.attempt,
            "fence": self.job.fence,
        }
        ledger.write(START, **self.known)

    def ended(self, needs: tuple[int, ...]) -> int:
        ledger.write(END, **self.known)
        return total(needs)

    def stopped(self) -> None:
        ledger.write(STOPPED, **self.known)


async def waits(executor: str, run: str, node: str, milliseconds: int, *needs: int) -> int:
    body = Body(run, node, executor)
    try:
        await asyncio.sleep(milliseconds / 1000)
    except asyncio.CancelledError:
        body.stopped()
        raise
    return body.ended(needs)


def thread(executor: str, run: str, node: str, milliseconds: int, *needs: int) -> int:
    body = Body(run, node, executor)
    until = time.monotonic() + milliseconds / 1000
    while (left := until - time.monotonic()) > 0:
        if body.job.cancelled:
            body.stopped()
            raise RuntimeError("told to stop")
        time.sleep(min(left, 0.01))
    return body.ended(needs)


async def flaky(executor: str, run: str, node: str, milliseconds: int, *needs: int) -> int:
    body = Body(run, node, executor)
    if body.job.attempt == 1:
        body.stopped()
        raise RuntimeError("the first attempt fails")
    return body.ended(needs)


async def raises(executor: str, run: str, node: str, milliseconds: int, *needs: int) -> int:
    Body(run, node, executor).stopped()
    raise RuntimeError("every attempt fails")


async def blocks(executor: str, run: str, node: str, milliseconds: int, *needs: int) -> int:
    """Holds the loop of its process, so that nothing else there gets a turn."""
    body = Body(run, node, executor)
    until = time.monotonic() + settings["longest"] / 1000
    while time.monotonic() < until - 0.9 * settings["longest"] / 1000:
        pass  # a tenth of it with the interpreter's lock in its teeth
    time.sleep(max(0.0, until - time.monotonic()))  # noqa: ASYNC251
    return body.ended(needs)


tasks: dict[str, Any] = {}


def declare(kind: Any, executor: str) -> None:
    """Make a task of a kind of body, for one executor; a wrapper must stay what it wraps, async or not."""
    name = f"{kind.__name__}_{executor}"
    if asyncio.iscoroutinefunction(kind):

        async def call(*args: Any) -> Any:
            return await kind(executor, *args)

    else:

        def call(*args: Any) -> Any:  # type: ignore[misc]
            return kind(executor, *args)

    call.__name__ = call.__qualname__ = name
    tasks[name] = jobs.task(executor=executor, retries=2, retry_delay="50ms")(call)


for each in (waits, thread, flaky, raises, blocks):
    for one in settings["executors"]:
        declare(each, one)


def dag_of(made: Made) -> Dag:
    """What is submitted for a DAG of the storm."""
    dag = Dag("storm", key=made.key)
    nodes: dict[str, Any] = {}
    for name, needs in made.needs.items():
        wanted = [nodes[need] for need in needs]
        node = dag.add(tasks[made.tasks[name]], made.key, name, made.milliseconds[name], *wanted)
        nodes[name] = node.options(name=name)
    return dag
