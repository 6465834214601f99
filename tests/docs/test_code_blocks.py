"""Run what the documentation shows: Python blocks, configurations, commands, links.

Every ```python block of a page runs in order in one namespace, in an empty folder; a block may await
at its top level. Of shell blocks each make target must exist and each fairlead command must be accepted
with its options; test_shell_blocks.py runs those that can be run.
"""

import ast
import asyncio
import importlib
import inspect
import re
import shlex
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

# Pages whose blocks need more than a namespace: files that import each other, or an engine. These tests run them.
ELSEWHERE = {
    "docs/quickstart.md": "test_quickstart.py",
    "docs/running/kafka.md": "test_running_pages.py",
    "docs/running/postgresql.md": "test_running_pages.py",
    "docs/running/ray.md": "test_running_pages.py",
    "docs/running/redis.md": "test_running_pages.py",
}

# Blocks marked ```python no-run, as "page: first line of the block", with the reason they cannot run.
NO_RUN: dict[str, str] = {}

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)$")
LINK = re.compile(r"\]\(\s*<?(?P<inline>[^)\s>]+)[^)]*\)|^\s*\[[^\]]+\]:\s*(?P<reference>\S+)")


@dataclass(frozen=True)
class Block:
    """One fenced block: its info string, its text, and the page's line its text begins on."""

    info: str
    text: str
    line: int

    @property
    def language(self) -> str:
        return (self.info.split() or [""])[0].lower()


def split_page(text: str) -> tuple[list[Block], str]:
    """Return a page's fenced blocks, and its prose without them."""
    blocks: list[Block] = []
    prose: list[str] = []
    opening: re.Match[str] | None = None
    body: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opening is None:
            if fence:
                opening, body, start = fence, [], number + 1
            else:
                prose.append(line)
        elif fence and fence["ticks"].startswith(opening["ticks"]) and not fence["info"].strip():
            blocks.append(Block(opening["info"].strip(), "\n".join(body), start))
            opening = None
        else:
            body.append(line.removeprefix(opening["indent"]))
    assert opening is None, f"the block opened on line {start - 1} is never closed"
    return blocks, "\n".join(prose)


def python_blocks(text: str, page: str) -> list[Block]:
    """Return the blocks to run; complain about Python that would escape being run."""
    chosen = []
    for block in split_page(text)[0]:
        if not block.language.startswith("py"):
            continue
        if block.info == "python no-run":
            first = f"{page}: {block.text.splitlines()[0]}"
            assert first in NO_RUN, f"{page}:{block.line}: no-run without a reason in NO_RUN"
            continue
        assert block.info == "python", (
            f"{page}:{block.line}: ```{block.info} would not be run; write ```python"
        )
        chosen.append(block)
    return chosen


def run_blocks(blocks: list[Block], filename: str) -> dict[str, object]:
    """Run blocks in one namespace that is __main__, with one event loop for those that await."""
    main = types.ModuleType("__main__")
    namespace = main.__dict__
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setitem(sys.modules, "__main__", main)
        for block in blocks:
            # Blank lines in front make tracebacks point at the page's own lines.
            source = "\n" * (block.line - 1) + block.text
            code = compile(source, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, namespace)
            if inspect.iscoroutine(result):
                runner.run(result)
    return namespace


def commands(text: str) -> list[list[str]]:
    """Return the commands of a page's shell blocks as lists of words."""
    found = []
    for block in split_page(text)[0]:
        if block.language not in {"bash", "sh", "shell", "console"}:
            continue
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in lines:
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            command: list[str] = []
            for word in [*lexer, ";"]:
                if not set(word) <= set(";&|()"):
                    # FAIRLEAD_X=1 in front of a command is not its name.
                    if command or not re.match(r"\w+=", word):
                        command.append(word)
                elif command:
                    found.append([Path(command[0]).name, *command[1:]])
                    command = []
    return found


