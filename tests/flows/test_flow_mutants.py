"""Deliberately broken doors, several of them upstream's own: each is caught by the test that holds the property."""

import gc
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.capacities import TokenBucket
from fairlead.capacities.inflight import InFlight
from fairlead.core import Gate, Outcome, Policy
from fairlead.flows import (
    blocking,
    counts,
    flow,
    matchers,
    order,
    parts,
    point,
    points,
    scheduler,
    workloads,
)
from fairlead.policies import FIFO, FairQueue
from tests.flows import (
    test_blocking,
    test_flow_decorators,
    test_flow_life,
    test_flow_limits,
    test_flow_metrics,
    test_flow_queue,
    test_flow_retune,
    test_flow_settle,
    test_flow_storm,
    test_labels,
    test_shares,
    test_sybil,
)
from tests.flows.door import concurrency
from tests.flows.machine import FlowMachine

# A broken door fails an assertion, or stands still, which `run` reports.
CAUGHT = (AssertionError, TimeoutError, TypeError, pytest.fail.Exception)


@pytest.fixture(autouse=True)
def wreckage() -> Iterator[None]:
    """Clear away in silence what a broken door leaves behind."""
    log = logging.getLogger("asyncio")
    log.disabled = True
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
    log.disabled = False


def caught(test: Any, *args: Any) -> None:
    with pytest.raises(CAUGHT):
        test(*args)


life, limits, queue = (
    test_flow_life.TestCancellation,
    test_flow_limits.TestConcurrency,
    test_flow_queue.TestQueue,
)


class TestLeaks:
    def test_tokens_of_a_caller_that_is_gone_when_it_is_granted(self, monkeypatch):
        """Upstream: a slot is granted, the caller refused, and the slot leaks until it expires."""
        finish = Gate.finish

        def leaky(self, ticket, now, outcome=Outcome.OK, spent=None):
            return [] if outcome is Outcome.LOST else finish(self, ticket, now, outcome, spent)

        monkeypatch.setattr(Gate, "finish", leaky)
        caught(life().test_just_woken, {})
        caught(life().test_just_woken_with_tokens_gives_them_back_once)
        caught(test_flow_storm.test_cancelled_at_every_suspension, test_flow_storm.in_a_context, 4)

    def test_a_waiter_that_stays_when_it_is_cancelled(self, monkeypatch):
        monkeypatch.setattr(Gate, "withdraw", lambda self, tickets, now: [])
        caught(life().test_while_queued)
        caught(life().test_a_coroutine_that_is_closed_leaves_nothing_either)

    def test_tokens_given_back_twice(self, monkeypatch):
        refund = TokenBucket.refund

        def twice(self, ticket, amount, now):
            refund(self, ticket, amount, now)
            refund(self, ticket, amount, now)

        monkeypatch.setattr(TokenBucket, "refund", twice)
        caught(life().test_just_woken, {})
        caught(test_flow_settle.TestReserveAndSettle().test_less_is_refunded_and_more_is_charged)

    def test_an_end_that_does_not_settle(self, monkeypatch):
        end = point.Point.end
        monkeypatch.setattr(
            point.Point, "end", lambda self, flow, outcome, tokens: end(self, flow, outcome, None)
        )
        settle = test_flow_settle.TestReserveAndSettle()
        caught(settle.test_less_is_refunded_and_more_is_charged)
        caught(settle.test_the_balance_may_be_negative_and_later_flows_wait_it_out)
        caught(settle.test_shares_follow_what_was_really_spent)

    def test_a_late_end_that_frees_what_others_hold(self, monkeypatch):
        def freely(self, ticket, now, outcome=Outcome.OK, spent=None):
            self.holders.pop(ticket, None)
            self.capacity.give(ticket, now)
            return self.advance(now)

        monkeypatch.setattr(Gate, "finish", freely)
        caught(test_flow_life.TestEnds().test_scenario_35_a_late_end_is_counted_and_frees_nothing)

    def test_a_second_end_that_counts(self, monkeypatch):
        monkeypatch.setattr(flow.Flow, "ended", property(lambda self: False, lambda self, to: None))
        caught(test_flow_life.TestEnds().test_a_second_end_is_harmless)

    def test_a_context_that_does_not_end_its_flow(self, monkeypatch):
        """Upstream's decorator never ends the flow."""

        async def leave(self, *error):
            return None

        monkeypatch.setattr(scheduler.AsyncFlow, "__aexit__", leave)
        caught(test_flow_decorators.test_exceptions_propagate_and_end_the_flow, ValueError)
        caught(test_flow_decorators.test_a_call_is_a_flow)

    def test_holders_that_never_expire(self, monkeypatch):
        monkeypatch.setattr(InFlight, "set_expiry", lambda self, expire_after: None)
        monkeypatch.setattr(InFlight, "expire_after", float("inf"), raising=False)
        caught(limits().test_scenario_8_without_returns)

    @pytest.mark.parametrize("broken", ["lost", "withdraw", "settle", "limit", "order"])
    def test_books_kept_by_hand_find_them_all(self, monkeypatch, broken):
        finish, withdraw = Gate.finish, Gate.withdraw

        def finished(self, ticket, now, outcome=Outcome.OK, spent=None):
            if broken == "lost" and outcome is Outcome.LOST:
                return []
            return finish(self, ticket, now, outcome, None if broken == "settle" else spent)

        def withdrawn(self, tickets, now):
            return [] if broken == "withdraw" else withdraw(self, tickets, now)

        monkeypatch.setattr(Gate, "finish", finished)
        monkeypatch.setattr(Gate, "withdraw", withdrawn)
        if broken == "limit":
            monkeypatch.setattr(InFlight, "refusal", lambda self, ticket, now, without=None: None)
        if broken == "order":
            push = FairQueue.push

            def newest(self, ticket, now):
                push(self, ticket, now)
                if ticket.place.entries[-1] is ticket:  # else the queue inside has done it
                    ticket.place.entries.rotate(1)

            monkeypatch.setattr(FairQueue, "push", newest)
        quick = settings(
            max_examples=300,
            stateful_step_count=30,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
        )
        with pytest.raises((AssertionError, ExceptionGroup, RuntimeError)):
            run_state_machine_as_test(FlowMachine, settings=quick)


