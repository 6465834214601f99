"""A process of its own that uses a shared limit: says `ready`, starts when told, and tells what it saw, in JSON.

python -m tests.flows.ledger_worker '{"kind": "quota", "url": "unix:///…", "name": "q", …}'
"""

import asyncio
import json
import sys
import time
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis

from tests.flows.ledger_rig import Node, quota_node, slots_node

COUNT = """
local now = redis.call('INCR', KEYS[1])
if now > tonumber(redis.call('GET', KEYS[2]) or '0') then redis.call('SET', KEYS[2], now) end
return now
"""


async def told_to_start() -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def offer(node: Node, rate: float, seconds: float, timeout: float, workload: Any) -> None:
    """Offer at a steady rate, whatever becomes of it."""
    clock = asyncio.get_running_loop().time
    started = clock()
    tasks: set[asyncio.Task[Any]] = set()
    offered = 0
    while (elapsed := clock() - started) < seconds:
        while offered < elapsed * rate:
            offered += 1
            task = asyncio.ensure_future(node.use(timeout, workload=workload))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)


async def quota(said: dict[str, Any]) -> dict[str, Any]:
    settings = said.get("settings", {})
    async with quota_node(
        said["url"], said["name"], said["capacity"], said["fill"], **settings
    ) as (
        node,
        ledger,
    ):
        await told_to_start()
        started = time.monotonic()
        flows = [
            offer(node, rate, said["seconds"], said["timeout"], (workload, weight))
            for workload, weight, rate in said["offers"]
        ]
        await asyncio.gather(*flows)
        return {
            "admitted": node.admitted,
            "by_workload": {str(key[0]): value for key, value in node.by_workload.items()},
            "elapsed": time.monotonic() - started,
            "ledger": ledger.describe(),
        }


async def slots(said: dict[str, Any]) -> dict[str, Any]:
    counter = Redis.from_url(said["url"])
    done = 0
    settings = said.get("settings", {})
    async with slots_node(
        said["url"], said["name"], said["limit"], said.get("longest", 60.0), **settings
    ) as (node, ledger):
        until = 0.0

        async def work(workload: tuple[str, float]) -> None:
            nonlocal done
            clock = asyncio.get_running_loop().time
            while clock() < until:
                ticket = await node.ask(max(0.0, until - clock()), workload=workload)
                if ticket is None:
                    continue
                await counter.eval(COUNT, 2, "in flight", "most")
                await asyncio.sleep(said["work"])
                await counter.decr("in flight")
                node.runtime.finish(ticket)
                done += 1

        await told_to_start()
        until = asyncio.get_running_loop().time() + said["seconds"]
        await asyncio.gather(
            *(work((name, weight)) for name, weight, count in said["callers"] for _ in range(count))
        )
        result = {
            "admitted": done,
            "by_workload": {str(key[0]): value for key, value in node.by_workload.items()},
            "ledger": ledger.describe(),
        }
    await counter.aclose()
    return result


def main() -> None:
    said = json.loads(sys.argv[1])
    with suppress(KeyboardInterrupt):
        print(json.dumps(asyncio.run({"quota": quota, "slots": slots}[said["kind"]](said))))


if __name__ == "__main__":
    main()
