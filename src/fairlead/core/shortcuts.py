"""Short cuts past `offer` and `finish`, for the cases that come by the million: one call, and no list to take apart.

Each does what the verb it stands for would do, or nothing at all, and says which; nobody else can tell the two apart.
Only what is over as it begins, a wait or a hold, is left to `advance`: `due` says so.  Whoever overrides `offer` or
`finish` is to see all of it: there they are declined, unless it overrides them as well.
"""

from __future__ import annotations

from math import inf
from typing import Any

from fairlead.core.dispatch import GONE, Dispatcher
from fairlead.core.ticket import DONE, NEW, RUNNING, UNSET, WAITING, Outcome, Ticket


def _no(gate: Dispatcher, ticket: Ticket, now: float) -> bool:
    return False


def _nobody(gate: Dispatcher, ticket: Ticket, now: float) -> None:
    return None


DECLINED = {"draw": _no, "end": _no, "line_up": _no, "relay": _nobody, "start": _no}


class Shortcuts(Dispatcher):
    """What a gate can do in one step where nothing else happens."""

    def draw(self, ticket: Ticket, now: float) -> bool:
        """Start a ticket that holds nothing, and need not be finished; False: nothing has changed, offer it.

        To all others this is an offer that starts at once, and its finish; it comes now, whatever it says of that.
        False where a capacity wants anything back or the policy a say, and where anybody would wait or be refused.
        """
        if self.waiting or not (self._draws and self.now <= now < self.due):
            return False
        capacity = self.capacity
        if ticket.state is not NEW or capacity.admit(ticket, now) is not None:
            return False
        if capacity.opened:
            capacity.opened.clear()  # nobody waits for it
        self.now = ticket.arrived_at = ticket.started_at = now
        ticket.state = RUNNING
        return True

    def start(self, ticket: Ticket, now: float) -> bool:
        """Start a ticket at once, where nobody waits and there is room; False: nothing has changed, offer it.

        To all others this is an offer; only its scopes stay unset, for it waits for none.
        """
        if (
            self.waiting
            or self._full
            or not (self.now <= now and now < self.due)
            or ticket.state is not NEW
        ):
            return False
        capacity = self.capacity
        if not (self._all_skip or self._skips(ticket)) or capacity.admit(ticket, now) is not None:
            return False
        if self._charges:
            try:
                self.policy.charge(ticket, ticket.cost, now)
            except Exception as error:
                self._not_charged(ticket, now, error, [])
        self._full = capacity.full
        self.now = ticket.started_at = now
        if ticket.arrived_at == UNSET:
            ticket.arrived_at = now
        self._seq = ticket.seq = self._seq + 1
        ticket.state = RUNNING
        self.holders[ticket] = False
        if ticket.evictable or ticket.hold_until < inf:
            self._watch(ticket)
        return True

    def end(self, ticket: Ticket, now: float) -> bool:
        """End work that went well, where nobody waits for its room; False: nothing has changed, finish it.

        To all others this is a finish.
        """
        if self.waiting or not (self.now <= now and now < self.due) or ticket.state is not RUNNING:
            return False
        watched = self.holders.pop(ticket, GONE)
        if watched is GONE:
            return False
        self.now = now
        ticket.state = DONE
        capacity = self.capacity
        if watched:
            self._release(ticket, now, Outcome.OK, None)
        else:
            capacity.give(ticket, now)
            if not self._lasts or capacity.opened:
                self._full = False
        if capacity.opened:
            capacity.opened.clear()
        return True

    def line_up(self, ticket: Ticket, now: float) -> bool:
        """Let a ticket wait for which there is no room; False: nothing has changed, offer it.

        To all others this is an offer.  False where it may be more than one more in the queue.
        """
        if (
            self._relays is None
            or not self._full
            or not (self.now <= now and now < self.due)
            or self.policy.limited
            or ticket.can_preempt
            or ticket.hold_until < inf
            or ticket.state is not NEW
        ):
            return False
        self.now = now
        self._seq = ticket.seq = self._seq + 1
        if ticket.arrived_at == UNSET:
            ticket.arrived_at = now
        try:
            self.policy.push(ticket, now)
        except Exception as error:
            self._blame("queue", ticket, error, [])
        ticket.state = WAITING
        self.waiting += 1
        if ticket.wait_until < inf:
            self._remember(ticket.wait_until, ticket)
        return True

    def relay(self, ticket: Ticket, now: float) -> Ticket | None:
        """End work that went well, and start who is next in its slot; None: nothing has changed, finish it.

        To all others this is a finish.  None where it is more than one slot that passes from one hand to the next.
        If the policy fails, the work has ended all the same.
        """
        counted = self._relays
        if (
            counted is None
            or counted.used != counted.total
            or not self.waiting
            or not (self.now <= now and now < self.due)
        ):
            return None
        holders, admitted = self.holders, self._admitted
        if holders.get(ticket, True):
            return None  # it holds nothing, or is watched
        following: Any
        try:
            following = self.policy.pick(self._asker, now)
        except Exception as error:
            following = error
        if len(admitted) != 1 or admitted[0] is not following:
            if following is None and not admitted:
                return None  # all are withheld
            self.now = now
            del holders[ticket]
            ticket.state = DONE
            counted.used -= 1
            self._full = False
            self._misled(following, now, [])
        admitted.clear()
        self.now = now
        del holders[ticket]
        ticket.state = DONE
        following.state = RUNNING
        following.started_at = now
        holders[following] = False
        self.waiting -= 1
        if self._notes and following.wait_until < inf:
            self._deadlines.forget()
        if following.evictable:
            self._watch(following)
        return following
