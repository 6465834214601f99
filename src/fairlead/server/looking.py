"""What anybody who may look can ask: the overview, events, history, who waits, what was decided, recordings."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from fairlead import __version__
from fairlead.server.api import Deed
from fairlead.server.snapshots import decision_document, waiting_document
from fairlead.serving.access import LOCAL, Role
from fairlead.serving.auditing import CALLER
from fairlead.serving.http import Answer, Problem, Stream, answer, read_query, values_of
from fairlead.serving.queries import number_of, whole_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fairlead.server.service import Server
    from fairlead.serving.http import Receive, Scope

EVENTS = b"text/event-stream"
LINES = "application/x-ndjson"
MOST_FOLLOWERS = 200
MOST_MINUTES = 15
MOST_WAITING = 1000
MOST_DECISIONS = 2000
LINES_AT_ONCE = 200  # a millisecond or two, after which others have their turn


class Looking:
    """The reading half of the API."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def deeds(self) -> list[Deed]:
        """The table of it."""
        viewer = Role.VIEWER
        # fmt: off
        return [
            Deed("GET", "/api/v1/overview", viewer, "Show which doors run", self.overview),
            Deed("GET", "/api/v1/events", viewer, "Follow snapshots and decisions", self.events,
                 media="text/event-stream"),
            Deed("GET", "/api/v1/history", viewer, "Show past snapshots", self.past, ("minutes",)),
            Deed("GET", "/api/v1/gates/{id:path}/waiting", viewer, "Show who waits, and why",
                 self.waiting, ("limit",)),
            Deed("GET", "/api/v1/gates/{id:path}/recording", viewer,
                 "Give what passed a gate, a line for each ticket", self.recording, ("minutes",),
                 media=LINES),
            Deed("GET", "/api/v1/decisions", viewer, "Show the latest decisions", self.decisions,
                 ("limit",)),
            Deed("GET", "/api/v1/streams", viewer, "Show stream apps", self.streams),
        ]
        # fmt: on

    async def overview(self, scope: Scope, receive: Receive) -> Answer:
        server = self._server
        read_query(scope, ())
        now = time.time()
        doors = [
            {
                "name": door.name,
                "kind": door.kind,
                "state": door.standing,
                "detail": door.detail,
                "reason": door.degraded(),
                "gates": [view.id for view in door.views()],
                "links": door.links(),
            }
            for door in server.doors
        ]
        caller = scope.get(CALLER, LOCAL)
        return answer(
            {
                "version": __version__,
                "started": server.started_at,
                "now": now,
                "uptime": now - server.started_at,
                "draining": server.draining,
                "role": caller.role.name.lower(),
                "doors": doors,
                "demo": server.traffic is not None,
            }
        )

    async def events(self, scope: Scope, receive: Receive) -> Stream:
        read_query(scope, ())
        if self._server.history.followers >= MOST_FOLLOWERS:
            detail = f"{MOST_FOLLOWERS} follow already; try again later"
            raise Problem(503, "too_many", detail, headers=((b"retry-after", b"5"),))
        given = values_of(scope, b"last-event-id")
        last = int(given[0]) if given and re.fullmatch(rb"[0-9]{1,15}", given[0]) else None
        headers = ((b"x-accel-buffering", b"no"),)
        return Stream(self._server.history.follow(last), EVENTS, headers)

    async def past(self, scope: Scope, receive: Receive) -> Answer:
        minutes = number_of(read_query(scope, ("minutes",)), "minutes", 15, MOST_MINUTES)
        found = await asyncio.to_thread(self._server.history.since, time.time() - 60 * minutes)
        body = b'{"snapshots":' + found + b"}"
        accepted = b",".join(values_of(scope, b"accept-encoding"))
        if b"gzip" not in accepted:
            return Answer(200, body)
        packed = await asyncio.to_thread(gzip.compress, body, 1)
        headers = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))
        return Answer(200, packed, headers=headers)

    async def waiting(self, scope: Scope, receive: Receive, gate: str) -> Answer:
        limit = whole_of(read_query(scope, ("limit",)), "limit", 50, MOST_WAITING)
        return answer(waiting_document(self._server.view(gate), limit))

    async def decisions(self, scope: Scope, receive: Receive) -> Answer:
        limit = whole_of(read_query(scope, ("limit",)), "limit", 200, MOST_DECISIONS)
        found = self._server.feed.decisions(most=limit)
        return answer({"items": [decision_document(one) for one in reversed(found)]})

    async def recording(self, scope: Scope, receive: Receive, gate: str) -> Stream:
        minutes = number_of(read_query(scope, ("minutes",)), "minutes", 15, MOST_MINUTES)
        view = self._server.view(gate)
        rows = await asyncio.to_thread(view.channel.rows, time.time() - 60 * minutes)
        told = iter(await self._server.door_of(view).recorded(rows))

        async def lines() -> AsyncIterator[bytes]:
            while some := list(islice(told, LINES_AT_ONCE)):
                yield "".join(f"{json.dumps(line)}\n" for line in some).encode()
                await asyncio.sleep(0)  # a quick reader alone would not make way

        return Stream(lines(), LINES.encode())

    async def streams(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        found: list[Any] = [door.summary() for door in self._server.doors if door.kind == "streams"]
        return answer({"apps": [one for one in found if one is not None]})
