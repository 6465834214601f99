"""Deliberately broken gateways, several of them the original's: each is caught by the model or by a named test."""

import asyncio
import gc
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.core import Gate
from fairlead.core.eviction import Evictions
from fairlead.gateway import asking, pool
from fairlead.gateway import metrics as count
from fairlead.gateway.admission import Admission
from fairlead.gateway.body import Body
from fairlead.gateway.exchange import Exchange
from fairlead.gateway.pool import Pool
from fairlead.serving.connections import Connections
from fairlead.testing import run_virtual
from fairlead.testing.clock import VirtualLoop
from tests.attacks import test_connections
from tests.gateway import (
    test_answers,
    test_cancellation,
    test_metrics,
    test_middleware,
    test_priority,
    test_reading_ahead,
    test_retune,
    test_storms,
    test_tenants,
)
from tests.gateway.machine import GatewayMachine

# A broken gateway fails an assertion, or stands still, which the virtual loop reports.
CAUGHT = (AssertionError, RuntimeError, TimeoutError, KeyError, AttributeError, BaseExceptionGroup)
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
QUICK = settings(
    max_examples=400,
    stateful_step_count=30,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


@pytest.fixture(autouse=True)
def wreckage() -> Iterator[None]:
    """Clear away in silence what a broken gateway leaves behind."""
    logs = [logging.getLogger(name) for name in ("asyncio", "fairlead.gateway")]
    for log in logs:
        log.disabled = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()
    for log in logs:
        log.disabled = False


def caught_by_the_model() -> None:
    with pytest.raises(CAUGHT):
        run_state_machine_as_test(GatewayMachine, settings=QUICK)


def test_a_victim_after_its_first_byte(monkeypatch):
    def commit(self, ticket):
        return ticket.state.value != "evicted"

    monkeypatch.setattr(Gate, "commit", commit)
    with pytest.raises(CAUGHT):
        test = test_middleware.TestTheFirstByte()
        test.test_has_come_so_it_is_never_preempted("http.response.body")


def test_a_slot_not_returned_when_the_client_leaves(monkeypatch):
    end = Exchange.end

    def leaky(self, outcome):
        if outcome != count.DISCONNECTED:
            end(self, outcome)

    monkeypatch.setattr(Exchange, "end", leaky)
    caught_by_the_model()
    with pytest.raises(CAUGHT):
        test_cancellation.test_at_every_suspension(test_cancellation.straight)


def test_a_slot_returned_before_the_victim_has_come_to_its_end(monkeypatch):
    """More would run than there are slots: an application may take its time to unwind."""
    told = Exchange.told

    def hasty(self):
        told(self)
        if self.state.value == "evicted":
            self.end(count.PREEMPTED)

    monkeypatch.setattr(Exchange, "told", hasty)
    with pytest.raises(CAUGHT):
        test = test_middleware.TestTheFirstByte()
        test.test_an_application_that_swallows_the_cancellation_cannot_send_any_more(1)


def test_barging(monkeypatch):
    """W4: a newcomer takes what is free, whoever waits."""
    offer = Gate.offer

    def barging(self, ticket, now):
        waiting, self.waiting = self.waiting, 0
        free = self.capacity.used < self.capacity.total
        if not free:
            self.waiting = waiting
        try:
            return offer(self, ticket, now)
        finally:
            if free:
                self.waiting += waiting

    finish = Gate.finish

    def late(self, ticket, now, *args):
        hidden, self.waiting = self.waiting, 0
        try:
            return finish(self, ticket, now, *args)
        finally:
            self.waiting += hidden
            if hidden:
                self.due = self.now

    monkeypatch.setattr(Gate, "offer", barging)
    monkeypatch.setattr(Gate, "finish", late)
    caught_by_the_model()


@pytest.mark.parametrize("off", [-1, 1])
def test_a_queue_limit_off_by_one(monkeypatch, off):
    level = pool._level

    def wrong(name, queue_size, *rest):
        return level(name, max(0, queue_size + off), *rest)

    monkeypatch.setattr(pool, "_level", wrong)
    caught_by_the_model()


def test_a_timeout_that_is_not_honoured(monkeypatch):
    monkeypatch.setattr(Gate, "_expire", lambda self, now, changed: False)

    def never(self, now):
        self.due = float("inf")
        return self.due

    monkeypatch.setattr(Gate, "next_wakeup", never)
    caught_by_the_model()


def test_an_own_limit_that_is_not_honoured(monkeypatch):
    """W16: a request whose caller gives up in five seconds waits five minutes."""
    monkeypatch.setattr("fairlead.gateway.priority.own_wait_limit", lambda fields: None)
    caught_by_the_model()
    with pytest.raises(CAUGHT):
        test = test_priority.TestOwnLimitThroughTheMiddleware()
        test.test_the_smaller_of_its_own_and_its_class_counts((b"grpc-timeout", b"2S"), 2.0)


def test_a_clamp_that_raises_a_class(monkeypatch):
    settle = asking.settle

    def lifting(admission, exchange):
        settle(admission, exchange)
        exchange.rank = exchange.asker.who.ceiling

    monkeypatch.setattr(asking, "settle", lifting)
    caught_by_the_model()
    with pytest.raises(CAUGHT):
        test = test_tenants.TestThroughTheMiddleware()
        test.test_the_class_is_the_lower_of_the_two_and_lowering_is_counted("bulk", "system")


def test_a_clamp_that_does_not_clamp(monkeypatch):
    settle = asking.settle

    def lax(admission, exchange):
        settle(admission, exchange)
        exchange.rank = exchange.requested

    monkeypatch.setattr(asking, "settle", lax)
    caught_by_the_model()


def test_the_oldest_victim_first(monkeypatch):
    def below(self, ticket):
        ranks = self._pools.get(ticket.pool, {})
        for rank in sorted(ranks):
            if rank < ticket.rank:
                yield next(iter(ranks[rank]))

    monkeypatch.setattr(Evictions, "_below", below)
    caught_by_the_model()


def test_a_victim_of_the_highest_class_beneath(monkeypatch):
    def below(self, ticket):
        ranks = self._pools.get(ticket.pool, {})
        for rank in sorted(ranks, reverse=True):
            if rank < ticket.rank:
                yield next(reversed(ranks[rank]))

    monkeypatch.setattr(Evictions, "_below", below)
    caught_by_the_model()


def test_a_kill_that_admits_nobody(monkeypatch):
    """W6: after a shrink one more slot is not enough, and a request dies for nothing."""
    monkeypatch.setattr(
        Evictions, "victim", lambda self, head, capacity, now: next(self._below(head), None)
    )
    caught_by_the_model()


def test_a_thrice_preempted_request_preempted_again(monkeypatch):
    """W15."""
    monkeypatch.setattr("fairlead.core.eviction.IMMUNE_AFTER", 100)
    with pytest.raises(CAUGHT):
        test = test_answers.TestRetryTokens()
        test.test_a_request_is_preempted_three_times_at_most()


def test_a_token_that_is_good_for_ever(monkeypatch):
    monkeypatch.setattr(Admission, "redeem_token", lambda self, token: self._tokens.get(token, 0))
    with pytest.raises(CAUGHT):
        test_answers.TestRetryTokens().test_a_token_is_good_once()


def test_a_client_that_leaves_the_queue_unnoticed(monkeypatch):
    """W8: it keeps its place until its time is up."""

    async def deaf(self, exchange):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Body, "_read_ahead", deaf)
    caught_by_the_model()
    with pytest.raises(CAUGHT):
        test = test_middleware.TestASlotIsHeld()
        test.test_a_client_that_leaves_the_queue_frees_its_place_at_once()


