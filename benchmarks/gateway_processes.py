"""Processes of the gateway suite: start a server, put load on it, read what it used, end it and nothing else."""

from __future__ import annotations

import json
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import clock_gettime, monotonic, sleep
from typing import NamedTuple

from benchmarks.gateway_load import request

CONNECTIONS = 32
PRIORITY = "x-fairlead-priority: interactive"
PATIENCE = 20.0  # seconds for a server to start, or a queue to fill
ROOT = Path(__file__).parents[1]
URL = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Child(NamedTuple):
    """A running server."""

    process: subprocess.Popen[str]
    port: int
    admin: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """End a process we started, whatever happens."""
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def server(name: str, *arguments: str, of: str = "gateway_servers") -> Iterator[Child]:
    """Run a server of a module here."""
    command = [sys.executable, "-m", f"benchmarks.{of}", name, *arguments]
    started = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with ending(started) as process:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise RuntimeError(f"the server {name} did not start")
        yield Child(process, int(line))


@contextmanager
def fairlead_gateway(config: str) -> Iterator[Child]:
    """Run the command users run; its access log goes nowhere."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "gateway.yaml")
        file.write_text(config)
        code = "import sys; from fairlead.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "gateway", "--config", str(file)]
        started = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        with ending(started) as process:
            said = []
            while line := process.stderr.readline() if process.stderr else "":
                said.append(line)
                ports = URL.findall(line)
                if line.startswith("fairlead gateway:") and len(ports) == 2:
                    yield Child(process, int(ports[0]), int(ports[1]))
                    return
            raise RuntimeError("the gateway did not start: " + "".join(said))


NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error;
events {{ worker_connections 2048; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream fleet {{ server {backend}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://fleet; proxy_http_version 1.1; proxy_set_header Connection "";
    }}
  }}
}}
"""


def find_nginx() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def nginx(backend: str) -> Iterator[Child]:
    """Run nginx as a proxy: one process, no log."""
    program = find_nginx()
    if program is None:
        raise RuntimeError("nginx is not installed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "nginx.conf")
        file.write_text(
            NGINX.format(folder=folder, port=port, backend=backend.removeprefix("http://"))
        )
        command = [program, "-c", str(file), "-p", folder, "-e", f"{folder}/error"]
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True)
        with ending(started) as process:
            wait_for_port(port, process)
            yield Child(process, port)


def wait_for_port(port: int, process: subprocess.Popen[str]) -> None:
    until = monotonic() + PATIENCE
    while monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            sleep(0.02)
        else:
            return
    raise RuntimeError(f"nothing listens on port {port}")


def cpu_time(process: subprocess.Popen[str]) -> float:
    """CPU seconds of another process, all its threads, to the nanosecond (Linux)."""
    if sys.platform != "linux":
        raise RuntimeError("the CPU clock of another process is read on Linux only")
    return clock_gettime((~process.pid << 3) | 2)  # clock_getcpuclockid(3)


def kept_waiting(process: subprocess.Popen[str]) -> float:
    """Seconds that a process was ready to run and had no CPU: others used the machine.  0 where nobody counts them."""
    try:
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9
    except OSError:
        return 0.0


def resident(process: subprocess.Popen[str]) -> float:
    """MiB of memory that a process has at this moment."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class Use(NamedTuple):
    """What a request cost, on average."""

    cpu: float  # µs of the server's CPU time
    wall: float  # µs of time: the inverse of the throughput


def load(child: Child, seconds: float, connections: int = CONNECTIONS) -> Use:
    """Put a server under load, after a while to warm up, and read what each request cost."""
    rush(child.port, seconds / 4, connections)
    used = cpu_time(child.process)
    requests, took = rush(child.port, seconds, connections)
    used = cpu_time(child.process) - used
    return Use(used / requests * 1e6, took / requests * 1e6)


def rush(port: int, seconds: float, connections: int) -> tuple[int, float]:
    """Send as many requests as are answered; tell their number and the seconds it took."""
    if shutil.which("wrk") and seconds >= 1:
        return wrk(port, round(seconds), connections)
    return client("gateway_load", "rush", port, seconds, connections)


def client(module: str, how: str, port: int, seconds: float, connections: int) -> tuple[int, float]:
    """Run a client of a module here; tell how many answers it got and the seconds it took."""
    command = [sys.executable, "-m", f"benchmarks.{module}", how]
    command += [str(port), str(connections), str(seconds)]
    counts = json.loads(run(command, seconds))
    if counts["errors"] or not counts["requests"]:
        raise RuntimeError(f"{counts['errors']} errors, {counts['requests']} answers")
    return counts["requests"], counts["seconds"]


def wrk(port: int, seconds: int, connections: int) -> tuple[int, float]:
    url = f"http://127.0.0.1:{port}/"
    said = run(["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-H", PRIORITY, url], seconds)
    found = re.search(r"(\d+) requests in", said)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    if found is None or rate is None or not int(found[1]) or re.search("Non-2xx|errors", said):
        raise RuntimeError(f"wrk: {said[-300:]}")
    return int(found[1]), int(found[1]) / float(rate[1])


def run(command: Sequence[str], seconds: float) -> str:
    timeout = seconds + PATIENCE
    done = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=timeout
    )
    return done.stdout


@contextmanager
def held(port: int, kind: str, number: int) -> Iterator[None]:
    """Keep that many requests of a class open, each waiting for an answer that does not come."""
    allow_sockets(2 * number)
    wire = request(kind, "/hold")
    sockets: list[socket.socket] = []
    try:
        for _ in range(number):
            opened = socket.create_connection(("127.0.0.1", port), 5)
            sockets.append(opened)
            opened.sendall(wire)
        yield
    finally:
        for opened in sockets:
            opened.close()


def allow_sockets(number: int) -> None:
    """Raise this process's limit of open files, and so that of the servers it starts later."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + 512
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def get(port: int, path: str, field: str = "accept: */*") -> bytes:
    """Ask once, on a connection of its own; the body of the answer."""
    head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{field}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 5) as opened:
        opened.sendall(head.encode())
        answer = b""
        while data := opened.recv(65536):
            answer += data
    return answer.partition(b"\r\n\r\n")[2]
