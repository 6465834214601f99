"""Benchmarks must not rot: every suite runs here, very small, and nothing is said about time."""

import asyncio
import gc
import json
import sys
from functools import partial
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as command
from benchmarks import (
    flows,
    flows_figures,
    flows_service,
    flows_shared,
    gate,
    gateway,
    gateway_figures,
    gateway_overload,
    gateway_plot,
    harness,
    jobs,
    jobs_figures,
    memory,
    peers,
    sim,
    tasks,
)
from benchmarks.figures import Chapter, Figures, between, section, short_table
from benchmarks.gateway_kept import Kept, Shared
from benchmarks.gateway_overload import Answer, Phases
from benchmarks.harness import HEAP, Result, Table, Target
from benchmarks.jobs_engine import Engine
from benchmarks.report import markdown, plain, summary
from benchmarks.shapes import FLOWS
from benchmarks.sizes import Sizes
from benchmarks.steady import Steady
from fairlead.policies import FairQueue
from tests.engines import binary
from tests.engines_postgres import binaries

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
    load=0.1,
    storm=0.5,
    jobs=40,
    stored=400,
    simulated=200,
    plot="",
)


def check(result: Result) -> None:
    """Everything was measured once, and can be printed and kept."""
    assert result.errors == {}
    assert set(result.table.cases) < set(result.values)
    assert all(len(seen) == 1 for seen in result.values.values())
    for target, verdict in zip(result.table.targets, result.verdicts(), strict=False):
        peers = {*target.against, target.over} - {""}
        # A peer that is not installed is left out; whatever was measured is judged.
        assert verdict.value is not None or not peers <= set(result.values)
    text = markdown(result)
    for row in {
        name.rsplit(", ", 1)[0] if result.table.columns else name for name in result.table.cases
    }:
        assert f"| {row} |" in text
    assert json.loads(json.dumps(plain(result)))["title"] == result.table.title


