"""The gate under random verbs, over every policy and capacity."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.machine import GateMachine
from tests.sizes import times


def test_the_gate_keeps_its_promises_under_random_verbs():
    run_state_machine_as_test(
        GateMachine, settings=settings(max_examples=300, stateful_step_count=30)
    )


@pytest.mark.slow
def test_the_gate_keeps_its_promises_under_long_storms():
    run_state_machine_as_test(
        GateMachine, settings=settings(max_examples=times(100), stateful_step_count=150)
    )
