"""`fairlead top` against a real server, and against what is none."""

import asyncio
import io
import json
import os
import pty
import re
import signal
import socket
import sys
from typing import Any

import pytest
from rich.console import Console

from fairlead.cli import main
from fairlead.cli.top_view import lasting, table, visible
from tests.server.rig import TOKENS, configured, run, served

ENVIRON = {"PYTHONUTF8": "1", "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
CODE = "import sys; from fairlead.cli import main; sys.exit(main())"


async def top(*args, **environ):
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CODE, "top", *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=ENVIRON | environ,
    )
    out, err = await asyncio.wait_for(asked.communicate(), 30)
    return asked.returncode, out.decode(), err.decode()


def test_it_shows_every_gate_once_where_there_is_no_terminal(tmp_path):
    async def go():
        async with served(configured(tmp_path)) as client:
            code, out, err = await top(client.url)
            assert code == 0, err
            assert "gateway/default" in out
            assert "flows/checkout" in out
            assert max(map(len, out.splitlines())) <= 80
            code, out, _ = await top(client.url, "--json")
            assert code == 0
            assert {gate["id"] for gate in json.loads(out)["gates"]} >= {"gateway/default"}

    run(go)


def test_it_asks_for_a_token_and_shows_it(tmp_path):
    async def go():
        settings = configured(tmp_path)
        settings["server"] |= {"tokens": TOKENS}
        async with served(settings) as client:
            code, _, err = await top(client.url)
            assert code == 1
            assert "FAIRLEAD_TOKEN" in err
            code, out, _ = await top(client.url, FAIRLEAD_TOKEN="viewer-secret")
            assert code == 0
            assert "gateway/default" in out

    run(go)


def test_what_is_no_server_is_told_in_a_sentence(capsys):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    assert main(["top", address]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "fairlead serve" in said
    assert "--help" not in said, "the command line was right"
    for url in ("ftp://x", "http://", "http://x:y"):
        assert main(["top", url]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "is no address" in said


def test_names_reach_the_terminal_as_text_only():
    assert visible("a\x1b[31mb") == "a\\x1b[31mb"
    assert (lasting(None), lasting(0.0421), lasting(3.21)) == ("-", "42 ms", "3.2 s")


class Terminal:
    """A terminal of 80 columns, and what was written on it."""

    def __init__(self) -> None:
        self._leader, self.follower = pty.openpty()
        self.seen = ""
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._leader, self._read)

    def _read(self) -> None:
        self.seen += os.read(self._leader, 1 << 16).decode()
        self._more.set()

    async def until(self, text: str) -> None:
        """Wait until this is written, after all that was waited for before."""
        while text not in self.seen:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 20)
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._leader)
        os.close(self._leader)
        os.close(self.follower)


def test_on_a_terminal_it_follows_what_the_server_does_until_it_is_stopped(tmp_path):
    async def go():
        async with served(configured(tmp_path)) as client:
            door: Any = next(door for door in client.server.doors if door.name == "flows")
            terminal = Terminal()
            watching = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CODE, "top", client.url),
                stdout=terminal.follower,
                stderr=asyncio.subprocess.PIPE,
                env=ENVIRON | {"TERM": "xterm", "COLUMNS": "80"},
            )
            try:
                await terminal.until("flows/checkout  0 of 2 slots")
                first = await door.server.flows.start_flow("checkout")
                await terminal.until("flows/checkout  1 of 2 slots")
                second = await door.server.flows.start_flow("checkout")
                await terminal.until("flows/checkout  2 of 2 slots")
                first.end()
                second.end()
                await terminal.until("\x1b[1A")  # over what it wrote before, not under it
                await terminal.until("flows/checkout  0 of 2 slots")
                assert watching.returncode is None
                watching.send_signal(signal.SIGINT)
                _, err = await asyncio.wait_for(watching.communicate(), 20)
                assert err == b""
                assert await watching.wait() == 130
            finally:
                if watching.returncode is None:
                    watching.kill()
                    await watching.wait()
                terminal.close()

    run(go)


def test_long_names_are_told_apart_and_80_columns_are_enough():
    names = ["default", "flows/checkout paid", "flows/checkout default", "x" * 14, "x" * 15]
    wait = dict.fromkeys(("p50", "p95", "p99"), 0.25)
    figures = {"running": 1, "waiting": 2, "oldest_wait": None, "waits": wait}
    rates = {"admitted_per_s": 3.0, "refused_per_s": 0.0}
    classes = [{"name": name, **figures, **rates} for name in names]
    gate = {"id": "pool/gpu", "slots": {"used": 1, "total": 4}, "classes": classes}
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table("http://127.0.0.1:8080", {"gates": [gate]}))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    (told,) = {line[16:] for line in lines if line.endswith("0.0")}  # one below the other
    assert sum(line.endswith(told) for line in lines) == len(names)
    for name in names:
        assert (f"  {name}" if len(name) > 14 else f"  {name:<14}{told}") in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("count", [0, 7, 1234, 1234567])
def test_80_columns_break_nothing_that_belongs_together(count):
    names = ("ready", "running", "waiting", "failed", "done", "sla_soft_missed", "sla_hard_missed")
    jobs = dict.fromkeys((*names, "workers"), count)
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table("http://127.0.0.1:8080", {"gates": [], "jobs": jobs}))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    told = lines[next(at for at, line in enumerate(lines) if line.startswith("jobs: ")) :]
    assert len(told) > 1
    whole = " ".join(line.strip() for line in told)
    items = [f"{name.replace('_', ' ')} {number}" for name, number in jobs.items()]
    assert whole == f"jobs: {', '.join(items)}"
    for line in told:
        assert len(line) <= 80
        assert re.fullmatch(r"(jobs: |      )([a-z ]+ \d+,? ?)+", line), line
    assert all(line.endswith(",") for line in told[:-1])
