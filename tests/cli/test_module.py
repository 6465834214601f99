"""`python -m fairlead`, and what is said where an extra is not installed."""

import subprocess
import sys

import pytest

import fairlead

MISSING = """
import sys
sys.modules["pydantic"] = None
import fairlead.{door}
"""


def test_the_module_is_the_command():
    run = [sys.executable, "-m", "fairlead", "--version"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout == f"fairlead {fairlead.__version__}\n"


@pytest.mark.parametrize("door", ["flows", "gateway", "jobs"])
def test_a_door_without_its_extra_names_it(door: str):
    run = [sys.executable, "-c", MISSING.format(door=door)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith(f"fairlead.{door} is an extra: pip install 'fairlead[{door}]'\n")
