"""Run the commands of the pages' shell blocks, or say why one is only held against the command line's own help.

A page's commands run in order in one folder, in which are the files it names, made of what the pages show; a service
that a page starts runs until the page is done.  Transcripts (```console) have tests of their own.
"""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cli import main
from tests.docs.test_code_blocks import PAGES, ROOT, page_id, split_page

# The beginning of a command, and why it is not run here; that its options exist is tested for all of them.
ONLY_PARSED = {
    "make ": "it sets the project up, or is what runs these tests",
    "pip install": "what is under test is installed already",
    "fairlead serve": "it serves until it is stopped: tests/server and tests/dashboard run it",
    "fairlead gateway --config": "it serves until it is stopped: tests/gateway runs it",
    "fairlead flows serve": "it serves until it is stopped: tests/flows runs it",
    "fairlead streams": "it needs a Kafka cluster: tests/streams runs it on brokers of its own",
    "fairlead top": "it watches until it is stopped: tests/cli runs it",
    "fairlead record": "it needs a server at that address: tests/server records from one",
    "fairlead demo": "it takes twenty seconds: tests/cli runs a short one",
    "fairlead tune": "it takes half a minute: the simulator page's transcripts of it are run",
    "fairlead db": "it names a database of the reader's: running/postgresql.md is run on one",
    "fairlead jobs explain 17.3": "a run of the reader's; docs/jobs.md explains one that is there",
    "fairlead jobs planner set mine": "a planner of the reader's",
    "fairlead jobs planner set HRRNExecutionPlanner --executor ocr": "an executor of the reader's",
    "fairlead jobs planner reset --executor ocr": "an executor of the reader's",
}
SERVES = "fairlead jobs serve"


def block(page: str, language: str, having: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = (one.text for one in split_page(text)[0] if one.language == language)
    return next(one for one in found if having in one)


def files() -> dict[str, str]:
    """What the commands name, as the pages show it."""
    work = block("docs/jobs.md", "python", "jobs = Jobs(")
    return {
        "gateway.yaml": block("docs/gateway.md", "yaml", "upstreams:"),
        "flows.yaml": block("docs/flows.md", "yaml", "control_points:"),
        "invoice.yaml": block("docs/jobs.md", "yaml", "extract"),
        "work.py": work[: work.index("dag = Dag(")],
    }


def lines(page: Path) -> list[str]:
    """The commands of a page, without what is said of them."""
    found = []
    for one in split_page(page.read_text(encoding="utf-8"))[0]:
        if one.language in ("bash", "sh", "shell"):
            said = one.text.replace("\\\n", " ").splitlines()
            found += [shlex.join(shlex.split(line, comments=True)) for line in said]
    return [line for line in found if line]


def left_out(line: str) -> str | None:
    return next((why for start, why in ONLY_PARSED.items() if line.startswith(start)), None)


TO_RUN = {page_id(page): [line for line in lines(page) if not left_out(line)] for page in PAGES}


@pytest.mark.parametrize("page", [page for page, todo in TO_RUN.items() if todo])
def test_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, text in files().items():
        Path(name).write_text(text, encoding="utf-8")
    serving = []
    try:
        for line in TO_RUN[page]:
            words = shlex.split(line)
            if line.startswith(SERVES):
                fairlead = str(Path(sys.executable).with_name("fairlead"))
                # Its own HTTP address may be taken here.
                command = [fairlead, *words[1:], "--http", "127.0.0.1:0"]
                serving.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
                continue
            monkeypatch.delitem(sys.modules, "work", raising=False)
            assert main(words[1:]) == 0, line
    finally:
        for one in serving:
            one.terminate()
            one.wait(30)
        sys.modules.pop("work", None)


def test_every_reason_is_still_needed():
    said = [line for page in PAGES for line in lines(page)]
    for start in ONLY_PARSED:
        assert any(line.startswith(start) for line in said), start


def test_what_is_run_is_fairlead():
    for page, todo in TO_RUN.items():
        assert all(line.startswith("fairlead ") for line in todo), page
    assert sum(map(len, TO_RUN.values())) >= 15


def test_the_tests_named_as_reasons_are_there():
    for why in ONLY_PARSED.values():
        for place in re.findall(r"tests/\w+", why):
            assert (ROOT / place).is_dir()


def foreign(name: str) -> list[str]:
    """What one has who comes from another project."""
    text = (ROOT / "docs" / "migrating" / f"{name}.md").read_text(encoding="utf-8")
    return [one.text for one in split_page(text)[0] if one.language == "text"]


@pytest.mark.parametrize("name", ["celery", "procrastinate", "slowapi"])
def test_what_one_comes_from_is_python(name: str):
    """It needs that project and its servers to run, so it is `text`; that it can be read is tested."""
    assert foreign(name)
    for one in foreign(name):
        compile(one, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


def test_what_one_has_of_slowapi_runs():
    pytest.importorskip("slowapi")
    for one in foreign("slowapi"):
        exec(compile(one, "slowapi", "exec"), {"__name__": "before"})
