"""The middleware against the reference model, on histories nobody thought of."""

from hypothesis import settings

from tests.gateway.machine import GatewayMachine

TestGateway = GatewayMachine.TestCase
TestGateway.settings = settings(max_examples=100, stateful_step_count=40)
