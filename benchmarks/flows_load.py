"""Checks from a process of its own, on loopback, each caller's next when its last was answered.

python -m benchmarks.flows_load check PORT CALLERS SECONDS      over HTTP, on keep-alive connections
python -m benchmarks.flows_load pair PORT CALLERS SECONDS       the same, each check followed by its end
python -m benchmarks.flows_load grpc PORT CALLERS SECONDS       over gRPC, on one channel for every four callers

Prints {"requests": …, "errors": …, "seconds": …}.
"""

from __future__ import annotations

import asyncio
import json
import sys
from time import monotonic
from typing import Any

from benchmarks.gateway_load import run, rush

LABELS = {"user_id": "u1", "tier": "free"}
ASKED = json.dumps({"control_point": "checkout", "labels": LABELS, "timeout": 0.5}).encode()
FLOW_ID = b'"flow_id":"'
SHARED = 4  # callers on one channel


def post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


CHECK = post("/v1/flows/check", ASKED)


def following(answer: bytes) -> bytes:
    """The end of the flow that was begun, or else the next check."""
    at = answer.find(FLOW_ID)
    if at < 0:
        return CHECK
    flow_id = answer[at + len(FLOW_ID) :][:32]
    return post("/v1/flows/end", b'{"flow_id":"%s","status":"ok"}' % flow_id)


async def over_grpc(port: int, callers: int, seconds: float) -> dict[str, float]:
    import grpc.aio

    from fairlead.flows import messages as wire

    request = wire.message("CheckRequest")(control_point="checkout", labels=LABELS)
    sent = request.SerializeToString()
    counts = {"requests": 0, "errors": 0}
    channels = [
        grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        for _ in range(max(1, callers // SHARED))
    ]
    for channel in channels:
        await channel.channel_ready()
    began = monotonic()

    async def caller(channel: grpc.aio.Channel) -> None:
        ask: Any = channel.unary_unary(f"/{wire.SERVICE}/Check")
        while True:
            try:
                await ask(sent, timeout=5.0)
                counts["requests"] += 1
            except grpc.aio.AioRpcError:
                counts["errors"] += 1
            if monotonic() - began >= seconds:
                return

    await asyncio.gather(*(caller(channels[i % len(channels)]) for i in range(callers)))
    took = monotonic() - began
    for channel in channels:
        await channel.close()
    return {**counts, "seconds": took}


def main(how: str, port: str, callers: str, seconds: str) -> None:
    asked = (int(port), int(callers), float(seconds))
    if how == "grpc":
        run(over_grpc(*asked))
    else:
        run(rush(*asked, CHECK, following if how == "pair" else None))


if __name__ == "__main__":
    main(*sys.argv[1:])
