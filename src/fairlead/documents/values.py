"""The single values that configurations of every door have: durations, addresses, flags; and what their models share.

Each refuses with a sentence that begins with "must" or "may not".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from fairlead.config import ESCAPED, is_readable, seconds, secret, shown
from fairlead.documents.addresses import split_address

LONGEST = 366 * 86_400.0
DURATION = {
    "anyOf": [
        {
            "type": "string",
            "pattern": r"^\s*([0-9]+(\.[0-9]+)?([mM][sS]|[mM][iI][nN]|[sSmMhHdD]))+\s*$",
        },
        {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST},
    ],
    "examples": ["30s", "400ms", "1h30m", 5],
}
SHARE = {
    "anyOf": [
        {"type": "string", "pattern": r"^\s*[0-9]{1,3}(\.[0-9]{1,6})?%\s*$"},
        {"type": "number", "minimum": 0, "maximum": 1},
    ],
    "examples": ["50%", 0.1],
}
DURATION_OR_ZERO = DURATION | {"anyOf": [*DURATION["anyOf"], {"const": 0}]}
# Of texts that no client can send as a token, such as those of a variable that was not set.
BLANKS = frozenset(sha256(text).hexdigest() for text in (b"", b" ", b"\n", b"\r\n", b"\t", b"  "))


def _duration(value: Any, *, zero: bool = False) -> float:
    read = seconds(value, "it", zero=zero)
    if read > LONGEST:
        raise ValueError(f"must be at most 366d; got {shown(value)}")
    return read


def _duration_or_zero(value: Any) -> float:
    return _duration(value, zero=True)


def _share(value: Any) -> float:
    said = str(value).strip() if isinstance(value, str) else ""
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?%", said):
        share = float(said[:-1]) / 100.0
    elif type(value) in (int, float):
        share = float(value)
    else:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"must be a share such as 50%, or 0 to 1; got {shown(value)}")
    return share


def _address(text: str) -> str:
    split_address(text)
    return text


def _of_something(digest: str) -> str:
    if digest in BLANKS:
        raise ValueError("may not be the hash of a blank text: hash the token itself")
    return digest


def _readable(url: str) -> str:
    if not is_readable(url):
        raise ValueError(f"must be a URL that can be read: {ESCAPED}")
    return url


def _secret(text: str) -> str:
    secret(text, "it")
    return text


# What clients must show, in the clear.
Secret = Annotated[str, AfterValidator(_secret)]
Flag = Annotated[bool, Field(strict=True)]
Duration = Annotated[float, BeforeValidator(_duration), WithJsonSchema(DURATION)]
DurationOrZero = Annotated[
    float, BeforeValidator(_duration_or_zero), WithJsonSchema(DURATION_OR_ZERO)
]
Share = Annotated[float, BeforeValidator(_share), WithJsonSchema(SHARE)]
Address = Annotated[str, AfterValidator(_address)]
Digest = Annotated[  # of a secret, SHA-256 in hex
    str,
    StringConstraints(pattern=r"^[0-9a-fA-F]{64}$", to_lower=True),
    AfterValidator(_of_something),
]
RedisUrl = Annotated[
    str,
    StringConstraints(strip_whitespace=True, pattern=r"^(redis|rediss|valkey|valkeys|unix)://"),
    AfterValidator(_readable),
]


class Model(BaseModel):
    """What all parts share: nothing unknown, nothing changed after reading, a key without a value is absent."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    # Keys whose absence opens a door, and what one without a value is read as, to be refused.
    never_blank: ClassVar[Mapping[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_blanks(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {
            key: cls.never_blank[key] if value is None and key in cls.never_blank else value
            for key, value in data.items()
            if value is not None or key not in cls.model_fields or key in cls.never_blank
        }
