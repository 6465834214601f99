"""Benchmarks must not rot: every suite runs here, very small, and nothing is said about time."""

import asyncio
import gc
import json
from functools import partial

import pytest

from benchmarks import __main__ as command
from benchmarks import gate, harness, memory, peers, tasks
from benchmarks.harness import HEAP, Result, Table, Target
from benchmarks.report import markdown, plain, summary
from benchmarks.sizes import Sizes
from benchmarks.steady import Steady

TINY = Sizes(
    tasks=40,
    slow_tasks=40,
    free=20,
    tickets=100,
    waiting=80,
    planned=20,
    scale=(70, 80),
    keys=20,
    holders=20,
    kills=10,
    memory=40,
)


def check(result: Result) -> None:
    """Everything was measured once, and can be printed and kept."""
    assert result.errors == {}
    assert set(result.table.cases) < set(result.values)
    assert all(len(seen) == 1 for seen in result.values.values())
    assert all(verdict.value is not None for verdict in result.verdicts())
    text = markdown(result)
    for row in {
        name.rsplit(", ", 1)[0] if result.table.columns else name for name in result.table.cases
    }:
        assert f"| {row} |" in text
    assert json.loads(json.dumps(plain(result)))["title"] == result.table.title


@pytest.mark.parametrize("suite", [tasks, gate])
def test_every_case_of_a_suite_runs(suite):
    for table in suite.tables(TINY):
        check(harness.run(table, 1))


def test_every_gate_is_as_full_as_its_table_says():
    for table in gate.tables(TINY):
        steady = [case for case in table.cases.values() if isinstance(case, Steady)]
        for case in steady:
            case()
            assert case.gate is not None
            assert case.gate.waiting + case.gate.active >= case.waiting
    gc.unfreeze()


@pytest.mark.parametrize("name", memory.CASES)
def test_what_waits_is_measured_and_then_let_go(name):
    told: list[float] = []
    asyncio.run(memory.hold(name, TINY.memory, told.append))
    assert len(told) == 1


def test_the_memory_table_names_what_can_be_held():
    (table,) = memory.tables(TINY)
    assert list(table.cases) == list(memory.CASES)


def test_a_peer_that_is_not_installed_is_left_out_with_a_note(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    first, *_ = found = list(tasks.tables(TINY))
    assert not any("aiojobs" in name for name in first.cases)
    assert "aiojobs is not installed: left out." in first.notes
    assert not any("uvloop" in table.title for table in found)


def test_a_case_that_raises_is_reported_and_the_others_run():
    def broken() -> float:
        raise RuntimeError("no such peer")

    table = Table("t", "µs", {"good": lambda: 2.0, "bad": broken}, targets=[Target("bad", 1.0)])
    result = harness.run(table, 3)
    assert result.errors == {"bad": "RuntimeError: no such peer"}
    assert list(result.values["good"]) == [2.0, 2.0, 2.0]
    assert [verdict.text for verdict in result.verdicts()] == ["bad: target ≤ 1 µs: not measured"]
    assert "**Failed:** bad" in markdown(result)
    assert "0 of 1 targets met" in summary([result])


def test_verdicts_compare_medians_with_the_fastest_of_the_others():
    cases = {"ours": lambda: 3.0, "slow": lambda: 12.0, "fast": lambda: 6.0}
    targets = [
        Target("ours", 0.6, ("slow", "fast", "absent")),
        Target("ours", 0.4, ("fast",)),
        Target("slow", 5.0, over="fast"),
        Target("ours", 3.0),
    ]
    result = harness.run(Table("t", "µs per task", cases, targets=targets), 1)
    verdicts = result.verdicts()
    assert [verdict.value for verdict in verdicts] == [0.5, 0.5, 6.0, 3.0]
    assert [verdict.met for verdict in verdicts] == [True, False, False, True]
    assert verdicts[0].text == "ours: target ≤ 0.6× fast: 0.50× (0.50–0.50) ok"


def test_growth_is_judged_by_the_row_that_grew_most():
    cases = {"a, 1": lambda: 1.0, "a, 9": lambda: 2.0, "b, 1": lambda: 1.0, "b, 9": lambda: 9.0}
    table = Table("t", "µs", cases, columns=["1", "9"], growth=3.0)
    (verdict,) = harness.run(table, 1).verdicts()
    assert (verdict.value, verdict.met) == (9.0, False)
    assert "(b) MISSED" in verdict.text


def test_each_round_starts_with_another_case():
    ran = []

    def case(name: str) -> float:
        ran.append(name)
        return 1.0

    harness.run(Table("t", "µs", {name: partial(case, name) for name in "ab"}), 4)
    assert ran == ["a", "b", "a", "b", "a", "b", "b", "a"]


def test_the_command_prints_and_keeps_what_it_measured(monkeypatch, tmp_path, capsys):
    table = Table("Two", "µs", {"one": lambda: 1.0, "two": lambda: 2.0}, base="one")
    monkeypatch.setitem(command.SUITES, "gate", lambda sizes: iter([table]))
    kept = tmp_path / "bench.json"
    assert command.main(["gate", "--quick", "--rounds", "2", "--json", str(kept)]) == 0
    assert "| two | 2.00 | 2.00–2.00 | 2.00× |" in capsys.readouterr().out
    document = json.loads(kept.read_text())
    assert document["tables"][0]["values"]["two"] == [2.0, 2.0]
    assert HEAP in document["tables"][0]["values"]


def test_an_unknown_suite_is_named(capsys):
    with pytest.raises(SystemExit):
        command.main(["gates"])
    assert "there is no suite 'gates'; known: tasks, gate, memory" in capsys.readouterr().err
