"""Tokens and slots lent in blocks, the ledger played by the test: nothing minted, nothing lost, nobody forgotten."""

from math import inf, nan
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fairlead.capacities import Both, LeasedSlots, LeasedTokens, Slots, TokenBucket
from fairlead.core import NEVER, Capacity, Change, Outcome, State, Ticket
from fairlead.errors import ConfigError
from fairlead.policies import FairQueue
from fairlead.testing import CapacityContract, CheckedGate

LONG = 1e6


def tenant(ticket: Ticket) -> object:
    return ticket.tenant


def gate_on(capacity: Capacity) -> CheckedGate:
    return CheckedGate(FairQueue("workload", weights={"hi": 3}), capacity)


def offered(gate: CheckedGate, now: float, count: int = 1, **fields) -> list[Ticket]:
    tickets = [Ticket(**fields) for _ in range(count)]
    for ticket in tickets:
        gate.offer(ticket, now)
    return tickets


def grant(gate: CheckedGate, now: float, tokens: float, key: Any = "tokens", **marks: float) -> Any:
    return gate.adjust(Change("tokens", "grant", (key, tokens, marks, LONG)), now)


def running(tickets: list[Ticket]) -> int:
    return sum(ticket.state is State.RUNNING for ticket in tickets)


# Tokens


def test_nothing_starts_before_something_is_lent_and_then_in_order():
    tokens = LeasedTokens(10)
    gate = gate_on(tokens)
    tickets = offered(gate, 0.0, 3, workload="a")
    assert running(tickets) == 0
    assert gate.next_wakeup(0.0) == inf
    assert grant(gate, 1.0, 2) == tickets[:2]
    assert grant(gate, 2.0, 1) == tickets[2:]


def test_it_asks_once_for_all_that_waits_and_again_after_it_was_heard():
    tokens = LeasedTokens(10)
    calls: list[int] = []
    tokens.stir = lambda: calls.append(1)
    gate = gate_on(tokens)
    offered(gate, 0.0, 5, workload="a", tenant="u")
    assert len(calls) == 1
    (want,) = tokens.wants(0.0)
    (claim,) = want.claims
    assert (claim.workload, claim.tokens, claim.unit, claim.users) == ("a", 5, 1, 1)
    offered(gate, 0.1, workload="b", tenant="v")
    assert len(calls) == 2
    (want,) = tokens.wants(0.1)
    assert [(claim.workload, claim.tokens) for claim in want.claims] == [("a", 5), ("b", 1)]


def test_marked_tokens_are_for_their_workload_until_none_of_it_waits():
    gate = gate_on(LeasedTokens(10))
    high = offered(gate, 0.0, 2, workload="hi", cost=2)
    low = offered(gate, 0.0, 2, workload="lo")
    assert grant(gate, 1.0, 0, hi=2) == high[:1]
    assert grant(gate, 1.0, 0, hi=1) == []  # half of what the next one needs
    assert running(low) == 0
    assert gate.withdraw(high[1:], 2.0) == low[:1]


def test_tokens_marked_for_a_workload_that_has_left_are_anybodys():
    gate = gate_on(LeasedTokens(10))
    low = offered(gate, 0.0, 1, workload="lo")
    assert grant(gate, 1.0, 0, hi=1) == low


def test_a_block_is_void_from_its_deadline_on_and_goes_back():
    tokens = LeasedTokens(10)
    gate = gate_on(tokens)
    gate.adjust(Change("tokens", "grant", ("tokens", 3, {}, 5.0)), 0.0)
    assert running(offered(gate, 4.999, 1, workload="a")) == 1
    assert running(offered(gate, 5.0, 1, workload="a")) == 0
    (want,) = tokens.wants(5.0)
    assert want.back == 2
    assert tokens.level() == 0


def test_what_can_never_be_paid_is_refused_at_once():
    tokens = LeasedTokens(10)
    assert tokens.refusal(Ticket(cost=10.5), 0.0) is NEVER
    gate = gate_on(tokens)
    (ticket,) = offered(gate, 0.0, cost=11)
    assert ticket.state is State.REFUSED
    assert "never" in str(ticket.reason)
    assert tokens.wants(0.0) == []


