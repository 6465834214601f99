"""`fairlead serve` as a process: started from nothing and from files, reloaded, drained, hurried."""

import asyncio
import json
import logging
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import aiohttp
import pytest

from fairlead.cli import main
from tests.server.rig import GATEWAY, begun, document, followed, process, run

SLOW = """\
import asyncio
from pathlib import Path
from fairlead.jobs import Jobs

jobs = Jobs("sqlite:///other.db", poll="100ms")


@jobs.task
async def brief(seconds):
    Path("begun").touch()
    await asyncio.sleep(seconds)
    Path("ended").touch()
"""


def test_what_init_writes_starts_the_demonstration_s_backend_only_while_it_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    shipped = Path("fairlead.yaml").read_text()
    for port in ("8080", "8081", "8082", "8088", "8089"):
        shipped = shipped.replace(f"127.0.0.1:{port}", "127.0.0.1:0")
    own = shipped.replace("  # upstreams:\n", "  upstreams:\n").replace(
        "  #   - {url:", "    - {url:"
    )
    assert own.count("- {url:") == 2

    Path("own.yaml").write_text(own)
    Path("shipped.yaml").write_text(shipped)

    async def told(config: str) -> str:
        async with process(tmp_path, "--config", config) as server:
            await begun(server)
            await server.until("jobs ")
            server.process.send_signal(signal.SIGTERM)
            assert await server.ended() == 0
            return "".join(server.said)

    async def test() -> None:
        assert "(a demonstration, until gateway.upstreams names yours)" in await told(
            "shipped.yaml"
        )
        assert "demonstration" not in await told("own.yaml")

    run(test)


def test_from_nothing_it_shows_every_door_and_leaves_one_folder(tmp_path: Path):
    home, folder = tmp_path / "home", tmp_path / "empty"
    home.mkdir()
    folder.mkdir()

    async def test() -> None:
        async with process(folder, "--listen", "127.0.0.1:0", HOME=str(home)) as server:
            first = await server.line()
            assert first == (
                "fairlead: no configuration given; embedded defaults, "
                f"state in {folder / '.fairlead'}\n"
            )
            url = await begun(server)
            await server.until("--no-demo")
            found = await document(url, "/api/v1/overview")
            doors = {door["name"]: door["state"] for door in found["doors"]}
            assert doors == dict.fromkeys(("gateway", "flows", "jobs", "streams"), "running")
            assert found["demo"] is True
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{url}/") as answer:
                    assert "text/html" in answer.headers["content-type"]
                async with session.get(f"{url}/api/v1/events") as answer:
                    seen: set[str] = set()
                    async for line in answer.content:
                        if line.startswith(b"event: "):
                            seen.add(line.decode().split()[1])
                        if seen == {"snapshot", "decision"}:
                            break
            server.process.send_signal(signal.SIGTERM)
            assert await server.ended() == 0
            assert "Traceback" not in "".join(server.said)

    run(test)
    assert [path.name for path in folder.iterdir()] == [".fairlead"]
    assert stat.S_IMODE((folder / ".fairlead").stat().st_mode) == 0o700
    assert {path.name for path in (folder / ".fairlead").iterdir()} == {"demo.db"}
    assert list(home.iterdir()) == []


def test_without_the_demonstration_nothing_moves(tmp_path: Path):
    async def test() -> None:
        async with process(tmp_path, "--listen", "127.0.0.1:0", "--no-demo") as server:
            url = await begun(server)
            found = await document(url, "/api/v1/overview")
            assert [door["name"] for door in found["doors"]] == ["gateway", "flows", "jobs"]
            snapshots, others = await followed(url, 5)
            assert found["demo"] is False
            assert others == []  # no decision was made
            for snapshot in snapshots:
                assert len(snapshot["gates"]) >= 2
                for gate in snapshot["gates"]:
                    assert gate["slots"]["used"] == 0
                    assert not any(gate["totals"].values()), gate
                    for one in gate["classes"]:
                        assert (one["running"], one["waiting"]) == (0, 0)
            told = [dict(one["jobs"]) for one in snapshots if one["jobs"]]
            for one in told:  # without an application the door is a view
                assert (one.pop("leading"), one.pop("workers")) == (False, 0)
                assert "only shows" in one.pop("reason")
            jobs = [{**one, "ready": one["ready"] or 0} for one in told]
            assert not any(count for told in jobs for count in told.values())
            server.process.send_signal(signal.SIGINT)
            assert await server.ended() == 0

    run(test)


def written(folder: Path, **sections: object) -> Path:
    path = folder / "fairlead.yaml"
    said = {"server": {"listen": "127.0.0.1:0", "shutdown_grace": "20s"}, **sections}
    path.write_text(json.dumps(said))  # JSON is YAML
    return path


def test_a_bad_file_is_refused_with_its_lines(tmp_path: Path):
    (tmp_path / "fairlead.yaml").write_text("server:\n  listn: 127.0.0.1:0\njobs: {}\n")

    async def test() -> None:
        for args in (("--check",), ("--config", "fairlead.yaml")):
            async with process(tmp_path, *args) as server:
                assert await server.ended() == 2
                told = "".join(server.said)
                assert "fairlead.yaml:2:3 server.listn: unknown key 'listn'; did you mean" in told
                assert "fairlead.yaml:3:1 jobs: needs a database" in told
                assert "Traceback" not in told

    run(test)
    assert not (tmp_path / ".fairlead").exists()


