"""`fairlead streams`: real processes on the mock cluster, real signals; and what is said when something is wrong."""

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import Producer

from fairlead.cli import main
from fairlead.cli.streams_view import Window, screen
from fairlead.errors import FairleadError
from fairlead.streams import Consumer, StreamApp, running
from fairlead.streams.kafka_settings import ClientLog
from fairlead.streams.status import StatusServer
from fairlead.testing.streams import MemoryBroker
from tests.streams.mock_cluster import MockCluster
from tests.streams.staging import Book, app_on, filled, until, wait_committed, writing
from tests.streams.staging import running as in_run

PATIENCE = 60.0
FAIRLEAD = "import sys; from fairlead.cli import main; sys.exit(main())"

WORK = """
import os, pathlib, time
from fairlead.streams import Consumer, StreamApp, StreamScheduler


class Orders(Consumer):
    def consume(self, messages):
        os.write(1, b"begun %d\\n" % len(messages))  # in one piece: threads share the line
        hold = pathlib.Path("hold")
        while hold.exists():
            time.sleep(0.01)
        os.write(1, b"done %d\\n" % len(messages))


class Broken(StreamScheduler):
    def __init__(self, queue):
        raise RuntimeError("no paper")


class Keeps(StreamScheduler):
    def schedule_consumption(self, jobs):
        for job in jobs:
            self.queue.lock(job)


def made(**options):
    app = StreamApp(
        os.environ["SERVERS"], os.environ["GROUP"], commit_interval="200ms",
        kafka={"session.timeout.ms": 2000}, **options,
    )
    app.topic(os.environ["TOPIC"], Orders)
    return app


app = made()
broken = made(scheduler=Broken)
keeping = made(scheduler=Keeps)
hasty = made(grace="500ms")
other = 3
"""


@pytest.fixture(scope="module")
def cluster():
    with MockCluster() as made:
        yield made


class Process:
    """A `fairlead streams` of its own, in a folder with the module `work`."""

    def __init__(self, folder: Path, env: dict[str, str], *args: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", FAIRLEAD, "streams", *args],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._news = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.child.stdout, self.out), (self.child.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            with self._news:
                lines.append(line.rstrip("\n"))
                self._news.notify_all()

    def wait_for(self, pattern: str, lines: list[str]) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            return next((hit for line in lines if (hit := re.search(pattern, line))), None)

        with self._news:
            hit = self._news.wait_for(found, PATIENCE)
        assert hit, (pattern, self.out, self.err)
        return hit

    def end(self, number: int | None = None) -> int:
        if number is not None:
            self.child.send_signal(number)
        code = self.child.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.end()
        for stream in (self.child.stdout, self.child.stderr):
            if stream is not None:
                stream.close()


class Stage:
    def __init__(self, folder: Path, cluster: MockCluster) -> None:
        self.folder = folder
        self.topic = cluster.fresh(3, "orders")
        self.group = f"group-{self.topic}"
        self.env = {
            **os.environ,
            "SERVERS": cluster.bootstrap,
            "GROUP": self.group,
            "TOPIC": self.topic,
        }
        self.processes: list[Process] = []
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap}, logger=ClientLog())
        (folder / "work.py").write_text(WORK)

    def write(self, records: int) -> None:
        for number in range(3):
            for _ in range(records):
                self._producer.produce(self.topic, b"x", partition=number)
        assert self._producer.flush(PATIENCE) == 0

    def start(self, *args: str) -> Process:
        self.processes.append(Process(self.folder, self.env, *args))
        return self.processes[-1]

    def run(self, *args: str) -> tuple[int, str, str]:
        process = self.start(*args)
        code = process.end()
        return code, "\n".join(process.out), "\n".join(process.err)


@pytest.fixture
def stage(tmp_path, cluster):
    made = Stage(tmp_path, cluster)
    yield made
    for process in made.processes:
        process.close()


def address_of(process: Process) -> str:
    return process.wait_for(r"fairlead streams: http://(\S+);", process.err)[1]


