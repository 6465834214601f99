"""Weighted fair queueing: flows share in proportion to their weights, whatever the size of their requests.

**Order.**  Each competing flow has a start tag S.  The smallest S is served (of equals, whoever was served longest
ago); a request of cost c moves its flow to  S + c/w.  Let u be the tag served last: no competing flow stands before u,
and none further behind it than one request of its own, L/w.  Hence  S₁ − S₂ ≤ L₁/w₁  and  S₂ − S₁ ≤ L₂/w₂  while both
compete, and as the difference changes by what each is served,

    |W₁/w₁ − W₂/w₂| ≤ L₁/w₁ + L₂/w₂      over every interval in which both compete,

exactly, whatever the others do and however capacity varies; L is the largest request the flow has asked for.
(Smallest finish among eligible starts, WF²Q+, breaks it as soon as a third flow joins; a test keeps that as a control.)

**Clock.**  A flow that joins with a request of cost c starts at  min(v, u + c/w), or where its last service left it if
that is later.  v is the fluid clock: a dispatch of cost c moves it by c/W, W being the weight of all flows that compete
or whose S lies still ahead of v; it never falls behind u.  So idling banks nothing.  The second term keeps the bound
above.  To join at u itself (SFQ) would keep it too, but then time stands still while newcomers keep coming, and
one-shot flows starve everybody else.

**Lag.**  Flow i joins at S₀ ≤ u + c₀/wᵢ, c₀ being its first request, or the one it was served last if that is larger.
A request that comes up after x of its work has been served since starts at the tag S₀ + x/wᵢ.  Flow j, at u or later
when i joins, has by then been served from tags up to that one: at most wⱼ(x + c₀)/wᵢ + Lⱼ, the rest of what was in
service at the join included.  So the request starts within

    x + Σⱼ wⱼ(x + c₀)/wᵢ  +  Σⱼ Lⱼ      of work since its flow joined, j over the others that competed meanwhile.

A fluid server shared by the same flows would finish it after  x + c + Σⱼ wⱼ(x + c)/wᵢ.  Hence, if c ≥ c₀ (requests of
one size, or the first after idling),  finish ≤ fluid finish + Σⱼ Lⱼ: the bound of start-time fair queueing, and it is
tight.  (A fluid server that knew when each j came and went may be ahead by wⱼ·c₀/wᵢ more for each: the price
of the exact bound above, which flows that joined at the fluid clock would break.)

Tags live until a ticket starts past an empty queue: there was room then, so the fluid ideal had finished too.

Goyal, Vin, Cheng, "Start-time Fair Queueing" (1996); Parekh, Gallager, "Generalized Processor Sharing" (1993).
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from math import inf
from typing import TYPE_CHECKING

from fairlead.policies.fifo import FIFO
from fairlead.policies.flow import Sharers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from fairlead.core.policy import Admit, Policy
    from fairlead.core.ticket import Ticket
    from fairlead.policies.flow import Flow, Inside


class FairQueue(Sharers):
    """Share by weight between the values of `by`, an attribute of the ticket or a function.

    Weights are a mapping, or a function of the value, asked when a flow of that value appears.  A function given as
    `inside` may promise by attributes: `withholds = False`, that who waits in its queues is always offered;
    `limited = False`, that these have no limits; `alike = True`, that they are the same for all values: one whose flow
    has gone may serve another.

    >>> by_tenant = FairQueue("tenant", weights={"gold": 3, "free": 1})
    >>> nested = FairQueue("workload", inside=lambda workload: FairQueue("tenant"))
    """

    charges = True

    def __init__(
        self,
        by: str | Callable[[Ticket], Hashable] = "tenant",
        *,
        weights: Mapping[Hashable, float] | Callable[[Hashable], float] | None = None,
        default_weight: float = 1.0,
        inside: Inside | type[Policy] = FIFO,
        name: str = "",
        limit: int | None = None,
    ) -> None:
        super().__init__(by, weights, default_weight, inside)
        self.steady &= type(self) is FairQueue  # no promise for what a subclass changes
        self.name = name
        self.limit = limit
        # By start tag; corrected when they surface.
        self._competing: list[tuple[float, int, Flow]] = []
        # Not competing, by start tag: the clock has yet to pass it; the clock has, but not the tag served last.
        self._paid: list[tuple[float, int, Flow]] = []
        self._passed: list[tuple[float, int, Flow]] = []
        self._clock = self._weight = 0.0
        self._served = 0.0  # the start tag served last: no competing flow stands before it
        self._turn = 0
        # A ticket that started past an empty queue, and its charge; while it is set, there are no flows.
        self._past: tuple[Ticket, float, float] | None = None
        # While nothing has scopes and nothing inside withholds, only a STOP refuses: `admit` is asked as it is.
        self._direct = not self.withholds

    def weight_of(self, key: Hashable) -> float:
        """Tell the weight that a flow of this key has, or would have."""
        return self._weights.of(key)

    @property
    def weights(self) -> Mapping[Hashable, float]:
        """The weights that were given one by one; a key that is not among them has the default."""
        return self._weights.given

    def set_weight(self, key: Hashable, weight: float) -> None:
        """Change a weight; it counts from the next dispatch on."""
        self._recall()
        self._weigh(key, self._weights.set(key, weight))

    def set_weights(self, weights: Mapping[Hashable, float]) -> None:
        """Change all weights at once; who is not named has the default weight."""
        self._recall()
        self._weights.replace(weights)
        for key in list(self._flows):
            self._weigh(key, self._weights.of(key))

    def _weigh(self, key: Hashable, weight: float) -> None:
        flow = self._flows.get(key)
        if flow is not None and weight != flow.weight:
            if flow.counted:
                self._weight += weight - flow.weight
            if flow.start > self._served:  # what it is ahead stays the same amount of work
                flow.start = self._served + (flow.start - self._served) * flow.weight / weight
            flow.weight = weight
            self._replace(flow)

    def push(self, ticket: Ticket, now: float) -> bool | None:
        if self._past is not None:
            self._recall()
        if ticket.scopes:
            self._direct = False
        key = self._key(ticket)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._new_flow(key)
        elif (  # `_is_void`, without the call: benchmarks/flows.py
            flow.entry is None
            and not flow.counted
            and self._few
            and flow.start <= self._served
            and not flow.queue
        ):
            self._renew(flow)
        lane = flow.queue.only_lane
        if lane is None or ticket.scopes:
            behind = flow.queue.push(ticket, now)
        else:  # from here to `_serve` the steps of a lane are written out: benchmarks/gate.py
            ticket.place = lane
            lane.entries.append(ticket)
            behind = True
        self._size += 1
        if flow.entry is None:
            self._join(flow, ticket.cost)
            entry = self._competing[0]
            first = entry[2]
            return first is not flow and first.entry is entry and first.start == entry[0]
        return behind

    def _rouse(self, flow: Flow) -> None:
        if flow.entry is None and flow.queue:
            self._join(flow, 0)
        if self.rouse is not None:
            self.rouse()

    def _join(self, flow: Flow, cost: float) -> None:
        start = self._served + cost / flow.weight
        if start > self._clock:
            start = self._clock
        if flow.start < start:
            flow.start = start
        if not flow.counted:
            flow.counted = True
            self._weight += flow.weight
        flow.entry = entry = (flow.start, flow.number, flow)  # as `_enter`, without the call
        heappush(self._competing, entry)

    def _enter(self, flow: Flow) -> None:
        flow.entry = entry = (flow.start, flow.number, flow)
        heappush(self._competing, entry)

    def _leave(self, flow: Flow) -> None:
        """The flow has nothing to offer; it counts until the clock has passed what it was served."""
        flow.entry = None
        if flow.start >= self._clock:
            heappush(self._paid, (flow.start, flow.number, flow))
        else:
            flow.counted = False
            self._weight -= flow.weight
            if len(self._flows) > self._few:
                self._forget(flow)

    def _forget(self, flow: Flow) -> None:
        """Drop an idle flow as soon as it is void."""
        if self._direct or not flow.queue:  # who is asked directly competes, or is empty
            if flow.start > self._served:
                heappush(self._passed, (flow.start, flow.number, flow))
            elif self._flows.get(flow.key) is flow:
                self._part_with(flow)

    def _is_void(self, flow: Flow) -> bool:
        idle = flow.entry is None and not flow.counted and not flow.queue
        return idle and flow.start <= self._served

    def _first(self) -> Flow | None:
        heap = self._competing
        while heap:
            entry = heap[0]
            flow = entry[2]
            if flow.entry is not entry:
                heappop(heap)
            elif flow.start == entry[0] and flow.number == entry[1]:
                return flow
            else:  # it was served or charged since
                flow.entry = entry = (flow.start, flow.number, flow)
                heapreplace(heap, entry)
        return None

    def pick(self, admit: Admit, now: float) -> Ticket | None:
        direct = self._stopped = self._direct  # asked directly, a queue is refused by a STOP alone
        if not direct:
            self._admit, admit = admit, self._ask  # held bound, it would be a cycle
        if self._timed:
            for flow, at in self._timed.items():
                if at <= now and flow.entry is None and flow.queue:
                    self._join(flow, 0)
        heap = self._competing
        while heap:
            entry = heap[0]  # from here as in `_first`, without the call: benchmarks/flows.py
            start, number, flow = entry
            if flow.entry is not entry:
                heappop(heap)
                continue
            if flow.start != start or flow.number != number:
                flow.entry = entry = (flow.start, flow.number, flow)
                heapreplace(heap, entry)
                continue
            lane = flow.queue.only_lane
            if lane is None:
                ticket = flow.queue.pick(admit, now)
            else:
                ticket = lane.entries[0]
                if ticket.place is not lane:
                    ticket = lane.head()
                if admit(ticket) is None:
                    lane.entries.popleft()
                    ticket.place = None
                else:
                    ticket = None
            if not direct and (self._refused or flow.woken):
                self._note_refusals(flow, now)
            if ticket is not None:
                self._size -= 1
                self._serve(flow, ticket.cost, now)
                return ticket
            if self._stopped:
                return None
            if self._timed and flow in self._timed:
                self._timed[flow] = flow.queue.wakes_at(now)
            self._leave(flow)
        return None

    def _serve(self, flow: Flow, cost: float, now: float) -> None:
        self._served = start = flow.start
        if start > self._clock:
            self._clock = start
        flow.start = start + cost / flow.weight
        self._turn = flow.number = self._turn + 1
        heap, entry = self._competing, flow.entry
        lane = flow.queue.only_lane
        if flow.queue if lane is None else len(lane.entries) > lane.dead:
            if heap[0] is entry:  # else corrected when it surfaces
                flow.entry = entry = (flow.start, flow.number, flow)
                heapreplace(heap, entry)
        else:
            if heap[0] is entry:
                heappop(heap)
            if flow.waits:
                self._wait_no_more(flow, now)
            self._leave(flow)
        if self._paid:
            self._advance(cost)
        elif self._weight > 0:
            self._clock += cost / self._weight
        passed = self._passed
        while passed and passed[0][0] <= self._served:
            flow = heappop(passed)[2]
            if flow.entry is None and not flow.counted:
                self._forget(flow)

    def _advance(self, work: float) -> None:
        """Move the fluid clock: the work is shared by weight; flows whose paid time it reaches drop out on the way."""
        paid = self._paid
        while paid:
            start, _, flow = paid[0]
            if flow.entry is not None or not flow.counted or start != flow.start:
                heappop(paid)
                continue
            needed = (start - self._clock) * self._weight
            if needed >= work:
                break
            heappop(paid)
            work -= needed
            self._clock = start
            flow.counted = False
            self._weight -= flow.weight
            if len(self._flows) > self._few:
                self._forget(flow)
        if self._weight > 0:
            self._clock += work / self._weight

    def _start_afresh(self) -> None:
        for heap in (self._competing, self._paid, self._passed):
            heap.clear()
        self._drop_all()
        self._groups.clear()
        self._clock = self._served = self._weight = 0.0

    def renew(self) -> bool:
        self._past = None
        self._direct = not self.withholds
        self._start_afresh()
        return type(self) is FairQueue and not self._weights.changed

    def remove(self, ticket: Ticket, now: float) -> None:
        flow = self._flows[self._key(ticket)]
        flow.queue.remove(ticket, now)
        self._size -= 1
        if not flow.queue:
            woken, flow.woken = flow.woken, []
            self._wait_no_more(flow, now)
            if flow.entry is not None:
                self._leave(flow)
            elif not flow.counted and len(self._flows) > self._few:
                self._forget(flow)
            for scope in woken:
                self.open(scope, now)

    def charge(self, ticket: Ticket, amount: float, now: float) -> None:
        if not self._size:
            if ticket.started_at < inf:  # a correction is of what was done, and makes nothing void
                self._recall()
                self._account(ticket, amount, now)
                return
            if amount <= 0:
                return
            if self._past is None:
                self._start_afresh()  # there was room and nobody waited: the fluid ideal had finished
            if not self.withholds:
                hash(self._key(ticket))  # what is wrong with it is said now
                self._past = (ticket, amount, now)
                return
        self._account(ticket, amount, now)

    def _recall(self) -> None:
        """Account for the last of the tickets started past an empty queue: each has made those before it void."""
        if self._past is not None:
            past, self._past = self._past, None
            self._account(*past)

    def _account(self, ticket: Ticket, amount: float, now: float) -> None:
        flow = self._flow(self._key(ticket))
        if flow.queue.charges:
            flow.queue.charge(ticket, amount, now)
        if flow.entry is None:
            joined = min(self._clock, self._served + ticket.cost / flow.weight)
            if flow.start < joined:
                flow.start = joined
        if amount < 0:
            flow.start = max(flow.start + amount / flow.weight, min(flow.start, self._served))
        else:
            flow.start += amount / flow.weight
            self._turn = flow.number = self._turn + 1
        if not flow.counted:
            flow.counted = True
            self._weight += flow.weight
        self._replace(flow)
        if amount > 0:
            self._advance(amount)

    def _replace(self, flow: Flow) -> None:
        """Its start tag has changed otherwise than by being served."""
        if flow.entry is not None:
            self._enter(flow)
        elif flow.counted:
            self._leave(flow)

    def head(self, now: float) -> Ticket | None:
        flow = self._first()
        ticket = None if flow is None else flow.queue.head(now)
        if flow is None or ticket is not None:
            return ticket
        # Rare: the first flow is dry and nobody has asked it since.  Look on, in order.
        others = sorted(entry for entry in self._competing if entry[2].entry is entry)
        heads = (other.queue.head(now) for _, _, other in others)
        return next((head for head in heads if head is not None), None)

    def explain(self, ticket: Ticket, now: float) -> str | None:
        flow = self._flows.get(self._key(ticket))
        if flow is None:
            return None
        ahead = flow.start - self._clock
        standing = "stands at"
        if ahead:
            standing = f"is {ahead:g} ahead of" if ahead > 0 else f"is {-ahead:g} behind"
        own = f"flow {flow.key!r} (weight {flow.weight:g}) {standing} its fair share"
        inner = flow.queue.explain(ticket, now)
        return f"{own}; {inner}" if inner else own
