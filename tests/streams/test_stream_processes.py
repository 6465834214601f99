"""Whole processes: SIGTERM ends `app.run()` with status 0, and consumers that keep a core busy run in children."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.streams import Consumer
from fairlead.streams.broker import Tp
from fairlead.streams.processes import perform
from tests.streams.staging import app_on, filled, running, wait_committed

BEGIN = """
import os, sys, threading, time
from fairlead.streams import Consumer, StreamApp, StreamScheduler
from fairlead.streams.schedulers import FairByTopic
from fairlead.testing.streams import MemoryBroker

broker = MemoryBroker({"orders": 2})
for number in range(10):
    broker.write("orders", b"%d" % number, partition=number % 2)

def say(*words):
    print(*words, flush=True)
"""


def start(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def end(child: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, list[str]]:
    assert child.stdout is not None
    try:
        assert child.stdout.readline().strip() == "begun"
        child.send_signal(number)
        rest, _ = child.communicate(timeout=30)
        return child.returncode, rest.split("\n")
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_jobs_finish_commits_and_exits_with_0(number):
    child = start(
        """
        class Slow(Consumer):
            def consume(self, messages):
                say("begun")
                time.sleep(0.3)
                say("finished", self.partition)
            def shutdown(self):
                say("shutdown", self.partition)

        app = StreamApp(group="g", broker=broker, concurrency=1, commit_interval="1h")
        app.topic("orders", Slow)
        app.run()
        say("offsets", sorted(broker.offsets("g").items()))
        """
    )
    status, lines = end(child, number)
    assert status == 0
    assert lines[0] == "finished 0"
    assert "begun" not in lines
    assert "shutdown 0" in lines
    assert any("offsets" in line and "partition=0), 5)" in line for line in lines)
    # Where a fresh group begins is committed with a note, beside what is done.
    assert not any("partition=1), " in line and "partition=1), 0)" not in line for line in lines)


@pytest.mark.parametrize(
    "misdeed",
    ["say('begun')", "say('begun'); time.sleep(3600)", "say('begun'); self.queue.lock(jobs[0])"],
    ids=["forgets", "hangs", "withholds"],
)
def test_a_bad_scheduler_does_not_keep_a_process_from_exiting_with_0(misdeed):
    child = start(
        f"""
        class Bad(StreamScheduler):
            def schedule_consumption(self, jobs):
                {misdeed}

        class Never(Consumer):
            def consume(self, messages):
                say("consumed")

        app = StreamApp(group="g", broker=broker, scheduler=Bad, grace="500ms")
        app.topic("orders", Never)
        app.run()
        say("offsets", sum(broker.offsets("g").values()))
        """
    )
    since = time.monotonic()
    status, lines = end(child)
    assert status == 0
    assert time.monotonic() - since < 15.0
    assert lines[0] == "offsets 0"  # where the group began: nothing is done


def test_a_handler_that_never_ends_does_not_either():
    child = start(
        """
        class Never(Consumer):
            def consume(self, messages):
                say("begun")
                time.sleep(3600)

        app = StreamApp(group="g", broker=broker, concurrency=1, grace="300ms")
        app.topic("orders", Never)
        app.run()
        """
    )
    assert end(child)[0] == 0


class Talking(Consumer):
    processes = True

    def consume(self, messages):
        assert messages[0].headers == [("trace", None), ("own", b"1")]
        print("printed")
        subprocess.run(["echo", "echoed"], check=True)
        subprocess.run(["cat"], check=True)


def test_what_a_consumer_in_a_process_and_its_tools_write_is_no_answer(capfd):
    broker = filled({"orders": 1}, 0)
    headers: Any = [("trace", None), ("own", b"1")]  # as Kafka has them
    for _ in range(2):
        broker.write("orders", b"x", headers=headers)
    app = app_on(broker)
    app.topic("orders", Talking, batch_size=1)
    with running(app):
        wait_committed(broker, 2)
    assert app.statistics().groups["default"].failures == 0
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.split() == ["printed", "echoed"] * 2


class Crunching(Consumer):
    processes = True

    def __init__(self):
        self.count = 0

    def consume(self, messages):
        self.count += len(messages)
        (message,) = messages
        assert message.key == b"k"
        word = message.value.decode()
        path = Path(message.headers[0][1].decode())
        with path.open("a") as out:
            out.write(f"{os.getpid()} {self.partition} {message.offset} {word}\n")
        marker = path.with_suffix(f".{word}")
        if word in ("die", "raise") and not marker.exists():
            marker.touch()
            if word == "die":
                os._exit(7)
            raise ValueError("in the child")


def test_consumers_that_keep_a_core_busy_run_in_processes(tmp_path, caplog):
    broker = filled({"orders": 2}, 0)
    path = tmp_path / "out"
    for value in (b"1", b"die", b"2", b"raise", b"3"):
        broker.write("orders", value, key=b"k", partition=0, headers=[("path", str(path).encode())])
    app = app_on(broker, concurrency=2)
    app.topic("orders", Crunching, batch_size=1, retry_backoff="1ms")
    with running(app):
        wait_committed(broker, 5)
        children = list(app.runtime.workers._children._all)
    lines = [line.split() for line in path.read_text().splitlines()]
    assert [line[3] for line in lines] == ["1", "die", "die", "2", "raise", "raise", "3"]
    assert str(os.getpid()) not in {line[0] for line in lines}
    assert len({line[0] for line in lines}) == 2
    assert "the process of Crunching ended with exit code 7" in caplog.text
    assert "ValueError: in the child" in caplog.text
    assert all(child.poll() is not None for child in children)
    assert broker.offsets("g") == {Tp("orders", 0): 5}


def test_a_script_that_cannot_be_loaded_fails_every_call_with_its_own_error(tmp_path):
    script = tmp_path / "app.py"
    script.write_text("raise RuntimeError('no licence')\n")
    call = {
        "module": "__main__",
        "script": str(script),
        "consumer": "Crunching",
        "topic": "orders",
        "partition": 0,
        "generation": 1,
        "messages": [],
    }
    for _ in range(2):
        assert perform(call, {}) == "RuntimeError: no licence"