def test_what_costs_nothing_needs_no_block():
    gate = gate_on(LeasedTokens(10))
    assert running(offered(gate, 0.0, cost=0)) == 1


def test_an_exhausted_key_never_blocks_another_and_none_bypasses():
    gate = gate_on(LeasedTokens(10, by=tenant))
    a = offered(gate, 0.0, 2, tenant="a", workload="w")
    b = offered(gate, 0.0, 2, tenant="b", workload="w")
    free = offered(gate, 0.0, 2, workload="w")
    assert running(free) == 2
    assert grant(gate, 1.0, 1, "b") == b[:1]
    assert grant(gate, 1.0, 2, "a") == a


def test_it_asks_ahead_for_what_it_uses_and_returns_what_it_does_not():
    tokens = LeasedTokens(1000)
    gate = gate_on(tokens)
    grant(gate, 0.0, 1000)
    now = 0.0
    asked = []
    for step in range(980):  # 1000 a second; a sweep every 50 ms, and a look whenever it stirs
        now = step * 0.001
        (ticket,) = offered(gate, now, workload="a")
        gate.finish(ticket, now)
        wants = tokens.wants(now, all_keys=step % 50 == 0)
        asked += [(tokens.level(), want.ahead) for want in wants if want.ahead]
    level, ahead = asked[0]
    assert 45 <= level <= 50  # half of what is used in 0.1 s
    assert level + ahead == pytest.approx(100, abs=2)
    for step in range(40):
        tokens.wants(now + step * 0.05, all_keys=True)
    ((key, tokens_left),) = tokens.surplus()
    gate.adjust(Change("tokens", "recall", (key, tokens_left)), now + 2)
    (want,) = tokens.wants(now + 2, all_keys=True)
    assert want.back == pytest.approx(tokens_left)
    assert tokens.level() == 0


def test_tickets_that_wait_for_another_limit_borrow_no_more_than_one_needs():
    tokens = LeasedTokens(1000)
    gate = gate_on(Both(Slots(1), tokens))
    offered(gate, 0.0, 200, workload="a")
    (want,) = tokens.wants(0.0)
    assert want.claims[0].tokens == 64
    gate.adjust(Change("tokens", "grant", ("tokens", 5, {}, LONG)), 0.0)
    assert not any(want.claims for want in tokens.wants(0.1, all_keys=True))


def test_a_ledger_that_has_none_is_not_asked_before_it_said():
    tokens = LeasedTokens(10)
    calls: list[int] = []
    tokens.stir = lambda: calls.append(1)
    gate = gate_on(tokens)
    offered(gate, 0.0, workload="a")
    assert len(tokens.wants(0.0)) == 1
    tokens.dry("tokens", 0.2, 3.0)
    assert tokens.expected_at(Ticket(workload="a"), 0.0) == 3.0
    offered(gate, 0.1, workload="a")
    assert len(calls) == 1
    assert tokens.wants(0.1, all_keys=True) == []
    assert len(tokens.wants(0.2, all_keys=True)) == 1


def test_the_ledger_is_told_when_nobody_waits_any_more():
    tokens = LeasedTokens(10)
    gate = gate_on(tokens)
    (ticket,) = offered(gate, 0.0, workload="a")
    tokens.wants(0.0)
    tokens.dry("tokens", 0.25, 0.25)
    gate.withdraw([ticket], 0.1)
    (want,) = tokens.wants(0.1)
    assert want.claims == []
    for step in range(100):
        tokens.wants(1.0 + step, all_keys=True)
    assert tokens.keys == 0


