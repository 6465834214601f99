"""What one request may bring to an HTTP port, how long it may take over it, and how many connections there may be."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fairlead.documents.values import Duration, Model

Bytes = Annotated[int, Field(strict=True, ge=0)]
Connections = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]


class Limits(Model):
    """What one request may bring, and how many connections may be open."""

    header_fields: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 100
    header_bytes: Annotated[int, Field(strict=True, ge=256, le=1 << 24)] = 64 * 1024
    header_timeout: Duration = 10.0
    body_bytes: Bytes = 8 * 1024 * 1024
    body_timeout: Duration = 30.0  # the time for each 1 kB/s: slower bodies are cut
    # None: a part of the file descriptors that the system allows
    connections: Connections | None = None
    connections_per_address: Connections | None = None  # None: a quarter of them

    def body_limit(self, path: str) -> int:
        """Return how many bytes the body of a request for this path may have."""
        return self.body_bytes


USUAL = Limits()