@pytest.mark.parametrize(
    ("sections", "args", "said"),
    [
        (
            {"jobs": {"app": "nothing:jobs"}, "demo": {"upstream": True}},
            (),
            "jobs.app: there is no module 'nothing'",
        ),
        ({"jobs": {"app": "slow:brief"}}, (), "jobs.app: slow:brief is no Jobs"),
        ({"jobs": {"database": "mysql://x"}}, (), "sqlite"),
        ({"streams": {"app": "slow"}}, (), "streams.app must be module:name"),
        ({}, ("--listen", "0.0.0.0:0"), "tokens are required"),
        ({}, ("--listen", "nowhere"), "host:port"),
        (
            {
                "server": {
                    "listen": "127.0.0.1:0",
                    "tls": {"certificate": "no.pem", "key": "no.pem"},
                }
            },
            (),
            "cannot use the certificate",
        ),
    ],
)
def test_what_cannot_start_is_told_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sections: dict[str, object],
    args: tuple[str, ...],
    said: str,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "slow", raising=False)
    (tmp_path / "slow.py").write_text(SLOW)
    written(tmp_path, **sections)
    assert main(["serve", *args]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    monkeypatch.delitem(sys.modules, "slow", raising=False)


@pytest.mark.parametrize("whose", ["server", "gateway", "flows", "jobs"])
def test_a_taken_port_is_told_and_nothing_is_left_running(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    whose: str,
):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = "127.0.0.1:0"
        written(
            tmp_path,
            server={"listen": address if whose == "server" else free},
            gateway={**GATEWAY, "listen": address if whose == "gateway" else free},
            flows={"http": address if whose == "flows" else free},
            jobs={"database": "sqlite:///j.db", "http": address if whose == "jobs" else free},
            demo={"upstream": True, "traffic": True},
        )
        assert main(["serve"]) == 2
    told = capsys.readouterr().err
    assert f"fairlead serve: cannot listen on {address}" in told
    assert "Traceback" not in told


def test_a_database_that_is_away_is_another_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, jobs={"database": "postgresql://me:hunter2@127.0.0.1:1/x"})
    assert main(["serve"]) == 1
    told = capsys.readouterr().err
    assert "fairlead serve: " in told
    assert "127.0.0.1:1" in told
    assert "hunter2" not in told


def test_what_runs_finishes_and_readiness_says_so(tmp_path: Path):
    (tmp_path / "slow.py").write_text(SLOW)
    written(tmp_path, jobs={"app": "slow:jobs", "database": "sqlite:///jobs.db"})

    async def test() -> None:
        async with process(tmp_path) as server:
            url = await begun(server)
            from fairlead.jobs import Jobs

            jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db")
            run_ = {"name": "r", "jobs": [{"name": "a", "task": "brief", "args": [1.5]}]}
            store = await jobs.store()
            from fairlead.jobs.files import run_of_file
            from fairlead.jobs.registry import task_of

            async def brief(seconds: float) -> None: ...

            await store.submit([run_of_file(run_, {"brief": task_of(brief)}, now=store.now())])
            await jobs.close()
            while not (tmp_path / "begun").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.02)
            server.process.send_signal(signal.SIGTERM)
            async with aiohttp.ClientSession() as session:
                while True:
                    async with session.get(f"{url}/readyz") as answer:
                        if answer.status == 503:
                            assert (await answer.json())["status"] == "draining"
                            break
                async with session.get(f"{url}/livez") as answer:
                    assert answer.status == 200
                assert not (tmp_path / "ended").exists()
            assert await server.ended() == 0
            assert (tmp_path / "ended").exists()

    run(test)
    assert (tmp_path / "jobs.db").exists()
    assert not (tmp_path / "other.db").exists()


def test_a_second_signal_waits_for_nothing(tmp_path: Path):
    written(
        tmp_path,
        server={"listen": "127.0.0.1:0", "shutdown_grace": "300s"},
        gateway={
            **GATEWAY,
            "shutdown_grace": "300s",
            "limits": {"body_before_slot": 1, "slowest_upload": 0},
        },
        demo={"upstream": True, "traffic": False},
    )

    async def test() -> None:
        async with process(tmp_path) as server:
            url = await begun(server)
            overview = await document(url, "/api/v1/overview")
            proxy = overview["doors"][0]["links"]["proxy"]
            host, port = proxy.removeprefix("http://").split(":")
            # A request with a slot, the rest of whose body never comes: nothing but impatience ends it.
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /up HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n1")
            await writer.drain()
            while not (await _running(url)):
                pass
            server.process.send_signal(signal.SIGTERM)
            async with aiohttp.ClientSession() as session:
                while True:
                    async with session.get(f"{url}/readyz") as answer:
                        if answer.status == 503:
                            break
            server.process.send_signal(signal.SIGTERM)
            assert await server.ended() == 1
            writer.close()

    run(test)


