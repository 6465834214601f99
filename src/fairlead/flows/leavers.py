"""Who left a line without being admitted, so that nobody is said to have overtaken them.

A flow that waited Q tokens behind others, A of which or of later ones were admitted before it, was admitted Q − A − G
tokens earlier than in order of arrival, G being what left the line ahead of it.  Places are numbered as they are taken;
G is what left from places before its own, less what had left when it came.  The sums by place are kept in a binary
indexed tree: leaving costs O(log n), asking too, and a line that nobody leaves costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.flows.flow import Flow

MOST_PLACES = 1 << 40
MOST_REMEMBERED = 10_000  # leavers, and four for each flow in the line


class Leavers:
    """Tokens that left one line, by place."""

    def __init__(self) -> None:
        self._line: set[Flow] = set()
        self._places = 0
        self._total = 0.0
        self._remembered = 0
        self._tree: dict[int, float] = {}

    def enter(self, flow: Flow) -> None:
        """A flow takes the last place."""
        if not self._line:
            self._forget()
            self._places = 0
        self._line.add(flow)
        self._places = flow.place_in_line = self._places + 1
        flow.left_before = self._total

    def admit(self, flow: Flow) -> float:
        """A flow leaves the line for the better; tell the tokens that left ahead of it."""
        self._line.discard(flow)
        return self._ahead(flow) if self._tree else 0.0

    def leave(self, flow: Flow) -> None:
        """A flow leaves the line for nothing."""
        self._line.discard(flow)
        tree, place, tokens = self._tree, flow.place_in_line, flow.cost
        self._total += tokens
        while place <= MOST_PLACES:
            tree[place] = tree.get(place, 0.0) + tokens
            place += place & -place
        self._remembered += 1
        if self._remembered > MOST_REMEMBERED + 4 * len(self._line):
            self._compact()

    def _ahead(self, flow: Flow) -> float:
        tree, place, before = self._tree, flow.place_in_line - 1, 0.0
        while place:
            before += tree.get(place, 0.0)
            place -= place & -place
        return before - flow.left_before

    def _compact(self) -> None:
        for flow in self._line:
            flow.queued_ahead -= self._ahead(flow)
            flow.left_before = 0.0
        self._forget()

    def _forget(self) -> None:
        self._tree.clear()
        self._total = 0.0
        self._remembered = 0
