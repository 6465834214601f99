"""What a gateway takes from its clients; `limits:` in its configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fairlead.gateway.responses import openai_form
from fairlead.serving.limits import Bytes, Limits

MIB = 1 << 20
ELSEWHERE = 8 * MIB  # bytes of a body on other paths than `/v1/*`, unless `body_bytes` is set


class GatewayLimits(Limits):
    """What one request may bring, and what all of them may hold before they have slots."""

    body_bytes: Bytes = 64 * MIB
    held_bytes: Annotated[int, Field(strict=True, ge=64 * 1024)] = 256 * MIB
    body_before_slot: Bytes = MIB
    slowest_upload: Bytes = 64_000  # bytes per second of a body whose request holds a slot

    def body_limit(self, path: str) -> int:
        """Return how many bytes the body of a request for this path may have."""
        if openai_form(path) or "body_bytes" in self.model_fields_set:
            return self.body_bytes
        return ELSEWHERE
