"""The gateway door: priority admission for HTTP, as ASGI middleware and as a reverse proxy."""

from fairlead.gateway.admission import Admission
from fairlead.gateway.loading import Loaded, load
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.gateway.settings import Settings

__all__ = ["Admission", "Loaded", "PriorityMiddleware", "Settings", "load"]
