"""What is in force by an operator's hand and not by the configuration.

An override is not remembered but found, by comparing what is in force with what is configured: so the list is true
however an override began or ended.  The audit trail adds who made it, and when, as far as it remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.server.api import Deed
from fairlead.serving.access import LOCAL, Role
from fairlead.serving.auditing import CALLER, KEPT, noted
from fairlead.serving.http import Answer, Problem, answer, read_query
from fairlead.serving.queries import whole_of

if TYPE_CHECKING:
    from fairlead.server.service import Server
    from fairlead.serving.http import Receive, Scope

SHOWN = 200
AT_A_RELOAD = "when the configuration is applied again, or at the next start"
AT_A_START = "at the next start"
NEVER = "only when it is reset: it is stored, and survives a restart"


@dataclass(frozen=True)
class Override:
    """One value in force that is not the configured one; `undo` brings the configured one back."""

    id: str
    where: str  # the gate or the door
    what: str
    configured: Any
    value: Any
    ends: str
    undo: Callable[[], Awaitable[Any] | Any]
    role: Role = Role.OPERATOR

    def document(self) -> dict[str, Any]:
        """Describe it."""
        return {
            "id": self.id,
            "where": self.where,
            "what": self.what,
            "configured": self.configured,
            "value": self.value,
            "ends": self.ends,
        }


class Overriding:
    """The API of overrides and of the audit trail."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def deeds(self) -> list[Deed]:
        """The table of it."""
        # fmt: off
        return [
            Deed("GET", "/api/v1/overrides", Role.VIEWER, "List what is in force by hand", self.all),
            Deed("DELETE", "/api/v1/overrides/{id:path}", Role.OPERATOR,
                 "Bring the configured value back", self.reset),
            Deed("GET", "/api/v1/audit", Role.VIEWER, "List the latest changes, newest first",
                 self.audit, ("limit",)),
        ]
        # fmt: on

    async def _found(self) -> list[Override]:
        found: list[Override] = []
        for door in self._server.doors:
            found += await door.overrides()
        return found

    async def all(self, scope: Scope, receive: Receive) -> Answer:
        read_query(scope, ())
        items = []
        for one in await self._found():
            entry = self._server.audit.latest(one.id)
            by, since = (None, None) if entry is None else (entry.caller, entry.t)
            items.append({**one.document(), "by": by, "since": since})
        return answer({"items": items})

    async def reset(self, scope: Scope, receive: Receive, override: str) -> Answer:
        read_query(scope, ())
        one = next((one for one in await self._found() if one.id == override), None)
        if one is None:
            detail = f"there is no override {shown(override)}; GET /api/v1/overrides lists them"
            raise Problem(404, "not_found", detail)
        caller = scope.get(CALLER, LOCAL)
        if caller.role < one.role:
            detail = (
                f"{caller.name} is {caller.role.name.lower()}; this needs {one.role.name.lower()}"
            )
            raise Problem(403, "forbidden", detail)
        undone = one.undo()
        if asyncio.iscoroutine(undone):
            await undone
        noted(scope, f"reset {one.what} at {one.where}", one.value, one.configured, one.id)
        return answer({"reset": one.id, "before": one.value, "after": one.configured})

    async def audit(self, scope: Scope, receive: Receive) -> Answer:
        limit = whole_of(read_query(scope, ("limit",)), "limit", SHOWN, KEPT)
        return answer({"items": [one._asdict() for one in self._server.audit.entries(limit)]})