def get(address: str, path: str) -> tuple[int, str]:
    host, port = address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_finish_and_commits_it(stage, number):
    stage.write(2)
    (stage.folder / "hold").touch()
    process = stage.start("run", "work:app", "--listen", "0")
    address = address_of(process)
    process.wait_for("begun", process.out)
    process.child.send_signal(number)
    until(lambda: "503" in str(get(address, "/readyz")[0]), PATIENCE)
    (stage.folder / "hold").unlink()
    assert process.end() == 0, process.err
    begun = sum(int(line.split()[1]) for line in process.out if line.startswith("begun"))
    done = sum(int(line.split()[1]) for line in process.out if line.startswith("done"))
    assert begun == done > 0

    code, out, err = stage.run("lag", "work:app", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["group"] == stage.group
    assert sum(one["committed"] or 0 for one in told["partitions"]) == done
    assert told["lag"] == 6 - done


def test_a_handler_that_never_ends_keeps_nobody_from_leaving(stage):
    stage.write(1)
    (stage.folder / "hold").touch()
    process = stage.start("run", "work:hasty", "--listen", "off")
    process.wait_for("begun", process.out)
    assert process.end(signal.SIGTERM) == 0, process.err
    assert "these still run, and are left to the next owner" in "".join(process.err)
    _, out, _ = stage.run("lag", "work:app", "--json")
    assert json.loads(out)["lag"] == 3


def test_a_second_signal_waits_for_nothing():
    go, begun = threading.Event(), threading.Event()

    class Waits(Consumer):
        def consume(self, messages: Any) -> None:
            begun.set()
            go.wait(PATIENCE)

    app = app_on(filled({"orders": 1}, 3), grace="10m")
    app.topic("orders", Waits)
    ended = threading.Thread(target=app.run)
    ended.start()
    assert begun.wait(PATIENCE)
    app.shut_down()
    until(lambda: app.state == "stopping")
    app.shut_down()
    ended.join(PATIENCE)
    assert not ended.is_alive()
    assert app.state == "stopped"
    go.set()


def test_the_lag_is_one_line_per_partition_and_needs_nobody_to_consume(stage):
    stage.write(5)
    code, out, err = stage.run("lag", "work:app")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines == [
        [stage.topic, str(number), "committed", "-", "end", "5", "lag", "5"] for number in range(3)
    ]
    process = stage.start("run", "work:app", "--listen", "off")
    for _ in range(3):
        until(lambda: sum(line.startswith("done") for line in process.out) >= 3, PATIENCE)
    process.end(signal.SIGTERM)
    _, out, _ = stage.run("lag", "work:app")
    assert [line.split()[3:] for line in out.splitlines()] == [["5", "end", "5", "lag", "0"]] * 3


def test_a_topic_that_is_not_there_is_named(stage):
    stage.env["TOPIC"] = "nowhere"
    code, out, err = stage.run("lag", "work:app")
    # The mock cluster makes every topic that is asked for, as clusters may be told to do.
    assert (code, err) in [(1, "fairlead: topic nowhere does not exist"), (0, "")]
    assert len(out.splitlines()) in (0, 4)


def test_a_broker_that_is_away_is_told_in_one_sentence(stage):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        stage.env["SERVERS"] = f"127.0.0.1:{taken.getsockname()[1]}"
    code, out, err = stage.run("lag", "work:app")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "asking for the partitions" in err


def test_a_scheduler_that_cannot_be_made_ends_the_run(stage):
    code, _, err = stage.run("run", "work:broken", "--listen", "0")
    assert code == 1
    assert err.splitlines()[-1] == (
        "fairlead: the scheduler Broken could not be made: RuntimeError: no paper"
    )


@pytest.mark.parametrize("command", ["run", "lag"])
@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("nope:app", "no module 'nope'"),
        ("work:nope", "module 'work' has no 'nope'"),
        ("work", "module:name"),
        ("work:other", "no StreamApp but of type 'int'"),
        ("bad:app", "cannot be imported: ZeroDivisionError"),
        ("", "module:name"),
    ],
)
def test_a_bad_app_is_one_sentence(command, app, says, tmp_path, monkeypatch, capsys):
    (tmp_path / "work.py").write_text("other = 3\n")
    (tmp_path / "bad.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "work", raising=False)
    assert main(["streams", command, app]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert says in err
    sys.modules.pop("work", None)  # by hand: what monkeypatch deletes it brings back


@pytest.mark.parametrize(
    ("listen", "says"),
    [("nowhere", "host:port"), ("127.0.0.1:99999", "host:port"), ("0.0.0.0:0", "token")],
)
def test_an_address_that_will_not_do_is_one_sentence(listen, says, stage):
    code, _, err = stage.run("run", "work:app", "--listen", listen)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert says in err


def test_an_address_that_is_taken_stops_the_run_only_if_it_was_asked_for(monkeypatch, capsys):
    app = StreamApp(broker=filled({"orders": 1}, 3), group="g", commit_interval="20ms")
    app.topic("orders", writing(Book()))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert running.run(app, listen=address) == 2
        assert f"cannot listen on {address}" in capsys.readouterr().err

        monkeypatch.setattr(running, "ADDRESS", address)
        ended = threading.Thread(target=running.run, args=(app,))
        ended.start()
        wait_committed(app.broker, 3)  # type: ignore[arg-type]
        app.shut_down()
        ended.join(PATIENCE)
    assert "give it an address of its own with --listen" in capsys.readouterr().err


def test_top_shows_a_process_and_why_it_waits(stage):
    stage.write(4)
    process = stage.start("run", "work:keeping", "--listen", "0")
    address = address_of(process)
    status: dict[str, Any] = {}

    def withheld() -> bool:
        status.update(json.loads(get(address, "/status")[1]))
        # Also the lag: after its first records the group is not read, so somebody else has to ask.
        lag = status["topics"][stage.topic]["lag"]
        return bool(status["withheld_count"]) and lag == 12

    until(withheld, PATIENCE)
    assert status["app"] == "work:keeping"
    assert (get(address, "/livez")[0], get(address, "/readyz")[0]) == (200, 200)
    code, metrics = get(address, "/metrics")
    assert code == 200
    assert f'fairlead_streams_lag{{partition="1",topic="{stage.topic}"}} 4.0' in metrics

    code, out, err = stage.run("top", "--address", address)
    assert (code, err) == (0, "")
    assert f"{status['withheld_count']} withheld" in out
    assert "locked by Keeps" in out
    assert f"{stage.topic}" in out
    code, out, _ = stage.run("top", "work:keeping", "--address", address, "--json")
    assert code == 0
    assert json.loads(out)["scheduler"]["name"] == "Keeps"
    code, out, err = stage.run("top", "work:app", "--once", "--address", address)
    assert (code, out) == (1, "")
    assert "work:keeping runs at" in err
    assert process.end(signal.SIGTERM) == 0


def test_top_is_live_on_a_terminal_until_ctrl_c():
    book = Book()
    app = app_on(filled({"orders": 1}, 3))
    app.topic("orders", writing(book))
    with StatusServer(app, "127.0.0.1:0", name="billing:app") as server, in_run(app):
        ours, theirs = os.openpty()
        command = [sys.executable, "-c", FAIRLEAD, "streams", "top", "--interval", "0.1"]
        child = subprocess.Popen(
            [*command, "--address", server.address],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
            start_new_session=True,
        )
        os.close(theirs)
        shown = b""
        try:
            while shown.count(b"billing:app") < 3:  # drawn again and again
                assert select.select([ours], [], [], PATIENCE)[0], shown
                shown += os.read(ours, 65536)
            assert b"orders" in shown
            child.send_signal(signal.SIGINT)
            assert child.wait(PATIENCE) == 0
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
            os.close(ours)


def test_top_says_when_nobody_listens(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert main(["streams", "top", "--address", address]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert f"nothing answers at {address}" in err


def test_top_says_when_something_else_listens(capsys):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Other)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        with pytest.raises(FairleadError, match="no stream app"):
            Window(f"127.0.0.1:{server.server_port}", None, None).look()
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def test_top_needs_the_token_where_there_is_one():
    app = StreamApp(broker=MemoryBroker({"orders": 1}), group="g")
    with StatusServer(app, "127.0.0.1:0", token="secret") as server:
        with pytest.raises(FairleadError, match="--token"):
            Window(server.address, None, None).look()
        assert Window(server.address, "secret", None).look()["state"] == "new"


def test_what_users_name_cannot_write_on_the_terminal():
    from rich.console import Console

    app = StreamApp(broker=MemoryBroker(), group="g\x1b[31m")
    app.topic("or\x1bders", writing(Book()))
    console = Console(width=120)
    with console.capture() as captured:
        console.print(screen({"app": "a", **app.snapshot()}, None, 0.0))
    assert "\x1b" not in captured.get()
    assert "or\\x1bders" in captured.get()


@pytest.mark.parametrize("args", [["--help"], ["streams", "--help"], ["streams", "run", "--help"]])
def test_help_loads_nothing_that_is_slow(args):
    code = (
        f"import sys; from fairlead.cli import main; main({args!r});"
        "slow = {'confluent_kafka', 'rich', 'prometheus_client', 'fairlead.streams', 'asyncio'};"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] in ("[]", "['asyncio']")
