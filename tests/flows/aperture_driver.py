"""The published Aperture client, driven line by line: run by test_aperture_client.py in an environment of its own.

Each line of standard input is a JSON object with a `do`; each answer is a line of JSON with the same `name`.
"""

import asyncio
import json
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from aperture_sdk.client import ApertureClient, FlowParams
from aperture_sdk.client_async import ApertureClientAsync

ADDRESS = sys.argv[1]
flows: dict[str, Any] = {}
printing = threading.Lock()


def tell(name: str, **said: Any) -> None:
    with printing:
        print(json.dumps({"name": name, **said}), flush=True)


def params(asked: dict[str, Any]) -> FlowParams:
    return FlowParams(
        explicit_labels=asked.get("labels"),
        check_timeout=timedelta(seconds=asked.get("timeout", 0)),
        ramp_mode=asked.get("ramp_mode", False),
        result_cache_key=asked.get("key"),
        global_cache_keys=asked.get("keys"),
    )


def told(flow: Any, since: float) -> dict[str, Any]:
    again = flow.retry_after()
    cached = flow.result_cache()
    return {
        "decision": flow.decision.name,
        "should_run": flow.should_run(),
        "code": flow.http_response_code(),
        "retry_after": None if again is None else again.total_seconds(),
        "seconds": time.monotonic() - since,
        "cached": cached.get_lookup_status().name,
        "value": (cached.get_value() or b"").decode(),
    }


def over(answer: Any) -> dict[str, Any]:
    reply = answer.get_flow_end_response()
    returned = [] if reply is None else [one.returned for one in reply.token_return_statuses]
    return {"returned": returned, "error": str(answer.get_error() or "")}


def start(client: Any, asked: dict[str, Any]) -> None:
    since = time.monotonic()
    flow = flows[asked["name"]] = client.start_flow(asked["control_point"], params(asked))
    tell(asked["name"], **told(flow, since))


async def start_and_end(asked: dict[str, Any]) -> None:
    client = ApertureClientAsync.new_client(address=ADDRESS, insecure=True)
    since = time.monotonic()
    flow = await client.start_flow(asked["control_point"], params(asked))
    said = told(flow, since)
    said |= over(await flow.end())
    await client.grpc_channel.close()
    tell(asked["name"], **said)


def do(client: Any, asked: dict[str, Any]) -> None:
    name, deed = asked["name"], asked["do"]
    if deed == "start":
        threading.Thread(target=start, args=(client, asked)).start()
    elif deed == "end":
        tell(name, **over(flows[name].end()))
    elif deed == "keep":
        ttl = timedelta(seconds=asked["ttl"])
        kept = flows[name].set_result_cache(asked["value"], ttl)
        shared = flows[name].set_global_cache("shared", asked["value"], ttl)
        tell(name, errors=[str(one.get_error() or "") for one in (kept, shared)])
    elif deed == "look":
        tell(name, value=(flows[name].global_cache("shared").get_value() or b"").decode())
    elif deed == "forget":
        gone = [flows[name].delete_result_cache(), flows[name].delete_global_cache("shared")]
        tell(name, errors=[str(one.get_error() or "") for one in gone])
    elif deed == "async":
        asyncio.run(start_and_end(asked))


def main() -> None:
    client = ApertureClient.new_client(address=ADDRESS, insecure=True)
    tell("ready")
    for line in sys.stdin:
        do(client, json.loads(line))


main()
