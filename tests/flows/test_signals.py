"""Sources of signals: what they tell, and that they tell None rather than guess."""

import os
from math import inf, nan
from pathlib import Path

import pytest

from fairlead.errors import ConfigError
from fairlead.flows.signals import (
    CpuUtilization,
    Latency,
    Learned,
    Posted,
    PostedSignals,
    Reading,
    Signal,
)

# user nice system idle iowait irq softirq steal guest guest_nice
FIRST = "cpu  100 0 50 800 50 0 0 0 30 0\ncpu0 1 2 3\n"
LATER = "cpu  150 10 80 840 60 5 5 0 60 0\ncpu0 1 2 3\n"  # 100 busy of 150


@pytest.fixture
def stat(tmp_path: Path) -> Path:
    path = tmp_path / "stat"
    path.write_text(FIRST)
    return path


def times(user: float, system: float = 0.0) -> os.times_result:
    return os.times_result((user, system, 0.0, 0.0, 0.0))


def test_cpu_is_the_busy_share_between_two_reads(stat: Path):
    cpu = CpuUtilization(stat)
    assert cpu.read(0.0) is None
    stat.write_text(LATER)
    assert cpu.read(10.0) == pytest.approx(100 / 150)


def test_two_reads_close_together_give_one_answer(stat: Path):
    cpu = CpuUtilization(stat)
    cpu.read(0.0)
    stat.write_text(LATER)
    first = cpu.read(10.0)
    assert cpu.read(10.0) == cpu.read(10.04) == first


def test_cpu_that_did_not_move_is_not_known(stat: Path):
    cpu = CpuUtilization(stat)
    cpu.read(0.0)
    assert cpu.read(10.0) is None


@pytest.mark.parametrize("text", [None, "", "cpu\n", "cpu a b c d e\n", "intr 1 2 3 4 5 6\n"])
def test_without_the_machines_times_those_of_the_process_are_used(stat: Path, text: str | None):
    if text is None:
        stat.unlink()
    else:
        stat.write_text(text)
    spent = iter([times(1.0, 0.5), times(5.0, 6.5)])
    cpu = CpuUtilization(stat, process=lambda: next(spent), processors=2)
    assert cpu.read(100.0) is None
    assert cpu.read(110.0) == 0.5  # 10 s of 2 · 10 s


def test_a_change_of_source_is_not_taken_for_a_measurement(stat: Path):
    cpu = CpuUtilization(stat, process=lambda: times(1.0))
    cpu.read(0.0)
    stat.unlink()
    assert cpu.read(10.0) is None
    stat.write_text(LATER)
    assert cpu.read(20.0) is None


def test_cpu_of_this_machine_is_a_share_or_not_known():
    cpu = CpuUtilization()
    cpu.read(0.0)
    sum(range(100_000))
    value = cpu.read(10.0)
    assert value is None or 0 <= value <= 1


def test_a_reading_asks():
    answers: list[object] = [3, 0.5, None, nan, inf, True, "7"]
    source = Reading(lambda: answers.pop(0))  # type: ignore[arg-type,return-value]
    assert [source.read(0.0) for _ in range(7)] == [3.0, 0.5, None, None, None, None, None]


def test_latency_is_a_percentile_of_the_last_30_seconds():
    p95 = Latency(0.95)
    assert p95.read(0.0) is None
    for number in range(100):
        p95.add(0.1 if number < 90 else 1.0, number / 100)
    assert p95.read(1.0) == pytest.approx(1.0, rel=0.01)
    assert p95.read(60.0) is None


def ramp(source: Signal, value: list[float], plan: list[tuple[float, float]]) -> list[float | None]:
    """Read every 10 s through a plan of (value, seconds)."""
    seen, now = [], 0.0
    for wanted, seconds in plan:
        value[0] = wanted
        for _ in range(round(seconds / 10)):
            seen.append(source.read(now))
            now += 10.0
    return seen


def test_a_learned_setpoint_is_the_mean_of_half_an_hour_and_a_quarter_more():
    value = [0.0]
    source = Learned(Reading(lambda: value[0]))
    seen = ramp(source, value, [(0.2, 1800), (0.5, 30)])
    assert seen[:3] == [None] * 3  # nothing is usual yet
    assert seen[3:180] == pytest.approx([0.8] * 177)
    assert seen[180:] == pytest.approx([0.5 / 0.25] * 3)
    assert source.setpoint(1829.0) == pytest.approx(0.25)


