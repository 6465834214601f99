"""What a request asks for: its class and how long it would wait.

The explicit header wins, then RFC 9218's `Priority`, then OpenAI's `service_tier`.  None of it can fail a request:
what cannot be read means `default`, and an explicit value that is unknown is counted.  What a request may *have* is
another matter: see `tenants`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fairlead.config import seconds
from fairlead.errors import ConfigError
from fairlead.gateway.settings import BULK, CLASSES, DEFAULT, INTERACTIVE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    # The fields of interest that a request has, each with all its values.
    Fields = Mapping[bytes, Sequence[bytes]]

PRIORITY = b"x-fairlead-priority"
SMG_PRIORITY = b"x-smg-priority"
URGENCY = b"priority"
REQUEST_TIMEOUT = b"x-request-timeout"
GRPC_TIMEOUT = b"grpc-timeout"

RANKS = {name.encode(): rank for rank, name in enumerate(CLASSES)}
BY_URGENCY = (INTERACTIVE, INTERACTIVE, DEFAULT, DEFAULT, DEFAULT, BULK, BULK, BULK)
BY_TIER = {"priority": INTERACTIVE, "flex": BULK}

# A member of a dictionary of RFC 8941: its key, and its value as it is written, if it is not merely there.
_KEY = r"[a-z*][a-z0-9_.*-]*"
_BARE = (
    r'"(?:[ !#-\[\]-~]|\\["\\])*"'  # a string
    r"|-?[0-9]+(?:\.[0-9]+)?"
    r"|[A-Za-z*][\w!#$%&'*+.^`|~:/-]*"  # a token
    r"|:[A-Za-z0-9+/=]*:"  # bytes
    r"|\?[01]"
)
_PARAMETERS = rf"(?:; *{_KEY}(?:=(?:{_BARE}))?)*"
_ITEM = rf"(?:{_BARE}){_PARAMETERS}"
_LIST = rf"\( *(?:{_ITEM}(?: +{_ITEM})* *)?\)"
_MEMBER = re.compile(rf"({_KEY})(?:=({_BARE}|{_LIST}))?{_PARAMETERS}".encode(), re.ASCII)
_COMMA = re.compile(rb"[ \t]*,[ \t]*")
_GRPC = re.compile(rb"([0-9]{1,8})([HMSmun])", re.ASCII)
_GRPC_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
LONGEST = 64  # of a value worth reading
MOST_SAID = 1024  # of all that a Priority field says


def explicit_rank(fields: Fields) -> tuple[int | None, bool]:
    """Tell the class a request names, if it names one, and whether what it said is unknown.

    >>> explicit_rank({b"x-fairlead-priority": [b" Bulk "]}), explicit_rank({b"x-smg-priority": [b"urgent"]})
    ((0, False), (1, True))
    """
    values = fields.get(PRIORITY, ())
    others = fields.get(SMG_PRIORITY, ())
    # A client on its way from one header to the other sends both: that is one value, said twice.
    if len(values) != 1 or len(others) != 1 or _written(values[0]) != _written(others[0]):
        values = [*values, *others]
    if not values:
        return None, False
    if len(values) > 1:
        return DEFAULT, True
    value = values[0]
    if value in RANKS:  # as nearly everybody writes it
        return RANKS[value], False
    value = value.strip(b" \t\r\n")
    rank = RANKS.get(value[:LONGEST].lower())
    if rank is not None:
        return rank, False
    return DEFAULT, bool(value) and all(0x20 <= byte < 0x7F for byte in value)


def _written(value: bytes) -> bytes:
    return value.strip(b" \t\r\n").lower()


def urgency_rank(fields: Fields) -> int | None:
    """Tell the class that RFC 9218's urgency stands for; None if there is none, or the field cannot be read.

    >>> urgency_rank({b"priority": [b"u=1, i"]}), urgency_rank({b"priority": [b"u=1, u=9"]})
    (2, None)
    """
    values = fields.get(URGENCY)
    if not values:
        return None
    said = b",".join(values).strip(b" \t")
    if len(said) > MOST_SAID:
        return None
    at, urgency = 0, b""
    while (member := _MEMBER.match(said, at)) is not None:
        if member[1] == b"u":  # of several members of one name the last counts
            urgency = member[2] or b""
        at = member.end()
        if at == len(said):
            known = len(urgency) == 1 and b"0" <= urgency <= b"7"
            return BY_URGENCY[int(urgency)] if known else None
        comma = _COMMA.match(said, at)
        if comma is None:
            break
        at = comma.end()
    return None


def tier_rank(tier: object) -> int:
    """Tell the class that OpenAI's `service_tier` stands for."""
    return BY_TIER.get(tier, DEFAULT) if isinstance(tier, str) else DEFAULT


def own_wait_limit(fields: Fields) -> float | None:
    """Tell how long a request would wait, by its own account; the shorter of what it says, None if it says nothing."""
    limits = []
    for value in fields.get(REQUEST_TIMEOUT, ()):
        if len(value) > LONGEST:
            continue
        text = value.decode("latin-1").strip()
        try:
            limits.append(float(text) if _PLAIN.fullmatch(text) else seconds(text, "it", zero=True))
        except ConfigError:
            pass
    for value in fields.get(GRPC_TIMEOUT, ()):
        found = _GRPC.fullmatch(value.strip())
        if found is not None:
            limits.append(int(found[1]) * _GRPC_UNITS[found[2]])
    return min(limits, default=None)
