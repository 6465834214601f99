"""One JSON line per request."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from fairlead.gateway.settings import CLASSES
from fairlead.serving.http import ANSWERED

if TYPE_CHECKING:
    from fairlead.gateway.exchange import Exchange

logger = logging.getLogger("fairlead.access")


def write(scope: Any, exchange: Exchange) -> None:
    """Write a line; what a client sent stands in it as a JSON string, so that it cannot forge another."""
    line = {
        "method": scope["method"],
        "path": scope["path"][:1000],
        "status": scope.get(ANSWERED, exchange.status),
        "class": CLASSES[exchange.rank],
        "requested": CLASSES[exchange.requested],
        "tenant": exchange.tenant,
        "wait": round(exchange.waited(), 6),
        "outcome": exchange.outcome,
    }
    logger.info("%s", json.dumps(line, separators=(",", ":")))
