"""One backend: what is known of it, and how to look at it.

How many calls it may run at once is written down (`capacity: 256`), reported by the backend itself
(`max_running_requests`), or learned from how fast it answers (`adaptive`).  Whether it is used is the fleet's to
decide.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import yarl

from fairlead.capacities.gradient import Gradient
from fairlead.gateway.outliers import Record
from fairlead.gateway.values import MOST_SLOTS
from fairlead.serving.connections import SAY_AGAIN, out_of_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.gateway import settings

UNREPORTED = 64  # slots of a backend that has not said how many it has
BELIEVED_FOR = 30.0  # seconds that a reported capacity outlives its report
LARGEST_REPORT = 1 << 20  # bytes
SERVER_INFO = "/get_server_info"  # where SGLang reports

log = logging.getLogger("fairlead.gateway")


class Upstream:
    """A backend and its state; `in_flight` is the proxy's to count, the rest the fleet's to change."""

    __slots__ = (
        "awaited",
        "back_at",
        "capacity_rule",
        "draining",
        "from_file",
        "gradient",
        "health",
        "healthy",
        "held",
        "in_flight",
        "last_failure",
        "models",
        "nudge",
        "record",
        "reported",
        "reported_at",
        "shortage_said_at",
        "url",
        "used",
    )

    def __init__(self, given: settings.Upstream, *, from_file: bool) -> None:
        self.url = given.url
        self.in_flight = 0
        self.held = 0  # places that requests hold here
        self.used = 0  # when it was last chosen, counted in choices
        self.draining = False
        self.reported: int | None = None
        self.reported_at = 0.0
        self.shortage_said_at = -SAY_AGAIN
        self.gradient = Gradient()
        self.record = Record()
        self.back_at = 0.0  # by the wall clock: when it may be probed, if it is ejected
        self.last_failure: tuple[float, str] | None = None  # by the wall clock, and what it was
        self.nudge = asyncio.Event()  # look at it again now
        self.adopt(given, from_file=from_file)
        # Where nothing can be asked, only a failed connection tells that it is down.
        self.healthy = given.health is None
        self.awaited = not self.healthy  # nobody has looked yet

    def adopt(self, given: settings.Upstream, *, from_file: bool) -> None:
        """Take on what the configuration says now."""
        self.capacity_rule: int | Literal["reported", "adaptive"] = given.capacity
        self.health = given.health
        self.models = None if given.models is None else frozenset(given.models)
        self.from_file = from_file

    @property
    def capacity(self) -> int:
        """How many calls it may run at once while it is healthy."""
        if self.capacity_rule == "reported":
            return UNREPORTED if self.reported is None else self.reported
        if self.capacity_rule == "adaptive":
            return self.gradient.limit
        return self.capacity_rule

    @property
    def declared(self) -> int | None:
        """How many calls it is declared to take; None where only run time tells."""
        return self.capacity_rule if isinstance(self.capacity_rule, int) else None

    @property
    def bound(self) -> int | None:
        """How many calls it may ever run at once; None while nothing says so."""
        if self.capacity_rule == "reported" and self.reported is None:
            return None
        return self.capacity

    @property
    def full(self) -> bool:
        """Whether as many requests hold a place as it may run."""
        bound = self.bound
        return bound is not None and self.held >= bound

    @property
    def usable(self) -> bool:
        """Whether calls may be sent there, unless it is ejected."""
        return self.healthy and not self.draining

    @property
    def asked_often(self) -> bool:
        """Whether it is looked at even while it is healthy."""
        return self.health is not None or self.capacity_rule == "reported"

    def serves(self, model: str | None) -> bool:
        """Tell whether a model runs there; one without a list runs every model."""
        return model is None or self.models is None or model in self.models

    def report(self, value: int | None, now: float) -> None:
        """Believe a reported capacity for a while; None is no report."""
        if value is not None:
            self.reported, self.reported_at = value, now
        elif self.reported is not None and now - self.reported_at > BELIEVED_FOR:
            self.reported = None

    def failed(self, what: str) -> None:
        """Remember a failure, for an operator."""
        self.last_failure = (time.time(), what)

    @property
    def state(self) -> Literal["draining", "ejected", "healthy", "unhealthy"]:
        """How it stands, in a word."""
        if self.draining:
            return "draining"
        if not self.healthy:
            return "unhealthy"
        return "ejected" if self.record.ejected else "healthy"

    def describe(self) -> dict[str, Any]:
        """Show it to an operator."""
        state = self.state
        failure = self.last_failure
        return {
            "url": self.url,
            "state": state,
            "back_at": self.back_at if state == "ejected" else None,
            "tries": self.record.tries,
            "errors": self.record.errors,
            "last_failure": None if failure is None else {"at": failure[0], "what": failure[1]},
            "capacity": self.capacity,
            "capacity_from": self.capacity_rule
            if isinstance(self.capacity_rule, str)
            else "configuration",
            "in_flight": self.in_flight,
            "health": self.health,
            "models": None if self.models is None else sorted(self.models),
            "added_by": "file" if self.from_file else "api",
        }


def in_use(members: Iterable[Upstream]) -> list[Upstream]:
    """Return the backends whose slots count: those that are usable and not ejected; if all are, all of them."""
    usable = [one for one in members if one.usable]
    return [one for one in usable if not one.record.ejected] or usable


class Sighting(NamedTuple):
    """What one look at a backend found."""

    healthy: bool
    reported: int | None = None


async def look(session: aiohttp.ClientSession, upstream: Upstream, timeout: float) -> Sighting:
    """See whether a backend is well, and what capacity it reports."""
    try:
        async with asyncio.timeout(timeout):
            return await _look(session, upstream)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if not out_of_descriptors(error):
            return Sighting(healthy=False)
        if (now := monotonic()) >= upstream.shortage_said_at + SAY_AGAIN:
            upstream.shortage_said_at = now
            log.warning(
                "looking at upstream %s failed for want of our own: %s", upstream.url, error
            )
        return Sighting(upstream.healthy)  # what we are short of says nothing of the backend
    except Exception:
        # Whatever a backend answers, it must be looked at again.
        log.exception("looking at upstream %s failed", upstream.url)
        return Sighting(healthy=False)


async def _look(session: aiohttp.ClientSession, upstream: Upstream) -> Sighting:
    wants_report = upstream.capacity_rule == "reported"
    document: Any = None
    if upstream.health is not None:
        well, document = await _get(session, upstream.url + upstream.health, wants_report)
        if not well:
            return Sighting(healthy=False)
    elif not wants_report:
        parts = urlsplit(upstream.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        _, writer = await asyncio.open_connection(parts.hostname, port)
        writer.close()
        return Sighting(healthy=True)
    if not wants_report:
        return Sighting(healthy=True)
    reported = reported_capacity(document)
    if reported is None:
        try:
            _, document = await _get(session, upstream.url + SERVER_INFO, True)
        except (aiohttp.ClientError, OSError):
            if upstream.health is None:
                raise
        else:
            reported = reported_capacity(document)
    return Sighting(True, reported)


async def _get(session: aiohttp.ClientSession, url: str, read: bool) -> tuple[bool, Any]:
    """Ask; tell whether the answer was 2xx, and what JSON it held."""
    async with session.get(yarl.URL(url, encoded=True), allow_redirects=False) as response:
        well = 200 <= response.status < 300
        if not (well and read):
            response.close()
            return well, None
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > LARGEST_REPORT:
                response.close()
                return well, None
    try:
        return well, json.loads(body)
    except (ValueError, RecursionError):
        return well, None


def reported_capacity(document: Any) -> int | None:
    """Find a usable `max_running_requests`, at the top or under `labels`.

    >>> reported_capacity({"labels": {"max_running_requests": "256"}})
    256
    >>> reported_capacity({"max_running_requests": -1}) is None
    True
    """
    if not isinstance(document, dict):
        return None
    labels = document.get("labels")
    for place in (document, labels if isinstance(labels, dict) else {}):
        value = place.get("max_running_requests")
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if isinstance(value, float) and not isfinite(value):
            continue
        if value >= 1:
            return min(int(value), MOST_SLOTS)
    return None
