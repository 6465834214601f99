"""One JSON line per request."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from fairlead.gateway.settings import CLASSES
from fairlead.serving.http import ANSWERED

if TYPE_CHECKING:
    from fairlead.gateway.exchange import Exchange
    from fairlead.serving.framing import Refusal

LONGEST_PATH = 1000

logger = logging.getLogger("fairlead.access")


def write(scope: Any, exchange: Exchange) -> None:
    """Write a line; what a client sent stands in it as a JSON string, so that it cannot forge another."""
    line = {
        "method": scope["method"],
        "path": scope["path"][:LONGEST_PATH],
        "status": scope.get(ANSWERED, exchange.status),
        "class": CLASSES[exchange.rank],
        "requested": CLASSES[exchange.requested],
        "tenant": exchange.tenant,
        "wait": round(exchange.waited(), 6),
        "outcome": exchange.outcome,
    }
    _log(line)


def write_refusal(refusal: Refusal) -> None:
    """Write a line of what never became a request: nobody knows its class or its tenant."""
    target = refusal.target
    line = {
        "method": refusal.method,
        "path": None if target is None else target.partition("?")[0][:LONGEST_PATH],
        "status": refusal.status,
        "class": None,
        "requested": None,
        "tenant": None,
        "wait": 0.0,
        "outcome": f"rejected_{refusal.code}",
    }
    _log(line)


def _log(line: dict[str, Any]) -> None:
    logger.info("%s", json.dumps(line, separators=(",", ":")))
