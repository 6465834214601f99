"""The report: one document, one page that nothing can make run or fetch anything, the same bytes every time."""

import json
import re
from html.parser import HTMLParser

import pytest

from fairlead.errors import ConfigError
from fairlead.sim.figures import summarise
from fairlead.sim.report import NOBODY, Contender, dump, make_report, rounded
from fairlead.sim.report_page import report_html
from fairlead.sim.words import amount, change, duration, part, relative
from tests.sim.handmade import run

SEEDS = range(1, 5)


@pytest.fixture(scope="module")
def document():
    return make_report(
        "overload",
        "seconds: 120\n",
        [
            Contender("fifo", "policy: fifo", [summarise(run("fifo", seed)) for seed in SEEDS]),
            Contender(
                "ranked",
                "policy: ranked",
                [summarise(run("ranked", seed, ranked=True)) for seed in SEEDS],
            ),
        ],
    )


class Reader(HTMLParser):
    """Reads a page strictly: tags close in order, ids are unique."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.named: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"] or "")
        if tag == "a":
            self.links.append(found.get("href") or "")
        self.named += (found.get("aria-labelledby") or "").split()
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_is_well_formed_and_its_names_lead_somewhere(document):
    reader = read(report_html(document))
    assert len(set(reader.ids)) == len(reader.ids)
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    assert set(reader.named) <= set(reader.ids)
    assert reader.tags.count("h1") == 1
    assert reader.tags.count("svg") >= 8
    assert reader.tags.count("table") == reader.tags.count("caption")


def test_the_page_fetches_and_runs_nothing(document):
    text = report_html(document)
    reader = read(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base"} & set(
        reader.tags
    )
    assert not any(name.startswith("on") for name, _ in reader.attributes)
    assert not any(name in {"src", "srcset", "action"} for name, _ in reader.attributes)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert "default-src 'none'" in text


def test_every_drawing_says_in_words_what_it_shows(document):
    text = report_html(document)
    drawings = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    for drawing in drawings:
        assert 'role="img"' in drawing
        assert re.search(r"<title id=[^>]+>[^<]+</title><desc id=[^>]+>[^<]+</desc>", drawing)
        assert not re.search(r'[" ,ML-](nan|inf)[",LZ ]', drawing)


def test_names_are_shown_as_they_are_and_never_as_markup():
    evil = '<script>alert("x")</script>&'
    result = run("p", 1, seconds=30)
    for row in result.tickets:
        row.tenant = row.workload = row.cls = evil
    other = run("p", 1, seconds=30)
    other.tickets[0].tenant = '" onload="x'
    document = make_report(
        evil,
        evil,
        [Contender(evil, evil, [summarise(result)]), Contender("b", evil, [summarise(other)])],
    )
    text = report_html(document)
    reader = read(text)
    assert "script" not in reader.tags
    assert not any(name.startswith("on") for name, _ in reader.attributes)
    assert "&lt;script&gt;" in text


def test_the_document_says_everything_and_is_json(document):
    told = json.loads(dump(document))
    assert told == document
    assert told["seeds"] == list(SEEDS)
    assert told["groups"]["class"] == ["interactive", "default", "bulk"]
    figures = told["figures"]["fifo"]["class"]["interactive"]["wait.p99"]
    assert figures["mean"] == pytest.approx(sum(figures["values"]) / 4, rel=1e-4)
    assert figures["low"] < figures["mean"] < figures["high"]
    difference = told["differences"]["ranked"]["class"]["interactive"]["wait.p99"]
    assert difference["verdict"] == "better"
    assert difference["high"] < 0
    assert told["differences"]["ranked"]["class"]["bulk"]["wait.p99"]["verdict"] == "worse"


def test_sentences_say_who_gained_and_who_paid(document):
    said = document["sentences"]
    assert any(sentence.startswith("Under ranked, interactive waits ") for sentence in said)
    assert any("bulk waits" in sentence for sentence in said)
    assert not any("one seed" in sentence for sentence in said)


def test_one_policy_and_one_seed_are_enough():
    document = make_report(
        "s", "", [Contender("only", "", [summarise(run("only", 1, seconds=30))])]
    )
    text = report_html(document)
    read(text)
    assert "one seed" in text
    assert document["sentences"][0].startswith("interactive waited ")
    assert document["differences"] == {}


def test_nobody_who_came_is_a_report_too():
    empty = run("p", 1, seconds=30)
    empty.tickets, empty.utilisation, empty.horizon = [], [], 0.0
    none_served = run("q", 1, seconds=30)
    for row in none_served.tickets:
        row.started, row.ended, row.state = None, row.at, "refused"
    for results in ([empty], [none_served], [none_served, empty]):
        found = [Contender(f"p{index}", "", [summarise(one)]) for index, one in enumerate(results)]
        document = make_report("s", "", found)
        read(report_html(document))
        json.loads(dump(document))
        said = document["sentences"]
        assert (said == [f"{NOBODY}."]) == (results == [empty])
    with pytest.raises(ConfigError, match="nothing to report"):
        make_report("s", "", [])


def test_numbers_are_rounded_and_zero_has_no_sign():
    assert rounded({"a": [1 / 3, -0.0, 5, None, "x"]}) == {"a": [0.333333, 0.0, 5, None, "x"]}
    assert str(rounded(-0.0)) == "0.0"


def test_the_same_runs_make_the_same_bytes(document):
    again = make_report(
        "overload",
        "seconds: 120\n",
        [
            Contender("fifo", "policy: fifo", [summarise(run("fifo", seed)) for seed in SEEDS]),
            Contender(
                "ranked",
                "policy: ranked",
                [summarise(run("ranked", seed, ranked=True)) for seed in SEEDS],
            ),
        ],
    )
    assert dump(again) == dump(document)
    assert report_html(again) == report_html(document) == report_html(json.loads(dump(document)))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (duration(0.0004), "400 µs"),
        (duration(0.99951), "1 s"),
        (duration(59.96), "60 s"),
        (duration(3600), "60 min"),
        (amount("wait.p99", None), "–"),
        (amount("arrived", 12345.0), "12,345"),
        (amount("throughput", 0.1234), "0.123/s"),
        (part(1.0), "100 %"),
        (change("lost", -0.012), "−1.2 pp"),
        (change("wait.p99", 0.25), "+250 ms"),
        (change("wait.p99", 0.0), "±0 s"),
        (relative(1.99), "+199 %"),
        (relative(-1.0), "−100 %"),
    ],
)
def test_figures_are_written_for_people(written, said):
    assert written == said


def test_dags_have_a_section_where_there_are_any(document):
    assert 'id="dags"' not in report_html(document)
    with_dags = run("p", 1, seconds=30)
    for number, row in enumerate(with_dags.tickets):
        row.dag = number // 3
    told = make_report("s", "", [Contender("p", "", [summarise(with_dags)])])
    text = report_html(told)
    read(text)
    assert "Whole DAGs, by class" in text
    assert "Whole DAGs, by tenant" in text
