"""Drawing: a turn that holds nothing, where all that a capacity takes is used up by starting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.dispatch import Dispatcher
from fairlead.core.ticket import NEW, RUNNING

if TYPE_CHECKING:
    from fairlead.core.ticket import Ticket


class Drawing(Dispatcher):
    """The verb that needs no books."""

    def draw(self, ticket: Ticket, now: float) -> bool:
        """Start a ticket that need not be finished; False: nothing has changed, offer it.

        To everybody else this is an offer that starts at once and the finish that follows it.  False where a capacity
        wants something back, where anybody waits or anything is due, and for who would have to wait or be refused.
        """
        if self.waiting or now >= self.due or not self._spends or ticket.state is not NEW:
            return False
        if now < self.now:
            now = self.now
        capacity = self.capacity
        if not (self._all_skip or self._skips(ticket)) or capacity.admit(ticket, now) is not None:
            return False
        if self._charges:
            try:
                self.policy.charge(ticket, ticket.cost, now)
            except Exception:  # an offer will say what is wrong with it
                capacity.refund(ticket, ticket.cost, now)
                return False
        if capacity.opened:
            capacity.opened.clear()  # nobody waits for it
        self.now = ticket.started_at = now
        ticket.state = RUNNING
        return True

    def _skips(self, ticket: Ticket) -> bool:
        try:
            return self.policy.skips(ticket)
        except Exception:
            return False  # `push` will say what is wrong with it
