"""A configuration that cannot be written changes nothing: neither the file nor what runs."""

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fairlead.server.loading import load_mapping
from tests.gateway.rig import until
from tests.server.rig import GATEWAY, configured, run, served


def total(client: Any) -> float:
    found: float = client.server.view("gateway/default").total()
    return found


def test_a_configuration_mounted_read_only_is_not_written_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = configured(tmp_path, gateway=GATEWAY | {"capacity": 5})
    path = tmp_path / "fairlead.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    before = path.read_text()

    def read_only(**_: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkstemp", read_only)

    async def test() -> None:
        async with served(settings, path=str(path)) as client:
            text = (await client.get("/api/v1/config"))["text"]
            body = {"text": text.replace('"capacity": 5', '"capacity": 4')}
            assert body["text"] != text
            status, said = await client.ask("PUT", "/api/v1/config", body)
            assert (status, said["code"]) == (409, "not_written")
            assert "Read-only file system" in said["detail"]
            assert total(client) == 5

    run(test)
    assert path.read_text() == before
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_without_a_file_there_is_nothing_to_write_to(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            status, said = await client.ask("PUT", "/api/v1/config", {"text": "server: {}\n"})
            assert (status, said["code"]) == (409, "no_file")
            assert "fairlead serve --config" in said["detail"]

    run(test)


def test_demo_traffic_ends_when_the_file_says_so_and_what_waits_for_a_start_is_told(tmp_path: Path):
    async def test() -> None:
        def said(*, upstream: bool, traffic: bool) -> dict[str, Any]:
            return configured(tmp_path, demo={"upstream": upstream, "traffic": traffic})

        async with served(said(upstream=True, traffic=True)) as client:
            server = client.server
            traffic: Any = server.traffic
            assert (await client.get("/api/v1/overview"))["demo"]
            assert server.retune(load_mapping(said(upstream=True, traffic=False))) == []
            await until(lambda: all(task.done() for task in traffic._tasks | traffic._asking))
            assert not (await client.get("/api/v1/overview"))["demo"]
            assert server.retune(load_mapping(said(upstream=False, traffic=True))) == [
                "demo.upstream changes only at the next start",
                "demo.traffic begins only at the next start",
            ]
            assert server.retune(load_mapping(said(upstream=False, traffic=True))) == []

    run(test)
