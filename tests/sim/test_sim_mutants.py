"""Deliberately broken simulators: each is caught by the test that holds the property."""

from heapq import heappush
from random import Random
from typing import Any

import pytest

from fairlead.core import Gate
from fairlead.core.ticket import RUNNING
from fairlead.policies import FIFO, Aging
from fairlead.sim import Arrival, arrivals, jobs_site, presets, scenario, sources
from fairlead.sim import run as running
from fairlead.sim.flows_site import PointGate
from fairlead.sim.gateway_site import GatewaySite
from fairlead.sim.run import END, Run
from fairlead.sim.streams_site import StreamGate
from fairlead.streams.ordering import TopicOrder
from tests.sim import (
    test_behaviour,
    test_determinism,
    test_fidelity,
    test_fidelity_streams,
    test_reference,
)
from tests.sim.model import balanced, run

CAUGHT = (AssertionError, pytest.fail.Exception, LookupError)
TWO = {"policy": "fifo", "capacity": {"slots": 2}}


def rush(seed: int, count: int = 25, **choices: Any) -> list[Arrival]:
    """Arrivals on a grid of time, so that many instants are shared."""
    random = Random(seed)
    made = [
        Arrival(
            random.randrange(40) / 8,
            random.randrange(24) / 8,
            **{name: random.choice(values) for name, values in choices.items()},
        )
        for _ in range(count)
    ]
    return sorted(made, key=lambda one: one.at)


def first_come_many() -> None:
    for seed in range(20):
        test_reference.exact(rush(seed), TWO, 2, test_reference.first_come)


def nobody_lost() -> None:
    inner = test_reference.test_nobody_is_lost.hypothesis.inner_test
    for policy in test_reference.POLICIES:
        for seed in range(5):
            inner(
                policy,
                rush(
                    seed,
                    cls=["low", "high"],
                    tenant="abc",
                    patience=[None, 0.0, 1.5],
                    leaves=[None, 2.0],
                    retries=[0, 2],
                    cost=[1.0, 2.0],
                ),
            )


def tasks_many() -> None:
    for seed in range(10):
        test_fidelity.tasks_agree(seed, 1 + seed % 4, 5 * (seed % 2), 30.0 if seed % 3 else 1.0)


def flows_many() -> None:
    for seed in range(6):
        for point in test_fidelity.POINTS:
            test_fidelity.flows_agree(seed, point)


def gateways_many() -> None:
    for seed in range(8):
        test_fidelity.gateway_agrees(seed, 1 + seed % 4, seed % 2)


def any_gateways_many() -> None:
    for seed in range(8):
        test_fidelity.any_gateway_agrees(seed)


def streams_many() -> None:
    for seed in range(4):
        test_fidelity_streams.streams_agree(seed, 1 + seed % 3)


ALL = [
    first_come_many,
    nobody_lost,
    tasks_many,
    flows_many,
    gateways_many,
    any_gateways_many,
    streams_many,
]


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.__name__)
def test_the_simulator_as_it_is_passes(check):
    check()


@pytest.mark.parametrize("point", test_fidelity.POINTS)
def test_at_every_control_point_some_wait_and_some_do_not(point, monkeypatch):
    """Or the agreement of door and simulator would say little."""
    seen: list[Any] = []
    same = test_fidelity.same

    def noted(journal: Any, given: Any, policy: Any) -> None:
        seen.extend(run(given, policy).tickets)
        same(journal, given, policy)

    monkeypatch.setattr(test_fidelity, "same", noted)
    test_fidelity.flows_agree(1, point)
    assert any(row.wait for row in seen)
    assert any(row.wait == 0 for row in seen)


def test_the_crowds_see_every_verdict():
    """Or the agreement of door and simulator would say little."""
    seen: set[str] = set()
    for seed in range(8):
        given = test_fidelity.crowd(
            seed, count=80, cls=["bulk", "default", "interactive"], tenant=["header:a", "header:b"]
        )
        classes = {
            "system": {"reserved_floor": 0},
            "interactive": {"reserved_floor": 1, "reserved_per_slot": 0.0},
            "default": {"queue_timeout": "3s", "reserved_per_slot": 0.0},
            "bulk": {"queue_size": 6, "starvation_threshold": "2s"},
        }
        result = run(given, {"preset": "gateway", "capacity": 2, "classes": classes})
        seen |= {row.state for row in result.tickets}
        seen |= {"promoted" for row in result.tickets if row.promoted}
    assert seen >= {"done", "refused", "expired", "evicted", "promoted"}


