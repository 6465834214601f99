"""A jobs application for tests under load; the server names its database."""

import asyncio

from fairlead.jobs import Jobs

jobs = Jobs("sqlite:///unused.db", executors={"default": 2}, poll="200ms")


@jobs.task(name="wait")
async def wait(seconds: float) -> float:
    await asyncio.sleep(0.01)
    return 0.01
