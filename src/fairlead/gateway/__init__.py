"""The gateway door: priority admission for HTTP, as ASGI middleware and as a reverse proxy."""

try:
    from fairlead.gateway.admission import Admission
    from fairlead.gateway.loading import Loaded, load
    from fairlead.gateway.middleware import PriorityMiddleware
    from fairlead.gateway.settings import Settings
except ModuleNotFoundError as error:
    error.add_note("fairlead.gateway is an extra: pip install 'fairlead[gateway]'")
    raise

__all__ = ["Admission", "Loaded", "PriorityMiddleware", "Settings", "load"]
