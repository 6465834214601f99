"""The same verbs give the same verdicts in another process too, where every hash of a string is another."""

import os
import subprocess
import sys
from pathlib import Path

RUN = """
import json
from random import Random
from fairlead.core import Gate, Recorder, Ticket, replay
from fairlead.testing import drive
from tests.properties.machine import CheckedRecorder
from tests.properties.shapes import CAPACITIES, POLICIES

def ticket(number, rng):
    return Ticket(number, rng.randrange(101), rng.choice((1, 1, 2)), rank=rng.randrange(3),
                  tenant=rng.choice("abc"), workload=rng.choice("xy"), pool=rng.choice(("ocr", "gpu")),
                  can_preempt=rng.random() < 0.3, evictable=rng.random() < 0.5)

for seed, (policy, make) in enumerate(POLICIES.items()):
    for capacity, room in CAPACITIES.items():
        gate = CheckedRecorder(make(), room())
        drive(gate, seed, 40, ticket)
        entries = json.loads(json.dumps(gate.entries))
        print(policy, capacity, replay(entries, Gate(make(), room())))
"""


def run(hash_seed: str) -> str:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_verdicts_do_not_depend_on_the_order_of_hashes():
    first = run("1")
    assert first.count("running") > 1000
    assert first == run("2")