def test_refunds_come_back_and_overdrafts_are_owed():
    tokens = LeasedTokens(10)
    gate = gate_on(tokens)
    grant(gate, 0.0, 5)
    first, second = offered(gate, 0.0, 2, cost=2)
    gate.finish(first, 1.0, Outcome.LOST)
    assert tokens.level() == 3
    gate.finish(second, 1.0, spent=6)
    (want,) = tokens.wants(1.0)
    assert want.debit == 4
    tokens.unsent(want)
    (want,) = tokens.wants(1.0, all_keys=True)
    assert want.debit == 4


def test_without_the_ledger_closed_starts_nothing_open_everything_local_by_its_bucket():
    for mode, expected in (("closed", 0), ("open", 9), ("local", 3)):
        tokens = LeasedTokens(10)
        gate = gate_on(tokens)
        grant(gate, 0.0, 1)
        local = tokens.stand_in(1.0, 3, None) if mode == "local" else None
        gate.adjust(Change("tokens", "lose", (mode, local)), 0.0)
        tickets = offered(gate, 0.0, 9, workload="a")
        assert running(tickets) == expected
        if mode == "local":
            assert gate.next_wakeup(0.0) == 1.0
            assert gate.advance(1.0) == tickets[3:4]
            expected += 1
        gate.adjust(Change("tokens", "regain", ()), 1.0)
        (want,) = tokens.wants(1.0, all_keys=True)
        assert want.spent == expected
        assert running(tickets) == expected
        assert len(grant(gate, 1.0, 9)) == 9 - expected


def test_the_bucket_that_stands_in_delays_its_fill_as_the_shared_one_does():
    tokens = LeasedTokens(10)
    gate = gate_on(tokens)
    local = tokens.stand_in(1.0, 3, None, delay_initial_fill=True)
    gate.adjust(Change("tokens", "lose", ("local", local)), 0.0)
    assert running(offered(gate, 0.0, 9, workload="a")) == 3
    assert gate.next_wakeup(0.0) == 4.0


@pytest.mark.parametrize("tokens", [-1, nan, inf])
def test_a_bad_grant_changes_nothing(tokens: float):
    capacity = LeasedTokens(10)
    with pytest.raises(ConfigError):
        capacity.grant("tokens", tokens, {}, LONG)
    with pytest.raises(ConfigError):
        capacity.grant("tokens", 1, {"a": tokens}, LONG)
    assert capacity.level() == 0
    with pytest.raises(ConfigError):
        LeasedSlots(10).lend("in flight", tokens, LONG)
    with pytest.raises(ConfigError):
        capacity.lose("local", None)


# Slots


def lend(gate: CheckedGate, now: float, room: float, until: float = LONG) -> Any:
    return gate.adjust(Change("in flight", "lend", ("in flight", room, until)), now)


def test_as_many_are_in_flight_as_are_lent():
    slots = LeasedSlots(10)
    gate = gate_on(slots)
    tickets = offered(gate, 0.0, 6, workload="a")
    assert running(tickets) == 0
    assert lend(gate, 0.0, 2) == tickets[:2]
    assert gate.finish(tickets[0], 1.0) == [tickets[2]]
    assert lend(gate, 1.0, 1) == []
    assert gate.finish(tickets[1], 1.0) == []
    assert lend(gate, 2.0, 3) == tickets[3:5]


def test_from_the_deadline_on_nothing_starts_and_what_runs_runs():
    slots = LeasedSlots(10)
    gate = gate_on(slots)
    lend(gate, 0.0, 2, until=5.0)
    (first,) = offered(gate, 4.9)
    assert first.state is State.RUNNING
    (second,) = offered(gate, 5.0)
    assert second.state is State.WAITING
    assert gate.finish(first, 6.0) == []
    assert lend(gate, 7.0, 1, until=9.0) == [second]


def test_the_ledger_hears_what_runs_what_waits_and_what_is_held():
    slots = LeasedSlots(10)
    gate = gate_on(slots)
    lend(gate, 0.0, 2)
    tickets = offered(gate, 0.0, 5, workload="a", tenant="u")
    (want,) = slots.wants(0.0)
    assert want.held == 2
    assert [(claim.workload, claim.tokens) for claim in want.claims] == [("a", 5)]
    slots.believed("in flight", 2)
    lend(gate, 0.1, 1)
    calls: list[int] = []
    slots.stir = lambda: calls.append(1)
    gate.withdraw(tickets[2:], 0.1)
    slots.wants(0.1)
    gate.finish(tickets[0], 0.2)
    assert calls, "room the ledger waits for came free, and nobody was told"
    (want,) = slots.wants(0.2)
    assert want.held == 1


