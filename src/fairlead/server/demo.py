"""What `fairlead serve` runs when it is told nothing: one of each door, an upstream to stand in for real work, traffic.

Everything lives in this process, on loopback; only the jobs are kept, in an SQLite file.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.serving.listener import Listener, bound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from fairlead.jobs.service import Jobs
    from fairlead.server.loading import Loaded

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SLOTS = 8
FIRST_BYTE = (
    0.03,
    0.08,
)  # seconds until the first byte of an answer; from then on nobody may preempt it
PER_TOKEN = 0.01  # seconds
USUAL_TOKENS = 20
CONTROL_POINT = "checkout"
HERE = "127.0.0.1"
# The usual port of each listener; where it is taken, any other.
PORTS = {"server": 8080, "gateway": 8082, "admin": 8081, "flows": 8088, "jobs": 8089}

POINT: dict[str, Any] = {
    "concurrency": {"max_concurrency": 6},
    "scheduler": {
        "workloads": [
            {"name": "subscribers", "match_labels": {"plan": "paid"}, "priority": 200},
            {"name": "crawlers", "match_labels": {"plan": "crawler"}, "priority": 20},
        ],
        "default_workload": {"priority": 100},
        "fairness_label_key": "user_id",
        "max_queue": 60,
    },
}


class Upstream:
    """A backend that answers after a while, as a language model does."""

    def __init__(self, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self.listener = Listener(self, f"{HERE}:0")
        self.listener.bind()
        self._begun = False

    @property
    def url(self) -> str:
        """Where it answers."""
        return self.listener.url

    async def start(self) -> None:
        """Answer from now on."""
        await self.listener.begin()
        self._begun = True

    async def stop(self) -> None:
        """Answer no more."""
        if self._begun:
            await self.listener.end(0.5)
        self.close()

    def close(self) -> None:
        """Give up the address, if nothing was ever answered there."""
        self.listener.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        works = scope["path"] not in ("/health", "/v1/models")
        if works:
            await asyncio.sleep(self._chance.uniform(*FIRST_BYTE))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        if works:
            await asyncio.sleep(_tokens(body) * PER_TOKEN * self._chance.lognormvariate(0.0, 0.3))
        await send({"type": "http.response.body", "body": b'"object": "chat.completion"}\n'})


def _tokens(body: bytes) -> int:
    """Read how many tokens a request asks for."""
    try:
        found = json.loads(body)["max_tokens"]
    except (ValueError, KeyError, TypeError):
        return USUAL_TOKENS
    return min(200, found) if type(found) is int and found > 0 else USUAL_TOKENS


def settings(folder: Path, ports: dict[str, str], *, shown: bool = True) -> dict[str, Any]:
    """Make the configuration that stands in for a file; without the demonstration, if that is not `shown`."""
    return {
        "server": {"listen": ports["server"]},
        "gateway": {
            "listen": ports["gateway"],
            "admin": {"listen": ports["admin"]},
            "access_log": False,
            "shutdown_grace": "10s",
            "tenants": {"trusted_header": "x-tenant"},
            "priority_scheduler": {
                "enabled": True,
                "default_max_class": "interactive",
                "tenant_policies": {
                    "header:acme": {"weight": 3},
                    "header:globex": {"weight": 1},
                    "header:probe": {"max_class": "system"},
                },
                "classes": {
                    "bulk": {
                        "queue_size": 40,
                        "queue_timeout": "30s",
                        "starvation_threshold": "8s",
                    },
                    "default": {
                        "queue_size": 40,
                        "queue_timeout": "15s",
                        "starvation_threshold": "4s",
                    },
                    # Three of the eight slots: what these callers use at their crest.  Exports come in batches and
                    # run for a second and more, and one whose answer has begun cannot be preempted: without the
                    # reservation each batch takes every slot, and people wait for its end.
                    "interactive": {
                        "reserved_floor": 0,
                        "reserved_per_slot": 0.375,
                        "queue_size": 30,
                        "queue_timeout": "5s",
                        "starvation_threshold": "2s",
                    },
                    "system": {
                        "reserved_floor": 1,
                        "queue_size": 10,
                        "queue_timeout": "5s",
                        "starvation_threshold": "2s",
                    },
                },
            },
        },
        "flows": {
            "http": ports["flows"],
            "control_points": {CONTROL_POINT: POINT},
        },
        "jobs": {
            "database": f"sqlite:///{folder / 'demo.db'}",
            "http": ports["jobs"],
            "retention": "1d",
        },
        "demo": {"upstream": shown, "traffic": shown},
    }


def upstream_for(loaded: Loaded) -> Upstream | None:
    """Make the demonstration's upstream if it is asked for and the gateway names no upstream of its own."""
    return Upstream() if loaded.demo.upstream and _names_none(loaded) else None


def _names_none(loaded: Loaded) -> bool:
    return loaded.gateway is not None and not loaded.gateway.settings.upstreams


def with_upstream(loaded: Loaded, upstream: Upstream | None) -> Loaded:
    """Let a gateway that names no upstream use the demonstration's."""
    gateway = loaded.gateway
    if upstream is None or gateway is None or not _names_none(loaded):
        return loaded
    from fairlead.gateway.settings import Upstream as UpstreamSettings

    stands_in = UpstreamSettings(url=upstream.url, capacity=SLOTS)
    settings = gateway.settings.model_copy(update={"upstreams": [stands_in]})
    return loaded._replace(gateway=gateway._replace(settings=settings))


def free_ports() -> dict[str, str]:
    """Tell an address for each listener: the usual one, or any where that is taken."""
    found = {}
    for name, port in PORTS.items():
        address = f"{HERE}:{port}"
        try:
            bound(address).close()
        except OSError:
            address = f"{HERE}:0"
        found[name] = address
    return found


def folder_for_state() -> Path:
    """Make the folder in which the jobs are kept: ./.fairlead, or a temporary one where nothing can be written."""
    here = Path.cwd() / ".fairlead"
    try:
        here.mkdir(mode=0o700, exist_ok=True)
        if os.access(here, os.W_OK):
            return here
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="fairlead-"))


def shows_jobs(loaded: Loaded) -> bool:
    """Whether the demonstration's own jobs are run: where nobody else's are."""
    jobs = loaded.settings.jobs
    return loaded.demo.traffic and jobs is not None and jobs.app is None


def add_tasks(jobs: Jobs, seed: int = 2) -> None:
    """Declare what demo runs are made of."""
    chance = random.Random(seed)

    @jobs.task(name="fetch", retries=2, retry_delay="2s")
    async def fetch(document: str) -> str:
        await asyncio.sleep(chance.uniform(0.3, 1.5))
        if chance.random() < 0.05:
            raise ConnectionError(f"the archive did not answer for {document}")
        return document

    @jobs.task(name="extract")
    async def extract(document: str, page: int) -> str:
        await asyncio.sleep(chance.uniform(0.5, 3.0))
        return f"{document}/{page}"

    @jobs.task(name="merge")
    async def merge(pages: list[str]) -> int:
        await asyncio.sleep(chance.uniform(0.2, 0.8))
        return len(pages)

    @jobs.task(name="publish")
    async def publish(count: int) -> int:
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        if chance.random() < 0.08:
            raise RuntimeError("the index refused the document")
        return count
