"""What is shipped works: it is read, it fits its schema, it names only what there is."""

import random
import re
import shutil
import subprocess
from configparser import ConfigParser

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from fairlead.cli import main
from fairlead.errors import ConfigError
from fairlead.server import demo, demo_traffic
from fairlead.server.loading import load
from fairlead.server.shipping import SHIPPED, read
from fairlead.sim import Scenario, read_policy, simulate
from fairlead.sim.result import Arrival


def yaml(name):
    return YAML(typ="safe").load_all(read(name))


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


# Of the Compose specification, what a level may hold; a level that is not here is the user's own names or values.
KEYS = {
    "": {"name", "services", "networks", "volumes", "configs", "secrets", "include"},
    "services.*": {
        *("annotations", "build", "cap_add", "cap_drop", "command", "configs", "container_name"),
        *(
            "cpus",
            "depends_on",
            "deploy",
            "devices",
            "dns",
            "entrypoint",
            "env_file",
            "environment",
        ),
        *("expose", "extra_hosts", "healthcheck", "hostname", "image", "init", "labels", "logging"),
        *("mem_limit", "networks", "platform", "ports", "privileged", "profiles", "pull_policy"),
        *("read_only", "restart", "secrets", "security_opt", "stop_grace_period", "stop_signal"),
        *("sysctls", "tmpfs", "tty", "ulimits", "user", "volumes", "working_dir"),
    },
    "services.*.depends_on.*": {"condition", "required", "restart"},
    "services.*.healthcheck": {
        *("test", "interval", "timeout", "retries", "start_period", "start_interval", "disable"),
    },
    "volumes.*": {"driver", "driver_opts", "external", "labels", "name"},
}
NAMES = {"services", "volumes", "services.*.depends_on", "services.*.environment"}


def unknown_keys(document, level=""):
    """Find the keys of a compose file that nobody would read."""
    if not isinstance(document, dict):
        return
    assert level in KEYS or level in NAMES, level
    for key, value in document.items():
        if level in KEYS and key not in KEYS[level]:
            yield f"{level}.{key}".lstrip(".")
        else:
            inner = "*" if level in NAMES else key
            yield from unknown_keys(value, f"{level}.{inner}".lstrip("."))


def test_the_compose_file_has_only_keys_that_compose_knows():
    (document,) = yaml("compose")
    assert not list(unknown_keys(document))


def test_a_key_that_compose_does_not_know_would_be_found():
    (document,) = yaml("compose")
    document["service"] = {}
    document["services"]["fairlead"]["restarts"] = "always"
    document["services"]["worker"]["depends_on"]["postgres"]["conditon"] = "service_started"
    document["services"]["valkey"]["healthcheck"]["retry"] = 3
    document["volumes"]["postgres"]["size"] = "1g"
    assert set(unknown_keys(document)) == {
        "service",
        "services.*.restarts",
        "services.*.depends_on.*.conditon",
        "services.*.healthcheck.retry",
        "volumes.*.size",
    }


def test_the_compose_file_names_what_it_uses():
    """No engine is at hand to read it: what can be seen without one."""
    (document,) = yaml("compose")
    services = document["services"]
    assert set(services) == {"fairlead", "worker", "postgres", "valkey"}
    for service in services.values():
        assert "image" in service
        assert set(service.get("depends_on", ())) <= set(services)
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] == "service_healthy"
            assert "test" in services[needed]["healthcheck"]
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source.startswith("./") or source in document["volumes"]


def test_a_worker_is_asked_for_and_finds_the_tasks_it_names():
    """They are not in the image: without them a worker would start, fail and start again for ever."""
    (document,) = yaml("compose")
    worker = document["services"]["worker"]
    assert worker["profiles"] == ["worker"]
    command, option, app = worker["command"]
    assert (command, option) == ("worker", "--app")
    (home,) = re.findall(r"^WORKDIR (/var\S+)$", read("dockerfile"), re.MULTILINE)
    package = app.partition(".")[0]
    assert worker["volumes"] == [f"./{package}:{home}/{package}:ro"]
    assert worker["healthcheck"] == {"disable": True}  # the image's own asks a server


