"""A client of an API with a rate limit: never refused, and the users' calls before the backfill's.

The API here allows so many calls a second and answers 429 beyond that. The client asks Fairlead before each call; when
tokens are short, calls for users get three for the backfill's one.

    python examples/rate_limited_client.py --seconds 3
    python examples/rate_limited_client.py --redis redis://127.0.0.1:6379/0    # one limit for all processes
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter

import aiohttp
from aiohttp import web

from fairlead.flows import FlowScheduler

RATE = 100  # calls a second that the API allows
BURST = 50


class Api:
    """An API that counts: RATE a second, BURST at once, 429 beyond."""

    def __init__(self) -> None:
        self.level, self.at = float(BURST), time.monotonic()
        self.answers: Counter[int] = Counter()

    async def call(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        self.level = min(BURST, self.level + (now - self.at) * RATE)
        self.at = now
        status = 200 if self.level >= 1 else 429
        self.level -= status == 200
        self.answers[status] += 1
        return web.json_response({}, status=status)


def limits(redis: str | None) -> dict[str, object]:
    # Below what is allowed, for the API counts when a call arrives, not when it was sent.
    config: dict[str, object] = {
        "control_points": {
            "api": {
                "quota": {
                    "bucket_capacity": BURST // 5,
                    "fill_amount": RATE * 0.95,
                    "interval": "1s",
                },
                "scheduler": {
                    "workloads": [
                        {"name": "users", "match_labels": {"for": "users"}, "priority": 3},
                        {"name": "backfill", "match_labels": {"for": "backfill"}, "priority": 1},
                    ],
                },
            }
        }
    }
    return config if redis is None else {"redis": redis, **config}


async def main(seconds: float, redis: str | None = None) -> tuple[Api, Counter[str]]:
    api = Api()
    app = web.Application()
    app.router.add_get("/", api.call)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    done: Counter[str] = Counter()
    until = time.monotonic() + seconds

    flows = FlowScheduler.from_config(limits(redis))
    async with aiohttp.ClientSession() as client:

        async def keep_calling(who: str) -> None:
            while time.monotonic() < until:
                async with flows.flow("api", labels={"for": who}, timeout=5.0) as flow:
                    if flow.should_run():
                        async with client.get(url) as answer:
                            done[who] += answer.status == 200

        async with asyncio.TaskGroup() as group:
            for who in ("users", "backfill"):
                for _ in range(20):
                    group.create_task(keep_calling(who))
    await flows.close()  # gives back what a shared limit had lent
    await runner.cleanup()
    print(
        f"the API answered {dict(api.answers)}; done for users {done['users']}, for the backfill {done['backfill']}"
    )
    return api, done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--redis", help="share the limit through this server")
    options = parser.parse_args()
    asyncio.run(main(options.seconds, options.redis))