class TestTimes:
    @pytest.mark.parametrize(
        ("timeout", "queue_timeout", "waits"), [(1.0, None, 0.99), (0.2, "300ms", 0.19)]
    )
    def test_a_margin_that_is_not_taken_off(self, monkeypatch, timeout, queue_timeout, waits):
        monkeypatch.setattr(
            point.Point, "_margin", property(lambda self: 0, lambda self, to: None), raising=False
        )
        test = test_flow_life.TestTimeouts().test_how_long_it_waits
        caught(test, timeout, queue_timeout, waits, "concurrency")

    def test_a_queue_timeout_that_is_not_read(self, monkeypatch):
        parameters = workloads.Resolver.parameters
        monkeypatch.setattr(
            workloads.Resolver,
            "parameters",
            lambda self, labels: parameters(self, labels)._replace(queue_timeout=None),
        )
        test = test_flow_life.TestTimeouts().test_how_long_it_waits
        caught(test, 1.0, "300ms", 0.3, "quota")

    def test_a_reload_that_begins_the_wait_again(self, monkeypatch):
        prepare = point.Point.prepare

        def anew(self, flow, now):
            flow.arrived_at = -float("inf")
            prepare(self, flow, now)

        monkeypatch.setattr(point.Point, "prepare", anew)
        how = "users (other shape)"
        caught(test_flow_retune.test_a_timeout_counts_from_when_it_came, how)

    def test_a_retry_after_for_what_can_never_fit(self, monkeypatch):
        monkeypatch.setattr(point.Point, "retry_after", lambda self, flow, now: 1.0)
        test = test_flow_limits.TestQuota()
        caught(test.test_scenario_26_more_than_the_bucket_holds_is_refused_at_once, None, False)


class TestShares:
    def test_priorities_that_do_not_count(self, monkeypatch):
        monkeypatch.setattr(order, "_priority", lambda key: 1.0)
        caught(test_shares.test_scenario_1_shares_by_priority)
        caught(test_shares.test_scenario_3_the_pairwise_bound_is_exact, 0)

    def test_priorities_told_apart_by_six_decimals(self, monkeypatch):
        """Upstream's W6."""
        parameters = workloads.Resolver.parameters

        def printed(self, labels):
            said = parameters(self, labels)
            name, priority = said.workload
            return said._replace(workload=(name, 1 / max(1e-6, round(1 / priority, 6))))

        monkeypatch.setattr(workloads.Resolver, "parameters", printed)
        caught(test_shares.test_scenario_42_priorities_are_distinct_at_any_size, 10_000, 10_001)

    def test_users_in_one_line(self, monkeypatch):
        policy_of = order.policy_of
        monkeypatch.setattr(
            point,
            "policy_of",
            lambda said: policy_of(said.model_copy(update={"fairness_label_key": None})),
        )
        caught(test_shares.test_scenario_4_late_joiners)
        caught(test_shares.test_scenario_5_five_users_against_one)

    def test_tenants_that_do_not_count(self, monkeypatch):
        """Upstream's W4."""
        policy_of = order.policy_of
        monkeypatch.setattr(
            point,
            "policy_of",
            lambda said: policy_of(said.model_copy(update={"tenant_label_key": None})),
        )
        caught(test_sybil.TestSybil().test_a_tenant_gets_its_share_and_no_more, "labels")

    def test_priority_zero_as_a_small_weight(self, monkeypatch):
        monkeypatch.setattr(order, "_has_zero", lambda said: False)
        test = test_shares.TestPriorityZero()
        caught(test.test_it_goes_after_everybody_else_however_long_it_waits)

    def test_no_fairness_at_all(self, monkeypatch):
        monkeypatch.setattr(point, "policy_of", lambda said: FIFO(limit=said.max_queue))
        caught(test_shares.test_scenario_1_shares_by_priority)

    def test_a_fair_queue_that_serves_the_newest_of_a_line(self, monkeypatch):
        caught_by = queue().test_scenario_33_without_a_fairness_key_it_is_first_in_first_out
        inside = FairQueue.push

        def newest(self, ticket, now):
            inside(self, ticket, now)
            place: Any = ticket.place
            if place is not None:
                place.entries.rotate(1)

        monkeypatch.setattr(FairQueue, "push", newest)
        caught(caught_by)