# Each of these takes a promise away.


def test_whoever_comes_is_served_before_whoever_ends(monkeypatch):
    push = heappush

    def late(heap: Any, item: Any) -> None:
        push(heap, (item[0] + 1e-12, *item[1:]))

    monkeypatch.setattr(running, "heappush", late)
    with pytest.raises(CAUGHT):
        first_come_many()


def test_of_several_that_start_one_is_forgotten(monkeypatch):
    follow = Run.follow
    monkeypatch.setattr(Run, "follow", lambda self, changed: follow(self, list(changed)[:1]))
    with pytest.raises(CAUGHT):
        nobody_lost()


def test_what_is_due_by_time_alone_waits_for_the_next_event(monkeypatch):
    class Drowsy(Gate):
        def next_wakeup(self, now: float) -> float:
            super().next_wakeup(now)
            return float("inf")

    monkeypatch.setattr(presets, "Gate", Drowsy)
    monkeypatch.setattr(test_reference, "CheckedGate", Drowsy)
    with pytest.raises(CAUGHT):
        nobody_lost()


def test_a_preempted_ticket_keeps_its_slot(monkeypatch):
    def kept(self: Run, ticket: Any) -> None:
        self.preemptions += 1
        ticket.over = True
        ticket.ended_at = self.now

    monkeypatch.setattr(Run, "evict", kept)
    with pytest.raises(CAUGHT):
        test_behaviour.test_a_preempted_ticket_is_over_and_its_slot_goes_to_the_other()


def test_a_preempted_ticket_ends_all_the_same(monkeypatch):
    evict = Run.evict

    def undead(self: Run, ticket: Any) -> None:
        evict(self, ticket)
        ticket.over = False

    monkeypatch.setattr(Run, "evict", undead)
    with pytest.raises(CAUGHT):
        test_behaviour.test_a_preempted_ticket_is_over_and_its_slot_goes_to_the_other()


def test_a_start_at_the_wrong_instant(monkeypatch):
    def start(self: Run, ticket: Any) -> None:
        self.order += 1
        arrival = self.arrivals[ticket.work]
        heappush(self.events, (arrival.at + arrival.service, self.order, END, ticket))

    monkeypatch.setattr(Run, "start", start)
    with pytest.raises(CAUGHT):
        first_come_many()


def test_a_gateway_that_charges_the_cost_of_a_scenario(monkeypatch):
    ticket = GatewaySite.ticket

    def charged(self: GatewaySite, number: int, arrival: Arrival, now: float) -> Any:
        made = ticket(self, number, arrival, now)
        made.cost = arrival.cost
        return made

    monkeypatch.setattr(GatewaySite, "ticket", charged)
    with pytest.raises(CAUGHT):
        any_gateways_many()


def test_a_policy_of_its_own_instead_of_the_door_s(monkeypatch):
    monkeypatch.setattr(
        Aging, "push", lambda self, ticket, now: self._append(ticket, ticket.scopes)
    )
    monkeypatch.setattr(Aging, "_new_order", FIFO._new_order)
    journal = test_fidelity.through_tasks  # both would change alike: the door's order is kept
    given = test_fidelity.crowd(3, priority=[0, 50, 100])
    monkeypatch.undo()
    seen = journal(given, max_concurrency=2)
    with pytest.raises(CAUGHT):
        test_fidelity.same(seen, given, TWO)


def test_a_gateway_in_which_nobody_is_preempted(monkeypatch):
    ticket = GatewaySite.ticket

    def safe(self: GatewaySite, *given: Any) -> Any:
        made = ticket(self, *given)
        made.evictable = False
        return made

    monkeypatch.setattr(GatewaySite, "ticket", safe)
    with pytest.raises(CAUGHT):
        gateways_many()


def test_a_control_point_that_does_not_learn(monkeypatch):
    def finish(self: PointGate, flow: Any, now: float) -> Any:
        self._arrive(now)
        self._runtime.finish(flow)
        return self._changed(flow)

    monkeypatch.setattr(PointGate, "finish", finish)
    with pytest.raises(CAUGHT):
        flows_many()


