"""One ledger: what becomes of a request is told once, and every page that tells it tells the same."""

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.gateway.metrics import Metrics
from fairlead.observe.channel import Channel
from fairlead.server.hosted_gateway import HostedGateway
from tests.gateway.rig import Cut, connected, read_head, until
from tests.server.rig import GATEWAY, HERE, Client, run, served

UNUSED = "http://127.0.0.1:9"  # nothing listens on the discard port
SLOTS = 3


async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request as its path asks for."""
    with suppress(Cut, ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await read_head(reader)
            await reader.readexactly(int(head.get("content-length", "0")))
            kind = head.first[1].strip("/").partition("/")[0]
            if kind == "hang-up":
                break
            await asyncio.sleep(0.002 if kind != "slow" else 0.03)
            if kind == "cut":
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
                await writer.drain()
                break
            status = int(kind) if kind.isdigit() else 200
            writer.write(b"HTTP/1.1 %d So\r\ncontent-length: 2\r\n\r\nok" % status)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def serving(**more: Any) -> AsyncIterator[Client]:
    """Serve a gateway before one backend that behaves as it is asked to, and one that is down."""
    backend = await asyncio.start_server(behave, "127.0.0.1", 0)
    port = backend.sockets[0].getsockname()[1]
    scheduler: dict[str, Any] = GATEWAY["priority_scheduler"]  # type: ignore[assignment]
    classes = {
        name: said | {"queue_size": 4, "queue_timeout": "60ms"}
        for name, said in scheduler["classes"].items()
    }
    said = GATEWAY | {
        "access_log": True,
        "pool_by": "model",
        "upstreams": [
            {"url": f"http://127.0.0.1:{port}", "capacity": SLOTS, "models": ["here"]},
            {"url": UNUSED, "capacity": SLOTS, "models": ["down"], "health": "/health"},
        ],
        "health": {"interval": "20ms"},
        "limits": {"body_bytes": 1000, "body_timeout": "2s"},
        "priority_scheduler": scheduler | {"classes": classes},
        **more,
    }
    try:
        async with served({"server": {"listen": HERE}, "gateway": said}) as client:
            yield client
    finally:
        backend.close()


KINDS = (
    *("ok", "ok", "ok", "slow", "slow", "404", "429", "500", "503", "hang-up", "cut"),
    *("leave", "leave-early", "no-model", "no-such-model", "down", "too-large", "bulk"),
    *("trace", "garbage", "two-hosts"),
)


async def ask(url: str, kind: str) -> None:
    """Send one request of a kind, and read its answer or leave."""
    async with connected(url) as client:
        raw = {
            "trace": "TRACE / HTTP/1.1\r\nhost: localhost\r\n\r\n",
            "garbage": "\x16\x03\x01\x02\r\n\r\n",
            "two-hosts": "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        }
        if kind in raw:
            client.send(raw[kind])
        else:
            models = {"no-such-model": "other", "down": "down"}
            document = {} if kind == "no-model" else {"model": models.get(kind, "here")}
            body = json.dumps(document).encode()
            headers = [("content-type", "application/json")]
            if kind == "too-large":
                headers.append(("content-length", "1001"))
            elif kind == "leave-early":
                headers.append(("content-length", str(len(body) + 1)))
            else:
                headers.append(("content-length", str(len(body))))
            klass = {"bulk": "bulk", "slow": "bulk"}.get(kind, "interactive")
            headers.append(("x-fairlead-priority", klass))
            client.request("POST", f"/{'slow' if kind.startswith('leave') else kind}/", headers)
            client.send(body)
        if not kind.startswith("leave"):
            with suppress(Cut, ConnectionError):
                await client.response()


async def load(client: Client, seed: int, number: int) -> int:
    """Send random requests, some at once; return how many."""
    rng = random.Random(seed)
    url = gateway_of(client).data_listener.url
    left = [rng.choice(KINDS) for _ in range(number)]
    for place in rng.sample(range(number), 2):
        left[place] = "outage"
    fleet = gateway_of(client).fleet
    (backend,) = [one for one in fleet._upstreams.values() if one.url != UNUSED]

    async def sending() -> None:
        while left:
            kind = left.pop()
            if kind == "outage":  # all that wait for the backend ask again
                fleet.unreachable(backend, "the test says so")
            await ask(url, kind)

    await asyncio.gather(*(sending() for _ in range(16)))
    admission = gateway_of(client).admission
    await until(lambda: not any(pool.gate.active for pool in admission.pools.values()))
    return number


def gateway_of(client: Client) -> Any:
    return client.server.door(HostedGateway).gateway


class Told:
    """What each page tells of the gateway."""

    def __init__(self, log: Counter[str]) -> None:
        self.log = log
        self.admissions: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.decisions_total: Counter[str] = Counter()
        self.snapshot: Counter[str] = Counter()
        self.decided: Counter[str] = Counter()

    @classmethod
    async def by(cls, client: Client, lines: list[dict[str, Any]]) -> "Told":
        told = cls(Counter(line["outcome"] for line in lines))
        text = (await client.get("/metrics")).decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels, count = sample.labels, int(sample.value) if sample.value < 1e9 else 0
                if sample.name == "fairlead_gateway_admissions_total":
                    told.admissions[labels["outcome"]] += count
                elif sample.name == "fairlead_gateway_requests_total":
                    told.requests[labels["outcome"]] += count
                elif sample.name == "fairlead_gateway_refused_requests_total":
                    told.refused[labels["code"]] += count
                elif sample.name == "fairlead_gate_decisions_total":
                    told.decisions_total[labels["outcome"]] += count
        client.server.sample()
        # `fairlead top` and the dashboard show these snapshots.
        history = await client.get("/api/v1/history?minutes=1")
        for gate in history["snapshots"][-1]["gates"]:
            told.snapshot.update(gate["totals"])
        found = await client.get("/api/v1/decisions?limit=2000")
        told.decided = Counter(one["what"] for one in found["items"])
        return told

    def check(self, sent: int) -> None:
        """See that all of them agree, and that no request is missing or told twice."""
        ends = {"completed": "done", "failed": "failed", "disconnected": "disconnected"}
        admitted = sum(self.requests.values())
        assert sum(self.log.values()) == sent
        refused = {name: self.admissions[name] for name in self.admissions}
        assert refused.pop("admitted") == admitted
        assert refused.pop("preempted") == self.requests["preempted"]
        assert admitted + sum(refused.values()) + sum(self.refused.values()) == sent

        assert self.decisions_total == self.snapshot
        totals = self.snapshot
        arrived = ("admitted", "refused", "expired", "withdrawn")
        assert sum(totals[name] for name in arrived) == sent
        assert totals["admitted"] == admitted
        assert totals["expired"] == refused["rejected_queue_timeout"]
        assert totals["withdrawn"] == refused["client_cancelled"]
        assert totals["evicted"] == self.requests["preempted"]
        turned_away = refused["rejected_queue_full"] + refused["rejected_no_capacity"]
        assert totals["refused"] == turned_away + sum(self.refused.values())

        for outcome, what in ends.items():
            assert totals[outcome] == self.requests[outcome] == self.log[outcome], outcome
            assert self.decided[what] == totals[outcome]
        for outcome in (*refused, "preempted"):
            assert self.log[outcome] == self.admissions[outcome], outcome
        for code, count in self.refused.items():
            assert self.log[f"rejected_{code}"] == count, code
        assert self.decided["started"] + self.decided["promoted"] == admitted
        for what in ("refused", "expired", "withdrawn", "evicted"):
            assert self.decided[what] == totals[what], what


def lines_of(caplog: Any) -> list[dict[str, Any]]:
    return [json.loads(one.getMessage()) for one in caplog.records if one.name == "fairlead.access"]


def loaded(caplog: Any, seed: int, number: int = 250, **more: Any) -> Told:
    """Put random load on a server, and see what it tells."""

    async def main() -> Told:
        async with serving(**more) as client:
            sent = await load(client, seed, number)
            await until(lambda: len(lines_of(caplog)) >= sent)
            told = await Told.by(client, lines_of(caplog))
            told.check(sent)
            return told

    caplog.clear()
    with caplog.at_level(logging.INFO, "fairlead.access"):
        told: Told = run(main)
    return told


@pytest.mark.parametrize("seed", range(3))
def test_each_request_is_counted_once_and_all_pages_agree(caplog, seed):
    told = loaded(caplog, seed)
    # Of every kind there was some, or nothing was tried.
    assert all(told.requests[name] for name in ("completed", "failed"))
    assert all(told.admissions[f"rejected_{name}"] for name in ("no_capacity", "queue_full"))
    codes = ("bad_request", "body_too_large", "method_not_allowed", "model_not_found")
    assert all(told.refused[code] for code in (*codes, "model_required"))


@pytest.mark.parametrize("seed", range(3, 5))
def test_the_plain_limiter_counts_alike(caplog, seed):
    limiter = {"max_concurrent_requests": SLOTS, "queue_size": 4, "queue_timeout": "60ms"}
    scheduler = {"enabled": False}
    told = loaded(caplog, seed, fallback=limiter, priority_scheduler=scheduler)
    assert told.admissions["rejected_queue_full"]
    assert told.requests["failed"]


def silent(turn_away: Any) -> Any:
    return lambda self, ticket, now: None


def doubled(turn_away: Any) -> Any:
    def twice(self: Any, exchange: Any, *args: Any) -> None:
        turn_away(self, exchange, *args)
        turn_away(self, exchange, *args)

    return twice


@pytest.mark.parametrize(
    ("kind", "verb", "broken"),
    [(Channel, "turn_away", silent), (Metrics, "turn_away", doubled), (Metrics, "refuse", doubled)],
)
def test_a_refusal_that_is_lost_or_told_twice_is_caught(monkeypatch, caplog, kind, verb, broken):
    monkeypatch.setattr(kind, verb, broken(getattr(kind, verb)))
    with pytest.raises(AssertionError):
        loaded(caplog, 0, 120)


def test_a_request_whose_backend_failed_is_not_told_as_done():
    async def main() -> None:
        async with serving() as client:
            url = gateway_of(client).data_listener.url
            for kind in ("500", "hang-up", "cut", "ok"):
                await ask(url, kind)
            found = (await client.get("/api/v1/decisions"))["items"]
            told = [(one["what"], one["why"]) for one in found if one["what"] != "started"]
            assert told == [
                ("done", "its work ended"),
                ("failed", "its answer broke off"),
                ("failed", "it was answered with 502"),
                ("failed", "it was answered with 500"),
            ]

    run(main)
