"""A reader who does what a page says: saves its files, types its commands into a shell, looks at what is printed.

Left out is only the installation (what is under test is installed already) and what names a server of the reader's own,
which the tests provide.  Figures may differ from the page's; ports are ones that are free here.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = re.compile(
    r"[Ss]ave as `(?P<name>[\w.]+)`[^`]*\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
CONSOLE = re.compile(r"^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = ("pip install", "python -m venv", "export ")
DONE = "=== done: "


def steps(page: str) -> list[tuple[str, list[str]]]:
    """Give the page's commands, each with the lines it is shown to print."""
    found: list[tuple[str, list[str]]] = []
    for block in CONSOLE.finditer(page):
        for line in block["text"].splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return [(command, shown) for command, shown in found if not command.startswith(LEFT_OUT)]


def on_free_ports(page: str, *ports: str) -> str:
    """Let the page use ports that nobody has."""
    sockets = []
    for port in ports:
        sockets.append(socket.create_server(("127.0.0.1", 0)))
        page = re.sub(rf"\b{port}\b", str(sockets[-1].getsockname()[1]), page)
    for one in sockets:
        one.close()
    return page


def save(page: str, folder: Path) -> list[str]:
    """Save the files of a page; return their names."""
    files = {match["name"]: match["text"] for match in FILE.finditer(page)}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return list(files)


def follow(page: str, folder: Path, **environment: str) -> dict[str, list[str]]:
    """Type a page's commands and hold what they print against the page; return what each printed."""
    todo = steps(page)
    printed = typed([command for command, _ in todo], folder, environment)
    for command, shown in todo:
        got = printed.get(command, [])
        for line in shown:
            assert shape(line) in map(shape, got), f"{command} printed\n" + "\n".join(got)
    return printed


def typed(commands: list[str], folder: Path, environment: dict[str, str]) -> dict[str, list[str]]:
    """Type commands into one shell; return what each printed."""
    lines = ["set -m"]
    for number, command in enumerate(commands):
        lines += [command, f"printf '\\n{DONE}{number}\\n'"]
    lines += ["kill $(jobs -p)", "wait"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(lines)],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        end_session(shell.pid)
        raise
    result: dict[str, list[str]] = {}
    at = 0
    for line in printed.splitlines():
        if line == f"{DONE}{at}":
            at += 1
        elif at < len(commands):
            result.setdefault(commands[at], []).append(line)
    assert at == len(commands), printed
    return result


def end_session(session: int) -> None:
    """Kill a shell and all it started: with job control each has a process group of its own."""
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def shape(line: str) -> str:
    """Leave the figures out of a line, but for statuses."""
    return re.sub(r"(?<!\d)\d+\.\d+(?=\D|$)|(?<=: )\d+", "#", line.rstrip())
