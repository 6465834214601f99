"""Numbers in queries: read within bounds, or refused with a sentence."""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING

from fairlead.config import shown
from fairlead.serving.http import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping


def whole_of(query: Mapping[str, str], name: str, usual: int, most: int) -> int:
    """Read a whole number from 1 to `most`."""
    given = query.get(name)
    if given is None:
        return usual
    if not re.fullmatch(r"[0-9]{1,9}", given, re.ASCII) or not 1 <= int(given) <= most:
        detail = f"{name} must be a whole number from 1 to {most}; got {shown(given)}"
        raise Problem(422, "bad_query", detail)
    return int(given)


def number_of(query: Mapping[str, str], name: str, usual: float, most: float) -> float:
    """Read a number above 0, up to `most`."""
    given = query.get(name)
    if given is None:
        return usual
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not (isfinite(found) and 0 < found <= most):
        detail = f"{name} must be a number above 0, at most {most:g}; got {shown(given)}"
        raise Problem(422, "bad_query", detail)
    return found
