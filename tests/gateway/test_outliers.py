"""Ejection of backends that fail, as a machine of its own: no socket, no loop, no clock but the one handed in."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway.outliers import Outliers, Record
from fairlead.gateway.settings import Outliers as Settings

FIRST, LONGEST = 5.0, 40.0


def machine(**said: Any) -> Outliers:
    return Outliers(
        Settings.model_validate({"first": f"{FIRST:g}s", "longest": f"{LONGEST:g}s", **said})
    )


def fail(outliers: Outliers, record: Record, peers: list[Record], now: float) -> bool:
    """Have one backend fail until it is ejected, or for long enough."""
    return any(
        outliers.tried(record, "error", now, None, peers) for _ in range(outliers.settings.requests)
    )


class Fleet:
    """Backends under random verbs; after each, what must hold is looked at."""

    def __init__(self, outliers: Outliers, number: int, rng: random.Random) -> None:
        self.outliers, self.rng = outliers, rng
        self.records = [Record() for _ in range(number)]
        self.healthy = set(range(number))
        self.flying: list[tuple[int, int]] = []  # the backend and the number of each try
        self.now = 0.0
        self.count = 0
        self.last: dict[int, float] = {}  # how long each was out the last time
        self.ejections = self.returns = 0

    @property
    def peers(self) -> list[Record]:
        return [self.records[one] for one in sorted(self.healthy)]

    def step(self) -> None:
        rng = self.rng
        self.now += rng.choice((0.0, 0.0, 0.01, 1.0, 7.0))
        verb = rng.random()
        if verb < 0.5 and self.healthy:
            self.send()
        elif verb < 0.95 and self.flying:
            self.end()
        elif verb >= 0.95:
            self.healthy ^= {rng.randrange(len(self.records))}
            self.outliers.keep_bound(self.peers, self.now)
        self.check()

    def send(self) -> None:
        backend = self.rng.choice(sorted(self.healthy))
        record = self.records[backend]
        if record.ejected and not record.due(self.now):
            return
        self.count += 1
        self.outliers.chosen(record, self.count, self.now)
        self.flying.append((backend, self.count))

    def end(self) -> None:
        backend, number = self.flying.pop(self.rng.randrange(len(self.flying)))
        record = self.records[backend]
        was, before = record.ejected, record.out_for
        probe = record.probe == number
        outcome = self.rng.choice(("error", "failed", "failed", "ok", "full", "answered", None))
        changed = False
        if outcome == "answered":
            changed = self.outliers.answered(record, 0.1, self.now, number)
            outcome = self.rng.choice(("ok", "failed"))
        if outcome is not None:
            changed |= self.outliers.tried(record, outcome, self.now, number, self.peers)  # type: ignore[arg-type]
        self.outliers.finished(record, number)
        assert record.probe != number
        if record.ejected and record.until == self.now + record.out_for and changed:
            self.ejections += 1
            assert outcome in ("error", "failed")
            assert record.out_for in (FIRST, min(LONGEST, 2 * before))
            if was:
                assert probe
                assert record.out_for == min(LONGEST, 2 * before)
        if was and not record.ejected:
            self.returns += 1
            assert probe
        if was and not probe:
            assert record.ejected  # only its probe decides

    def check(self) -> None:
        out = sum(one.ejected for one in self.peers)
        assert out <= len(self.peers) / 2
        for backend, record in enumerate(self.records):
            probes = [one for one in self.flying if one == (backend, record.probe)]
            assert len(probes) == (record.probe is not None)
            assert record.probe is None or record.ejected
            assert 0.0 <= record.rate() < 1.0


@given(st.integers(1, 9), st.integers(0, 2**32), st.integers(1, 6))
def test_at_most_half_are_out_one_probe_each_and_times_grow(number, seed, consecutive):
    fleet = Fleet(machine(consecutive=consecutive), number, random.Random(seed))
    for _ in range(300):
        fleet.step()


def test_the_random_verbs_do_eject_and_bring_back():
    fleet = Fleet(machine(consecutive=2), 6, random.Random(1))
    for _ in range(3000):
        fleet.step()
    assert fleet.ejections > 50
    assert fleet.returns > 20


def greedy(self: Outliers, peers: Any) -> bool:
    return True


def twice(self: Outliers, record: Record, number: int, now: float) -> None:
    if record.until is not None:
        record.probe = number


@pytest.mark.parametrize(
    ("verb", "broken"),
    [
        ("_may_lose_another", greedy),
        ("keep_bound", lambda self, peers, now: False),
        ("finished", lambda self, record, number: None),
        ("_is_probe", lambda self, record, number: record.ejected),
    ],
)
def test_a_machine_that_breaks_a_rule_is_caught(monkeypatch, verb, broken):
    monkeypatch.setattr(Outliers, verb, broken)
    with pytest.raises(AssertionError):
        for seed in range(30):
            fleet = Fleet(machine(consecutive=2), 6, random.Random(seed))
            for _ in range(300):
                fleet.step()


@given(st.lists(st.sampled_from(("ok", "full", "answered")), max_size=200))
def test_what_is_no_fault_of_the_backend_never_ejects(outcomes):
    outliers, record = machine(consecutive=1, requests=1, error_rate=0.01), Record()
    peers = [record, Record(), Record()]
    for number, outcome in enumerate(outcomes):
        if outcome == "answered":
            outliers.answered(record, 0.1, 0.0, number)
        else:
            outliers.tried(record, outcome, 0.0, number, peers)
        assert not record.ejected
    assert record.errors == 0


def test_a_single_backend_is_never_ejected_and_of_three_one():
    outliers = machine()
    alone = Record()
    assert not fail(outliers, alone, [alone], 0.0)
    three = [Record() for _ in range(3)]
    assert [fail(outliers, one, three, 0.0) for one in three] == [True, False, False]


def test_faults_in_a_row_eject_at_once_and_an_answer_between_starts_the_row_anew():
    outliers, record = machine(), Record()
    peers = [record, Record()]
    for _ in range(3):
        for _ in range(4):
            assert not outliers.tried(record, "error", 0.0, None, peers)
        outliers.tried(record, "ok", 0.0, None, peers)
    found = [outliers.tried(record, "failed", 0.0, None, peers) for _ in range(5)]
    assert found == [False, False, False, False, True]
    assert (record.until, record.ejections) == (FIRST, 1)


def test_a_high_rate_of_errors_ejects_without_a_row_and_a_low_one_does_not():
    def ejected(faults: int, of: int) -> bool:
        outliers, record = machine(), Record()
        peers = [record, Record()]
        for number in range(200):
            if number % of < faults:
                outliers.tried(record, "error", 0.0, number, peers)
            else:
                outliers.answered(record, 0.1, 0.0, number)
        return record.ejected

    assert ejected(3, 4)
    assert ejected(1, 2)
    assert not ejected(1, 3)


def test_old_faults_are_forgotten():
    outliers, record = machine(consecutive=1000), Record()
    peers = [record, Record()]
    for number in range(100):  # 19 of 20 within a window would eject
        assert not outliers.tried(record, "error", number * 10.0, number, peers)
    assert record.requests < 2.1


def test_the_time_out_doubles_while_probes_fail_and_starts_anew_after_a_good_time():
    outliers, record = machine(), Record()
    peers = [record, Record()]
    assert fail(outliers, record, peers, 0.0)
    now, times = 0.0, []
    for number in range(5):
        assert record.until is not None
        times.append(record.until - now)
        assert not record.due(record.until - 0.01)
        now = record.until
        outliers.chosen(record, number, now)
        assert not record.due(now)  # its probe is on its way
        assert outliers.tried(record, "error", now, number, peers)
    assert times == [5.0, 10.0, 20.0, 40.0, 40.0]
    now += LONGEST
    outliers.chosen(record, 9, now)
    assert outliers.answered(record, 0.1, now, 9)
    assert not record.ejected
    assert fail(outliers, record, peers, now + 1.0)
    assert record.out_for == LONGEST  # it followed on the ones before
    outliers.chosen(record, 10, now + 200.0)
    assert outliers.tried(record, "ok", now + 200.0, 10, peers)
    assert fail(outliers, record, peers, now + 200.0 + LONGEST + 0.1)
    assert record.out_for == FIRST


def test_a_try_from_before_the_ejection_is_no_news():
    outliers, record = machine(), Record()
    peers = [record, Record()]
    assert fail(outliers, record, peers, 0.0)
    outliers.chosen(record, 7, 5.0)
    assert not outliers.answered(record, 0.1, 5.0, 3)
    assert not outliers.tried(record, "ok", 5.0, 3, peers)
    assert not outliers.tried(record, "error", 5.0, 4, peers)
    outliers.finished(record, 4)
    assert record.probe == 7
    outliers.finished(record, 7)  # its client left: another is the probe
    assert record.due(5.0)


def test_a_probe_that_breaks_off_after_its_first_byte_is_a_fault():
    outliers, record = machine(), Record()
    peers = [record, Record()]
    assert fail(outliers, record, peers, 0.0)
    outliers.chosen(record, 7, 5.0)
    assert outliers.answered(record, 0.1, 5.0, 7)
    assert outliers.tried(record, "failed", 6.0, 7, peers)
    assert record.out_for == 2 * FIRST


def test_switched_off_it_ejects_none_weighs_none_and_readmits_those_that_are_out():
    outliers, record = machine(), Record()
    peers = [record, Record()]
    assert fail(outliers, record, peers, 0.0)
    outliers.settings = Settings(enabled=False)
    assert outliers.keep_bound(peers, 1.0)
    assert not fail(outliers, record, peers, 1.0)
    outliers.weigh(peers, 1.0)
    assert record.penalty == 0.0


class TestPenalty:
    def weighed(self, *times: float, faults: int = 0, now: float = 0.0) -> list[float]:
        """Weigh backends, each with 20 answers after so many seconds; the first failed so many times."""
        outliers = machine(consecutive=1000, requests=100_000)
        records = [Record() for _ in times]
        for record, time in zip(records, times, strict=True):
            for _ in range(20):
                outliers.answered(record, time, 0.0, None)
        for _ in range(faults):
            outliers.tried(records[0], "error", 0.0, None, records)
        outliers.weigh(records, now)
        return [round(one.penalty, 2) for one in records]

    def test_is_nothing_for_backends_that_are_equally_well(self):
        assert self.weighed(0.2, 0.3, 0.39) == [0.0, 0.0, 0.0]
        assert self.weighed(0.001, 0.04) == [0.0, 0.0]  # nobody notices

    def test_is_the_rate_of_errors(self):
        assert self.weighed(0.2, 0.2, faults=20) == [0.49, 0.0]
        assert self.weighed(0.2, 0.2, faults=1) == [0.0, 0.0]

    def test_rises_with_the_first_fault_and_ends_with_the_first_good_answer(self):
        outliers, one, two = machine(), Record(), Record()
        for _ in range(100):
            outliers.answered(one, 0.1, 0.0, None)
        outliers.tried(one, "error", 0.0, None, [one, two])
        outliers.weigh([one, two], 0.0)
        assert (one.penalty, two.penalty) == (0.2, 0.0)
        outliers.weigh([one, two], 10.0)
        assert one.penalty == 0.1
        outliers.answered(one, 0.1, 10.0, None)
        outliers.weigh([one, two], 10.0)
        assert one.penalty == 0.0

    def test_grows_with_the_time_to_the_first_byte(self):
        assert self.weighed(0.1, 0.2, 0.6, 5.0) == [0.0, 0.0, 0.48, 0.95]

    def test_fades(self):
        [soon, _] = self.weighed(5.0, 0.1, now=10.0)
        [later, _] = self.weighed(5.0, 0.1, now=60.0)
        assert 0.95 > soon > later > 0.0
        assert self.weighed(5.0, 0.1, now=600.0) == [0.0, 0.0]
