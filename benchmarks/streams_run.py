"""One case of the streams suite in a process of its own: python -m benchmarks.streams_run CASE SERVERS TOPIC SIZE."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import streams_fairlead, streams_faults, streams_peers, streams_zoo
from benchmarks.jobs_meter import tell_and_leave
from benchmarks.streams_meter import Figures

ROOT = Path(__file__).parents[1]
LIMIT = 300.0  # seconds; a case that takes longer has failed
QUIX = "quixstreams==3.28.1"
PLACE = ROOT / ".venv" / QUIX.replace("==", "-")

Case = Callable[[str, str, int, bool], Figures]
CASES: dict[str, Case] = {
    "raw": streams_peers.raw,
    "aiokafka": streams_peers.aiokafka,
    "faststream": partial(streams_peers.faststream, batch=False),
    "faststream-batch": partial(streams_peers.faststream, batch=True),
    "loop": streams_fairlead.drain,
    "threads": partial(streams_fairlead.drain, threads=True),
    "FairByTopic": partial(streams_fairlead.drain, scheduler="FairByTopic"),
    "OneAtATime": partial(streams_fairlead.drain, scheduler="OneAtATime"),
    "urgent": streams_faults.urgent,
    "hold": streams_faults.hold,
    **{f"zoo-{name}": partial(streams_zoo.zoo, scheduler=name) for name in streams_zoo.ZOO},
}


def measured(case: str, servers: str, topic: str, records: int, look: bool = False) -> Figures:
    """Run a case and tell its figures."""
    told = [servers, topic, str(records)]
    if case == "quixstreams":
        command = [str(PLACE / "bin" / "python"), str(ROOT / "benchmarks/streams_quix.py"), *told]
    else:
        command = [sys.executable, "-m", "benchmarks.streams_run", case, *told, "look" * look]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{case} had not ended after {LIMIT:g} s") from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = (done.stderr or "it said nothing").strip().splitlines()
        raise RuntimeError(said[-1])
    figures: Figures = json.loads(lines[-1])
    return figures


def quix_is_here() -> bool:
    """Say whether QuixStreams can be run, and make its environment first, once."""
    if (PLACE / "ready").exists():
        return True
    shutil.rmtree(PLACE, ignore_errors=True)
    python = PLACE / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", "--without-pip", str(PLACE)],
        [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", QUIX],
    ):
        if subprocess.run(command, capture_output=True, timeout=600, check=False).returncode:
            return False
    (PLACE / "ready").touch()
    return True


if __name__ == "__main__":
    case, servers, topic, size, *look = sys.argv[1:]
    try:
        tell_and_leave(CASES[case](servers, topic, int(size), look == ["look"]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # clients that are not closed might keep it from ending