def test_a_ticket_larger_than_the_limit_goes_alone_and_only_with_all_of_it():
    gate = gate_on(LeasedSlots(4))
    (big,) = offered(gate, 0.0, cost=9)
    assert lend(gate, 0.0, 3) == []
    assert lend(gate, 0.0, 4) == [big]


@pytest.mark.parametrize(("limit", "nodes"), [(10, 3), (2, 5), (7, 7), (1, 1), (100, 8)])
def test_parts_in_a_loss_add_up_to_the_limit(limit: int, nodes: int):
    shares = []
    for rank in range(nodes):
        slots = LeasedSlots(limit)
        slots.lose("local", nodes, rank)
        shares.append(slots.share)
    assert sum(shares) == limit
    assert max(shares) - min(shares) <= 1


def test_in_a_loss_slots_follow_their_policy():
    for mode, expected in (("closed", 0), ("open", 9), ("local", 2)):
        slots = LeasedSlots(4)
        gate = gate_on(slots)
        gate.adjust(Change("in flight", "lose", (mode, 2, 0)), 0.0)
        tickets = offered(gate, 0.0, 9, workload="a")
        assert running(tickets) == expected
        gate.adjust(Change("in flight", "regain", ()), 1.0)
        (want,) = slots.wants(1.0, all_keys=True)
        assert want.held == expected
        assert len(lend(gate, 1.0, 9)) == 9 - expected


def test_lost_holders_expire_and_their_room_is_used_again():
    gate = gate_on(LeasedSlots(1, expire_after=2.0))
    lend(gate, 0.0, 1)
    first, second = offered(gate, 0.0, 2)
    changed = gate.advance(2.0)
    assert first.state is State.EXPIRED
    assert second in changed
    assert gate.finish(first, 3.0) == []
    assert gate.late == 1


# Whatever happens


