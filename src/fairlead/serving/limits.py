"""What one request may bring to an HTTP port, and how long it may take over it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fairlead.documents.values import Duration, Model


class Limits(Model):
    """What one request may bring."""

    header_fields: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 100
    header_bytes: Annotated[int, Field(strict=True, ge=256, le=1 << 24)] = 64 * 1024
    header_timeout: Duration = 10.0
    body_bytes: Annotated[int, Field(strict=True, ge=0)] = 8 * 1024 * 1024
    body_timeout: Duration = 30.0  # the time for each 1 kB/s: slower bodies are cut


USUAL = Limits()
