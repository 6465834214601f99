"""The simulator's page: its documents are those of examples/simulator, its transcripts are what is printed."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.sim import read_policy, read_scenario

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "simulator"
TRACES = Path(os.environ.get("FAIRLEAD_TRACES") or ROOT.parent / "shared" / "traces")
TRACE = TRACES / "azure-llm-conv.csv"
PAGE = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def transcripts() -> list[tuple[str, str]]:
    found = []
    for block in blocks("console"):
        for command, said in re.findall(
            r"^\$ (fairlead .*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE
        ):
            found.append((command, said))
    return found


def test_the_documents_of_the_page_are_the_examples():
    shown = blocks("yaml")
    for name in ("overload", "fifo", "priority", "pool", "streams"):
        assert (EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8") in shown
    assert len(shown) == 6


def test_the_other_documents_can_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("incident.jsonl").write_text(blocks("json")[0])
    (incident,) = (read_scenario(one) for one in blocks("yaml") if "incident.jsonl" in one)
    (arrival,) = incident.arrivals(0)
    assert (arrival.cls, arrival.tenant, arrival.service) == ("bulk", "acme", 0.25)
    for name in ("azure-fifo", "azure-priority"):
        assert read_policy(EXAMPLES / f"{name}.yaml").build().slots == 44
    for name in ("pool", "streams"):
        assert read_policy(EXAMPLES / f"{name}.yaml").build().slots == 4


def transcript(number: int, folder: Path, capsys) -> None:
    command, said = transcripts()[number]
    for path in EXAMPLES.iterdir():
        shutil.copy(path, folder)
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == said


def test_the_page_has_four_transcripts():
    commands = [shlex.split(command)[1] for command, _ in transcripts()]
    assert commands == ["simulate", "tune", "simulate", "tune"]


def test_the_comparison_is_what_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    transcript(0, tmp_path, capsys)


@pytest.mark.slow
def test_the_search_is_what_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    transcript(1, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.skipif(not TRACE.exists(), reason="the Azure trace is not beside the project")
def test_the_azure_hour_is_what_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(TRACE, tmp_path / "AzureLLMInferenceTrace_conv.csv")
    transcript(2, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.skipif(not TRACE.exists(), reason="the Azure trace is not beside the project")
def test_the_search_in_the_azure_hour_is_what_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(TRACE, tmp_path / "AzureLLMInferenceTrace_conv.csv")
    transcript(3, tmp_path, capsys)
