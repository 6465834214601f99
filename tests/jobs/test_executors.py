"""Executors in this process and in processes of its own, held to the contract."""

import pytest

from tests.jobs.executor_contract import *  # noqa: F403
from tests.jobs.executor_contract import Rig

KINDS = {
    "local-async": ({"kind": "local", "slots": 3}, "async", False),
    "local-plain": ({"kind": "local", "slots": 3}, "plain", False),
    "threads-async": ({"kind": "threads", "slots": 3}, "async", False),
    "threads-plain": ({"kind": "threads", "slots": 3}, "plain", False),
    "processes-async": ({"kind": "processes", "slots": 3}, "async", True),
    "processes-plain": ({"kind": "processes", "slots": 3}, "plain", True),
}


# What differs little from another kind runs with the long storms.
SLOW = {"threads-plain", "processes-async"}


@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else ()) for kind in KINDS]
)
def rig(request):
    value, manner, kills = KINDS[request.param]
    return Rig(value, manner, kills=kills)
