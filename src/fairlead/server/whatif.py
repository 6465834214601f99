"""What would be if: the last minutes of a gate, replayed in the simulator with some of its settings changed.

Both sides are simulated, the settings of now and the changed ones, so that what a simulation cannot know is left out of
both.  Work that was refused or left has no known length: it is taken to need what others of its class needed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.config import shown
from fairlead.errors import ConfigError
from fairlead.serving.http import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from fairlead.server.service import Server

Found = TypeVar("Found")

MOST_TICKETS = 200_000
NOTE = (
    "Both sides are simulated with what arrived at this gate: compare them with one another. Observed is what "
    "happened; the closer 'as it was' is to it, the more the simulation can be trusted. Work that was refused or left "
    "is taken to need what others of its class needed."
)


class WhatIf:
    """One replay at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._busy = False

    async def run(
        self,
        gate: str,
        minutes: float,
        changes: Mapping[str, Any],
        seed: int,
        gone: Callable[[], Awaitable[object]],
    ) -> dict[str, Any] | None:
        """Replay; 409 while another one runs, 422 for what cannot be changed or replayed; None if the asker is gone."""
        view = self._server.view(gate)
        door = self._server.door_of(view)
        why = "the simulator has no such policy"
        try:
            document = door.policy(gate)
        except ConfigError as error:
            document, why = None, str(error)
        if document is None:
            raise Problem(422, "no_replay", f"{gate} cannot be replayed: {why}")
        if self._busy:
            raise Problem(409, "busy", "another what-if runs; wait for its end")
        self._busy = True
        try:
            rows = await asyncio.to_thread(view.channel.rows, time.time() - 60 * minutes)
            if not rows:
                detail = f"nothing has passed {gate} in the last {minutes:g} minutes"
                raise Problem(422, "nothing_recorded", detail)
            lines = await door.recorded(rows[-MOST_TICKETS:])
            asked = (lines, document, changes, seed)
            planners = door.planners
            return await _while_wanted(lambda check: _replayed(*asked, check, planners), gone())
        finally:
            self._busy = False


class _Unwanted(Exception):
    """Nobody waits for the answer."""


async def _while_wanted(
    work: Callable[[Callable[[float], None]], Found], gone: Awaitable[object]
) -> Found | None:
    """Work in a thread, for as long as somebody waits for it; whoever calls goes on only when the thread is done."""
    unwanted = threading.Event()

    def check(part: float) -> None:
        if unwanted.is_set():
            raise _Unwanted

    working = asyncio.ensure_future(asyncio.to_thread(work, check))
    leaving = asyncio.ensure_future(gone)
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        unwanted.set()
        leaving.cancel()
        await asyncio.wait({working})
    try:
        return working.result()
    except _Unwanted:
        return None


def _replayed(
    told: Iterable[dict[str, Any]],
    document: dict[str, Any],
    changes: Mapping[str, Any],
    seed: int,
    check: Callable[[float], None],
    planners: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    from fairlead.server.observed import add_wasted, observed
    from fairlead.sim import Scenario, read_policy, simulate
    from fairlead.sim.figures import summarise
    from fairlead.sim.records import arrivals_of

    lines = sorted(told, key=itemgetter("t"))
    began = lines[0]["t"]
    for line in lines:
        _count_from(line, began)
    try:
        policy = read_policy(document, planners=planners)
        changed = policy.with_settings(changes, name="changed")
    except ConfigError as error:
        raise Problem(422, "bad_change", " ".join(str(error).split())) from None
    check(0.0)
    sides = {}
    try:
        scenario = Scenario.of(arrivals_of(lines, most=MOST_TICKETS))
        for side, spec in (("before", policy), ("after", changed)):
            result = simulate(scenario, spec, seed, check)
            sides[side] = summarise(result)._asdict()
            add_wasted(sides[side]["groups"], result.tickets)
    except ConfigError as error:
        raise Problem(422, "no_replay", " ".join(str(error).split())) from None
    changed_to = ", ".join(f"{path} = {shown(value)}" for path, value in changes.items())
    note = NOTE if changes else f"Nothing is changed, so both sides are alike. {NOTE}"
    sides["observed"] = {"groups": observed(lines)}
    return {**sides, "tickets": len(lines), "changes": changed_to, "note": note}


def _count_from(line: dict[str, Any], began: float) -> None:
    """Count times from the first arrival; a key is for people, and may be that of several tickets."""
    for name in ("t", "deadline", "started", "ended"):
        if line[name] is not None:
            line[name] -= began
    line["key"] = ""
    line["kind"] = None
