"""The published Aperture client, aperture-py 2.26.0, unmodified, against our gRPC service.

It wants packages older than ours, so it lives in an environment of its own, made once, inside `.venv`.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.flows.serving import FlowServer
from tests.flows.service_rig import active, serving, until_waiting, waiting
from tests.gateway.rig import run, until, within

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".venv" / "aperture-py-2.26.0"
WANTED = ("aperture-py==2.26.0", "opentelemetry-exporter-otlp<1.28")
DRIVER = Path(__file__).with_name("aperture_driver.py")
NO_NETWORK = (
    "NewConnectionError",
    "ConnectTimeout",
    "Temporary failure",
    "unreachable",
    "ProxyError",
)
POINTS = {
    "control_points": {
        "one": {
            "concurrency": {"max_concurrency": 1},
            "scheduler": {"decision_deadline_margin": "100ms"},  # these machines are busy
        },
        "metered": {
            "quota": {"bucket_capacity": 2, "fill_amount": 1, "interval": "1h"},
            "scheduler": {"denied_response_status_code": 429, "tokens_label_key": "tokens"},
        },
    }
}


def made(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture(scope="session")
def aperture() -> Path:
    """The interpreter of an environment that holds the client."""
    python = PLACE / "bin" / "python"
    if (PLACE / "ready").exists():
        return python
    shutil.rmtree(PLACE, ignore_errors=True)
    trouble = made(sys.executable, "-m", "venv", "--without-pip", str(PLACE)) or made(
        sys.executable, "-m", "pip", "--python", str(python), "install", "-q", *WANTED
    )
    if trouble:
        offline = any(sign in trouble for sign in NO_NETWORK)
        if offline and not os.environ.get("CI"):
            pytest.skip(f"{WANTED[0]} cannot be installed: the package index cannot be reached")
        pytest.fail(f"{WANTED[0]} cannot be installed: {trouble[-2000:]}")
    (PLACE / "ready").touch()
    return python


class Driven:
    """The client in its process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said: dict[str, Any] = {}

    def ask(self, do: str, name: str, **more: Any) -> None:
        assert self._process.stdin is not None
        line = json.dumps({"do": do, "name": name, **more})
        self._process.stdin.write(line.encode() + b"\n")

    def kill(self) -> None:
        self._process.kill()

    async def answer(self, name: str) -> Any:
        """Read on until there is an answer of that name."""
        assert self._process.stdout is not None
        while name not in self._said:
            line = await within(self._process.stdout.readline(), 30)
            assert line, "the client has ended"
            said = json.loads(line)
            self._said[said["name"]] = said
        return self._said.pop(name)

    async def did(self, do: str, name: str, **more: Any) -> Any:
        self.ask(do, name, **more)
        return await self.answer(name)


@asynccontextmanager
async def driven(python: Path) -> AsyncIterator[tuple[FlowServer, Driven]]:
    async with serving(POINTS, grpc=True, http=None) as server:
        assert server.grpc is not None
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            python, DRIVER, server.grpc.address, stdin=pipe, stdout=pipe, stderr=pipe
        )
        try:
            client = Driven(process)
            await client.answer("ready")
            yield server, client
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


def test_accepted_and_ended(aperture):
    async def main():
        async with driven(aperture) as (server, client):
            said = await client.did("start", "a", control_point="one", labels={"user": "u1"})
            assert (said["decision"], said["should_run"], said["code"]) == ("Accepted", True, 200)
            assert active(server) == 1
            assert await client.did("end", "a") == {"name": "a", "returned": [True], "error": ""}
            assert active(server) == 0
            assert "already ended" in (await client.did("end", "a"))["error"]

    run(main(), 60)


def test_queued_then_accepted(aperture):
    async def main():
        async with driven(aperture) as (server, client):
            await client.did("start", "a", control_point="one")
            client.ask("start", "b", control_point="one", timeout=20)
            await until_waiting(server, 1)
            client.ask("start", "c", control_point="one")  # no deadline at all
            await until_waiting(server, 2)
            await client.did("end", "a")
            assert (await client.answer("b"))["decision"] == "Accepted"
            assert waiting(server) == 1
            await client.did("end", "b")
            assert (await client.answer("c"))["decision"] == "Accepted"
            await client.did("end", "c")
            assert (active(server), waiting(server), len(server.table)) == (0, 0, 0)

    run(main(), 60)


def test_rejected_before_the_deadline(aperture):
    async def main():
        async with driven(aperture) as (server, client):
            await client.did("start", "a", control_point="one", timeout=20)
            for number in range(3):
                said = await client.did("start", f"b{number}", control_point="one", timeout=0.4)
                assert (said["decision"], said["should_run"]) == ("Rejected", False)
                assert said["code"] == 503
                assert said["retry_after"] >= 1
                assert 0.2 < said["seconds"] < 0.4
                assert (await client.did("end", f"b{number}"))["returned"] == []
            assert (active(server), waiting(server)) == (1, 0)
            assert (await client.did("end", "a"))["returned"] == [True]
            assert active(server) == 0

    run(main(), 60)


def test_rejected_by_a_quota_with_a_status_of_its_own(aperture):
    async def main():
        async with driven(aperture) as (_, client):
            said = await client.did("start", "a", control_point="metered", labels={"tokens": "2"})
            assert said["decision"] == "Accepted"
            assert (await client.did("end", "a"))["returned"] == []
            said = await client.did("start", "b", control_point="metered", timeout=0.5)
            assert (said["decision"], said["code"]) == ("Rejected", 429)
            assert 3000 < said["retry_after"] <= 3600

    run(main(), 60)


def test_an_unknown_control_point_is_accepted(aperture):
    async def main():
        async with driven(aperture) as (server, client):
            said = await client.did("start", "a", control_point="elsewhere", ramp_mode=True)
            assert (said["decision"], said["should_run"]) == ("Accepted", True)
            assert (await client.did("end", "a"))["error"] == ""
            assert server.flows.unknown["elsewhere"] == 1

    run(main(), 60)


def test_a_client_that_dies_frees_its_places(aperture):
    async def main():
        async with driven(aperture) as (server, client):
            await client.did("start", "a", control_point="one")
            for name in "bcd":
                client.ask("start", name, control_point="one")
            await until_waiting(server, 3)
            client.kill()
            await until(lambda: waiting(server) == 0)

    run(main(), 60)


def test_what_is_cached_is_found_again(aperture):
    async def main():
        async with driven(aperture) as (server, client):
            said = await client.did("start", "a", control_point="one", key="k", keys=["shared"])
            assert said["cached"] == "MISS"
            kept = await client.did("keep", "a", value="known", ttl=60)
            assert kept["errors"] == ["", ""]
            asked: dict[str, Any] = {"control_point": "one", "key": "k", "keys": ["shared"]}
            said = await client.did("start", "b", **asked)  # the slot is taken, but not needed
            assert (said["decision"], said["cached"]) == ("Accepted", "HIT")
            assert said["value"] == "known"
            assert (await client.did("look", "b"))["value"] == "known"
            assert (await client.did("forget", "a"))["errors"] == ["", ""]
            await client.did("end", "a")
            said = await client.did("start", "c", **asked)
            assert (said["cached"], said["value"]) == ("MISS", "")
            await client.did("end", "c")
            assert active(server) == 0

    run(main(), 60)


def test_the_asynchronous_client_too(aperture):
    async def main():
        async with driven(aperture) as (server, client):
            said = await client.did("async", "a", control_point="one", timeout=10)
            assert (said["decision"], said["returned"]) == ("Accepted", [True])
            assert active(server) == 0

    run(main(), 60)
