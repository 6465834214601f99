"""What operators do to gates: adjust one within a table of what may be changed, and ask what would be if."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StringConstraints

from fairlead.config import shown
from fairlead.core import Change
from fairlead.server.api import Deed
from fairlead.server.whatif import WhatIf
from fairlead.serving.access import Role
from fairlead.serving.auditing import noted
from fairlead.serving.http import Answer, Body, Problem, answer, left, read_query, read_strictly

if TYPE_CHECKING:
    from fairlead.server.service import Server
    from fairlead.serving.http import Receive, Scope

Text = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Setting = str | int | float | bool | None


class Adjustment(Body):
    """What `POST /api/v1/gates/{id}/adjust` takes: call `verb(*args)` on the part of that name."""

    part: Text
    verb: Text
    args: Annotated[list[Setting], Field(max_length=10)] = Field(default_factory=list)


class Supposition(Body):
    """What `POST /api/v1/whatif` takes: settings of a gate's policy by dotted path, and what they would be."""

    gate: Text
    minutes: Annotated[float, Field(gt=0, le=15)] = 15.0
    changes: Annotated[dict[Text, Any], Field(max_length=50)] = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=0, le=2**31)] = 1


class Acting:
    """The operators' half of the API."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._what_if = WhatIf(server)

    def deeds(self) -> list[Deed]:
        """The table of it."""
        # fmt: off
        return [
            Deed("POST", "/api/v1/gates/{id:path}/adjust", Role.OPERATOR, "Change a gate for now",
                 self.adjust, takes=Adjustment),
            Deed("POST", "/api/v1/whatif", Role.OPERATOR,
                 "Replay the last minutes of a gate with other settings", self.what_if,
                 takes=Supposition, conflict="application/problem+json", changes=False),
        ]
        # fmt: on

    async def adjust(self, scope: Scope, receive: Receive, gate: str) -> Answer:
        read_query(scope, ())
        asked = await read_strictly(scope, receive, Adjustment)
        view = self._server.view(gate)
        read = view.adjustable.get((asked.part, asked.verb))
        if read is None or view.adjust is None:
            known = ", ".join(f"{part}.{verb}" for part, verb in sorted(view.adjustable))
            detail = (
                f"{shown(asked.part)}.{shown(asked.verb)} cannot be changed at {view.id}; "
                f"what can: {known or 'nothing'}"
            )
            raise Problem(422, "not_adjustable", detail)
        try:
            args = read(asked.args)
        except ValueError as error:
            raise Problem(422, "bad_arguments", str(error)) from None
        before = view.value(asked.part, asked.verb, args)
        view.adjust(Change(asked.part, asked.verb, args))
        after = view.value(asked.part, asked.verb, args)
        subject = ":".join(
            [view.id, asked.verb, *args[:1]]
            if asked.verb == "set_weight"
            else [view.id, asked.verb]
        )
        what = f"adjusted {view.id}: {asked.part}.{asked.verb}{args}"
        noted(scope, what, before, after, subject)
        applied = {"part": asked.part, "verb": asked.verb, "args": list(args)}
        return answer({"applied": applied})

    async def what_if(self, scope: Scope, receive: Receive) -> Answer | None:
        read_query(scope, ())
        asked = await read_strictly(scope, receive, Supposition)
        given = (asked.gate, asked.minutes, asked.changes, asked.seed)
        found = await self._what_if.run(*given, gone=lambda: left(receive))
        return None if found is None else answer(found)