class Books(RuleBasedStateMachine):
    """A gate on lent tokens, slots or both, under random verbs; the test keeps the ledger's side of the books.

    CheckedGate holds that nobody waits in vain.  Here: every token lent is used, at hand, on its way back or void.
    """

    tokens_type: type[LeasedTokens] = LeasedTokens
    slots_type: type[LeasedSlots] = LeasedSlots

    def __init__(self) -> None:
        super().__init__()
        self.tokens = self.tokens_type(8, by=tenant)
        self.slots = self.slots_type(6, expire_after=20.0)
        self.stirred = 0
        self.tokens.stir = self.slots.stir = self.note
        self.gate = CheckedGate(
            FairQueue("workload", weights={"hi": 3}), Both(self.tokens, self.slots)
        )
        self.now = 0.0
        self.tickets: list[Ticket] = []
        self.lent = 0.0  # what the ledger handed out
        self.returned = 0.0  # what came back
        self.used = 0.0  # what started, less refunds
        self.lost = 0.0  # what was lent and void in a loss
        self.owed = 0.0  # what was used beyond it, and told

    def note(self) -> None:
        self.stirred += 1

    def do(self, verb: Any, *args: Any) -> None:
        before = {ticket: ticket.started_at for ticket in self.tickets}
        verb(*args)
        if self.tokens.mode == "leased":
            for ticket in self.tickets:
                if (
                    ticket.started_at < inf
                    and before.get(ticket, inf) == inf
                    and ticket.tenant is not None
                ):
                    self.used += ticket.cost

    def change(self, part: str, verb: str, *args: Any) -> None:
        self.do(self.gate.adjust, Change(part, verb, args), self.now)

    @rule(
        step=st.sampled_from((0.0, 0.1, 1.0)),
        cost=st.sampled_from((0, 1, 1, 2, 3.5, 9)),
        workload=st.sampled_from(("hi", "lo")),
        key=st.sampled_from((None, "a", "b")),
        wait=st.sampled_from((inf, 0.0, 2.0)),
    )
    def offer(self, step, cost, workload, key, wait):
        self.now += step
        ticket = Ticket(cost=cost, workload=workload, tenant=key, wait_until=self.now + wait)
        self.tickets.append(ticket)
        self.do(self.gate.offer, ticket, self.now)

    @rule(
        tokens=st.sampled_from((0, 1, 2.5, 8)),
        key=st.sampled_from("ab"),
        mark=st.sampled_from((0, 1, 3)),
        workload=st.sampled_from(("hi", "lo")),
        lasting=st.sampled_from((0.5, 5.0, 50.0)),
    )
    @precondition(lambda self: self.tokens.mode == "leased")
    def grant(self, tokens, key, mark, workload, lasting):
        self.collect()  # an exchange hands over what is void before it brings more
        self.lent += tokens + mark
        marks = {workload: mark} if mark else {}
        self.change("tokens", "grant", key, tokens, marks, self.now + lasting)

    @rule(room=st.integers(0, 6), lasting=st.sampled_from((0.5, 50.0)))
    @precondition(lambda self: self.slots.mode == "leased")
    def lend(self, room, lasting):
        self.change("in flight", "lend", "in flight", room, self.now + lasting)

    @precondition(lambda self: self.gate.holders)
    @rule(which=st.integers(0, 99), outcome=st.sampled_from(Outcome), over=st.booleans())
    def finish(self, which, outcome, over):
        ticket = list(self.gate.holders)[which % len(self.gate.holders)]
        spent = ticket.cost + 1 if over and outcome is not Outcome.LOST else None
        if ticket.tenant is not None and self.tokens.mode == "leased":
            if outcome is Outcome.LOST:
                self.used -= ticket.cost
            elif spent is not None:
                self.used += 1
        self.do(self.gate.finish, ticket, self.now, outcome, spent)

    @rule(which=st.integers(0, 99))
    @precondition(lambda self: self.gate.waiting)
    def withdraw(self, which):
        waiting = self.gate.waiters()
        self.do(self.gate.withdraw, [waiting[which % len(waiting)]], self.now)

    @rule(step=st.sampled_from((0.1, 3.0, 30.0)))
    def advance(self, step):
        self.now += step
        self.do(self.gate.advance, self.now)

    @rule()
    def collect(self):
        self.slots.wants(self.now)
        if self.tokens.mode == "leased":
            for want in self.tokens.wants(self.now, all_keys=True):
                self.returned += want.back
                self.owed += want.debit

    @rule(key=st.sampled_from("ab"), tokens=st.sampled_from((0.5, 100.0)))
    def recall(self, key, tokens):
        self.change("tokens", "recall", key, tokens)

    @rule(mode=st.sampled_from(("local", "closed", "open")))
    @precondition(lambda self: self.tokens.mode == "leased")
    def lose(self, mode):
        self.collect()
        self.lost += self.at_hand()
        local = TokenBucket(1.0, 2, by=tenant, oversize="debt") if mode == "local" else None
        self.change("tokens", "lose", mode, local)
        self.change("in flight", "lose", mode, 2, 1)

    @rule()
    @precondition(lambda self: self.tokens.mode != "leased")
    def regain(self):
        self.change("tokens", "regain")
        self.change("in flight", "regain")
        for want in self.tokens.wants(self.now, all_keys=True):
            assert want.spent >= 0
            self.returned += want.back
            self.owed += want.debit

    def at_hand(self) -> float:
        blocks = self.tokens._blocks.values()
        return sum(block.level + sum(block.marks.values()) + block.back for block in blocks)

    def in_debit(self) -> float:
        return sum(block.debit for block in self.tokens._blocks.values()) + self.owed

    @invariant()
    def tokens_are_conserved(self):
        if self.tokens.mode == "leased":
            left = self.lent + self.in_debit() - self.returned - self.lost - self.used
            assert abs(left - self.at_hand()) < 1e-6, (left, self.at_hand())

    @invariant()
    def nothing_negative_is_held(self):
        for block in self.tokens._blocks.values():
            assert block.level >= 0
            assert all(mark >= 0 for mark in block.marks.values())

    @invariant()
    def all_that_waits_is_counted_and_will_be_asked_for(self):
        """No lost wake-up: what waits for tokens alone is known, and the exchanger was told since it last looked."""
        waiting = [ticket for ticket in self.gate.policy if ticket.tenant is not None]
        counted = {
            key: sum(line.tickets for line in block.waiting.lines.values())
            for key, block in self.tokens._blocks.items()
        }
        for key in "ab":
            assert counted.get(key, 0) == sum(ticket.tenant == key for ticket in waiting)
        if self.tokens.mode == "leased":
            for ticket in waiting:
                short = self.tokens.refusal(ticket, self.now)
                block = self.tokens._blocks[ticket.tenant]
                if short is not None and short is not NEVER:
                    assert (
                        ticket.tenant in self.tokens._stirred
                        or block.told
                        or block.level > 0
                        or block.marks
                    ), f"{ticket!r} waits and nobody will ask for it"


