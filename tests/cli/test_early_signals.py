"""SIGTERM exits 0 from the first line of a service on: sent at random audit events of a whole start-up.

The child counts its own audit events (imports, files, sockets, compiled code), which come by the thousand in a start,
and sends itself the signal at the one it is told: any moment can be hit, and no moment depends on the machine's speed.
"""

import concurrent.futures
import os
import random
import subprocess
import sys

import pytest

from fairlead.cli import serves
from tests.sizes import times

CHILD = """
import os, signal, sys, threading
at, command, handled = int(sys.argv[1]), sys.argv[3:], sys.argv[2] == "handled"
sys.argv[:] = ["fairlead", *command]
begun = count = 0

def audit(event, args):
    global begun, count
    if not begun:
        code = args[0] if event == "exec" else None
        begun = str(getattr(code, "co_filename", "")).endswith(os.path.join("cli", "__init__.py"))
        return
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGTERM)

def late():
    os.kill(os.getpid(), signal.SIGTERM)

timer = threading.Timer(float(os.environ["LATEST"]), late)  # a start of fewer events
timer.daemon = True
timer.start()
sys.addaudithook(audit)
from fairlead import cli
if not handled:
    cli.serves = lambda args: False
try:
    sys.exit(cli.main())
finally:
    print(count, flush=True)
"""
JOBS = "from fairlead.jobs import Jobs\n\njobs = Jobs('sqlite:///{path}')\n\n@jobs.task\ndef work(): ...\n"
STREAMS = """
from fairlead.streams import Consumer, StreamApp
from fairlead.testing import MemoryBroker

class Orders(Consumer):
    def consume(self, messages): ...

app = StreamApp(broker=MemoryBroker({"orders": 2}), group="g")
app.topic("orders", Orders)
"""
SERVICES = {
    "streams run": ["streams", "run", "streaming:app", "--listen", "off"],
    "serve": ["serve", "--listen", "127.0.0.1:0", "--no-demo"],
    "gateway": ["gateway", "--config", "gateway.yaml"],
    "flows serve": ["flows", "serve", "--http", "127.0.0.1:0", "--grpc", "off"],
    "jobs serve": ["jobs", "serve", "--app", "working:jobs", "--http", "off"],
    "worker": ["worker", "--app", "working:jobs"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("services")
    (path / "streaming.py").write_text(STREAMS)
    (path / "working.py").write_text(JOBS.format(path=path / "jobs.db"))
    (path / "gateway.yaml").write_text(
        "listen: 127.0.0.1:0\nbackends:\n  - {url: 'http://127.0.0.1:9', slots: 2}\n"
    )
    return path


def start(place, command, at, handled="handled"):
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(at), handled, *command],
        cwd=place,
        env={**os.environ, "LATEST": "3", "PYTHONPATH": os.pathsep.join([str(place), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_exits_with_0_whenever_sigterm_comes(place, service):
    rng = random.Random(service)
    moments = [1, *(int(10 ** rng.uniform(0, 3.7)) for _ in range(times(15, 3)))]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda at: start(place, SERVICES[service], at), moments))
    for at, end in zip(moments, ends, strict=True):
        assert (end.returncode, "Traceback" in end.stderr) == (0, False), (at, end)


def test_a_command_without_the_handler_is_caught(place):
    end = start(place, SERVICES["streams run"], 200, "unhandled")
    assert end.returncode == -15


@pytest.mark.parametrize("command", [["--version"], ["jobs", "list", "--db", "sqlite:///x.db"]])
def test_what_is_no_service_does_not_claim_success(place, command):
    assert start(place, command, 1).returncode == -15


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("serve", True),
        ("serve --config a.yaml", True),
        ("serve --check --config a.yaml", False),
        ("gateway --config a.yaml", True),
        ("gateway", True),
        ("gateway check a.yaml", False),
        ("flows serve", True),
        ("flows check a.yaml", False),
        ("flows", False),
        ("jobs serve --app a:b", True),
        ("jobs submit serve", False),
        ("streams run a:b --listen off", True),
        ("streams lag a:b", False),
        ("worker --executor ocr", True),
        ("top", False),
        ("", False),
    ],
)
def test_which_commands_are_services(line, does):
    assert serves(line.split()) is does