def yaml_problems(text: str, page: str, door: str = "gateway") -> list[str]:
    """Read each YAML block of a page about a door as that door would."""
    loading = importlib.import_module(f"fairlead.{door}.loading")
    complaints: list[str] = []
    for block in split_page(text)[0]:
        if block.language in {"yaml", "yml"}:
            loaded = loading.load_content(block.text.encode(), f"{page}, block at {block.line}")
            complaints += loaded.lines
    return complaints


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)
    return {word for line in lines for word in line.split()}


def check_commands(text: str) -> list[str]:
    complaints = []
    for name, *words in commands(text):
        if name == "make":
            targets = {word for word in words if "=" not in word and not word.startswith("-")}
            complaints += [f"make {target}: no such target" for target in targets - make_targets()]
        elif name == "fairlead" and not accepts(words):
            complaints.append(f"fairlead {' '.join(words)}: not accepted by the command line")
    return complaints


def accepts(words: list[str]) -> bool:
    """Ask the command line for help on a whole command: unknown commands and options fail."""
    main = importlib.import_module("fairlead.cli").main
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fairlead", *words, "--help"])
        try:
            return not main()
        except SystemExit as exit_:
            return not exit_.code


def broken_links(text: str, page: Path) -> list[str]:
    prose = re.sub(r"`[^`\n]*`", "", split_page(text)[1])
    broken = []
    for line in prose.splitlines():
        for match in LINK.finditer(line):
            target = (match["inline"] or match["reference"]).partition("#")[0]
            if not target or re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            path = (page.parent / target).resolve()
            if not (path.exists() and path.is_relative_to(ROOT)):
                broken.append(f"{page.name}: {target} does not exist in this repository")
    return broken


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page_id(page) not in ELSEWHERE], ids=page_id
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blocks = python_blocks(page.read_text(encoding="utf-8"), page_id(page))
    monkeypatch.chdir(tmp_path)
    run_blocks(blocks, str(page))


@pytest.mark.parametrize(
    ("name", "door"),
    [
        ("flows", "flows"),
        ("gateway", "gateway"),
        ("migrating/aperture", "flows"),
        ("migrating/smg", "gateway"),
        ("quickstart", "gateway"),
        ("server", "server"),
    ],
)
def test_the_configurations_of_a_door_are_valid(name: str, door: str):
    page = ROOT / "docs" / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    assert any(block.language == "yaml" for block in split_page(text)[0])
    assert not yaml_problems(text, page.name, door)


def test_the_files_of_the_jobs_page_are_valid():
    from fairlead.jobs.files import run_of_content
    from fairlead.jobs.registry import task_of
    from fairlead.jobs.tokens import load_content

    text = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    tasks = {name: task_of(print, name=name) for name in ("extract", "merge")}
    found = [block for block in split_page(text)[0] if block.language == "yaml"]
    assert found
    for block in found:
        content, name = block.text.encode(), f"block at {block.line}"
        if block.text.startswith("tokens:"):
            assert load_content(content, name).lines == ()
        else:
            run_of_content(content, tasks, now=0.0, name=name)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_exist(page: Path):
    complaints = check_commands(page.read_text(encoding="utf-8"))
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path):
    complaints = broken_links(page.read_text(encoding="utf-8"), page)
    assert not complaints, "\n" + "\n".join(complaints)


def test_what_is_run_elsewhere_is_there():
    assert set(ELSEWHERE) <= {page_id(page) for page in PAGES}
    for page, test in ELSEWHERE.items():
        assert Path(page).stem in (Path(__file__).parent / test).read_text(encoding="utf-8")


def test_every_reason_for_not_running_is_still_needed():
    blocks = {
        f"{page_id(page)}: {block.text.splitlines()[0]}"
        for page in PAGES
        for block in split_page(page.read_text(encoding="utf-8"))[0]
        if block.info == "python no-run"
    }
    assert set(NO_RUN) <= blocks


# From here on, the checks themselves: each must be able to fail.


def fenced(info: str, *lines: str) -> str:
    return "\n".join([f"```{info}", *lines, "```", ""])


