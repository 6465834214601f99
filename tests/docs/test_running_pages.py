"""The pages about engines, each on the engine it is about."""

import contextlib
import importlib.util
from pathlib import Path

import pytest

from tests.docs.reader import ROOT, follow, save
from tests.docs.test_code_blocks import python_blocks, run_blocks
from tests.engines import valkey
from tests.engines_postgres import postgres

FOLDER = ROOT / "docs" / "running"


def read(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def run_python(name: str) -> dict[str, object]:
    path = FOLDER / f"{name}.md"
    return run_blocks(python_blocks(read(name), f"docs/running/{name}.md"), str(path))


def test_every_page_is_run_here():
    tests = Path(__file__).read_text(encoding="utf-8")
    for path in FOLDER.glob("*.md"):
        assert f'("{path.stem}")' in tests, f"{path.name} has no test in this file"


def test_postgresql(tmp_path, monkeypatch):
    with postgres() as server:
        save(read("postgresql"), tmp_path)
        follow(read("postgresql"), tmp_path, FAIRLEAD_DB=server.url)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FAIRLEAD_DB", server.url)
        run_python("postgresql")


def test_redis(monkeypatch):
    with valkey() as server:
        monkeypatch.setenv("REDIS_URL", server.url)
        run_python("redis")


@pytest.mark.skipif(importlib.util.find_spec("confluent_kafka") is None, reason="needs the extra")
def test_kafka(monkeypatch):
    from tests.streams.mock_cluster import MockCluster

    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(MockCluster())
        cluster.topic("orders", 2)
        cluster.topic("orders-dead", 1)
        monkeypatch.setenv("BOOTSTRAP_SERVERS", cluster.bootstrap)
        run_python("kafka")


@pytest.mark.ray
def test_ray(tmp_path):
    pytest.importorskip("ray")
    save(read("ray"), tmp_path)
    follow(read("ray"), tmp_path)
