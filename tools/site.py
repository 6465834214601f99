"""What the site of `make docs` has besides the pages in docs/: the papers of the project, the names of the reference.

The papers (CHANGELOG.md and so on) stay where people look for them, at the root; their links are made to fit the site.
A line `<!-- names of fairlead.flows -->` in a page becomes the docstrings of everything in that package's `__all__`, so
the reference cannot forget a name; `<!-- help of fairlead -->` becomes what the command line says of itself.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, InclusionLevel

from tools.changelog import MARK, fragments, section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAPERS = {
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
}
LINK = re.compile(
    r"(?P<mark>!?)\[(?P<text>[^\]]*)\]\((?!\w+:|#|/)(?P<target>[^)#\s]+)(?P<rest>[^)]*)\)"
)
NAMES = re.compile(
    r"^<!-- names of (?P<module>[\w.]+)(?: but (?P<but>[\w, ]+))? -->$", re.MULTILINE
)

HELP = "<!-- help of fairlead -->"
COMMANDS = re.compile(r"^Commands:\n(?P<lines>(?:  .*\n?)+)", re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the papers."""
    for path, uri in PAPERS.items():
        paper = ROOT / path
        if paper.exists():
            text = refer(paper.read_text(encoding="utf-8"), paper.parent, uri)
            if path == "CHANGELOG.md":
                text = text.replace(MARK, section(fragments(ROOT / "changes"), "Unreleased"))
            page = File.generated(config, uri, content=text, inclusion=InclusionLevel.INCLUDED)
            files.append(page)
    return files


def refer(text: str, folder: Path, page: str = "page.md") -> str:
    """Make links of a text in `folder` fit the site, where it becomes `page`.

    What is not on the site, such as a source file, becomes a plain name.
    """

    def place(match: re.Match[str]) -> str:
        target = (folder / match["target"]).resolve().relative_to(ROOT)
        if target.as_posix() in PAPERS:
            uri = PAPERS[target.as_posix()]
        elif target.parts[0] == "docs":
            uri = target.relative_to("docs").as_posix()
        else:
            return match["text"]
        there = posixpath.relpath(uri, posixpath.dirname(page) or ".")
        return f"{match['mark']}[{match['text']}]({there}{match['rest']})"

    return LINK.sub(place, text)


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Write the names of a package out, and lead links to papers to where they are here."""
    uri = page.file.src_uri
    if uri not in PAPERS.values():
        markdown = refer(markdown, (ROOT / "docs" / uri).parent, uri)
    if HELP in markdown:
        markdown = markdown.replace(HELP, commands())
    return NAMES.sub(lambda match: listed(match["module"], match["but"] or ""), markdown)


def commands() -> str:
    """Write what the command line says of every command, each under its name."""
    return "\n\n".join(
        f"## {' '.join(('fairlead', *words))}\n\n```text\n{said}\n```" for words, said in helped()
    )


def helped(*words: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Ask a command for help, then those below it."""
    from fairlead.cli import main

    said = StringIO()
    width, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "80"
    try:
        with redirect_stdout(said):
            main([*words, "--help"])
    finally:
        del os.environ["COLUMNS"]
        if width is not None:
            os.environ["COLUMNS"] = width
    text = said.getvalue().rstrip()
    yield words, text
    if below := COMMANDS.search(text + "\n"):
        for name in re.findall(r"^  (\S+)", below["lines"], re.MULTILINE):
            yield from helped(*words, name)


def listed(module: str, but: str = "") -> str:
    """Give one directive for each public name."""
    left_out = set(re.findall(r"\w+", but))
    return "\n\n".join(f"::: {module}.{name}" for name in names_of(module) if name not in left_out)


def names_of(module: str) -> list[str]:
    """Read `__all__` without importing anything."""
    folder = ROOT / "src" / Path(*module.split("."))
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{path.relative_to(ROOT)} has no __all__")
