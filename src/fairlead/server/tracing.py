"""Traces of what passed the gates, for whoever collects them: OpenTelemetry, if it is asked for.

A span is made when a ticket has ended, from what was noted of it, with the times it had: nothing is added to the path
of a request.  Only the API is used; an `endpoint` brings the SDK in, which is an extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.server.snapshots import name_of

if TYPE_CHECKING:
    from fairlead.observe import Feed
    from fairlead.observe.passed import Decision
    from fairlead.server.settings import Otel

MOST_AT_ONCE = 5_000
ENDS = frozenset(
    {"done", "failed", "disconnected", "refused", "expired", "evicted", "withdrawn", "moved"}
)
NANOSECONDS = 1_000_000_000


class Tracing:
    """Follows a feed; every so many tickets, by their number, become spans."""

    def __init__(self, feed: Feed, settings: Otel, provider: Any = None) -> None:
        if provider is None and settings.endpoint is not None:
            provider = exporting_to(settings.endpoint)
        try:
            from opentelemetry import trace
        except ModuleNotFoundError as error:
            raise ConfigError(
                f'server.otel needs {error.name}: pip install "fairlead[otel]"'
            ) from None
        self._trace = trace
        self._provider = provider
        self._tracer = trace.get_tracer("fairlead", tracer_provider=provider)
        self._feed = feed
        self._every = round(1 / settings.sample) if settings.sample else 0
        self._seen = 0

    def follow(self) -> int:
        """Make spans of what has ended since; tell how many."""
        found = self._feed.decisions(after=self._seen, most=MOST_AT_ONCE)
        if not found:
            return 0
        self._seen = found[-1].number
        if not self._every:
            return 0
        told = [one for one in found if one.what in ENDS and one.number % self._every == 0]
        for decision in told:
            self._tell(decision)
        return len(told)

    def _tell(self, decision: Decision) -> None:
        held = decision.held or 0.0
        began = decision.t - held - decision.waited
        attributes: dict[str, str | float] = {
            "fairlead.gate": decision.gate,
            "fairlead.class": decision.cls,
            "fairlead.tenant": name_of(decision.tenant),
            "fairlead.key": name_of(decision.key),
            "fairlead.outcome": decision.what,
            "fairlead.waited_seconds": decision.waited,
            "fairlead.why": decision.why,
        }
        span = self._tracer.start_span(
            f"{decision.gate} {decision.cls}", start_time=_instant(began), attributes=attributes
        )
        if decision.held is not None:
            span.add_event("started", timestamp=_instant(decision.t - held))
        if decision.what != "done":
            code = self._trace.StatusCode.ERROR
            span.set_status(self._trace.Status(code, decision.why))
        span.end(end_time=_instant(decision.t))

    def close(self) -> None:
        """Send what has not been sent."""
        shut_down = getattr(self._provider, "shutdown", None)
        if shut_down is not None:
            shut_down()


def _instant(seconds: float) -> int:
    return int(seconds * NANOSECONDS)


def exporting_to(endpoint: str) -> Any:
    """Make a provider that sends spans to a collector, over HTTP, in batches."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'server.otel.endpoint needs {error.name}: pip install "fairlead[otel]"'
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "fairlead"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider
