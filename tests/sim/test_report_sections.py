"""The report's page is complete: every section, every table of every section, a row for each group, a drawing each."""

import re
from dataclasses import dataclass

import pytest

from fairlead.sim.figures import summarise
from fairlead.sim.report import Contender, make_report
from fairlead.sim.report_page import MANY, report_html
from tests.sim.handmade import run

CLASSES = ["interactive", "default", "bulk"]
TENANTS = ["tenant-a", "tenant-b", "tenant-c"]
WORKLOADS = ["batch", "chat"]
POLICIES = ["fifo", "ranked"]
PERCENTILES = ["mean", "p50", "p90", "p95", "p99", "p99.9", "longest"]
WAITS = [f"{one} wait" for one in PERCENTILES]
COMPLETIONS = [f"{one} completion" for one in PERCENTILES]
OUTCOMES = ["done", "refused", "expired", "evicted", "withdrawn", "unfinished"]
BECAME = [
    *("arrived", "done", "done per second", "refused", "expired waiting"),
    *("preempted for good", "withdrawn", "unfinished"),
]
TURNS = ["deadlines missed", "with a deadline", "preemptions", "promotions"]
SHARES = ["share", "max-min fair share"]
GLANCE = ["p50 wait", "p99 wait", "p95 completion", "done", "lost", "deadlines missed"]
WHOLE = [
    "done per second",
    "utilisation",
    "given past its fair owner",
    "preemptions",
    "promotions",
]


def eventful(policy: str, seed: int, *, ranked: bool = False):
    """A run in which everything that can become of a ticket became of some, so that no column is empty."""
    result = run(policy, seed, ranked=ranked)
    never = [row for row in result.tickets if row.state == "refused"]
    for row, state in zip(never, ("expired", "withdrawn", "waiting"), strict=False):
        row.state = state
    ran = next(row for row in result.tickets if row.state == "done")
    ran.state, ran.preempted = "evicted", 1
    return result


@dataclass
class Table:
    columns: list[str]
    groups: list[str]
    policies: list[str]
    cells: list[str]


@dataclass
class Section:
    heading: str
    tables: dict[str, Table]
    drawings: list[str]
    headings: list[str]
    legend: list[str]
    folded: list[str]
    text: str


def table_of(text: str) -> Table:
    return Table(
        re.findall(r'<th scope="col">([^<]*)</th>', text),
        re.findall(r'<th scope="rowgroup"[^>]*>([^<]*)</th>', text),
        re.findall(r'<th scope="row" class="policy"><i [^>]*></i>([^<]*)</th>', text),
        re.findall(r"<td>(.*?)</td>", text),
    )


def sections_of(text: str) -> dict[str, Section]:
    found = {}
    for name, heading, body in re.findall(
        r'<section id="(\w+)" aria-labelledby="\1-h"><h2 id="\1-h">([^<]*)</h2>(.*?)</section>',
        text,
        re.DOTALL,
    ):
        tables = re.findall(r"<table>.*?</table>", body, re.DOTALL)
        captions = [re.findall(r"<caption>([^<]*)</caption>", one) for one in tables]
        assert all(len(one) == 1 for one in captions)
        found[name] = Section(
            heading,
            {caption: table_of(one) for (caption,), one in zip(captions, tables, strict=True)},
            re.findall(r"<svg .*?<title id=[^>]+>([^<]+)</title>", body, re.DOTALL),
            re.findall(r"<h3>([^<]*)</h3>", body),
            re.findall(r'<li><i class="swatch[^>]*></i>([^<]*)</li>', body),
            re.findall(r"<summary>([^<]*)</summary>", body),
            body,
        )
        assert len(found[name].tables) == len(tables), "two tables with one caption"
    return found


@pytest.fixture(scope="module")
def text():
    return report_html(
        make_report(
            "overload",
            "seconds: 120\n",
            [
                Contender(name, f"policy: {name}", [summarise(one) for one in runs])
                for name, runs in (
                    ("fifo", [eventful("fifo", seed) for seed in (1, 2)]),
                    ("ranked", [eventful("ranked", seed, ranked=True) for seed in (1, 2)]),
                )
            ],
        )
    )


@pytest.fixture(scope="module")
def sections(text):
    return sections_of(text)


def test_every_section_is_there_in_its_order_and_reached_from_the_top(text, sections):
    shown = {
        "short": "In short",
        "glance": "At a glance",
        "differences": "Differences",
        "waits": "Waits",
        "time": "Over time",
        "outcomes": "Outcomes",
        "shares": "Shares",
        "tenants": "Tenants",
        "workloads": "Workloads",
        "method": "How to read this",
        "inputs": "What was simulated",
    }
    assert list(sections) == list(shown)
    assert {name: one.heading for name, one in sections.items()} == shown
    (navigation,) = re.findall(r"<nav [^>]*>(.*?)</nav>", text)
    assert dict(re.findall(r'<a href="#(\w+)">([^<]*)</a>', navigation)) == shown


BY = {
    dimension: {
        f"Each {dimension}": [*GLANCE[:3], "arrived", *GLANCE[3:], *SHARES],
        f"Waits by {dimension}": WAITS,
        f"Completions by {dimension}": COMPLETIONS,
        f"What became of what arrived, by {dimension}": BECAME,
        f"Deadlines, preemptions and promotions by {dimension}": [*TURNS, *SHARES],
    }
    for dimension in ("tenant", "workload")
}


@pytest.mark.parametrize(
    ("name", "groups", "tables"),
    [
        ("short", [], {}),
        ("glance", CLASSES, {"Each class, with 95 % confidence over the seeds": GLANCE}),
        ("glance", ["all"], {"Everybody together": GLANCE, "The whole": WHOLE}),
        ("differences", [], {}),
        (
            "waits",
            CLASSES,
            {
                "Waits of what was given room, by class": WAITS,
                "From arrival to end of what was done, by class": COMPLETIONS,
            },
        ),
        ("time", [], {}),
        (
            "outcomes",
            CLASSES,
            {
                "What became of what arrived, by class": BECAME,
                "Deadlines, preemptions, promotions and shares, by class": [*TURNS, *SHARES],
            },
        ),
        ("shares", [], {}),
        ("tenants", TENANTS, BY["tenant"]),
        ("workloads", WORKLOADS, BY["workload"]),
    ],
)
def test_every_table_has_its_columns_and_a_row_for_each_group_and_policy(
    sections, name, groups, tables
):
    found = sections[name].tables
    if name != "glance":  # whose tables are of two kinds of groups
        assert list(found) == list(tables)
    for caption, columns in tables.items():
        table = found[caption]
        assert table.columns == columns
        assert table.groups == groups
        assert table.policies == POLICIES * len(groups)
        assert len(table.cells) == len(columns) * len(groups) * len(POLICIES)
        assert sum(any(sign.isdigit() for sign in cell) for cell in table.cells) > len(groups)


@pytest.mark.parametrize(
    ("name", "drawings", "headings", "legend"),
    [
        ("differences", ["Waits and completions under ranked, against fifo"], [], []),
        ("waits", [f"Waits of {one} by percentile" for one in CLASSES], CLASSES, POLICIES),
        (
            "time",
            [f"In use and waiting over time under {one}" for one in POLICIES],
            POLICIES,
            CLASSES,
        ),
        ("outcomes", ["What became of each class"], [], OUTCOMES),
        (
            "shares",
            [
                f"Shares by {one}, against max-min fair ones"
                for one in ("tenant", "class", "workload")
            ],
            ["by tenant", "by class", "by workload"],
            POLICIES,
        ),
    ],
)
def test_every_drawing_is_there_with_its_names(sections, name, drawings, headings, legend):
    section = sections[name]
    assert section.drawings == drawings
    assert section.headings == headings
    assert section.legend == legend


def test_utilisation_is_drawn_over_time_against_the_slots(sections):
    drawn = re.findall(r"<svg .*?</svg>", sections["time"].text, re.DOTALL)
    assert len(drawn) == len(POLICIES)
    for one in drawn:
        for part in ("in use", "waiting", "4 slots"):
            assert f">{part}</text>" in one
        (line,) = re.findall(r'<path class="used" d="([^"]+)"', one)
        assert line.count("L") > 20


def test_what_was_simulated_and_how_to_read_it_are_told(sections):
    assert sections["inputs"].folded == ["The scenario", "The policy fifo", "The policy ranked"]
    for said in ("seconds: 120", "policy: fifo", "policy: ranked", "Counted over all seeds"):
        assert said in sections["inputs"].text
    assert "Student’s t" in sections["method"].text
    assert sections["short"].text.count("<li>") >= 3


def test_one_policy_has_no_differences_and_one_tenant_no_section():
    result = run("only", 1, seconds=30)
    for row in result.tickets:
        row.tenant = row.workload = "everybody"
    found = sections_of(
        report_html(make_report("s", "", [Contender("only", "", [summarise(result)])]))
    )
    assert not {"differences", "tenants", "workloads"} & set(found)
    assert {"glance", "waits", "time", "outcomes", "shares", "method", "inputs"} <= set(found)


def test_many_tenants_are_folded_away_and_all_there():
    result = run("only", 1, seconds=30)
    names = [f"t{number:02}" for number in range(MANY + 1)]
    for number, row in enumerate(result.tickets):
        row.tenant = names[number % len(names)]
    found = sections_of(
        report_html(make_report("s", "", [Contender("only", "", [summarise(result)])]))
    )
    assert found["tenants"].folded == [f"All {len(names)}", "All figures by tenant"]
    for table in found["tenants"].tables.values():
        assert sorted(table.groups) == names
