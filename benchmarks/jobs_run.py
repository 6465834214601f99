"""One case of the jobs suite in a process of its own: python -m benchmarks.jobs_run CASE URL SIZE."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import jobs_fairlead, jobs_floors, jobs_peers
from benchmarks.jobs_meter import Figures, tell_and_leave

ROOT = Path(__file__).parents[1]
LIMIT = 600.0  # seconds; a case that takes longer has failed

CASES: dict[str, Callable[[str, int], Awaitable[Figures]]] = {
    "floor": jobs_floors.claim_and_complete,
    "floor-copy": jobs_floors.copy,
    "floor-pairs": jobs_floors.insert_pairs,
    "floor-layers": lambda url, _: jobs_floors.walk(url, jobs_fairlead.layers()),
    "floor-random": lambda url, _: jobs_floors.walk(url, jobs_fairlead.tangle()),
    "pgqueuer": jobs_peers.pgqueuer,
    "pgqueuer-unlimited": lambda url, n: jobs_peers.pgqueuer(url, n, None),
    "procrastinate": jobs_peers.procrastinate,
    "huey": jobs_peers.huey,
    "runs": jobs_fairlead.runs,
    "nodes": jobs_fairlead.nodes,
    "layers": lambda url, n: jobs_fairlead.graph(url, jobs_fairlead.layers(), n),
    "random": lambda url, n: jobs_fairlead.graph(url, jobs_fairlead.tangle(), n),
    "chain": lambda url, n: jobs_fairlead.graph(url, jobs_fairlead.chain(), n),
    "store": jobs_fairlead.store,
    "fill": jobs_fairlead.fill,
    "start": jobs_fairlead.start,
}


def measured(case: str, url: str, size: int) -> Figures:
    """Run a case and tell its figures."""
    command = [sys.executable, "-m", "benchmarks.jobs_run", case, url, str(size)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = (done.stderr or "it said nothing").strip().splitlines()
        raise RuntimeError(said[-1])
    figures: Figures = json.loads(lines[-1])
    return figures


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    tell_and_leave(asyncio.run(CASES[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))  # type: ignore[arg-type]
