"""How the gateway refuses what it cannot read: in the form that clients of the path know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.gateway.responses import Failure, body_of
from fairlead.serving.protocol import LimitedProtocol

if TYPE_CHECKING:
    from fairlead.serving.http import Problem


class GatewayProtocol(LimitedProtocol):
    """One connection of a client."""

    def _written(self, problem: Problem, path: str) -> tuple[bytes, bytes]:
        return body_of(Failure(problem.answer.status, problem.code, problem.detail), path)
