"""A command whose extra is not installed says, in one line and alike, what is missing and how to get it."""

import sys
import types
from importlib import import_module
from typing import Any

import pytest

from fairlead.cli import main

COMMANDS = {
    "gateway --config x": ("fairlead.gateway.serving", "gateway"),
    "gateway check x": ("fairlead.gateway.loading", "gateway"),
    "config schema": ("fairlead.gateway.settings", "gateway"),
    "flows serve --config x": ("fairlead.flows.serving", "flows"),
    "flows check x": ("fairlead.flows.loading", "flows"),
    "serve": ("fairlead.server.running", "serve"),
    "serve --check": ("fairlead.server.running", "serve"),
    "jobs serve --app x:y": ("fairlead.jobs.serving", "jobs"),
    "jobs list --db sqlite:///x": ("fairlead.jobs.operating", "jobs"),
    "worker --app x:y": ("fairlead.jobs.service", "jobs"),
    "db status --db sqlite:///x": ("fairlead.jobs.stores.opening", "jobs"),
    "streams run x:y": ("fairlead.streams.running", "streams"),
    "streams lag x:y": ("fairlead.streams.lag", "streams"),
    "simulate x": ("fairlead.cli.simulating", "sim"),
    "tune x --goal g --over o": ("fairlead.cli.simulating", "sim"),
    "record x --gate y --out z": ("fairlead.cli.recording", "sim"),
}
# Found under another name than the one it is installed by, or in an extra of its own.
ELSEWHERE = {
    "asyncpg": ("asyncpg", "postgres"),
    "google.protobuf": ("protobuf", "grpc"),
    "grpc.aio": ("grpcio", "grpc"),
    "opentelemetry.sdk": ("opentelemetry", "otel"),
    "ray": ("ray", "ray"),
}


class Lacking(types.ModuleType):
    """Stands in for a module that cannot be used without another."""

    def __init__(self, name: str, missing: str) -> None:
        super().__init__(name)
        self.__missing = missing

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ModuleNotFoundError(f"No module named {self.__missing!r}", name=self.__missing)


def lack(monkeypatch: pytest.MonkeyPatch, module: str, missing: str) -> None:
    package, _, name = module.rpartition(".")
    lacking = Lacking(module, missing)
    monkeypatch.setitem(sys.modules, module, lacking)
    monkeypatch.setattr(import_module(package), name, lacking, raising=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_extra_is_named(command, monkeypatch, capsys):
    module, extra = COMMANDS[command]
    lack(monkeypatch, module, "tomorrow.morning")
    assert main(command.split()) == 2
    called = "gateway" if command == "config schema" else command.split()[0]
    expected = f'fairlead {called} needs tomorrow.morning: pip install "fairlead[{extra}]"\n'
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize("missing", ELSEWHERE)
def test_what_has_an_extra_of_its_own_is_named_by_it(missing, monkeypatch, capsys):
    name, extra = ELSEWHERE[missing]
    for command in ("serve", "flows serve --config x", "jobs list --db sqlite:///x"):
        lack(monkeypatch, COMMANDS[command][0], missing)
        assert main(command.split()) == 2
        expected = f'fairlead {command.split()[0]} needs {name}: pip install "fairlead[{extra}]"\n'
        assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_module_of_our_own_that_is_missing_is_our_mistake(command, monkeypatch):
    lack(monkeypatch, COMMANDS[command][0], "fairlead.nowhere")
    with pytest.raises(ModuleNotFoundError):
        main(command.split())


@pytest.mark.parametrize("preset", ["flows", "gateway", "jobs", "streams", "pool"])
def test_the_extra_of_a_presets_door_is_named(preset, tmp_path, monkeypatch, capsys):
    (tmp_path / "policy.yaml").write_text(f"preset: {preset}\n")
    (tmp_path / "scenario.yaml").write_text(
        "seconds: 1s\narrivals: [{kind: poisson, rate: 1, service: 1ms}]\n"
    )
    import_module("fairlead.cli.simulating")
    lack(monkeypatch, f"fairlead.sim.{preset}_site", "tomorrow.morning")
    command = [
        "simulate",
        str(tmp_path / "scenario.yaml"),
        "--policy",
        str(tmp_path / "policy.yaml"),
    ]
    assert main(command) == 2
    extra = "serve" if preset == "pool" else preset
    expected = f'the preset {preset} needs tomorrow.morning: pip install "fairlead[{extra}]"'
    assert expected in capsys.readouterr().err
