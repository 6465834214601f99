"""What is shipped works: it is read, it names only metrics that a live server shows, it fits its schema."""

import asyncio
import json
import re
import shutil
import subprocess
import urllib.request
from configparser import ConfigParser

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from fairlead.cli import main
from fairlead.errors import ConfigError
from fairlead.server import demo, demo_traffic
from fairlead.server.loading import load
from fairlead.server.shipping import SHIPPED, read
from fairlead.sim import read_policy, read_scenario, simulate
from tests.server.rig import begun, process, run

METRIC = re.compile(r"\bfairlead_[a-z0-9_]+")


def yaml(name):
    return YAML(typ="safe").load_all(read(name))


def expressions():
    for panel in json.loads(read("grafana"))["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    (rules,) = yaml("alerts")
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


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
            while "fairlead_jobs_leader 1" not in text:  # whoever plans shows the slots
                text = await asyncio.to_thread(read_all)
            serving.process.terminate()
            assert await serving.ended() == 0
            return text

    return run(scrape)


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


def test_every_label_named_exists_in_a_live_scrape(scraped):
    """A selector with a label that no series has matches nothing, for ever and in silence."""
    for expr in expressions():
        for name, selector in re.findall(r"(fairlead_[a-z0-9_]+)\{([^}]*)\}", expr):
            for label in re.findall(r"(\w+)\s*(?:=~|=|!=|!~)", selector):
                series = re.findall(rf"^{name}\{{([^}}]*)\}}", scraped, re.MULTILINE)
                assert not series or any(f'{label}="' in one for one in series), (expr, label)


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)
def test_promtool_accepts_the_alert_rules(tmp_path):
    path = tmp_path / "alerts.yaml"
    path.write_text(read("alerts"))
    found = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


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


def test_the_configuration_has_no_fault_and_no_warning(tmp_path):
    path = tmp_path / "fairlead.yaml"
    path.write_text(read("config"))
    loaded = load(str(path))
    assert not loaded.problems, loaded.lines
    assert not loaded.warnings


def test_what_is_commented_out_in_the_configuration_is_right_too(tmp_path):
    """Whoever takes the mark away must not find a mistake of ours."""
    text = re.sub(
        r"^(\s*)# (?=[ ]*(?:tokens|tls|upstreams|tenant_policies|redis|quota|pools|gpu|- \{)|  \"header)",
        r"\1",
        read("config"),
        flags=re.MULTILINE,
    )
    text = text.replace("# upstreams:", "upstreams:")
    (tmp_path / "server.pem").write_text("")
    (tmp_path / "server.key").write_text("")
    path = tmp_path / "fairlead.yaml"
    path.write_text(text)
    loaded = load(str(path))
    assert not loaded.problems, loaded.lines
    assert loaded.settings.server.tokens
    assert loaded.gateway is not None
    assert len(loaded.gateway.settings.upstreams) == 2
    assert set(loaded.settings.pools["gpu"].doors) == {
        "gateway/default",
        "flows/checkout",
        "jobs/leader",
    }


def test_the_kubernetes_manifests_fit_their_schemas():
    kinds = []
    for document in yaml("kubernetes"):
        kubernetes_validate.validate(document, "1.30", strict=True)
        kinds.append(document["kind"])
    assert kinds == ["Deployment", "Service", "PodDisruptionBudget"]


def test_a_wrong_manifest_would_be_found():
    deployment = next(iter(yaml("kubernetes")))
    deployment["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, "1.30", strict=True)


def test_the_compose_file_names_what_it_uses():
    """No engine is at hand to read it: what can be seen without one."""
    (document,) = yaml("compose")
    services = document["services"]
    for service in services.values():
        assert "image" in service
        assert set(service.get("depends_on", ())) <= set(services)
        for needed in service.get("depends_on", ()):
            assert "healthcheck" in services[needed]
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source.startswith("./") or source in document["volumes"]


def test_the_unit_ends_later_than_the_server_drains():
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(read("systemd"))
    assert unit["Service"]["ExecStart"].endswith("serve --config /etc/fairlead/fairlead.yaml")
    assert float(unit["Service"]["TimeoutStopSec"]) > 30
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_image_runs_the_server_as_nobody_special():
    lines = [line for line in read("dockerfile").splitlines() if not line.startswith("#")]
    said = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert said.index("USER") < said.index("ENTRYPOINT")
    assert 'CMD ["serve", "--config", "/etc/fairlead/fairlead.yaml"]' in lines


@pytest.mark.parametrize("name", SHIPPED)
def test_everything_is_exported(name, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", name]) == 0
    assert capsys.readouterr().out == read(name)
    assert main(["export", name, "--out", str(out)]) == 0
    assert out.read_text() == read(name)
    assert main(["export", name, "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err


def test_what_there_is_is_told(capsys):
    assert main(["export"]) == 0
    assert all(name in capsys.readouterr().out for name in ("grafana",))
    assert main(["export", "grafna"]) == 2
    assert "grafana" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        read("../settings.py")


def test_the_demonstration_preempts_less_than_its_alerts_warn_of(tmp_path):
    """`FairleadGatewayPreemptsMuch` warns of one request in ten; the demo's callers, at their mean rates."""
    scheduler = demo.settings(tmp_path, dict.fromkeys(demo.PORTS, "127.0.0.1:0"))["gateway"][
        "priority_scheduler"
    ]
    scenario = {
        "seconds": "10m",
        "arrivals": [
            {
                "kind": "poisson",
                "class": caller.priority,
                "tenant": caller.tenant,
                "rate": caller.rate,
                "service": {"lognormal": {"median": "202ms", "p95": "460ms"}},
            }
            for caller in demo_traffic.CALLERS
        ],
    }
    policy = {"preset": "gateway", "capacity": demo.SLOTS, **scheduler}
    rows = simulate(read_scenario(scenario), read_policy(policy)).tickets
    preempted = sum(row.preempted for row in rows)
    assert 0 < preempted < 0.08 * sum(row.started is not None for row in rows)
