"""What is shipped to watch a server can be evaluated, and asks for metrics and labels that a live server shows."""

import asyncio
import json
import re
import shutil
import subprocess
import urllib.request
from typing import Any

import pytest
from ruamel.yaml import YAML

from fairlead.server.shipping import read
from tests.gateway.rig import until
from tests.server.rig import HERE, begun, configured, process, run, served

METRIC = re.compile(r"\bfairlead_[a-z0-9_]+")
AGGREGATIONS = {"sum", "max"}
FUNCTIONS = {"rate", "increase", "deriv", "histogram_quantile", "clamp_min"}
WORDS = {"by", "and"}  # what else may stand before a bracket
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def panels():
    """Each query of the Grafana dashboard: what it asks, and the legend over it."""
    for panel in json.loads(read("grafana"))["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


def alerts():
    """Each alert: what it asks, and the sentences about it."""
    rules = YAML(typ="safe").load(read("alerts"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["expr"], " ".join(rule["annotations"].values())


def expressions():
    return [expr for expr, _ in (*panels(), *alerts())]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """What a server with every door shows at /metrics."""

    async def scrape():
        async with process(tmp_path_factory.mktemp("serve"), "--listen", "127.0.0.1:0") as serving:
            url = await begun(serving)

            def read_all():
                with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                    return answer.read().decode()

            text = ""
            # Whoever plans shows the slots, and whoever reads a partition how far behind it is.
            while not all(
                sign in text for sign in ("fairlead_jobs_leader 1", "fairlead_streams_lag{")
            ):
                text = await asyncio.to_thread(read_all)
            serving.process.terminate()
            assert await serving.ended() == 0
            return text

    return run(scrape)


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """The labels of each family of a server, also of one that has nothing to count yet and so shows no series."""
    point = {
        "concurrency": {"max_concurrency": 2},
        "load": {"controller": "aimd", "signal": "latency_p95", "setpoint": "250ms"},
    }
    flows = {"http": HERE, "control_points": {"checkout": point}}

    async def gather():
        settings = configured(tmp_path_factory.mktemp("declared"), flows=flows)
        async with served(settings) as client:
            doors = client.server.doors

            @doors[2].jobs.task  # type: ignore[attr-defined]
            async def work() -> None:
                """Make the jobs door plan: without tasks it is a view."""

            def found():
                families: list[Any] = [family for door in doors for family in door.families()]
                return {family.name: set(family._labelnames) for family in families}

            await until(lambda: "fairlead_jobs_busy" in found())  # whoever plans shows it
            return found()

    return run(gather)


@pytest.fixture(scope="module")
def labels(scraped, declared):
    """Tell the labels of a metric: those of its series, or while it has none those that it is declared with."""

    def labels_of(name):
        series = re.findall(rf"^{name}(\{{.*\}})? \S+$", scraped, re.MULTILINE)
        if series:
            (found,) = {frozenset(re.findall(r'(\w+)="', one)) for one in series}
            return found
        return declared[re.sub("_(total|bucket|sum|count)$", "", name)]

    return labels_of


def unknown(names, text):
    shown = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    histograms = set(re.findall(r"^# TYPE (\S+) histogram", text, re.MULTILINE))
    shown |= {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    return {name for name in names if name not in shown}


def test_every_metric_named_exists_in_a_live_scrape(scraped):
    named = {name for expr in expressions() for name in METRIC.findall(expr)}
    assert len(named) > 30
    assert not unknown(named, scraped)


def test_a_metric_that_does_not_exist_would_be_found(scraped):
    assert unknown({"fairlead_gate_waiting", "fairlead_gate_wating"}, scraped) == {
        "fairlead_gate_wating"
    }


def selected(expr):
    """Which labels each metric is selected by."""
    for name, selector in re.findall(r"(fairlead_[a-z0-9_]+)\{([^}]*)\}", expr):
        for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector):
            yield name, label


def grouped(expr):
    """Which labels are kept by each aggregation, and of which metrics: `sum by (these) (of those)`."""
    kept = r"\b(\w+) by \(([^)]*)\) \("
    assert len(re.findall(kept, expr)) == len(re.findall(r"\b(?:by|without)\b", expr)), expr
    for found in re.finditer(kept, expr):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(expr[end], 0)
            end += 1
        for label in re.split(r",\s*", found[2]):
            for name in METRIC.findall(expr[found.end() : end]):
                yield name, label


def wrong_labels(expr, labels):
    asked = [*selected(expr), *grouped(expr)]
    return [(name, label) for name, label in asked if label not in labels(name)]


def test_every_label_named_exists_in_a_live_scrape(labels):
    """A label that no series has selects nothing, or makes one group of all, for ever and in silence."""
    for expr in expressions():
        assert not wrong_labels(expr, labels), expr
    assert sum(len([*selected(expr)]) for expr in expressions()) > 5
    assert sum(len([*grouped(expr)]) for expr in expressions()) > 30


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("sum by (controlpoint) (rate(fairlead_flows_rejected_tokens_total[5m]))", "controlpoint"),
        ("sum by (gate) (fairlead_gate_waiting) > 0 and sum by (gat) (fairlead_gate_slots)", "gat"),
        ("sum by (le, klass) (rate(fairlead_gateway_queue_wait_seconds_bucket[5m]))", "klass"),
        ("sum by (by_klass) (rate(fairlead_gateway_preemptions_total[5m]))", "by_klass"),
        ('fairlead_gate_waiting{gat=~"x"}', "gat"),
    ],
)
def test_a_label_that_does_not_exist_would_be_found(labels, expr, found):
    assert [label for _, label in wrong_labels(expr, labels)] == [found]


@pytest.mark.parametrize(
    ("pairs", "mark"), [(panels, r"\{\{\s*(\w+)\s*\}\}"), (alerts, r"\$labels\.(\w+)")]
)
def test_what_a_legend_or_a_sentence_names_is_in_the_result(labels, pairs, mark):
    named = 0
    for expr, text in pairs():
        kept = {label for _, label in grouped(expr)}
        if not kept and not re.search(rf"\b({'|'.join(AGGREGATIONS)})\(", expr):
            kept = set.union(*(set(labels(name)) for name in METRIC.findall(expr)))
        for label in re.findall(mark, text):
            assert label in kept - {"le"}, (expr, text)
            named += 1
    assert named >= 5


def test_the_dashboard_s_variables_are_filled_from_labels_there_are(labels):
    variables = json.loads(read("grafana"))["templating"]["list"]
    queries = [one["query"]["query"] for one in variables if one["type"] == "query"]
    assert queries
    for query in queries:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert found is not None, query
        assert found[2] in labels(found[1])
    named = {name for expr, _ in panels() for name in re.findall(r"\$(\w+)", expr)}
    assert named == {one["name"] for one in variables if one["type"] == "query"} | {
        "__rate_interval"
    }


def test_every_function_called_is_one_of_promql():
    """Also where there is no promtool."""
    for expr in expressions():
        bare = re.sub(r"\{[^}]*\}", "", expr)
        called = set(re.findall(r"\b([a-z_]+)\s*\(", bare))
        assert called <= AGGREGATIONS | FUNCTIONS | WORDS, expr


def checked_by_promtool(path, text):
    path.write_text(text)
    return subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)


