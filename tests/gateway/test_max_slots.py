"""The slots that a tenant may hold at once: `max_slots` of its policy, `default_max_slots` for all others."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core import Change, Ticket
from fairlead.core.ticket import Outcome
from fairlead.gateway.loading import load
from fairlead.gateway.pool import Pool, Tuning
from fairlead.gateway.room import TenantSlots
from fairlead.gateway.settings import PrioritySettings, Settings
from fairlead.testing import run_virtual
from fairlead.testing.checked import CheckedGate
from tests.gateway.sockets import run_on_uvloop, site
from tests.gateway.virtual import Scene, config, reading, ticks

TENANTS = ("header:a", "header:b", "header:c", "anonymous")
CAUGHT = (AssertionError, RuntimeError, KeyError)


def tuning_of(capacity: int = 4, **sections: Any) -> Tuning:
    return Tuning.of(Settings.model_validate(config(capacity, **sections)), plain=False)


def drawn_bound(draw: random.Random) -> Any:
    return draw.choice((None, None, 1, 2, 3, "25%", "50%", "100%", "0.5%"))


def drawn_tuning(draw: random.Random) -> Tuning:
    policies = {tenant: {"max_slots": drawn_bound(draw)} for tenant in TENANTS[:2]}
    classes = {
        "interactive": {"reserved_floor": draw.randrange(3), "starvation_threshold": 3},
        "default": {"reserved_per_slot": draw.choice((0, 0.3)), "starvation_threshold": 3},
        "bulk": {"queue_size": draw.choice((2, 50)), "starvation_threshold": 2},
    }
    scheduler = {"default_max_slots": drawn_bound(draw), "lend_reservations": draw.random() < 0.5}
    return tuning_of(classes=classes, policies=policies, scheduler=scheduler)


class Asked(Ticket):
    """A ticket with what a reload changes of a request."""

    keeps_head = False


def history(seed: int, steps: int = 80) -> None:
    """Do random deeds; each start keeps the tenant within the bound then in force."""
    draw = random.Random(seed)
    pool = Pool("p", drawn_tuning(draw), CheckedGate)
    gate, now = pool.gate, 0.0

    def adjust(change: Change) -> None:  # on the clock of the history, not of a loop
        gate.adjust(change, now)

    pool.runtime.adjust = adjust  # type: ignore[method-assign]
    pool.resize(draw.randrange(1, 8))
    for _ in range(steps):
        before = set(gate.holders)
        deed = draw.choice(("offer", "offer", "offer", "finish", "finish", "leave", "set", "time"))
        held = list(gate.holders)
        if deed == "offer":
            asked = Asked(rank=draw.randrange(4), tenant=draw.choice(TENANTS))
            asked.can_preempt, _, asked.evictable = pool.tuning.treated[asked.rank]
            gate.offer(asked, now)
        elif deed == "finish" and held:
            gate.finish(draw.choice(held), now, draw.choice((Outcome.OK, Outcome.LOST)))
        elif deed == "leave":
            gate.withdraw(draw.sample(waiting, 1) if (waiting := list(gate.waiters())) else [], now)
        elif deed == "set" and draw.random() < 0.5:
            pool.resize(draw.randrange(8), draw.choice((None, 2)), draw.randrange(2))
        elif deed == "set":
            pool.retune(drawn_tuning(draw))
        else:
            now += draw.random() * 2
            gate.advance(now)
        named, default = pool.tuning.bounds.of(pool.slots)
        holds = Counter(ticket.tenant for ticket in gate.holders)
        for ticket in set(gate.holders) - before:
            bound = named.get(ticket.tenant, default)
            assert bound is None or holds[ticket.tenant] <= bound, (seed, ticket, deed)
    pool.resize(8)
    for _ in range(200):
        for ticket in list(gate.holders):
            gate.finish(ticket, now)
        now += 1.0  # reservations that are not lent let the others in by promotion only
        gate.advance(now)
    assert not gate.holders
    assert not gate.waiting, "nobody is left behind"
    assert not (pool.room.tenants.bounded and pool.room.tenants.held())


@given(st.integers(0, 2**32))
def test_no_start_exceeds_the_bound_of_its_tenant(seed):
    history(seed)


@pytest.mark.parametrize("mutant", ["refuses nobody", "forgets what runs", "tells of no room"])
def test_a_broken_bound_is_caught(monkeypatch, mutant):
    if mutant == "refuses nobody":
        monkeypatch.setattr(TenantSlots, "refusal", lambda *_: None)
    elif mutant == "forgets what runs":
        monkeypatch.setattr(TenantSlots, "count_again", lambda *_: None)
    else:
        give = TenantSlots.give

        def silent(self, ticket, now):
            give(self, ticket, now)
            self.opened.clear()

        monkeypatch.setattr(TenantSlots, "give", silent)
    with pytest.raises(CAUGHT):
        for seed in range(200):
            history(seed)


def test_a_tenant_at_its_bound_keeps_nobody_else_waiting():
    async def main() -> None:
        scene = Scene(capacity=5, policies={"header:acme": {"max_slots": 2}})
        first = [await scene.running("interactive", tenant="acme") for _ in range(2)]
        third = await scene.waiting("interactive", tenant="acme")
        await scene.running("interactive", tenant="other")
        await scene.running("bulk", tenant="other")
        pool = scene.admission.pools[""]
        (waiter,) = pool.gate.waiters()
        why = pool.gate.explain(waiter, pool.runtime.clock())
        assert "tenant 'header:acme' holds its 2 of 2 slots" in why.text
        _, held = first[0]
        await held.answer()
        held = await scene.app.next()
        assert held.path == third.path

    run_virtual(main())


def test_a_request_that_waited_for_its_tenants_bound_is_told_so():
    async def main() -> None:
        scene = Scene(capacity=4, scheduler={"default_max_slots": 1})
        await scene.running(tenant="acme")
        late = await scene.waiting(tenant="acme", headers=[(b"x-request-timeout", b"0.5")])
        await late.done()
        assert (late.status, late.code) == (408, "scheduler_queue_timeout")
        assert b"requests of the same tenant hold its 1 of 1 slots" in late.body

    run_virtual(main())


def test_a_bound_for_all_is_each_tenants_own():
    async def main() -> None:
        scene = Scene(capacity=4, scheduler={"default_max_slots": "50%"})
        for tenant in ("one", "two"):
            for _ in range(2):
                await scene.running(tenant=tenant)
        assert scene.admission.pools[""].room.tenants.held() == {"header:one": 2, "header:two": 2}
        assert reading(scene.admission, "tenant_inflight", tenant="header:one") == 2
        assert reading(scene.admission, "tenant_max_slots", tenant="header:two") == 2

    run_virtual(main())


def test_a_tenant_preempts_its_own_at_its_bound():
    async def main() -> None:
        scene = Scene(capacity=4, scheduler={"default_max_slots": 1})
        other, _ = await scene.running("bulk", tenant="other")
        bulk, _ = await scene.running("bulk", tenant="acme")
        chat, held = await scene.running("interactive", tenant="acme")
        assert (await bulk.done()).status == 503
        await held.answer()
        assert (await chat.done()).status == 200
        assert not other.sent

    run_virtual(main())


def test_a_share_follows_the_slots_and_is_never_less_than_one():
    async def main() -> None:
        scene = Scene(capacity=8, scheduler={"default_max_slots": "25%"})
        tenants = scene.admission.pools[""].room.tenants
        for slots, bound in [(8, 2), (11, 2), (12, 3), (3, 1), (0, 1), (400, 100)]:
            scene.admission.set_capacities({"": slots})
            assert tenants.limit("anybody") == bound

    run_virtual(main())


def test_a_reload_bounds_those_who_run_and_wait():
    def loaded(**scheduler: Any) -> Any:
        given = load(config(4, scheduler=scheduler))
        assert not given.problems
        return given

    async def main() -> None:
        scene = Scene(capacity=4)
        held = [(await scene.running("bulk", tenant="acme"))[1] for _ in range(4)]
        waiting = [await scene.waiting("bulk", tenant="acme") for _ in range(4)]
        scene.admission.retune(loaded(default_max_slots=2))
        other = await scene.waiting("bulk", tenant="other")
        for one in held[:3]:
            await one.answer()
        await ticks()
        # One of three slots is the other tenant's: acme still holds one, and may have one more.
        inside = [path for path in scene.app.inside if path != held[3].path]
        assert sorted(inside) == sorted([other.path, waiting[0].path])
        scene.admission.retune(loaded())
        await ticks()
        assert len(scene.app.inside) == 4, "without a bound nothing keeps the free slot"

    run_virtual(main())


def test_the_plain_limiter_knows_no_tenants():
    async def main() -> None:
        scene = Scene(capacity=4, scheduler={"enabled": False, "default_max_slots": 1})
        for _ in range(3):
            await scene.running(tenant="acme")
        assert not scene.admission.pools[""].room.tenants.bounded

    run_virtual(main())


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "50", "0%", "101%", "%", "ten", [], "-5%"])
def test_what_is_no_bound_is_refused(wrong):
    given = load(config(4, scheduler={"default_max_slots": wrong}))
    (problem,) = given.problems
    assert problem.path == "priority_scheduler.default_max_slots"
    assert "must be a whole number of slots from 1 to 65535, or a share" in problem.message


def test_bounds_survive_being_written_and_read():
    given = load(config(4, scheduler={"default_max_slots": "12.5%"}))
    said = given.settings.priority_scheduler
    assert PrioritySettings.model_validate(said.model_dump()) == said
    assert said.model_dump()["default_max_slots"] == "12.5%"


def test_uploads_of_one_tenant_leave_slots_for_another():
    async def main() -> None:
        async with site(8, scheduler={"default_max_slots": "50%"}) as here:
            async with asyncio.timeout(10):
                taken = [await here.running_one("bulk", tenant="slow") for _ in range(4)]
                late = await here.ask("bulk", tenant="slow")
                other, held = await here.running_one("bulk", tenant="other")
                held.answer()
                head, _ = await other.response()
                assert head.status == 200
                assert here.inflight() == 4
                taken[0][1].answer()
                held = await here.backend.arrival()
                held.answer()
                assert (await late.response())[0].status == 200

    run_on_uvloop(main())
