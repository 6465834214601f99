"""Random verbs on the middleware and on the reference model, compared after each."""

import asyncio
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fairlead.gateway.loading import load
from fairlead.gateway.settings import CLASSES
from fairlead.testing.clock import VirtualLoop
from tests.gateway.model import Model, Request
from tests.gateway.virtual import Client, Held, Scene, config, settled, ticks

NEVER = 1_000_000.0
RANKS = st.integers(0, 3)
# So that there is something to preempt, and a reason.
OFTEN = st.sampled_from([0, 0, 0, 1, 2, 2, 3])
QUARTERS = st.integers(0, 12).map(lambda quarters: quarters / 4)
CHOICE = st.integers(0, 1000)


class GatewayMachine(RuleBasedStateMachine):
    """The middleware around a hold-gate, and beside it the model."""

    @initialize(
        total=st.integers(1, 4),
        sizes=st.lists(st.integers(0, 3), min_size=4, max_size=4),
        timeouts=st.lists(st.integers(1, 12), min_size=4, max_size=4),
        floors=st.lists(st.integers(0, 1), min_size=4, max_size=4),
        preempt=st.sampled_from([(True, True), (True, True), (False, True), (False, False)]),
        lend=st.booleans(),
    )
    def begin(self, total, sizes, timeouts, floors, preempt, lend):
        can_preempt = [False, False, *preempt]
        while sum(floors) > total:
            floors[floors.index(1)] = 0
        waits = [quarters / 4 for quarters in timeouts]
        self.model = Model(total, sizes, waits, floors, [0.0] * 4, can_preempt, lend)
        self.loop = VirtualLoop()
        self.ceiling = 3
        self.requests: dict[str, Request] = {}
        self.clients: dict[str, Client] = {}
        self.tokens: dict[str, int] = {}
        self.changes: list[str] = []
        self.do(self.open())

    async def open(self) -> None:
        self.scene = Scene(self.settings())
        runtime = self.scene.admission.pools[""].runtime
        adjust = runtime.adjust

        def noting(change: Any) -> None:
            self.changes.append(change.part)
            adjust(change)

        runtime.adjust = noting  # type: ignore[method-assign]

    def do(self, deed: Any) -> Any:
        async def main() -> Any:
            result = await deed
            await ticks()
            return result

        return self.loop.run_until_complete(main())

    def settings(self) -> dict[str, Any]:
        model = self.model
        classes = {
            name: {
                "queue_size": model.queue_sizes[rank],
                "queue_timeout": model.timeouts[rank],
                "reserved_floor": model.floors[rank],
                "starvation_threshold": NEVER,
                "can_preempt": model.can_preempt[rank],
            }
            for rank, name in enumerate(CLASSES)
        }
        return config(
            model.total,
            classes=classes,
            policies={"header:t": {"max_class": CLASSES[self.ceiling]}},
            scheduler={"lend_reservations": model.lend},
        )

    # Verbs

    @rule(ranks=st.lists(OFTEN, min_size=1, max_size=4))
    def arrive_plainly(self, ranks):
        for rank in ranks:
            self.arrive(rank, None, False, False)

    @rule(
        rank=RANKS, own=st.one_of(st.none(), QUARTERS), stubborn=st.booleans(), retry=st.booleans()
    )
    def arrive_somehow(self, rank, own, stubborn, retry):
        self.arrive(rank, own, stubborn, retry)

    def arrive(self, rank, own, stubborn, retry):
        model = self.model
        effective = min(rank, self.ceiling)
        limit = model.timeouts[effective] if own is None else min(own, model.timeouts[effective])
        path = f"/{len(self.clients)}"
        headers = [(b"x-fairlead-priority", CLASSES[rank].encode())]
        if own is not None:
            headers.append((b"x-request-timeout", str(own).encode()))
        evictions = 0
        if retry and self.tokens:
            token, evictions = self.tokens.popitem()
            headers.append((b"x-fairlead-retry-token", token.encode()))
        request = Request(
            path,
            effective,
            model.now + limit,
            model.can_preempt[effective],
            any(model.can_preempt[effective + 1 :]),
            evictions,
            stubborn,
        )
        if stubborn:
            self.scene.app.stubborn_paths.add(path)
        self.requests[path] = request

        async def deed() -> None:
            self.clients[path] = self.scene.client(tenant="t", path=path, headers=headers)

        self.do(deed())
        model.arrive(request)

    def pick(self, number: int, state: str) -> Request:
        found = [one for one in self.requests.values() if one.state == state]
        return found[number % len(found)]

    def any_in(self, state: str) -> bool:
        return any(one.state == state for one in self.requests.values())

    def held(self, request: Request) -> Held:
        assert request.path in self.scene.app.inside, f"{request} is not inside"
        return self.scene.app.inside[request.path]

    @precondition(lambda self: self.any_in("running"))
    @rule(number=CHOICE, status=st.sampled_from([200, 404, 502]))
    def release(self, number, status):
        request = self.pick(number, "running")
        held = self.held(request)
        if request.path in self.streaming():
            self.do(held.chunk(b"", more=False))
            self.do(held.leave())
            status = 200
        else:
            self.do(held.answer(b"x", status))
        self.model.finish(request, status)

    @precondition(lambda self: self.any_in("evicted"))
    @rule(number=CHOICE, speaks=st.booleans())
    def yield_slot(self, number, speaks):
        """A stubborn victim comes to its end at last, perhaps after one more attempt to answer."""
        request = self.pick(number, "evicted")
        held = self.held(request)
        self.do(held.answer(b"too late") if speaks else held.leave())
        self.model.finish(request, 503)

    @precondition(lambda self: self.any_in("running"))
    @rule(number=CHOICE)
    def first_byte(self, number):
        request = self.pick(number, "running")
        if request.path not in self.streaming():
            self.do(self.held(request).head())
            self.do(self.held(request).chunk(b"x"))
            self.model.commit(request)

    def streaming(self) -> set[str]:
        return {path for path, client in self.clients.items() if len(client.sent) > 1}

    @precondition(lambda self: self.model.waits())
    @rule(number=CHOICE, cancelled=st.booleans())
    def leave_the_queue(self, number, cancelled):
        request = self.pick(number, "waiting")
        client = self.clients[request.path]

        async def deed() -> None:
            client.task.cancel() if cancelled else client.leave()

        self.do(deed())
        self.model.withdraw(request)

    @precondition(lambda self: self.any_in("running"))
    @rule(number=CHOICE)
    def leave_while_running(self, number):
        request = self.pick(number, "running")
        self.clients[request.path].leave()
        self.do(self.held(request).leave())
        self.model.finish(request, "gone")

    @rule(quarters=st.integers(1, 8))
    def time_passes(self, quarters):
        self.do(asyncio.sleep(quarters / 4))
        self.model.advance(self.loop.time())

    @rule(total=st.sampled_from([1, 2, 3, 4, 5, 0]))
    def resize(self, total):
        self.changes.clear()

        async def deed() -> None:
            self.scene.admission.set_capacities({"": total})

        self.model.total = total
        self.do(deed())
        for _ in self.changes:
            self.model.adjust()
        self.model.end_evicted()

    @rule(
        sizes=st.lists(st.integers(0, 3), min_size=4, max_size=4),
        timeouts=st.lists(st.integers(1, 12), min_size=4, max_size=4),
        floor=st.integers(0, 1),
        rank=RANKS,
        ceiling=st.sampled_from([3, 3, 3, 2, 1]),
    )
    def retune(self, sizes, timeouts, floor, rank, ceiling):
        model = self.model
        floors = list(model.floors)
        floors[rank] = floor
        if sum(floors) > model.total:
            return
        model.queue_sizes, model.timeouts = sizes, [quarters / 4 for quarters in timeouts]
        before, model.floors, self.ceiling = model.floors, floors, ceiling
        loaded = load(self.settings())
        assert not loaded.lines, loaded.lines
        self.changes.clear()

        async def deed() -> None:
            self.scene.admission.retune(loaded)

        self.do(deed())
        model.floors = before
        for part in self.changes:
            if part == "slots":
                model.floors = floors
            model.adjust()
        model.end_evicted()

    # What must agree

    @invariant()
    def agree(self):
        if not hasattr(self, "scene"):
            return
        model, capacity = self.model, self.scene.admission.pools[""].capacity
        assert set(self.scene.app.inside) == {one.path for one in model.running}, "who runs"
        assert capacity.inflight == [model.inflight(rank) for rank in range(4)]
        assert capacity.waiting == [model.depth(rank) for rank in range(4)]
        assert list(capacity.reserved) == model.reserved()
        assert sum(self.scene.metrics.preemptions.values()) == model.preemptions
        metrics = self.scene.metrics
        assert sum(metrics.admitted(rank) for rank in range(4)) == model.admitted
        for path, request in self.requests.items():
            client = self.clients[path]
            client.check()
            assert client.task.done() == (request.state not in ("waiting", "running", "evicted"))
            if client.task.done() and request.state != "gone":
                assert client.status == request.state
            elif request.state == "waiting":
                assert not client.sent
            token = client.head.get("x-fairlead-retry-token")
            if token is not None and not client.gone:
                client.gone = True  # seen
                preempted = "x-fairlead-preempted" in client.head
                self.tokens[token] = request.evictions + preempted

    def teardown(self):
        if not hasattr(self, "scene"):
            return
        try:
            self.do(self.close())
            settled(self.scene.admission)
        finally:
            self.loop.close()

    async def close(self) -> None:
        for _ in range(100):
            for held in list(self.scene.app.inside.values()):
                held.post(None)
            await asyncio.sleep(1)
            if all(client.task.done() for client in self.clients.values()):
                break
        assert not self.scene.app.inside
        assert all(client.task.done() for client in self.clients.values())
        asking = asyncio.current_task()
        assert not [task for task in asyncio.all_tasks() if task is not asking]
