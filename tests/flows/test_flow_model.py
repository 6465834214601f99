"""The door against books kept by hand, on histories nobody thought of."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.flows.machine import FlowMachine
from tests.sizes import times

TestFlows = FlowMachine.TestCase
TestFlows.settings = settings(max_examples=120, stateful_step_count=30)


@pytest.mark.slow
def test_many_long_histories():
    many = settings(max_examples=times(1_000), stateful_step_count=50)
    run_state_machine_as_test(FlowMachine, settings=many)
