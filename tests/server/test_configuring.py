"""A configuration that cannot be written changes nothing: neither the file nor what runs."""

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

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
