"""The gateway door: priority admission for HTTP, as ASGI middleware and as a reverse proxy."""
