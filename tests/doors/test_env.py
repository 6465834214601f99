"""from_env and durations: each variable is honoured, each error names its variable and shows an example."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import ConfigError, QueueFull, Scheduler, ThreadScheduler
from fairlead.config import seconds, shown
from fairlead.testing import run_virtual
from tests.doors.rig import Busy, Journal

PREFIX = "FAIRLEAD_SCHEDULER_"
ON = {PREFIX + "ENABLED": "true"}


@pytest.mark.parametrize("text", ["true", "TRUE", "True", "1", "yes", "YES", "Yes", " yes "])
def test_enabled_is_true_1_or_yes_in_any_case(text):
    stats = Scheduler.from_env({PREFIX + "ENABLED": text}).stats()
    assert stats.enabled
    assert stats.max_concurrency == 16
    assert stats.max_queue_size == 0


@pytest.mark.parametrize("text", ["false", "0", "no", "", "off", "2", "on", "truth"])
def test_anything_else_is_off(text):
    stats = Scheduler.from_env({PREFIX + "ENABLED": text}).stats()
    assert not stats.enabled
    assert stats.max_concurrency is None


def test_without_variables_the_default_is_unbounded(monkeypatch):
    for name in ("ENABLED", "MAX_CONCURRENCY", "MAX_QUEUE_SIZE", "STARVATION_TIMEOUT"):
        monkeypatch.delenv(PREFIX + name, raising=False)
    assert not Scheduler.from_env().stats().enabled
    assert not ThreadScheduler.from_env().stats().enabled


def test_the_process_environment_is_read(monkeypatch):
    monkeypatch.setenv(PREFIX + "ENABLED", "yes")
    monkeypatch.setenv(PREFIX + "MAX_CONCURRENCY", "3")
    monkeypatch.setenv(PREFIX + "MAX_QUEUE_SIZE", "2")
    for kind in (Scheduler, ThreadScheduler):
        stats = kind.from_env().stats()
        assert (stats.max_concurrency, stats.max_queue_size) == (3, 2)


def test_the_limits_hold():
    async def main():
        environ = ON | {PREFIX + "MAX_CONCURRENCY": "2", PREFIX + "MAX_QUEUE_SIZE": "1"}
        async with Scheduler.from_env(environ) as scheduler:
            busy = Busy(scheduler, 3)
            assert scheduler.stats().active_count == 2
            with pytest.raises(QueueFull, match="1/1"):
                scheduler.spawn(50, int)
            await busy.release()

    run_virtual(main())


@pytest.mark.parametrize(("timeout", "first"), [("30s", "newcomer"), ("10s", "patient")])
def test_the_starvation_timeout_sets_the_rate(timeout, first):
    async def main():
        journal = Journal()
        environ = ON | {PREFIX + "MAX_CONCURRENCY": "1", PREFIX + "STARVATION_TIMEOUT": timeout}
        async with Scheduler.from_env(environ) as scheduler:
            busy = Busy(scheduler)
            scheduler.spawn(0, journal.note, "patient")
            await asyncio.sleep(10)
            scheduler.spawn(50, journal.note, "newcomer")
            await busy.release()
        return journal[0]

    assert run_virtual(main()) == first


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MAX_CONCURRENCY", "0"),
        ("MAX_CONCURRENCY", "-1"),
        ("MAX_CONCURRENCY", "many"),
        ("MAX_CONCURRENCY", "1.5"),
        ("MAX_CONCURRENCY", ""),
        ("MAX_CONCURRENCY", "1e3"),
        ("MAX_CONCURRENCY", "٣"),
        ("MAX_CONCURRENCY", "1_000"),
        ("MAX_CONCURRENCY", "9" * 30),
        ("MAX_CONCURRENCY", "1000000000"),
        ("MAX_QUEUE_SIZE", "-1"),
        ("MAX_QUEUE_SIZE", "unlimited"),
        ("STARVATION_TIMEOUT", "30"),
        ("STARVATION_TIMEOUT", "-5s"),
        ("STARVATION_TIMEOUT", "0s"),
        ("STARVATION_TIMEOUT", ""),
        ("STARVATION_TIMEOUT", "٣٠s"),
        ("STARVATION_TIMEOUT", "soon"),
        ("STARVATION_TIMEOUT", "1e400s"),
    ],
)
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_an_error_names_the_variable_and_shows_what_was_read(name, text, enabled):
    environ = {PREFIX + "ENABLED": enabled, PREFIX + name: text}
    for kind in (Scheduler, ThreadScheduler):
        with pytest.raises(ConfigError, match=PREFIX + name) as caught:
            kind.from_env(environ)
        assert shown(text).strip("'")[:20] in str(caught.value)
        assert str(caught.value).isascii()


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("30S", 30),
        (" 30s ", 30),
        ("1h30m", 5400),
        ("1h30min", 5400),
        ("2m", 120),
        ("1d", 86400),
        ("1.5s", 1.5),
        ("1m30s500ms", 90.5),
        (30, 30),
        (0.25, 0.25),
        (timedelta(minutes=1), 60),
    ],
)
def test_durations(given, read):
    assert seconds(given, "timeout") == read


@pytest.mark.parametrize("given", ["30", "1.5", "0"])
def test_a_bare_number_as_text_is_told_to_take_a_unit(given):
    with pytest.raises(ConfigError, match=r"timeout needs a unit.*30s"):
        seconds(given, "timeout")


@given(st.text(max_size=30) | st.floats() | st.integers() | st.none() | st.binary(max_size=5))
def test_any_input_is_read_or_refused_with_a_clear_error(value):
    try:
        read = seconds(value, "timeout", zero=True)
    except ConfigError as refused:
        read, message = 0.0, str(refused)
    else:
        message = "timeout 30s"
    assert 0 <= read < float("inf")
    assert "timeout" in message
    assert "30s" in message