def test_a_round_of_jobs_that_is_not_one(monkeypatch):
    offer = jobs_site.FrontierGate.offer

    def hasty(self: jobs_site.FrontierGate, ticket: Any, now: float) -> Any:
        offer(self, ticket, now)
        return [
            one for one in self.advance(now) if one is not ticket or ticket.state is not RUNNING
        ]

    monkeypatch.setattr(jobs_site.FrontierGate, "offer", hasty)
    with pytest.raises(CAUGHT):
        test_behaviour.test_planners_plan_what_came_together_as_a_whole()


def test_a_stream_that_gives_the_scheduler_each_record_as_it_comes(monkeypatch):
    offer = StreamGate.offer

    def hasty(self: StreamGate, ticket: Any, now: float) -> Any:
        offer(self, ticket, now)
        return [one for one in self.advance(now) if one is not ticket]

    monkeypatch.setattr(StreamGate, "offer", hasty)
    with pytest.raises(CAUGHT):
        streams_many()


def test_a_stream_that_gives_room_back_before_the_next_batch_waits(monkeypatch):
    def end(self: StreamGate, job: Any) -> None:
        job.holding.partition.finish(job.taken)
        self.queue.done(job)
        self.scheduler.settle(job)
        self._give(self._taken(job.holding))

    monkeypatch.setattr(StreamGate, "_end", end)
    with pytest.raises(CAUGHT):
        streams_many()


def test_a_stream_without_the_priorities_of_the_door(monkeypatch):
    monkeypatch.setattr(test_fidelity_streams, "simulated", _without_priorities)
    with pytest.raises(CAUGHT):
        streams_many()


def _without_priorities(*given: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicOrder, "effective", lambda self, ticket, now: 0.0)
        return SIMULATED(*given)


SIMULATED = test_fidelity_streams.simulated


def test_one_generator_for_all_sources(monkeypatch):
    one = Random(4)
    monkeypatch.setattr(scenario, "Random", lambda seed: one)
    with pytest.raises(CAUGHT):
        test_determinism.test_one_source_more_changes_nothing_for_the_others()


@pytest.mark.parametrize("seeding", ["scenario", "sources"])
def test_a_seed_by_the_hash_of_a_text(monkeypatch, tmp_path, seeding):
    broken = (
        "import random, fairlead.sim.scenario, fairlead.sim.sources\n"
        f"fairlead.sim.{seeding}.Random = lambda seed: random.Random(hash(seed))\n"
    )
    monkeypatch.setattr(test_determinism, "CHILD", broken + test_determinism.CHILD)
    with pytest.raises(CAUGHT):
        test_determinism.see_other_processes_agree(tmp_path, ["tasks"])


def test_arrivals_in_the_order_of_their_sources(monkeypatch):
    def heaped(drawn: Any, seconds: float = 0, count: Any = None) -> Any:
        return [one for source in drawn for one in source]

    monkeypatch.setattr(scenario, "merged", heaped)
    with pytest.raises(CAUGHT):
        test_determinism.test_more_seconds_or_a_count_draw_the_same_beginning()


def test_clients_who_do_not_wait_for_their_answer(monkeypatch):
    monkeypatch.setattr(arrivals.Client, "again", lambda self, ended: ended - 1.5)
    with pytest.raises(CAUGHT):
        test_behaviour.test_clients_come_again_when_they_were_answered()


def test_graphs_without_their_dependencies(monkeypatch):
    ripen = Run.ripen

    def early(self: Run, number: int) -> None:
        self.waits_for[number] = min(1, self.waits_for[number])
        ripen(self, number)

    monkeypatch.setattr(Run, "ripen", early)
    with pytest.raises(CAUGHT):
        test_behaviour.test_jobs_wait_for_what_they_depend_on()


def test_a_tenant_drawn_anew_for_each_visit_of_a_client():
    said = {"kind": "closed", "clients": 1, "service": "1s", "tenants": ["a", "b", "c"]}
    closed = sources.Closed.model_validate(said)
    (client,) = closed.clients_of("1/0", 100.0)
    tenants = {one.tenant for at in range(30) if (one := client.come(float(at))) is not None}
    assert len(tenants) == 1


def test_books_that_do_not_balance_are_seen():
    result = run(rush(1), TWO)
    balanced(result)
    result.totals["done"] -= 1
    with pytest.raises(CAUGHT):
        balanced(result)
    crowded = run(rush(2), TWO)
    crowded.slots = 1
    with pytest.raises(CAUGHT):
        balanced(crowded)
