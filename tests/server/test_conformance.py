"""Whatever is sent to the control API is answered, as its description says, and never with 500."""

import asyncio
import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from fairlead.server.loading import load_mapping
from fairlead.server.openapi import described
from fairlead.server.service import Server
from tests.server.rig import configured

FOLDER = tempfile.TemporaryDirectory()


def server_of() -> Server:
    said = configured(Path(FOLDER.name), demo={"upstream": False, "traffic": False})
    return Server(load_mapping(said))


def description() -> dict[str, object]:
    found = described(server_of().api.deeds, secured=False)
    found["paths"].pop("/api/v1/events")  # it goes on for ever
    copied: dict[str, object] = json.loads(json.dumps(found))
    return copied


API = schemathesis.openapi.from_dict(description())


class Serving(threading.Thread):
    """A server on a loop of its own."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.begun = threading.Event()
        self.url = ""

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        async with server_of() as server:
            self.url = server.listener.url
            self.begun.set()
            await self._ending.wait()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self.join(20)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    serving = Serving()
    serving.start()
    assert serving.begun.wait(20)
    yield serving.url
    serving.end()
    FOLDER.cleanup()


@API.parametrize()
@settings(max_examples=8, suppress_health_check=list(HealthCheck), deadline=None)
def test_nothing_makes_it_fail_or_is_answered_otherwise_than_described(case, url):
    # No schema says which gates, runs and settings there are; what it lets through may still be refused.
    case.call_and_validate(base_url=url, excluded_checks=[positive_data_acceptance])
