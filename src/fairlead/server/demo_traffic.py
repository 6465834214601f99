"""Traffic for the demonstration: callers in waves, and exports in batches, at times more than there is room for.

It asks as any client would: the gateway over HTTP, the other doors by their Python API.  Whatever fails is no news: a
refusal is what the demonstration is there to show.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.errors import FairleadError
from fairlead.server import demo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    import aiohttp

    from fairlead.flows.scheduler import FlowScheduler
    from fairlead.jobs.service import Jobs
    from fairlead.server.loading import Loaded
    from fairlead.testing.streams import MemoryBroker

log = logging.getLogger("fairlead.server")

WAVE = 90.0  # seconds from crest to crest
KEPT = 500  # records of a partition in memory
MOST_AT_ONCE = 200


class Caller(NamedTuple):
    """A caller of the gateway: its requests a second on average, the tokens of each, how many come at once."""

    tenant: str
    priority: str
    rate: float
    tokens: int = 20
    batch: int = 1


# In the order of their phases: callers of one class are half a wave apart, so that no class has all its crests at once.
CALLERS = (
    Caller("probe", "system", 0.5, tokens=5),
    Caller("acme", "interactive", 5.0),
    Caller("acme", "default", 3.0),
    Caller("globex", "bulk", 0.6, tokens=120, batch=10),
    Caller("globex", "interactive", 2.0),
    Caller("initech", "default", 2.0),
    Caller("umbrella", "bulk", 0.4, tokens=120, batch=10),
)
PLANS = (("paid", 6.0, "u"), ("guest", 10.0, "g"), ("crawler", 8.0, "bot"))
RECORDS = {"orders": 30.0, "audit": 60.0}  # by topic, a second


def begin(doors: Iterable[Any], loaded: Loaded, upstream: demo.Upstream | None) -> Traffic:
    """Have callers come to the doors that are there for them; a stream of the user's own is left alone."""
    traffic = Traffic()
    for door in doors:
        if door.kind == "gateway" and upstream is not None:
            traffic.at_gateway(door.links()["proxy"])
        elif door.kind == "flows" and demo.CONTROL_POINT in door.server.flows.points:
            traffic.at_flows(door.server.flows, demo.CONTROL_POINT)
        elif door.kind == "jobs" and demo.shows_jobs(loaded):
            traffic.at_jobs(door.jobs)
        elif door.kind == "streams" and loaded.settings.streams is None:
            traffic.at_stream(door.app.broker, RECORDS)
    return traffic


class Traffic:
    """All callers: some begin at each door they are sent to, and all end with `stop`."""

    def __init__(self, seed: int = 3) -> None:
        self._chance = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._stopping = asyncio.Event()

    def at_gateway(self, url: str) -> None:
        """Ask a gateway for answers of a model."""
        import aiohttp

        self._session = session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_AT_ONCE),
            timeout=aiohttp.ClientTimeout(total=60),
        )
        for caller in CALLERS:

            async def ask(caller: Caller = caller) -> None:
                headers = {"x-tenant": caller.tenant, "x-fairlead-priority": caller.priority}
                body = {
                    "model": "demo",
                    "messages": [{"role": "user", "content": "hello"}],
                    "max_tokens": caller.tokens,
                }
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.post(
                        f"{url}/v1/chat/completions", json=body, headers=headers
                    ) as answer:
                        await answer.read()

            async def batch(caller: Caller = caller, ask: Any = ask) -> None:
                await asyncio.gather(*(ask() for _ in range(caller.batch)))

            rate = caller.rate / caller.batch
            self._begin(self._again_and_again(rate, batch, phase=len(self._tasks)))

    def at_flows(self, flows: FlowScheduler, control_point: str) -> None:
        """Have people of several plans check out."""
        for plan, rate, user in PLANS:

            async def check_out(plan: str = plan, user: str = user) -> None:
                labels = {"plan": plan, "user_id": f"{user}{self._chance.randrange(8)}"}
                async with flows.flow(control_point, labels, timeout=4.0) as flow:
                    if flow.should_run():
                        await asyncio.sleep(self._chance.uniform(0.1, 0.45))

            self._begin(self._again_and_again(rate, check_out, phase=len(self._tasks)))

    def at_jobs(self, jobs: Jobs) -> None:
        """Submit a document to work on now and then."""
        self._begin(self._submit(jobs))

    async def _submit(self, jobs: Jobs) -> None:
        from fairlead.jobs.graph import Dag

        number = 0
        while not await self._stopped_within(self._chance.uniform(2.0, 6.0)):
            number += 1
            name = self._chance.choice(("invoice", "contract", "report"))
            tenant = self._chance.choice(("acme", "acme", "globex", "initech"))
            soft = self._chance.choice((None, "10s", "20s", "1m"))
            dag = Dag(name, tenant=tenant, soft_sla=soft, hard_sla="3m")
            fetched = dag.add("fetch", f"{name}-{number}")
            pages = [
                dag.add("extract", fetched, page) for page in range(self._chance.randint(2, 6))
            ]
            dag.add("publish", dag.add("merge", pages))
            with suppress(FairleadError):  # the database is away, or the end is near
                await jobs.submit(dag)

    def at_stream(self, broker: MemoryBroker, topics: dict[str, float]) -> None:
        """Write records."""
        for topic, rate in topics.items():

            async def write(topic: str = topic) -> None:
                key = f"k{self._chance.randrange(50)}".encode()
                record = broker.write(topic, b"{}", key=key)
                broker.trim(record.tp, record.offset - KEPT)
                del broker.commits[:-KEPT]

            self._begin(self._again_and_again(rate, write, phase=len(self._tasks)))

    def _begin(self, coming: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(coming))

    async def _again_and_again(
        self, rate: float, ask: Callable[[], Awaitable[None]], phase: float
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            wave = 1.0 + 0.5 * math.sin(2 * math.pi * clock() / WAVE + phase)
            if await self._stopped_within(self._chance.expovariate(rate * wave)):
                return
            if len(self._asking) < MOST_AT_ONCE:
                task = asyncio.ensure_future(self._safely(ask))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _safely(self, ask: Callable[[], Awaitable[None]]) -> None:
        try:
            await ask()
        except FairleadError as error:
            log.debug("demo traffic: %s", error)

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Ask no more; those who wait for an answer leave."""
        self._stopping.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in list(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