def test_a_cancelled_waiter_not_withdrawn(monkeypatch):
    withdraw = Gate.withdraw

    def only_the_gone(self, tickets, now):
        return withdraw(self, [one for one in tickets if getattr(one, "gone", True)], now)

    monkeypatch.setattr(Gate, "withdraw", only_the_gone)
    with pytest.raises(CAUGHT):
        test_cancellation.test_at_every_suspension(test_cancellation.after_a_wait)


def test_a_head_sent_at_once(monkeypatch):
    """The original: the client sees 200 and then a body that is cut, or a second head."""
    send = Exchange.send

    async def eager(self, message):
        if message["type"] == "http.response.start":
            await self.raw_send(message)
        else:
            await send(self, message)

    monkeypatch.setattr(Exchange, "send", eager)
    with pytest.raises(CAUGHT):
        test_middleware.TestTheFirstByte().test_has_not_come_so_it_is_preempted(["head"])


def test_bytes_after_a_503(monkeypatch):
    async def through(self, message: Any) -> None:
        await self.raw_send(message)

    monkeypatch.setattr(Exchange, "send", through)
    with pytest.raises(CAUGHT):
        test = test_middleware.TestTheFirstByte()
        test.test_an_application_that_swallows_the_cancellation_cannot_send_any_more(1)