def test_a_learned_setpoint_moves_every_30_seconds_and_forgets_after_1800():
    value = [0.0]
    source = Learned(Reading(lambda: value[0]))
    ramp(source, value, [(1.0, 30), (3.0, 30), (0.0, 30)])
    assert source.setpoint(59.9) == 1.25
    assert source.setpoint(60.0) == 2.5
    assert source.setpoint(1830.0) == pytest.approx(1.25 * 1.5)  # the first slot is out
    assert source.setpoint(1890.0) is None


def test_reading_a_learned_signal_more_often_teaches_it_nothing():
    value = [1.0]
    often, seldom = (Learned(Reading(lambda: value[0])) for _ in range(2))
    for second in range(120):
        value[0] = 1.0 if second < 60 else 2.0 + second % 7
        often.read(float(second))
        if second % 30 == 0:
            seldom.read(float(second))
    assert often.setpoint(120.0) == seldom.setpoint(120.0)


def test_what_was_always_0_or_is_missing_has_no_setpoint():
    value: list[float | None] = [0.0]
    source = Learned(Reading(lambda: value[0]))
    assert [source.read(10.0 * number) for number in range(9)] == [None] * 9
    value[0] = None
    assert source.read(90.0) is None


def test_a_posted_signal_expires():
    posted = Posted()
    assert posted.read(0.0) is None
    posted.post(0.7, 10.0)
    posted.post(0.9, 20.0)
    assert posted.read(20.0) == posted.read(69.9) == 0.9
    assert posted.read(70.0) is None


@pytest.mark.parametrize("value", [nan, inf, -inf, None, "1", True])
def test_a_post_that_is_no_number_is_refused_and_the_last_value_stands(value):
    posted = Posted()
    posted.post(0.7, 0.0)
    with pytest.raises(ConfigError, match="finite number"):
        posted.post(value, 1.0)
    assert posted.read(2.0) == 0.7


def test_posts_reach_those_who_listen_and_fill_no_memory():
    signals = PostedSignals(expire_after=5.0)
    gpu = signals.named("gpu")
    assert signals.named("gpu") is gpu
    assert signals.post("gpu", 1, 0.0) is True
    for number in range(100):
        assert signals.post(f"other {number}", 1.0, 0.0) is False
    assert (gpu.read(4.9), gpu.read(5.0)) == (1.0, None)
    assert signals.names() == ["gpu"]


def test_settings_that_make_no_sense_are_refused():
    for make in (
        lambda: Posted(expire_after=0.0),
        lambda: Learned(Posted(), tolerance=0.0),
        lambda: Learned(Posted(), refresh=0.0),
        lambda: Latency(0.0),
    ):
        with pytest.raises(ConfigError):
            make()


# Each promise can be broken, and is caught


class Everlasting(Posted):
    def read(self, now):
        return self._value


class Restless(Learned):
    """Learns from every read."""

    def read(self, now):
        self._learned = None
        return super().read(now)


class Intolerant(Learned):
    def __init__(self, source, **options):
        super().__init__(source, tolerance=1.0)


class Guessing(CpuUtilization):
    """Calls what it does not know 0."""

    def read(self, now):
        return super().read(now) or 0.0


@pytest.mark.parametrize(
    ("name", "mutant", "test"),
    [
        ("Posted", Everlasting, test_a_posted_signal_expires),
        ("Learned", Restless, test_reading_a_learned_signal_more_often_teaches_it_nothing),
        (
            "Learned",
            Intolerant,
            test_a_learned_setpoint_is_the_mean_of_half_an_hour_and_a_quarter_more,
        ),
    ],
)
def test_a_broken_source_is_caught(name, mutant, test, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), name, mutant)
    with pytest.raises(AssertionError):
        test()


def test_a_source_that_guesses_is_caught(stat: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "CpuUtilization", Guessing)
    with pytest.raises(AssertionError):
        test_cpu_that_did_not_move_is_not_known(stat)