@pytest.fixture(autouse=True)
def _without_collections(monkeypatch):
    """The heap of a whole test run is large: to collect it before every case takes longer than all the cases."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


@pytest.mark.parametrize("suite", [tasks, gate, sim])
def test_every_case_of_a_suite_runs(suite):
    for table in suite.tables(TINY):
        check(harness.run(table, 1))


def test_every_gate_is_as_full_as_its_table_says():
    for table in gate.tables(TINY):
        steady = [case for case in table.cases.values() if isinstance(case, Steady)]
        for case in steady:
            case()
            assert case.gate is not None
            assert case.waits(case.gate) + len(case.running) >= case.waiting
    gc.unfreeze()


def test_workloads_that_wait_for_tokens_share_them_by_weight():
    """A door that is told nothing of workloads keeps all in one line, which is not what is to be measured."""
    assert isinstance(flows.shape({}).gate().policy, FairQueue)


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


@pytest.mark.slow
def test_every_case_of_the_gateway_suite_runs():
    results = []
    for cases in gateway.tables(TINY):
        results.append(harness.run(cases, 1))
        check(results[-1])
    rows = gateway_figures.rows(Figures([plain(result) for result in results]))
    assert "| the same with 1,000 waiting |" in short_table(rows)


@pytest.mark.slow
def test_every_case_of_the_flows_suite_runs():
    results = []
    for cases in flows.tables(TINY):
        results.append(harness.run(cases, 1))
        check(results[-1])
    told = short_table(flows_figures.rows(Figures([plain(result) for result in results])))
    assert "| check and end, nobody waits: quota |" in told
    if binary() is not None:
        assert "| quota through Redis, decisions a second per process |" in told
    assert told.count("of the rate of a bare handler") == 2


@pytest.mark.slow
def test_every_case_of_the_jobs_suite_runs():
    results = []
    for cases in jobs.tables(TINY):
        results.append(harness.run(cases, 1))
        check(results[-1])
    told = short_table(jobs_figures.rows(Figures([plain(result) for result in results])))
    assert "| drain on SQLite, a second |" in told
    if binaries() is not None:
        assert "| drain on PostgreSQL, runs of one job, a second |" in told
        assert told.count("per node") == 2
        assert told.count("memory per ready job") == 2


def test_peers_of_jobs_that_are_not_installed_are_left_out_with_a_note(monkeypatch):
    monkeypatch.setattr(jobs, "find_spec", lambda name: None)
    first = next(jobs.draining(TINY, Engine()))
    assert list(first.cases) == [jobs.FLOOR, jobs.RUNS, jobs.NODES]
    assert first.notes[1:] == [
        "pgqueuer is not installed: left out.",
        "procrastinate is not installed: left out.",
    ]
    (table,) = jobs.embedded(TINY)
    assert list(table.cases) == [jobs.RUNS, jobs.NODES]
    assert "huey is not installed: left out." in table.notes


def test_every_contended_flow_waits():
    table = flows.contended(TINY)
    for case in table.cases.values():
        assert isinstance(case, Steady)
        case()
        assert case.gate is not None
        assert case.gate.waiting >= case.waiting - FLOWS
    gc.unfreeze()


def test_peers_of_flows_that_are_not_installed_are_left_out_with_a_note(monkeypatch):
    for module in (flows, flows_shared, flows_service):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    first, *others = flows.tables(TINY)
    assert all(name.startswith("fairlead") for name in first.cases)
    assert first.notes[1:] == [
        "limits is not installed: left out.",
        "aiolimiter is not installed: left out.",
    ]
    assert not any("gRPC" in table.title for table in others)


def test_what_follows_from_a_table_is_told_round_by_round():
    kept = Kept()
    values = iter([5.0, 7.0])
    case = kept.keep("a", lambda: next(values))
    assert [case(), case()] == [5.0, 7.0]
    kept.note("b", 1.0)
    again, less = kept.again("a"), kept.minus("a", "b")
    assert [again(), again(), less()] == [5.0, 7.0, 4.0]
    with pytest.raises(RuntimeError, match="b was not measured"):
        less()


def test_an_experiment_runs_once_a_round_whoever_asks_first():
    ran: list[int] = []

    def experiment(number: int) -> dict[str, float]:
        ran.append(number)
        return {"a": number, "b": 10.0 + number}

    shared = Shared(experiment)
    a, b = shared.figure("a"), shared.figure("b")
    assert [a(), b(), b(), a()] == [0, 10, 11, 1]
    assert ran == [0, 1]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print('[1, 2]')", None),
        ("print('[1,', flush=True); import time; time.sleep(60)", "did not end within"),
        ("print('[1,', flush=True); raise SystemExit(3)", "failed, with code 3"),
        ("raise SystemExit(3)", "failed, with code 3"),
    ],
)
def test_a_storm_that_was_cut_short_is_not_taken_for_one(script, said):
    looks: list[None] = []
    seconds = 60.0 if said is None or "code" in said else 1.0
    asked = ([sys.executable, "-c", script], seconds, lambda: looks.append(None))
    if said is None:
        assert json.loads(gateway_overload.said_by(*asked)) == [1, 2]
    else:
        with pytest.raises(RuntimeError, match=said):
            gateway_overload.said_by(*asked)
    assert looks


def test_the_overload_is_told_from_its_answers():
    phases = Phases(storm=1.0, calm_again=2.0, end=3.0)
    answers = [
        Answer("interactive", 0.5, 0.1, 200),
        Answer("interactive", 1.5, 0.15, 200),
        Answer("bulk", 1.5, 1.0, 200),
        Answer("bulk", 1.6, 0.002, 429),
        Answer("bulk", 1.7, 0.3, 503),
        Answer("interactive", 2.2, 0.5, 200),
    ]
    told = gateway_overload.figures(answers, [50.0, 58.0, 51.0], phases)
    assert told[gateway_overload.STORM_P99] == 150
    assert told[gateway_overload.REFUSED_P99] == 2
    assert told[gateway_overload.RECOVERY] == pytest.approx(700)  # a slow interactive one
    assert told[gateway_overload.GROWTH] == 8
    assert told[gateway_overload.OTHER] == 0


def test_the_plot_is_a_picture_with_every_line_named():
    phases = Phases(storm=1.0, calm_again=2.0, end=3.0)
    kinds = [("interactive", 200), ("bulk", 200), ("bulk", 429)]
    answers = [Answer(kind, at / 10, 0.1, status) for at in range(30) for kind, status in kinds]
    picture = gateway_plot.draw(answers, phases, "10× & more")
    root = ElementTree.fromstring(picture)
    assert len(root.findall("{http://www.w3.org/2000/svg}path")) == 4
    texts = [found.text for found in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"interactive, p99", "refusals (429), p99", "10× & more"} <= set(texts)


def test_the_figures_of_a_run_go_into_the_docs(tmp_path):
    once = section("# Benchmarks\n\ntext\n\n## Flows\n\nflows\n", "Gateway", "why", "- one\n")
    twice = section(
        once.replace("## Flows", "## Gates") + "\n## Flows\n", "Gateway", "why", "- two\n"
    )
    assert once.endswith("\n\n## Gateway\n\nwhy\n\n- one\n")
    assert "- one" not in twice
    assert twice.index("## Gates") < twice.index("- two") < twice.index("## Flows")
    page = "a\n<!-- flows figures -->\nold\n<!-- end -->\nb\n<!-- gate figures -->\n<!-- end -->\n"
    expected = page.replace("old\n", "\nnew\n\n")
    assert between(page, "flows", "new\n") == expected
    with pytest.raises(ValueError, match="one pair"):
        between("no marks", "flows", "new")

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/benchmarks.md").write_text("# Benchmarks\n")
    (tmp_path / "README.md").write_text("<!-- x figures -->\n<!-- end -->\n")
    table = {"title": "Two, and more", "values": {"one": [1.0, 3.0, 2.0]}}
    chapter = Chapter(
        "x", "X", "why", ("README.md",), lambda told: [("one", str(told.of("Two", "one")), "≤ 3")]
    )
    chapter.publish([table], "what it printed", tmp_path)
    assert "| one | 2.0 | ≤ 3 |" in (tmp_path / "README.md").read_text()
    assert "## X\n\nwhy\n\nwhat it printed\n" in (tmp_path / "docs/benchmarks.md").read_text()


def test_nginx_that_is_not_installed_is_left_out_with_a_note(monkeypatch):
    monkeypatch.setattr(gateway, "find_nginx", lambda: None)
    monkeypatch.setattr(gateway, "find_spec", lambda name: None)
    table = next(gateway.proxies(TINY))
    assert gateway.NGINX not in table.cases
    assert any(note.startswith("nginx is not installed") for note in table.notes)
    table = next(gateway.middleware(TINY))
    assert gateway.SLOWAPI not in table.cases
    assert "slowapi or starlette is not installed: left out." in table.notes
