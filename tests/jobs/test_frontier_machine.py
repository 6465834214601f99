"""Caps hold, nobody is lost and everybody runs, under random verbs."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.jobs.frontier_machine import FrontierMachine


def test_the_frontier_keeps_its_promises_under_random_verbs() -> None:
    run_state_machine_as_test(
        FrontierMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
