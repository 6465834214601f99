"""`fairlead gateway check`, `fairlead config schema`, and how the proxy is started."""

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from fairlead.cli import main

VALID = """\
upstreams: [{url: "http://127.0.0.1:9001", capacity: 256}]
priority_scheduler:
  enabled: true
  default_max_class: interactive
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "gateway.yaml"


def check(file: Path, text: str) -> int:
    file.write_text(text)
    return main(["gateway", "check", str(file)])


def test_a_valid_file_is_summed_up(file, capsys):
    assert check(file, VALID) == 0
    out, err = capsys.readouterr()
    assert not err
    assert out.startswith(f"{file}: valid\n")
    assert "is 256; reserved: system 32, interactive 128, default 26, bulk 0" in out
    assert "warning: class system reserves slots but no tenant can reach it" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "priority_scheduler is disabled: 256 requests at once, 100 waiting"),
        ("classes: {}", "no capacity is configured; the reservations need 178 slots or more"),
        (VALID.replace("256", "reported"), "is known at run time; the reservations need 178"),
        ("capacity: 0\npriority_scheduler: {enabled: true}", "is 0; reserved: system 0"),
    ],
)
def test_other_summaries(file, capsys, text, says):
    assert check(file, text) == 0
    assert says in capsys.readouterr().out


def test_pools_are_summed_up_one_by_one(file, capsys):
    text = "pool_by: model\npriority_scheduler: {enabled: true}\nupstreams:\n"
    text += "- {url: 'http://a', capacity: 200, models: [x]}\n- {url: 'http://b', models: [y]}\n"
    assert check(file, text) == 0
    out = capsys.readouterr().out
    assert "the pool for models 'x' is 200; reserved: system 32" in out
    assert "the pool for models 'y' is known at run time" in out


def test_every_problem_is_told_on_a_line_of_its_own(file, capsys):
    assert check(file, "lisen: 3\nstrict: yes\npriority_scheduler:\n  classes: {blk: {}}\n") == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == [
        f"{file}:1:1 lisen: unknown key 'lisen'; did you mean listen?",
        f"{file}:2:1 strict: must be true or false; got 'yes'",
        f"{file}:4:13 priority_scheduler.classes.blk: unknown class 'blk'; did you mean bulk?",
    ]


def test_reservations_over_capacity(file, capsys):
    assert check(file, VALID.replace("256", "64")) == 0
    out, err = capsys.readouterr()
    assert not err
    fitting = "system 19, interactive 39, default 4, bulk 0"
    assert f"of the upstreams is 64; reserved: {fitting} (62 of 103 asked for)" in out
    assert "warning: reservations need 103 slots but the capacity of the upstreams is 64" in out
    fallback = VALID.replace("true", "true\n  reservations_exceed: fallback")
    assert check(file, fallback.replace("256", "177")) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "178" in err
    assert "177" in err
    assert check(file, fallback.replace("256", "178")) == 0


def test_a_file_that_is_not_there(file, capsys):
    assert main(["gateway", "check", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"{file}: cannot be read (No such file or directory); check the path and its permissions\n"
    )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["gateway"], "--config"),
        (["gateway", "--config"], "--config"),
        (["gateway", "check"], "FILE"),
        (["gateway", "check", "a", "b"], "b"),
        (["gateway", "nope"], "nope"),
        (["config", "nope"], "nope"),
    ],
)
def test_a_mistake_is_told_in_one_line(args, says, capsys):
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert says in err


def test_the_schema_is_json_schema(capsys):
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    classes = schema["$defs"]["PrioritySettings"]["properties"]["classes"]
    assert set(classes["propertyNames"]["enum"]) == {"system", "interactive", "default", "bulk"}
    duration = schema["$defs"]["Fallback"]["properties"]["queue_timeout"]
    assert {option["type"] for option in duration["anyOf"]} == {"string", "number"}


class Serving(types.ModuleType):
    """Stands in for the proxy."""

    def __init__(self, missing: str | None = None) -> None:
        super().__init__("fairlead.gateway.serving")
        self.missing = missing
        self.asked: list[Path] = []

    def __getattr__(self, name: str) -> Any:
        if name == "run" and self.missing:
            raise ModuleNotFoundError(f"No module named {self.missing!r}", name=self.missing)
        raise AttributeError(name)


def test_the_proxy_is_run_with_its_configuration(monkeypatch):
    serving = Serving()

    def run(config: Path) -> int:
        serving.asked.append(config)
        return 7

    monkeypatch.setattr(serving, "run", run, raising=False)
    monkeypatch.setitem(sys.modules, "fairlead.gateway.serving", serving)
    assert main(["gateway", "--config", "some.yaml"]) == 7
    assert serving.asked == [Path("some.yaml")]


def test_without_the_extra_the_proxy_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fairlead.gateway.serving", Serving(missing="uvicorn"))
    assert main(["gateway", "--config", "some.yaml"]) == 2
    assert capsys.readouterr() == (
        "",
        'fairlead gateway needs uvicorn: pip install "fairlead[gateway]"\n',
    )
    monkeypatch.setitem(sys.modules, "fairlead.gateway.serving", Serving(missing="fairlead.x"))
    with pytest.raises(ModuleNotFoundError):  # our own mistake is not the user's
        main(["gateway", "--config", "some.yaml"])


def test_without_the_extra_check_says_how_to_get_it():
    done = python(
        "import sys; sys.modules['ruamel.yaml'] = None; from fairlead.cli import main; "
        "sys.exit(main(['gateway', 'check', 'x']))"
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == 'fairlead gateway needs ruamel.yaml: pip install "fairlead[gateway]"\n'


def test_help_loads_nothing_but_typer_and_the_standard_library():
    """It shall answer within 0.3 s.  A clock in a test tells how busy the machine is; what is loaded tells the rest."""
    code = """
import sys, typer
before = set(sys.modules)
from fairlead.cli import main
main(["--help"])
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
sys.exit(" ".join(sorted(loaded - set(sys.stdlib_module_names))))
"""
    done = python(code)
    assert done.stderr == "fairlead typer\n"
    assert "gateway" in done.stdout