def test_a_cancellation_of_ours_that_is_not_taken_back(monkeypatch):
    class Forgetful(asyncio.Task):  # type: ignore[type-arg]
        def uncancel(self) -> int:
            return self.cancelling()

    def factory(loop, coro, **options):
        return Forgetful(coro, loop=loop, **options)

    begin = VirtualLoop.__init__

    def with_factory(self):
        begin(self)
        self.set_task_factory(factory)

    monkeypatch.setattr(VirtualLoop, "__init__", with_factory)
    with pytest.raises(CAUGHT):
        test_cancellation.test_a_preempted_task_can_be_used_again()


def test_waiters_of_a_pool_that_is_no_more_left_standing(monkeypatch):
    monkeypatch.setattr(Exchange, "renew", lambda self: None)
    with pytest.raises(CAUGHT):
        test = test_retune.TestPools()
        test.test_waiters_of_a_pool_that_is_no_more_go_where_they_belong_now()


def test_a_retune_that_makes_the_pool_anew(monkeypatch):
    def anew(self, tuning):
        total = self.capacity.total
        self.__init__(self.name, tuning)
        self.resize(total)

    monkeypatch.setattr(Pool, "retune", anew)
    caught_by_the_model()


def test_tenants_without_a_bound(monkeypatch):
    """W13."""
    monkeypatch.setattr(
        "fairlead.gateway.tenant_labels.TenantLabels.of", lambda self, tenant: tenant
    )
    with pytest.raises(CAUGHT):
        test = test_metrics.TestTenantLabels()
        test.test_through_the_middleware_at_most_a_hundred_and_other()


def test_labels_for_whoever_came_first(monkeypatch):
    monkeypatch.setattr(
        "fairlead.gateway.tenant_labels.TenantLabels.notice", lambda self, tenant: False
    )
    with pytest.raises(CAUGHT):
        test_metrics.TestTenantLabels().test_who_asks_most_has_one_however_late_it_came()


@pytest.mark.parametrize("lost", [count.DISCONNECTED, count.FAILED, count.PREEMPTED])
def test_a_storm_finds_one_lost_slot(monkeypatch, lost):
    end = Exchange.end
    losses = iter([True])

    def leaky(self, outcome):
        if outcome != lost or not next(losses, False):
            end(self, outcome)

    monkeypatch.setattr(Exchange, "end", leaky)
    with pytest.raises(CAUGHT):
        run_virtual(test_storms.storm(500, False))


def test_the_model_passes_on_what_is_not_broken():
    run_state_machine_as_test(GatewayMachine, settings=settings(QUICK, max_examples=50))


def test_a_slot_taken_before_the_body_is_there(monkeypatch):
    async def read(self, most):
        pass

    monkeypatch.setattr(Body, "read", read)
    with pytest.raises(CAUGHT):
        test_reading_ahead.TestASlot().test_is_taken_once_the_body_is_there()


def test_a_book_of_connections_that_admits_beyond_its_caps(monkeypatch):
    monkeypatch.setattr(Connections, "_make_room", lambda self, address: True)
    with pytest.raises(CAUGHT):
        test_connections.TestTheBook().test_over_random_connections_the_caps_hold()


def test_a_book_of_connections_in_which_no_idle_one_gives_way(monkeypatch):
    monkeypatch.setattr(Connections, "_make_room", lambda self, address: False)
    with pytest.raises(CAUGHT):
        test_connections.TestTheBook().test_over_random_connections_the_caps_hold()


def test_a_book_of_connections_that_forgets_no_connection(monkeypatch):
    monkeypatch.setattr(Connections, "leave", lambda self, connection, address: None)
    with pytest.raises(CAUGHT):
        test_connections.TestTheBook().test_over_random_connections_the_caps_hold()