class TestLabels:
    def test_a_missing_label_as_a_key_of_its_own(self, monkeypatch):
        monkeypatch.setattr(
            parts, "keyed", lambda label: label and (lambda flow: flow.labels.get(label, ""))
        )
        caught(test_flow_limits.TestQuota().test_an_exhausted_key_never_blocks_another)
        caught(limits().test_by_key_a_full_key_does_not_block_another)

    def test_one_limit_for_all_keys(self, monkeypatch):
        monkeypatch.setattr(parts, "keyed", lambda label: None)
        caught(test_flow_limits.TestQuota().test_an_exhausted_key_never_blocks_another)

    @pytest.mark.parametrize("value", ["-5", "nan", "inf", "1e300", "0"])
    def test_numbers_that_are_not_looked_at(self, monkeypatch, value):
        """Upstream: negative tokens fill the bucket, NaN poisons the heap."""

        def trusting(self, labels, key, otherwise, ignored, *, zero):
            return float(labels.get(key, otherwise))

        monkeypatch.setattr(workloads.Resolver, "_number", trusting)
        with pytest.raises(BaseException):  # noqa: B017, PT011
            test_labels.test_scenario_28_bad_tokens(value)

    def test_not_in_that_wants_the_label(self, monkeypatch):
        monkeypatch.setattr(
            matchers,
            "_without",
            lambda label, values: lambda labels: label in labels and labels[label] not in values,
        )
        case = next(case for case in test_labels.TRUTH if "not_in" in case[0] and not case[1])
        caught(test_labels.test_scenario_29_the_truth_table, *case)

    def test_the_last_that_matches(self, monkeypatch):
        init = workloads.Resolver.__init__

        def backwards(self, said):
            init(self, said)
            self._workloads.reverse()

        monkeypatch.setattr(workloads.Resolver, "__init__", backwards)
        test = test_labels.test_scenario_29_the_first_that_matches_or_the_default
        caught(test, {"tier": "paid", "x": "y"}, ("paid", 3), 5)

    def test_text_that_is_not_normalized(self, monkeypatch):
        monkeypatch.setattr(workloads, "canonical", lambda value: value)
        caught(test_labels.TestKeys().test_equal_text_is_one_user)


class TestTheRest:
    def test_limits_that_are_not_lowered(self, monkeypatch):
        resize = InFlight.resize
        monkeypatch.setattr(
            InFlight,
            "resize",
            lambda self, limit: resize(self, max(limit, getattr(self, "limit", 0))),
        )
        caught(limits().test_scenario_36_lowered_below_what_is_in_flight)

    def test_a_reload_that_forgets_who_waits(self, monkeypatch):
        monkeypatch.setattr(points.Points, "_send_on", lambda self, waiters, successor: None)
        caught(test_flow_retune.test_a_point_that_is_removed_lets_its_waiters_go)
        how = "users (other shape)"
        caught(test_flow_retune.test_waiters_ask_again_at_a_new_gate_in_their_order, how)

    def test_no_queue_limit(self, monkeypatch):
        monkeypatch.setattr(Policy, "overflow", lambda self, ticket: None)
        caught(queue().test_scenario_44_a_full_queue_refuses_at_once)

    def test_barging(self, monkeypatch):
        """Room goes to whoever asks, though others wait for it."""
        offer = Gate.offer

        def blind(self, ticket, now):
            hidden, self.waiting = self.waiting, 0
            try:
                return offer(self, ticket, now)
            finally:
                self.waiting += hidden

        monkeypatch.setattr(Gate, "offer", blind)
        test = queue().test_a_newcomer_never_passes_a_waiter_of_its_own_workload
        caught(test, {"concurrency": concurrency(10)})

    def test_names_without_end(self, monkeypatch):
        monkeypatch.setattr(counts, "MOST_WORKLOADS", 10**9)
        caught(test_flow_metrics.TestBounds().test_workloads)

    def test_distortion_the_wrong_way_round(self, monkeypatch):
        waited = counts.Counts.waited
        monkeypatch.setattr(
            counts.Counts, "waited", lambda self, flow, bump: waited(self, flow, -bump)
        )
        caught(test_flow_metrics.TestOrderDistortion().test_one_overtakes_another)

    def test_threads_without_a_limit(self, monkeypatch):
        monkeypatch.setattr(InFlight, "admit", lambda self, ticket, now: None)
        make = blocking.SyncFlowScheduler.from_config
        made: list[Any] = []

        def one(**sections: Any) -> Any:
            made.append(make({"control_points": {"p": sections}}))
            return made[-1]

        with pytest.raises(CAUGHT):
            test_blocking.test_a_timeout_refuses_and_leaves_nothing(one, 0)
        for each in made:
            each.close()
