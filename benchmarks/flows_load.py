"""Checks from a process of its own, on loopback, each caller's next when its last was answered.

python -m benchmarks.flows_load check PORT CALLERS SECONDS      over HTTP, on keep-alive connections
python -m benchmarks.flows_load pair PORT CALLERS SECONDS       the same, each check followed by its end
python -m benchmarks.flows_load grpc PORT CALLERS SECONDS       over gRPC, on one channel for every four callers

Prints {"calls": …, "errors": …, "seconds": …}.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from functools import partial
from time import monotonic
from typing import Any

from benchmarks.gateway_load import LAST, Connection

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


class Caller(Connection):
    """A connection that hands on what it received."""

    answer = b""

    def data_received(self, data: bytes) -> None:
        self.answer = self.received + data
        super().data_received(data)


async def over_http(port: int, callers: int, seconds: float, *, pairs: bool) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    check = post("/v1/flows/check", ASKED)
    counts = {"calls": 0, "errors": 0}
    over = False
    some: asyncio.Future[None] = loop.create_future()

    def answered(connection: Connection, status: int) -> None:
        if over:
            return
        counts["calls" if status == 200 else "errors"] += 1
        if not some.done():
            some.set_result(None)
        if not status:
            return
        answer = connection.answer if isinstance(connection, Caller) else b""
        at = answer.find(FLOW_ID)
        if pairs and at >= 0:
            flow_id = answer[at + len(FLOW_ID) :][:32]
            connection.ask(post("/v1/flows/end", b'{"flow_id":"%s","status":"ok"}' % flow_id))
        else:
            connection.ask(check)

    made = [
        await loop.create_connection(partial(Caller, answered), "127.0.0.1", port)
        for _ in range(callers)
    ]
    began = monotonic()
    for _, connection in made:
        connection.ask(check)
    await asyncio.sleep(seconds)
    await asyncio.wait([some], timeout=LAST)
    over = True
    took = monotonic() - began
    for transport, _ in made:
        transport.abort()
    return {**counts, "seconds": took}


async def over_grpc(port: int, callers: int, seconds: float) -> dict[str, float]:
    import grpc.aio

    from fairlead.flows import messages as wire

    request = wire.message("CheckRequest")(control_point="checkout", labels=LABELS)
    sent = request.SerializeToString()
    counts = {"calls": 0, "errors": 0}
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
                counts["calls"] += 1
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
    import uvloop

    gc.disable()  # a pause here would look like one over there
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        asked = (int(port), int(callers), float(seconds))
        pairs = how == "pair"
        work = over_grpc(*asked) if how == "grpc" else over_http(*asked, pairs=pairs)
        result = runner.run(work)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
