"""Attacks on who may do what: names that would be imported, strangers at open doors, blank tokens."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import ClientSession

from fairlead.cli import main
from fairlead.config import shown
from fairlead.documents.addresses import split_address
from fairlead.errors import ConfigError
from fairlead.flows import messages as wire
from fairlead.flows.grpc_service import _peer_of
from fairlead.flows.loading import load as flows_of
from fairlead.flows.serving import FlowServer
from fairlead.jobs.operating import Operations
from fairlead.jobs.planners import BUILT_IN
from fairlead.server.loading import STRANGE_APP, load, load_mapping
from fairlead.server.service import Server
from fairlead.serving import locality
from fairlead.serving.locality import is_local_peer
from fairlead.sim import read_policy
from fairlead.streams import StreamApp
from fairlead.streams.status import StatusServer
from fairlead.testing.streams import MemoryBroker
from tests.gateway.rig import until
from tests.jobs.operations_rig import HELLO, go, small
from tests.server.rig import HERE, POINT, Client, configured, run, served

POINTS = {"control_points": {"checkout": POINT}}
EVIL = """\
from pathlib import Path
Path(__file__).with_suffix(".imported").touch()
class Planner:
    def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()): return jobs
"""
NAMES = ("evil_planners:Planner", "evil_planners.Planner", "evil_planners", "this:x", "os:system")


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that any import would find, and the sign that it was imported."""
    (tmp_path / "evil_planners.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "this", raising=False)
    return tmp_path / "evil_planners.imported"


def unimported(sign: Path) -> None:
    assert not sign.exists()
    assert not {"evil_planners", "this"} & sys.modules.keys()


def test_no_planner_named_over_http_is_imported(evil: Path, tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            jobs: Any = next(door for door in client.server.doors if door.kind == "jobs")
            own = f"http://{jobs.server.http.address}/v1/planner"
            for name in NAMES:
                body = {"planner": name}
                status, said = await client.ask("PUT", "/api/v1/jobs/planner", body)
                assert (status, f"planner {shown(name)} is not known" in said["detail"]) == (
                    422,
                    True,
                )
                async with client.session.put(own, json=body) as answer:
                    assert answer.status == 422
                text = f"jobs: {{database: 'sqlite:///x.db', planner: '{name}'}}"
                status, said = await client.ask("POST", "/api/v1/config/validate", {"text": text})
                assert (status, len(said["problems"])) == (200, 1), said
            assert (await client.get("/api/v1/jobs/planner"))["planner"] in BUILT_IN
        unimported(evil)

    run(test)


def test_no_app_named_over_http_is_imported_now_or_at_the_next_start(evil: Path, tmp_path: Path):
    file = tmp_path / "fairlead.yaml"
    file.write_text(f"server: {{listen: '{HERE}'}}\n")

    async def test() -> None:
        async with Server(load(str(file)), path=str(file)) as server, ClientSession() as session:
            client = Client(server, session)
            for door in ("jobs", "streams"):
                body = {"text": f"{file.read_text()}{door}: {{app: 'evil_planners:Planner'}}\n"}
                _, said = await client.ask("POST", "/api/v1/config/validate", body)
                (problem,) = said["problems"]
                assert (problem["path"], problem["message"]) == (f"{door}.app", STRANGE_APP)
                assert (await client.ask("PUT", "/api/v1/config", body))[0] == 422
        assert "evil_planners" not in file.read_text()
        unimported(evil)

    run(test)


def test_no_planner_of_a_replay_is_imported(evil: Path, tmp_path: Path):
    document = {"preset": "jobs", "executors": {"default": 1}}
    for name in NAMES:
        with pytest.raises(ConfigError, match="is not known here"):
            read_policy(document).with_settings({"planner": name})
    unimported(evil)


def test_no_planner_named_in_the_database_or_on_the_command_line_is_imported(
    evil: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    url = f"sqlite:///{tmp_path}/jobs.db"

    def logged(text: str) -> bool:
        return text in caplog.text

    async def test() -> None:
        jobs = small(url)
        async with jobs:
            store = await jobs.store()
            for name in NAMES:
                await store.set_setting("planner", name)
                jobs.scheduler.look_soon()  # type: ignore[union-attr]
                await until(partial(logged, f"{shown(name)} is not known here"))
                run_id = (await jobs.submit(HELLO)).id
                assert (await jobs.wait(run_id)).state == "completed"
                await Operations(jobs).explain(f"{run_id}.0")

    go(test())
    for name in NAMES:
        assert main(["jobs", "planner", "set", name, "--db", url]) == 2
        assert "is not known here" in capsys.readouterr().err
    unimported(evil)


def test_a_planner_of_the_table_is_set_by_its_name_from_anywhere(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    asked: list[int] = []

    class Mine:
        def plan(self, jobs: Any, slots: Any, active: Any, recent: Any = ()) -> Any:
            asked.append(len(jobs))
            return jobs

    async def test() -> None:
        jobs = small(url, planners={"mine": Mine})
        async with jobs:
            assert (await Operations(jobs).set_planner("mine"))["planner"] == "mine"
            await jobs.wait(await jobs.submit(HELLO))
            assert asked

    go(test())


# A service without tokens answers its own machine


def raw(host: str | None, path: str, *lines: str, version: str = "1.1") -> bytes:
    named = [] if host is None else [f"Host: {host}"]
    return "\r\n".join(
        [f"GET {path} HTTP/{version}", *named, *lines, "Connection: close", "", ""]
    ).encode("latin-1")


async def status_of(address: str, sent: bytes, source: str | None = None) -> int:
    """Send bytes, and read the status of the answer."""
    where = split_address(address)
    local = None if source is None else (source, 0)
    reader, writer = await asyncio.open_connection(*where, local_addr=local)
    writer.write(sent)
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


def elsewhere() -> str | None:
    """An address of this machine that is not loopback, if it has one: a connection from it has a foreign peer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        return str(probe.getsockname()[0])


@asynccontextmanager
async def every_door(tmp_path: Path, **more: Any) -> AsyncIterator[dict[str, tuple[str, str]]]:
    """Serve every port there is; tell address and a guarded path of each."""
    settings = configured(tmp_path, **more)
    settings["flows"]["grpc"] = HERE
    app = StreamApp(broker=MemoryBroker(), group="billing")
    async with served(settings) as client:
        doors: dict[str, Any] = {door.kind: door for door in client.server.doors}
        with StatusServer(app, HERE) as status:
            yield {
                "control": (client.server.listener.address, "/api/v1/overview"),
                "dashboard": (client.server.listener.address, "/"),
                "metrics": (client.server.listener.address, "/metrics"),
                "admin": (doors["gateway"].gateway.admin_listener.address, "/workers"),
                "flows": (doors["flows"].server.http.address, "/metrics"),
                "jobs": (doors["jobs"].server.http.address, "/v1/runs"),
                "streams": (status.address, "/status"),
                "grpc": (doors["flows"].server.grpc.address, ""),
            }


# What is sent, and whether it is answered; the rest is 403, or 400 where the protocol itself refuses it.
SENT: list[tuple[str | None, tuple[str, ...], bool]] = [
    ("localhost", (), True),
    ("LOCALHOST:99", (), True),
    ("127.0.0.1:8080", (), True),
    ("[::1]", (), True),
    ("[::ffff:127.0.0.1]:80", (), True),
    ("localhost.", (), False),
    ("127.1", (), False),
    ("2130706433", (), False),
    ("localhost@evil.example", (), False),
    ("evil@localhost", (), False),
    ("rebound.example", (), False),
    ("", (), False),
    (None, (), False),
    ("localhost", ("Host: localhost",), False),
    ("localhost", ("Host: evil.example",), False),
    ("localhost", ("X-Forwarded-For: 203.0.113.9",), False),
    ("localhost", ("X-Forwarded-Proto: https",), False),
    ("localhost", ("Forwarded: for=203.0.113.9",), False),
    ("localhost", ("X-Real-IP: 203.0.113.9",), False),
    ("localhost", ("Via: 1.1 proxy",), False),
]
TRIED = {"hosts and forwarding headers at each door": 2 * len(SENT)}  # of HTTP/1.0 and 1.1


def test_without_tokens_every_door_answers_its_own_machine_alone(tmp_path: Path):
    async def test() -> None:
        async with every_door(tmp_path) as doors:
            foreign = elsewhere()
            for name, (address, path) in doors.items():
                if name == "grpc":
                    continue
                for host, lines, answered in SENT:
                    for version in ("1.1", "1.0"):
                        status = await status_of(address, raw(host, path, *lines, version=version))
                        said = (name, host, lines, version, status)
                        assert status == 200 if answered else status in (400, 403), said
                # In this form the target names a host of its own, and two readers may differ on which one counts.
                for target in (f"http://localhost{path}", f"http://evil.example{path}"):
                    assert await status_of(address, raw("localhost", target)) == 400, name
                if foreign is not None:
                    assert await status_of(address, raw("localhost", path), foreign) == 403, name
                    assert await status_of(address, raw("evil.example", "/livez"), foreign) in (
                        200,
                        404,
                    )

    run(test)


@pytest.mark.parametrize("broken", ["is_local_peer", "_is_local_host", "_is_of_proxies"])
def test_a_door_that_misses_one_of_the_three_is_caught(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if broken == "is_local_peer" and elsewhere() is None:
        pytest.skip("this machine has no address but loopback")
    monkeypatch.setattr(locality, broken, lambda given: broken != "_is_of_proxies")
    with pytest.raises(AssertionError):
        test_without_tokens_every_door_answers_its_own_machine_alone(tmp_path)


def test_without_a_token_grpc_answers_its_own_machine_alone(tmp_path: Path):
    async def test() -> None:
        async with (
            every_door(tmp_path) as doors,
            grpc.aio.insecure_channel(doors["grpc"][0]) as channel,
        ):
            check: Any = channel.unary_unary(f"/{wire.SERVICE}/Check")
            asked = wire.message("CheckRequest")(control_point="checkout").SerializeToString()
            await check(asked)
            for name in ("x-forwarded-for", "forwarded", "x-real-ip", "via"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await check(asked, metadata=((name, "203.0.113.9"),))
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                assert "behind a proxy a token is needed" in str(caught.value.details())

    run(test)


@pytest.mark.parametrize(
    ("written", "local"),
    [
        ("ipv4:127.0.0.1:5000", True),
        ("ipv6:%5B::1%5D:5000", True),
        ("ipv6:[::ffff:127.0.0.1]:5000", True),
        ("unix:/run/flows.sock", True),
        ("unix-abstract:flows", True),
        ("ipv4:192.0.2.2:5000", False),
        ("ipv6:%5Bfd00::2%5D:5000", False),
        ("vsock:2:1", False),
        ("", False),
    ],
)
def test_a_peer_as_grpc_writes_it(written: str, local: bool):
    assert is_local_peer(_peer_of(written)) is local


def test_the_banner_of_each_service_says_whom_it_answers(tmp_path: Path):
    settings = configured(tmp_path)
    said = Server(load_mapping(settings)).describe()
    assert (
        "without a token the dashboard, gateway.admin, flows, jobs.http answer this machine only; "
        "behind a proxy they need one each" in said
    )
    flows = FlowServer(flows_of(POINTS))
    assert "without a token it answers this machine only; behind a proxy" in flows.describe()
    assert "without a token" not in FlowServer(flows_of(POINTS), token="t").describe()


# A blank token guards nothing

BLANK = ("", " ", "\t", "\n", "\u00a0", " t", "t ", "t\n", "a\0b")


@pytest.mark.parametrize("token", BLANK)
@pytest.mark.parametrize("variable", [False, True])
def test_no_service_starts_with_a_blank_token(
    token: str, variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    if variable and "\0" in token:
        pytest.skip("no variable holds that")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flows.yaml").write_text(
        "control_points: {a: {concurrency: {max_concurrency: 1}}}\n"
    )
    (tmp_path / "blank_app.py").write_text(
        "from fairlead.jobs import Jobs\nfrom fairlead.streams import StreamApp\n"
        "from fairlead.testing.streams import MemoryBroker\n"
        "jobs = Jobs('sqlite:///blank.db')\nstream = StreamApp(broker=MemoryBroker(), group='g')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    commands = {
        "JOBS": ["jobs", "serve", "--app", "blank_app:jobs", "--http", HERE],
        "FLOWS": ["flows", "serve", "--config", "flows.yaml", "--http", HERE],
        "STREAMS": ["streams", "run", "blank_app:stream", "--listen", HERE],
    }
    for name, command in commands.items():
        if variable:
            monkeypatch.setenv(f"FAIRLEAD_{name}_TOKEN", token)
        else:
            command += ["--token", token]
        assert main(command) == 2, command
        said = capsys.readouterr().err
        assert "is blank" in said or "has white space around it" in said, said
    monkeypatch.delitem(sys.modules, "blank_app", raising=False)
    assert not (tmp_path / "blank.db").exists()


@pytest.mark.parametrize("token", ["", " ", "null", "'\\n'"])
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("jobs.token", "jobs: {database: 'sqlite:///x.db', token: TOKEN}"),
        ("flows.token", "flows: {control_points: {}, token: TOKEN}"),
        ("gateway.admin.token", "gateway: {admin: {token: TOKEN}}"),
        ("server.tokens", "server: {tokens: TOKEN}"),
    ],
)
def test_no_configuration_has_a_blank_token(token: str, path: str, text: str, tmp_path: Path):
    file = tmp_path / "fairlead.yaml"
    written = token if token in ("", "null", "'\\n'") else f"'{token}'"
    file.write_text(text.replace("TOKEN", written.replace("'\\n'", '"\\n"')))
    assert any(f" {path}" in line for line in load(str(file)).lines), load(str(file)).lines


@pytest.mark.parametrize("text", [b"", b" ", b"\n", b"\r\n", b"\t"])
def test_the_hash_of_a_blank_is_no_token(text: bytes):
    token = {"name": "a", "role": "admin", "sha256": sha256(text).hexdigest()}
    (line,) = load_mapping({"server": {"tokens": [token]}}).lines
    assert "may not be the hash of a blank text" in line
