"""An LLM server behind the gateway: chats stay quick while batches flood it.

The backend here streams its answers like an OpenAI server and runs so many at once, the rest in order of arrival. The
program floods it with batch requests, once directly and once through the gateway, and measures how long chats wait for
their first byte.

    python examples/llm_gateway.py --seconds 4
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from fairlead.gateway import load
from fairlead.gateway.serving import Gateway

SLOTS = 8
TOKENS = 10
PER_TOKEN = 0.02  # seconds


async def completions(request: web.Request) -> web.StreamResponse:
    """Stream tokens as server-sent events, at most SLOTS answers at once."""
    async with request.app[ROOM]:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(TOKENS):
            await asyncio.sleep(PER_TOKEN)
            await response.write(f'data: {{"token": {number}}}\n\n'.encode())
        await response.write(b"data: [DONE]\n\n")
    return response


ROOM: web.AppKey[asyncio.Semaphore] = web.AppKey("room", asyncio.Semaphore)


async def start_backend() -> tuple[web.AppRunner, str]:
    app = web.Application()
    app[ROOM] = asyncio.Semaphore(SLOTS)
    app.router.add_post("/v1/chat/completions", completions)
    # A request that its client gives up is given up here, too: its slot is free at once.
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


@dataclass
class Seen:
    first_bytes: list[float] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)

    def told(self) -> str:
        waits = sorted(self.first_bytes) or [float("nan")]
        p95 = waits[min(len(waits) - 1, int(len(waits) * 0.95))]
        return f"first byte p50 {statistics.median(waits):6.3f} s, p95 {p95:6.3f} s; {dict(self.answers)}"


async def ask(client: aiohttp.ClientSession, url: str, priority: str, seen: Seen) -> None:
    """Send one chat request and read the whole answer; come back when told to, as OpenAI's clients do."""
    began = time.monotonic()
    for _ in range(3):
        async with client.post(
            url + "/v1/chat/completions",
            json={"model": "demo", "messages": [{"role": "user", "content": "hello"}]},
            headers={"x-fairlead-priority": priority},
        ) as answer:
            seen.answers[answer.status] += 1
            if answer.status == 200:
                await answer.content.readany()
                seen.first_bytes.append(time.monotonic() - began)
                await answer.read()
                return
            await answer.read()
        await asyncio.sleep(float(answer.headers.get("retry-after", "1")))


async def flood(url: str, seconds: float) -> dict[str, Seen]:
    """Batches all at once, and a chat every tenth of a second."""
    seen = {"interactive": Seen(), "bulk": Seen()}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client, asyncio.TaskGroup() as group:
        batches = int(2 * seconds * SLOTS / (TOKENS * PER_TOKEN))  # twice what fits into the time
        for _ in range(batches):
            group.create_task(ask(client, url, "bulk", seen["bulk"]))
        for _ in range(int(seconds * 10)):
            group.create_task(ask(client, url, "interactive", seen["interactive"]))
            await asyncio.sleep(0.1)
    return seen


async def main(seconds: float) -> dict[str, dict[str, Seen]]:
    runner, backend = await start_backend()
    loaded = load(
        {
            "listen": "127.0.0.1:0",
            "admin": {"listen": "127.0.0.1:0"},
            "access_log": False,
            "upstreams": [{"url": backend, "capacity": SLOTS}],
            "priority_scheduler": {
                "enabled": True,
                "default_max_class": "interactive",
                "classes": {
                    "system": {"reserved_floor": 0},
                    "interactive": {"reserved_floor": 2, "reserved_per_slot": 0.25},
                    "default": {"reserved_per_slot": 0.0},
                },
            },
        }
    )
    if loaded.problems:
        raise SystemExit("\n".join(loaded.lines))
    results = {"directly": await flood(backend, seconds)}
    async with Gateway(loaded) as gateway:
        results["through Fairlead"] = await flood(gateway.data_listener.url, seconds)
    await runner.cleanup()
    for way, seen in results.items():
        for name in ("interactive", "bulk"):
            print(f"{way:17} {name:12} {seen[name].told()}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long chats keep coming")
    logging.disable(logging.INFO)
    asyncio.run(main(parser.parse_args().seconds))