async def _running(url: str) -> bool:
    found = await document(url, "/api/v1/history?minutes=1")
    gates = found["snapshots"][-1]["gates"]
    return bool(gates and (gates[0]["slots"]["used"] or sum(gates[0]["totals"].values())))


def test_the_access_log_can_be_switched_on_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, gateway=GATEWAY)
    enabled = []

    def served(*_: object, **__: object) -> int:
        enabled.append(logging.getLogger("fairlead.access").isEnabledFor(logging.INFO))
        return 0

    monkeypatch.setattr("fairlead.server.running.run_service", served)
    assert main(["serve", "--config", str(path)]) == 0
    assert enabled == [True]


def test_a_good_change_is_followed_and_a_bad_one_is_not(tmp_path: Path):
    gateway = {**GATEWAY, "capacity": 5}
    path = written(tmp_path, gateway=gateway, demo={"upstream": True})

    async def total(url: str) -> object:
        found = await document(url, "/api/v1/history?minutes=1")
        return found["snapshots"][-1]["gates"][0]["slots"]["total"]

    async def test() -> None:
        async with process(tmp_path) as server:
            url = await begun(server)
            assert await total(url) == 5
            written(tmp_path, gateway={**gateway, "capacity": 3}, demo={"upstream": True})
            await server.until("applied")
            while await total(url) != 3:
                pass
            path.write_text("gateway: {capacty: 9}\n")
            await server.until("not applied; the old configuration stays")
            assert "gateway.capacty: unknown key" in "".join(server.said)
            assert await total(url) == 3
            found = await document(url, "/metrics.json")
            families = {one["name"]: one["samples"] for one in found["metrics"]}
            counts = {
                one["labels"]["outcome"]: one["value"]
                for one in families["fairlead_server_reloads"]
            }
            assert counts == {"applied": 1, "refused": 1}
            problems = (await document(url, "/api/v1/config"))["problems"]
            assert problems[0]["path"] == "gateway.capacty"
            server.process.send_signal(signal.SIGTERM)
            assert await server.ended() == 0

    run(test)


def test_a_file_that_is_named_is_followed_too(tmp_path: Path):
    inner = tmp_path / "gateway.yaml"
    inner.write_text(json.dumps({**GATEWAY, "capacity": 5}))
    written(tmp_path, gateway={"file": "gateway.yaml"}, demo={"upstream": True})

    async def test() -> None:
        async with process(tmp_path) as server:
            await begun(server)
            inner.write_text(json.dumps({**GATEWAY, "capacity": 2}))
            await server.until("gateway.yaml: applied")
            server.process.send_signal(signal.SIGTERM)
            assert await server.ended() == 0

    run(test)


def test_logs_are_lines_of_json_if_asked_for(tmp_path: Path):
    written(tmp_path, server={"listen": "127.0.0.1:0", "logs": "json"})

    async def test() -> None:
        async with process(tmp_path) as server:
            url = await begun(server)
            written(tmp_path, server={"listen": "127.0.0.1:0", "logs": "text"})
            line = json.loads(await server.until("changes only at the next start"))
            assert line["level"] == "warning"
            assert line["logger"] == "fairlead.server"
            assert "server.logs" in line["message"]
            assert await document(url, "/livez") == {"status": "ok"}
            server.process.send_signal(signal.SIGTERM)
            assert await server.ended() == 0
            for line in "".join(server.said).splitlines():
                json.loads(line)

    run(test)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")
def test_a_configuration_is_written_whole_and_followed(tmp_path: Path):
    path = written(
        tmp_path,
        gateway={**GATEWAY, "capacity": 5, "admin": {"listen": "127.0.0.1:0", "token": "hunter2"}},
        demo={"upstream": True},
    )
    path.chmod(0o640)

    async def test() -> None:
        async with process(tmp_path) as server:
            url = await begun(server)
            shown = await document(url, "/api/v1/config")
            text = str(shown["text"])
            assert shown["path"] == "fairlead.yaml"
            assert "hunter2" not in text
            async with aiohttp.ClientSession() as session:
                for change, status in (
                    (('"capacity": 5', '"capacity": 4'), 200),
                    (('"capacity"', '"capacty"'), 422),
                ):
                    body = {"text": text.replace(*change)}
                    async with session.post(f"{url}/api/v1/config/validate", json=body) as answer:
                        problems = (await answer.json())["problems"]
                        assert bool(problems) == (status == 422)
                    async with session.put(f"{url}/api/v1/config", json=body) as answer:
                        assert answer.status == status, await answer.text()
                        if status == 422:
                            (problem,) = (await answer.json())["problems"]
                            assert problem["path"] == "gateway.capacty"
            found = json.loads(path.read_text())
            assert found["gateway"]["capacity"] == 4
            assert found["gateway"]["admin"]["token"] == "hunter2"
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
            server.process.send_signal(signal.SIGTERM)
            assert await server.ended() == 0

    run(test)
    assert [one.name for one in tmp_path.iterdir()] == ["fairlead.yaml"]