# What the unit says; a name that is not here is new, or wrong and so passed over by systemd with a line in the log.
DIRECTIVES = {
    "Unit": {"Description", "Documentation", "After", "Wants", "Requires"},
    "Service": {
        *("Type", "User", "Group", "WorkingDirectory", "StateDirectory", "ExecStartPre"),
        *("ExecStart", "ExecReload", "KillSignal", "TimeoutStopSec", "Restart", "RestartSec"),
        *("LimitNOFILE", "Environment", "EnvironmentFile", "NoNewPrivileges", "PrivateTmp"),
        *("ProtectSystem", "ProtectHome", "ProtectKernelTunables", "ProtectControlGroups"),
        *("RestrictAddressFamilies", "LockPersonality"),
    },
    "Install": {"WantedBy"},
}


def unit_of(text):
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    return unit


def test_the_unit_has_only_directives_that_systemd_knows():
    unit = unit_of(read("systemd"))
    assert set(unit.sections()) == set(DIRECTIVES)
    for section, known in DIRECTIVES.items():
        assert set(unit[section]) <= known


def verified(path, text):
    """What systemd says of a unit whose program is there."""
    path.write_text(text.replace("/opt/fairlead/bin/fairlead", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    # It may also tell of units of this machine, which are not ours.
    return [line for line in done.stderr.splitlines() if path.stem in line]


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_systemd_accepts_the_unit_and_would_not_accept_a_wrong_one(tmp_path):
    assert not verified(tmp_path / "fairlead.service", read("systemd"))
    wrong = read("systemd").replace("TimeoutStopSec=", "TimeoutStopSecs=")
    (line,) = verified(tmp_path / "wrong.service", wrong)
    assert "TimeoutStopSecs" in line


def test_the_unit_ends_later_than_the_server_drains():
    unit = unit_of(read("systemd"))
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


def demonstrated(tmp_path, **interactive):
    """Simulate ten minutes of the demo's callers, at their mean rates, under its own settings."""
    scheduler = demo.settings(tmp_path, dict.fromkeys(demo.PORTS, "127.0.0.1:0"))["gateway"][
        "priority_scheduler"
    ]
    rng, arrivals = random.Random(1), []
    for caller in demo_traffic.CALLERS:
        at = 0.0
        while (at := at + rng.expovariate(caller.rate / caller.batch)) < 600:
            for _ in range(caller.batch):
                first = rng.uniform(*demo.FIRST_BYTE)
                work = caller.tokens * demo.PER_TOKEN * rng.lognormvariate(0.0, 0.3)
                arrival = Arrival(at, first + work, caller.priority, caller.tenant)
                arrivals.append(arrival._replace(commits=first))
    arrivals.sort(key=lambda one: one.at)
    policy = read_policy({"preset": "gateway", "capacity": demo.SLOTS, **scheduler})
    if interactive:
        changes = {f"classes.interactive.{name}": value for name, value in interactive.items()}
        policy = policy.with_settings(changes, name="changed")
    rows = simulate(Scenario.of(arrivals), policy, 1).tickets
    waits = sorted(row.wait or 0.0 for row in rows if row.cls == "interactive")
    return rows, waits[int(0.99 * len(waits))]


def test_the_demonstration_is_healthy_and_its_reservation_pays(tmp_path):
    """`FairleadGatewayPreemptsMuch` warns of one request in ten; and nothing is refused where all is well."""
    rows, p99 = demonstrated(tmp_path)
    assert sum(row.preempted for row in rows) < 0.05 * len(rows)
    assert {row.state for row in rows} <= {"done", "evicted"}
    without, p99_without = demonstrated(tmp_path, reserved_per_slot=0.0)
    assert p99_without > 1.5 * p99
    assert sum(row.preempted for row in without) > sum(row.preempted for row in rows)
