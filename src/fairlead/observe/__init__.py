"""What a scheduler shows to the outside: metrics, readiness, a verdict on its health; and gates that can be watched."""

from fairlead.observe.asgi import app
from fairlead.observe.health import Health, Observed, Verdict
from fairlead.observe.watched import Feed, WatchedGate

__all__ = ["Feed", "Health", "Observed", "Verdict", "WatchedGate", "app"]