def run_text(text: str) -> dict[str, object]:
    return run_blocks(python_blocks(text, "page.md"), "page.md")


SHARED = """\
```python
import asyncio

x = 1
first = await asyncio.sleep(0, asyncio.get_running_loop())
```

1. Indented, as in a list:

   ```python
   y = x + 1
   second = await asyncio.sleep(0, asyncio.get_running_loop())
   ```

~~~python
async def main():
    return y

z = asyncio.run(main())
~~~
"""


def test_blocks_share_a_namespace_and_a_loop():
    names = run_text(SHARED)
    assert (names["x"], names["y"], names["z"], names["__name__"]) == (1, 2, 2, "__main__")
    assert names["first"] is names["second"]


def test_a_failing_block_is_reported_at_its_own_line():
    with pytest.raises(ZeroDivisionError) as raised:
        run_text("# Title\n\n" + fenced("python", "x = 0", "1 / x"))
    assert raised.traceback[-1].lineno + 1 == 5


def test_a_failing_await_is_reported():
    with pytest.raises(ZeroDivisionError):
        run_text(fenced("python", "import asyncio", "await asyncio.sleep(0)", "1 / 0"))


@pytest.mark.parametrize("info", ["python no-run", "py", "pycon", "python3", "Python", "python x"])
def test_python_that_would_not_run_is_reported(info: str):
    with pytest.raises(AssertionError, match=r"page.md:2"):
        run_text(fenced(info, "1 / 0"))


def test_a_block_that_never_ends_is_reported():
    with pytest.raises(AssertionError, match="line 1 is never closed"):
        split_page("```python\nx = 1\n")


@pytest.mark.parametrize("info", ["bash", "sh", "console"])
@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("make check && make nonsense", "nonsense"),
        ("CI=1 make -s nonsense ARGS='-k aging'  # why", "nonsense"),
        ("cd fairlead; make test \\\n  nonsense", "nonsense"),
        ("make test | tail", None),
    ],
)
def test_an_unknown_make_target_is_reported(info: str, line: str, missing: str | None):
    prompt = "$ " if info == "console" else ""
    complaints = check_commands(fenced(info, prompt + line))
    assert complaints == ([f"make {missing}: no such target"] if missing else [])


def test_an_unknown_fairlead_command_is_reported(monkeypatch: pytest.MonkeyPatch):
    def main() -> None:
        raise SystemExit(0 if sys.argv == ["fairlead", "demo", "--json", "--help"] else 2)

    cli = types.ModuleType("fairlead.cli")
    monkeypatch.setattr(cli, "main", main, raising=False)
    monkeypatch.setitem(sys.modules, "fairlead.cli", cli)
    assert check_commands(fenced("bash", ".venv/bin/fairlead demo --json")) == []
    assert check_commands(fenced("console", "$ fairlead dance", "fairlead: no")) == [
        "fairlead dance: not accepted by the command line"
    ]


def test_a_wrong_configuration_is_reported():
    text = "# Title\n" + fenced("yaml", "capacity: 8") + fenced("yaml", "capacty: 8")
    assert yaml_problems(text, "page.md") == [
        "page.md, block at 6:1:1 capacty: unknown key 'capacty'; did you mean capacity?"
    ]
    (line,) = yaml_problems(fenced("yaml", "control_point: {}"), "page.md", "flows")
    assert "did you mean control_points?" in line


def test_a_broken_link_is_reported():
    text = (
        "[a](LICENSE) [b](Makefile#x) [c](https://example.org) [d](#here) `[e](gone)`\n"
        "[f](gone.md) ![g](gone.svg 'title')\n[h]: gone/too.md\n[i](../../outside)\n"
        + fenced("text", "[j](gone)")
    )
    assert broken_links(text, ROOT / "README.md") == [
        f"README.md: {target} does not exist in this repository"
        for target in ("gone.md", "gone.svg", "gone/too.md", "../../outside")
    ]