def as_rules(queries):
    """Queries of Grafana as rules of Prometheus, with what Grafana puts in place of its variables."""
    filled = [query.replace("$__rate_interval", "5m").replace("$gate", ".*") for query in queries]
    rules = [{"record": f"grafana:{at}", "expr": expr} for at, expr in enumerate(filled)]
    return json.dumps({"groups": [{"name": "grafana", "rules": rules}]})  # JSON is YAML


@needs_promtool
def test_promtool_accepts_the_alert_rules(tmp_path):
    found = checked_by_promtool(tmp_path / "alerts.yaml", read("alerts"))
    assert found.returncode == 0, found.stdout + found.stderr


@needs_promtool
def test_promtool_accepts_every_query_of_the_dashboard(tmp_path):
    queries = [expr for expr, _ in panels()]
    found = checked_by_promtool(tmp_path / "grafana.yaml", as_rules(queries))
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{len(queries)} rules found" in found.stdout


@needs_promtool
def test_a_query_that_cannot_be_read_would_be_found(tmp_path):
    queries = ["histogram_quantil(0.9, sum by (le) (rate(x_bucket[$__rate_interval])))"]
    found = checked_by_promtool(tmp_path / "grafana.yaml", as_rules(queries))
    assert found.returncode != 0
    assert "histogram_quantil" in found.stdout + found.stderr


def test_the_grafana_dashboard_is_whole():
    board = json.loads(read("grafana"))
    assert board["title"]
    assert board["schemaVersion"] >= 36
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["targets"]
            assert panel["title"]
            assert panel["description"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
