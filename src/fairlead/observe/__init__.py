"""What a scheduler shows to the outside: metrics, readiness, and a verdict on its health, as one ASGI app."""

from fairlead.observe.asgi import app
from fairlead.observe.health import Health, Observed, Verdict

__all__ = ["Health", "Observed", "Verdict", "app"]