STEPS = settings(max_examples=150, stateful_step_count=40)


def test_tokens_are_conserved_and_nobody_is_forgotten():
    run_state_machine_as_test(Books, settings=STEPS)


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_the_contract_holds_in_a_loss(mode: str):
    class Cut(CapacityContract):
        def make(self) -> Capacity:
            tokens = LeasedTokens(4)
            tokens.lose(mode, None)  # type: ignore[arg-type]
            return tokens

    Cut().test_refusal_is_pure()
    Cut().test_room_comes_exactly_when_promised()


# Mutants: each of these must be caught by the machine above.


class Generous(LeasedTokens):
    """Does not charge the free tokens."""

    def take(self, ticket, now):
        key = self._key(ticket)
        before = self._blocks[key].level if key in self._blocks else 0.0
        super().take(ticket, now)
        if key in self._blocks:
            self._blocks[key].level = before

    def admit(self, ticket, now):
        return Capacity.admit(self, ticket, now)


class Forgetful(LeasedTokens):
    """Loses marked tokens when the last of a workload leaves."""

    def leave(self, ticket, now):
        block = self._blocks.get(self._key(ticket))
        if block is not None and len(block.waiting.lines) == 1:
            block.marks.clear()
        super().leave(ticket, now)


class Silent(LeasedTokens):
    """Opens nothing when something is granted."""

    def _open(self, key, block):
        pass


class Undated(LeasedTokens):
    """Goes on using a block after its deadline, and gives it back too."""

    def refusal(self, ticket, now, without=None):
        return super().refusal(ticket, min(now, 0.0), without)


class Deaf(LeasedTokens):
    """Does not stir when somebody starts to wait."""

    def _stir(self, key):
        pass


class Overlent(LeasedSlots):
    """Counts no cost."""

    def give(self, ticket, now):
        self._used[self._key(ticket)] = 0
        super().give(ticket, now)


MUTANTS: list[dict[str, Any]] = [
    {"tokens_type": Generous},
    {"tokens_type": Forgetful},
    {"tokens_type": Silent},
    {"tokens_type": Deaf},
    {"slots_type": Overlent},
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: next(iter(each.values())).__name__)
def test_mutants_are_caught(mutant):
    broken = type("Broken", (Books,), mutant)
    quick = settings(
        STEPS, max_examples=500, phases=[Phase.generate], derandomize=True, database=None
    )
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(broken, settings=quick)


def test_a_block_used_after_its_deadline_is_caught():
    gate = gate_on(Undated(10))
    gate.adjust(Change("tokens", "grant", ("tokens", 3, {}, 5.0)), 0.0)
    assert running(offered(gate, 6.0, 1, workload="a")) == 1, (
        "the control does not fail as it should"
    )
