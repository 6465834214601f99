"""Importers: look-alikes always, the recorded traces themselves where they are at hand."""

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fairlead.capacities import Slots
from fairlead.core import Outcome, State, Ticket
from fairlead.core.trace import Recorder
from fairlead.errors import BadFile
from fairlead.policies import FIFO, Classes, Level
from fairlead.sim import Arrival, read_policy, read_scenario, simulate
from fairlead.sim.records import arrivals_of

# Beside the project; who has them elsewhere says where (of the traces, or of the DAGs among them).
FOLDER = Path(os.environ.get("FAIRLEAD_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
FOLDER = FOLDER.parent if FOLDER.name == "dags" else FOLDER


def real(name: str) -> Path:
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{path} is not here; set FAIRLEAD_TRACES to the folder of the traces")
    return path


def read(path: Path, **said: Any) -> list[Arrival]:
    source = {"kind": "trace", "file": str(path), **said}
    return read_scenario({"arrivals": [source]}).arrivals(0)


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
ALIBABA = """gmt_create,predict_type,predict_status,exec_time_seconds,groupId,num_lora
2024-11-15 16:57:50,TXT_2_IMG,SUCCEED,32.0,G0000,0
2024-11-15 18:16:14,IMG_2_IMG,FAILED,43.0,G0001,0
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_requests_to_a_language_model(tmp_path):
    path = written(tmp_path, "llm.csv", AZURE)
    first, second, _ = read(path, **{"class": "interactive"})
    assert (first.at, first.cost, first.cls) == (0.0, 418.0, "interactive")
    assert second.at == pytest.approx(4.314579, abs=1e-6)
    assert first.service == pytest.approx(374 * 0.00025 + 44 * 0.02)
    costs = {"base": "1s", "prompt_token": 0, "generated_token": "10ms"}
    assert read(path, costs=costs)[0].service == pytest.approx(1.44)


def test_requests_for_images(tmp_path):
    first, second = read(written(tmp_path, "images.csv", ALIBABA))
    assert (first.tenant, first.service, first.workload) == ("G0000", 32.0, "txt_2_img")
    assert second.at == 4704.0


def test_a_part_of_a_trace_at_another_speed(tmp_path):
    path = written(tmp_path, "llm.csv", AZURE)
    assert [one.at for one in read(path, speed=2, limit=2)] == [
        0.0,
        pytest.approx(2.15729, abs=1e-5),
    ]
    later = read(path, skip="1s", start="10s")
    assert [one.at for one in later] == [pytest.approx(13.314579), pytest.approx(13.541877)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "a.csv:2: needs a time"),
        ("a.csv", AZURE.replace("374", "-1").replace("109", "nan"), "a.csv:3: needs a time"),
        ("a.csv", "one,two\n1,2\n", "say which format it has"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no arrivals"),
        ("a.jsonl", '{"t": 1}\n{"t": "x"}\n[]\n{\n', "a.jsonl:2: t must be a number"),
        ("a.jsonl", '{"t": 1}\n\n[]\n', "a.jsonl:3: must be an object"),
        ("a.jsonl", '{"class": "x"}\n', "a.jsonl:1: needs t"),
        ("a.jsonl", '{"t": 1, "service_ms": -5}\n', "may not take less than no time"),
        ("a.jsonl", '{"t": 1, "deps": ["b"]}\n', "no line has that id"),
        (
            "a.jsonl",
            '{"t": 1, "id": "a", "deps": ["b"]}\n{"t": 1, "id": "b", "deps": ["a"]}\n',
            "depends on itself",
        ),
        ("a.log", "x", "say which format it has"),
        ("a.jsonl", "\x00\xff", "is no JSON"),
        ("a.jsonl", f'{{"t": 1{"0" * 400}}}\n', "a.jsonl:1: t must be 1e+15 at most"),
        ("a.jsonl", '{"t": -1e308}\n{"t": 1e308}\n', "a.jsonl:2: t must be 1e+15 at most"),
        ("a.jsonl", '{"t": 1, "service": 1e9}\n', "may take 31,622,400 s at most"),
        ("a.jsonl", f'{{"t": 1, "x": "{"y" * 1_000_000}"}}', "is longer than 1,000,000"),
        ("a.csv", AZURE.replace("374", "1e300"), "holds work of 2.5e+296 s"),
        ("a\0b.jsonl", None, "is no name of a file"),
    ],
)
def test_a_trace_that_cannot_be_read_is_told_by_line(tmp_path, name, text, said):
    path = tmp_path / name if text is None else written(tmp_path, name, text)
    with pytest.raises(BadFile, match=re.escape(said)):
        read(path)


def test_something_that_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(BadFile, match="is no file"):
        read(tmp_path / "pipe.jsonl")


def test_lines_of_ours(tmp_path):
    lines: list[dict[str, Any]] = [
        {"t": 100.0, "class": "bulk", "tenant": "acme", "kind": "report", "service_ms": 1500},
        {"t": 101.5, "class": "bulk", "tokens": 7, "deadline": 111.5, "priority": 90, "id": "x"},
        {"t": 102.0, "class": "vip", "service_ms": 250, "patience_ms": 500, "pool": "gpu"},
    ]
    path = written(tmp_path, "ours.jsonl", "\n".join(map(json.dumps, lines)))
    one, two, three = read(path)
    assert (one.at, one.service, one.workload, one.tenant) == (0.0, 1.5, "report", "acme")
    assert (two.at, two.cost, two.deadline, two.priority, two.key) == (1.5, 7.0, 11.5, 90, "x")
    assert two.service == 1.5  # as others of its class
    assert (three.service, three.patience, three.pool) == (0.25, 0.5, "gpu")


def test_graphs_among_lines_of_ours(tmp_path):
    lines: list[dict[str, Any]] = [
        {"t": 0, "id": "c", "deps": ["a", "b"], "service_ms": 1000},
        {"t": 0, "id": "a", "service_ms": 1000},
        {"t": 0, "id": "b", "service_ms": 2000},
        {"t": 0, "id": "alone", "service_ms": 500},
    ]
    path = written(tmp_path, "ours.jsonl", "\n".join(map(json.dumps, lines)))
    found = read(path)
    assert [one.dag for one in found] == [0, 0, 0, -1]
    scenario = read_scenario({"arrivals": [{"kind": "trace", "file": str(path)}]})
    policy = read_policy({"policy": "fifo", "capacity": {"slots": 4}})
    rows = {row.key: row for row in simulate(scenario, policy, 0).tickets}
    assert (rows["c"].at, rows["c"].ended) == (2.0, 3.0)


def test_rows_of_a_running_fairlead():
    rows: list[dict[str, Any]] = [
        {"arrived": 10.0, "started": 11.0, "ended": 13.0, "state": "done", "rank": 1, "key": 7},
        {"arrived": 11.0, "started": None, "ended": None, "state": "refused", "rank": 1},
        {"arrived": 12.0, "state": "expired", "rank": 0, "workload": ["w", 2.0], "deadline": None},
        {"arrived": 12.5, "started": 13.0, "ended": 13.5, "state": "evicted", "rank": 1},
        {"arrived": 12.5, "started": 13.0, "ended": 13.5, "state": "lost", "rank": 1},
    ]
    one, two, three, four = arrivals_of(rows, ["low", "high"])
    assert (one.at, one.service, one.cls, one.key) == (10.0, 2.0, "high", "7")
    assert (two.service, three.service, four.service) == (2.0, 2.0, 2.0)
    assert (three.cls, three.workload) == ("low", "w")


def recorded(folder: Path) -> list[tuple[float, float]]:
    """Two slots, five tickets, written down as a Recorder does; tell when each started and how long it took."""
    gate = Recorder(FIFO(), Slots(2))
    tickets = [Ticket(f"t{number}", tenant="acme") for number in range(5)]
    for number, ticket in enumerate(tickets):
        gate.offer(ticket, 100.0 + number)
    for ticket, now in zip(tickets, (107.0, 108.0, 110.0, 111.0, 115.0), strict=True):
        gate.finish(ticket, now, Outcome.OK)
    path = folder / "verbs.jsonl"
    path.write_text("\n".join(json.dumps(entry) for entry in gate.entries))
    (folder / "was.yaml").write_text("policy: fifo\ncapacity: {slots: 2}\n")
    return [(ticket.started_at, ticket.arrived_at) for ticket in tickets]


def test_verbs_of_a_recorder(tmp_path):
    starts = recorded(tmp_path)
    (tmp_path / "scenario.yaml").write_text(
        "arrivals:\n- {kind: trace, format: recorder, file: verbs.jsonl, recorded_under: was.yaml}\n"
    )
    scenario = read_scenario(tmp_path / "scenario.yaml")
    found = scenario.arrivals(0)
    assert [one.at for one in found] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [one.service for one in found] == [7.0, 7.0, 3.0, 3.0, 5.0]
    # Replayed under the policy it was recorded under, it goes as it went.
    result = simulate(scenario, read_policy(tmp_path / "was.yaml"), 0)
    assert [row.started for row in result.tickets] == [start - 100.0 for start, _ in starts]
    # And under tomorrow's it goes otherwise.
    wider = read_policy(tmp_path / "was.yaml").with_settings({"capacity.slots": 5})
    assert all(row.wait == 0 for row in simulate(scenario, wider, 0).tickets)


def test_how_long_a_recorded_ticket_would_wait_is_its_own_and_not_its_class_s(tmp_path):
    was = {"policy": {"classes": {"only": {"wait_limit": "1s"}}}, "capacity": {"slots": 1}}
    (tmp_path / "was.yaml").write_text(json.dumps(was))
    gate = Recorder(Classes(Level("only", wait_limit=1.0)), Slots(1))
    first, second, third = Ticket(), Ticket(wait_until=103.0), Ticket()
    for ticket in (first, second, third):
        gate.offer(ticket, 101.0)
    gate.advance(102.0)
    assert (second.state, third.wait_until) == (State.EXPIRED, 102.0)
    gate.finish(first, 106.0)
    (tmp_path / "verbs.jsonl").write_text("\n".join(json.dumps(entry) for entry in gate.entries))
    trace = {"kind": "trace", "format": "recorder", "file": str(tmp_path / "verbs.jsonl")}
    trace["recorded_under"] = str(tmp_path / "was.yaml")
    scenario = read_scenario({"arrivals": [trace]})
    assert [one.patience for one in scenario.arrivals(0)] == [None, 2.0, None]
    again = read_policy(was)
    longer = again.with_settings({"policy.classes.only.wait_limit": "1m"})
    for policy, states in ((again, ["expired", "expired"]), (longer, ["expired", "done"])):
        assert [row.state for row in simulate(scenario, policy, 0).tickets[1:]] == states


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "name the policy that decided it with recorded_under"),
        (", recorded_under: gone.yaml", "cannot be read"),
        (", recorded_under: flows.yaml", "flows and jobs are recorded as rows"),
    ],
)
def test_verbs_without_their_policy(tmp_path, more, said):
    recorded(tmp_path)
    (tmp_path / "flows.yaml").write_text("preset: flows\n")
    (tmp_path / "s.yaml").write_text(
        f"arrivals:\n- {{kind: trace, format: recorder, file: verbs.jsonl{more}}}\n"
    )
    with pytest.raises(BadFile, match=said):
        read_scenario(tmp_path / "s.yaml")


def test_a_log_that_is_none(tmp_path):
    recorded(tmp_path)
    (tmp_path / "verbs.jsonl").write_text('["offer", 1]\n')
    (tmp_path / "s.yaml").write_text(
        "arrivals:\n- {kind: trace, format: recorder, file: verbs.jsonl, recorded_under: was.yaml}\n"
    )
    with pytest.raises(BadFile, match="is no log of verbs"):
        read_scenario(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "is no JSON"),
        ("{}", "is not WfFormat"),
        ('{"workflow": {"specification": {"tasks": []}, "execution": {"tasks": []}}}', "no tasks"),
        (
            '{"workflow": {"specification": {"tasks": [{"id": "a", "parents": ["b"]}]}, '
            '"execution": {"tasks": []}}}',
            "follows 'b', which is not there",
        ),
        (
            '{"workflow": {"specification": {"tasks": [{"id": "a", "parents": ["a"]}]}, '
            '"execution": {"tasks": []}}}',
            "follows itself",
        ),
        (
            '{"workflow": {"specification": {"tasks": [{"id": "a", "parents": []}]}, '
            '"execution": {"tasks": [{"id": "a", "runtimeInSeconds": -1}]}}}',
            "must have taken from 0",
        ),
    ],
)
def test_workflows_that_cannot_be(tmp_path, document, said):
    path = written(tmp_path, "w.json", document)
    with pytest.raises(BadFile, match=re.escape(said)):
        read_scenario({"arrivals": [{"kind": "dags", "files": [str(path)]}]})


SAID: dict[str, Any] = {"class": "y", "tenant": "t", "priority": 90, "cost": 7, "deadline": "2s"}
SAID |= {"patience": "9s", "leaves": "8s", "commits": "1s", "retries": 3, "pause": "4s"}
SAID |= {"pool": "p", "labels": {"a": "b"}, "door": "d", "start": "5s", "workload": "w"}


@pytest.mark.parametrize("kind", ["trace", "dags"])
def test_what_the_document_says_wins_over_what_was_recorded(tmp_path, kind):
    line = {"t": 0, "class": "x", "service_ms": 1000, "deadline": 100, "tokens": 2, "priority": 10}
    line |= {"patience_ms": 5, "tenant": "was", "kind": "was", "pool": "was", "door": "was"}
    graph: Any = {"specification": {"tasks": [{"id": "a", "parents": []}]}}
    graph["execution"] = {"tasks": [{"id": "a", "runtimeInSeconds": 1}]}
    held = json.dumps(line if kind == "trace" else {"workflow": graph})
    path = written(tmp_path, "r.jsonl" if kind == "trace" else "r.json", held)
    source = {"kind": kind, "file" if kind == "trace" else "files": str(path)} | SAID
    (one,) = read_scenario({"arrivals": [source]}).arrivals(0)
    rest: Any = {"leaves": 8.0, "commits": 1.0, "retries": 3, "pause": 4.0, "labels": {"a": "b"}}
    rest |= {"key": one.key, "dag": one.dag, "pool": "p", "door": "d"}
    assert one == Arrival(5.0, 1.0, "y", "t", "w", 90, 7.0, 7.0, 9.0, **rest)
    del source["workload"]
    many = [source | {"workloads": ["v", "w"]}] * 20
    assert {one.workload for one in read_scenario({"arrivals": many}).arrivals(0)} == {"v", "w"}


# The traces themselves


def test_the_azure_trace():
    found = read(real("azure-llm-conv.csv"))
    assert len(found) == 19_366
    assert found[0].at == 0.0
    assert 3000 < found[-1].at < 4000
    scenario = read_scenario(
        {"arrivals": [{"kind": "trace", "file": str(real("azure-llm-conv.csv"))}]}
    )
    result = simulate(scenario, read_policy({"preset": "tasks", "max_concurrency": 40}), 0)
    assert result.totals["done"] == 19_366


def test_the_alibaba_trace():
    found = read(real("alibaba-lora-requests.csv"), speed=1000)
    assert len(found) == 26_823
    assert len({one.tenant for one in found}) == 4247
    assert Counter(one.workload for one in found)["inpainting"] == 186
    assert sum(one.service for one in found) == 768_899.0


def test_the_workflows():
    folder = real("dags")
    scenario = read_scenario({"arrivals": [{"kind": "dags", "files": [str(folder)], "runs": 4}]})
    found = scenario.arrivals(0)
    assert {one.dag for one in found} == {0, 1, 2, 3}
    for name in ("GlobalPriorityExecutionPlanner", "SJFSExecutionPlanner"):
        policy = read_policy({"preset": "jobs", "planner": name, "executors": {"default": 4}})
        result = simulate(scenario, policy, 0)
        assert result.totals["done"] == len(found)
        ends = [row.ended or 0.0 for row in result.tickets]
        for one, row in zip(found, result.tickets, strict=True):
            assert all((row.started or 0.0) >= ends[dep] for dep in one.deps)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("a" * 300, "cannot be read"),
        ("a\0b.json", "'a\\x00b.json' is no name of a file"),
        ({"runtimeInSeconds": 10**400}, "must have taken from 0 to 31,622,400 seconds"),
        ({"runtimeInSeconds": -1}, "must have taken from 0 to 31,622,400 seconds"),
        ({"runtimeInSeconds": 1e5}, "would take 100,000,000,000 s at this scale"),
    ],
)
def test_a_workflow_that_cannot_be_read_is_explained(tmp_path, monkeypatch, file, said):
    monkeypatch.chdir(tmp_path)
    if isinstance(file, dict):
        tasks = {"specification": {"tasks": [{"id": "a", "parents": []}]}}
        ran = {"execution": {"tasks": [{"id": "a"} | file]}}
        file = str(written(tmp_path, "w.json", json.dumps({"workflow": tasks | ran})))
    with pytest.raises(BadFile, match=re.escape(said)) as caught:
        read_scenario({"arrivals": [{"kind": "dags", "files": file, "scale": 1e6}]})
    assert "is no JSON" not in str(caught.value)


def test_what_depends_on_something_left_out_is_left_out_at_once(tmp_path):
    """Not one after the other, each with a look at all: a chain of so many would take hours."""
    lines = ['{"t": 100, "id": "0"}']
    lines += [f'{{"t": 0, "id": "{n}", "deps": ["{n - 1}"]}}' for n in range(1, 10_000)]
    path = written(tmp_path, "chain.jsonl", "\n".join([*lines, '{"t": 0, "id": "alone"}']))
    source = {"kind": "trace", "file": str(path)}
    found = read_scenario({"seconds": 50, "arrivals": [source]}).arrivals(0)
    assert [one.key for one in found] == ["alone"]


def test_lines_that_name_their_graph_do_not_share_it_with_others(tmp_path):
    lines: list[dict[str, Any]] = [
        {"t": 0, "id": "a", "dag": 0},
        {"t": 0, "id": "b", "dag": 0},
        {"t": 0, "id": "c"},
        {"t": 0, "id": "d", "deps": ["c"]},
        {"t": 0, "id": "e"},
    ]
    path = written(tmp_path, "ours.jsonl", "\n".join(map(json.dumps, lines)))
    first = [one.dag for one in read(path)]
    assert first[0] == first[1] != first[2] == first[3]
    assert first[4] == -1
    source = {"kind": "trace", "file": str(path)}
    both = [one.dag for one in read_scenario({"arrivals": [source, source]}).arrivals(0)]
    assert len({dag for dag in both if dag >= 0}) == 4
