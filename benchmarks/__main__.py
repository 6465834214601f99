"""python -m benchmarks [suite …] [--rounds N] [--quick] [--json FILE] [--docs]"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import (
    dashboard,
    flows,
    flows_figures,
    gate,
    gateway,
    gateway_figures,
    jobs,
    jobs_figures,
    jobs_planning,
    memory,
    sim,
    streams,
    streams_figures,
    tasks,
)
from benchmarks.figures import Chapter
from benchmarks.harness import Result, Table, run
from benchmarks.report import markdown, plain, summary
from benchmarks.sizes import FULL, QUICK, Sizes

SUITES: dict[str, Callable[[Sizes], Iterator[Table]]] = {
    "tasks": tasks.tables,
    "gate": gate.tables,
    "memory": memory.tables,
    "gateway": gateway.tables,
    "flows": flows.tables,
    "jobs": jobs.tables,
    "jobs-planning": jobs_planning.tables,
    "sim": sim.tables,
    "streams": streams.tables,
    "dashboard": dashboard.tables,
}
PARTS = {"jobs-planning"}  # of another suite: run by themselves only if named
CHAPTERS: dict[str, Chapter] = {
    one.suite: one
    for one in (
        gateway_figures.CHAPTER,
        flows_figures.CHAPTER,
        jobs_figures.CHAPTER,
        streams_figures.CHAPTER,
    )
}
PACKAGES = (
    "uvloop anyio aiometer aiolimiter aiojobs uvicorn httptools aiohttp slowapi limits redis grpcio "
    "asyncpg psycopg pgqueuer procrastinate huey confluent-kafka aiokafka faststream"
).split()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", metavar="suite", help=f"of {', '.join(SUITES)}; default all"
    )
    parser.add_argument("--rounds", type=int, help="rounds per table; default 7, with --quick 3")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: does everything still run?"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every value of every round there"
    )
    parser.add_argument(
        "--docs", action="store_true", help=f"put the figures of {', '.join(CHAPTERS)} in the docs"
    )
    options = parser.parse_args(arguments)
    for name in options.suites:
        if name not in SUITES:
            parser.error(f"there is no suite {name!r}; known: {', '.join(SUITES)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    rounds = options.rounds or (3 if options.quick else 7)
    facts = machine()
    heading = "".join(f"- {name}: {fact}\n" for name, fact in facts.items())
    print(f"## Benchmarks\n\n{heading}")
    results: list[Result] = []
    for suite in options.suites or [name for name in SUITES if name not in PARTS]:
        found = []
        for result in measure([suite], QUICK if options.quick else FULL, rounds):
            print(markdown(result), flush=True)
            found.append(result)
        results += found
        if options.docs and suite in CHAPTERS:
            printed = "\n".join([heading, *map(markdown, found), summary(found)])
            CHAPTERS[suite].publish([plain(result) for result in found], printed)
    print(summary(results))
    if options.json is not None:
        document = {"machine": facts, "tables": [plain(result) for result in results]}
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return 0


def measure(suites: Sequence[str], sizes: Sizes, rounds: int) -> Iterator[Result]:
    for name in suites:
        for table in SUITES[name](sizes):
            yield run(table, rounds)


def machine() -> dict[str, str]:
    """What a reader has to know to place the figures."""
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}, {platform.platform()}",
        "processor": f"{os.cpu_count()} cores, {processor()}",
        "load at the start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "packages": ", ".join(f"{name} {installed_version(name)}" for name in PACKAGES),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def revision() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
