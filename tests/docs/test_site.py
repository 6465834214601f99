"""The site of `make docs`: it builds strictly, every link leads somewhere, and nothing comes from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from tests.docs.reader import ROOT
from tools.docstrings import fenced
from tools.site import PAPERS, helped, names_of, refer

pytestmark = pytest.mark.slow

LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
REFERENCE = (
    "core",
    "flows",
    "gateway",
    "jobs",
    "observe",
    "server",
    "sim",
    "streams",
    "tasks",
    "testing",
)


class Page(HTMLParser):
    """What a page links to, what it loads, and which anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.anchors.add(str(given["id"]))
        target = given.get(LOADS.get(tag, ""))
        if target and given.get("rel") not in {"canonical", "next", "prev"}:
            self.loads.append(target)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))


def broken(pages: dict[Path, Page]) -> list[str]:
    """Name every link to a file or an anchor that is not there."""
    found = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            if urlsplit(link).scheme:
                continue
            there, anchor = urldefrag(unquote(link))
            target = (path.parent / there).resolve() if there else path
            target = target / "index.html" if target.is_dir() else target
            missing = target not in pages and not target.exists()
            lost = target in pages and anchor not in pages[target].anchors
            if missing or (lost and not anchor.startswith("__")):
                found.append(f"{path.name}: {link}")
    return found


def outside(pages: dict[Path, Page]) -> list[str]:
    """Name everything a page would fetch from elsewhere."""
    return [
        f"{path.name}: {load}"
        for path, page in pages.items()
        for load in page.loads
        if urlsplit(load).netloc
    ]


def read(folder: Path) -> dict[Path, Page]:
    # The page for what is not found is written for a server's root.
    paths = [path.resolve() for path in folder.rglob("*.html") if path.name != "404.html"]
    return {path: Page(path.read_text(encoding="utf-8")) for path in paths}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_and_paper_is_on_the_site(site):
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    for page in [*pages, *PAPERS.values()]:
        assert (site / page).with_suffix(".html").exists()


def test_links_lead_somewhere(site):
    pages = read(site)
    assert len(pages) > 40
    assert not broken(pages)


def test_nothing_comes_from_elsewhere(site):
    assert not outside(read(site))
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\W*(https?:)?//", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("package", REFERENCE)
def test_the_reference_has_every_public_name(site, package):
    page = Page((site / "reference" / f"{package}.html").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "reference" / f"{package}.md").read_text(encoding="utf-8")
    for name in names_of(f"fairlead.{package}"):
        said = f"fairlead.{package}.{name}" in page.anchors or re.search(rf"\b{name}\b", text)
        assert said, f"{name} is not in the reference"


def test_every_command_is_on_the_page_of_commands(site):
    page = Page((site / "reference" / "commands.html").read_text(encoding="utf-8"))
    known = [" ".join(("fairlead", *words)) for words, _ in helped()]
    assert {"fairlead serve", "fairlead db migrate", "fairlead streams lag"} <= set(known)
    for command in known:
        assert command.replace(" ", "-") in page.anchors, command


def test_the_help_of_every_command_is_asked_for():
    told = dict(helped())
    assert "--config" in told[("serve",)]
    assert told[("db", "migrate")].startswith("Usage: fairlead db migrate")
    assert all(said.startswith("Usage: ") for said in told.values())


def test_a_broken_link_and_a_foreign_script_are_noticed(tmp_path):
    (tmp_path / "b.html").write_text('<p id="here">')
    links = ["b.html", "b.html#here", "b.html#gone", "gone.html", "https://example.org", "#gone"]
    text = "".join(f'<a href="{link}">' for link in links)
    (tmp_path / "a.html").write_text(text + '<script src="//elsewhere.example/x.js"></script>')
    assert broken(read(tmp_path)) == [
        "a.html: b.html#gone",
        "a.html: gone.html",
        "a.html: #gone",
        "a.html: //elsewhere.example/x.js",
    ]
    assert outside(read(tmp_path)) == ["a.html: //elsewhere.example/x.js"]


def test_links_of_papers_fit_the_site():
    text = "[a](docs/tasks.md#x) ![p](docs/a.svg) [c](CONTRIBUTING.md) [d](src/x.py) [e](https://e.org)"
    there = "[a](tasks.md#x) ![p](a.svg) [c](contributing.md) d [e](https://e.org)"
    assert refer(text, ROOT, "changelog.md") == there
    back = refer("[e](../../examples/README.md)", ROOT / "docs" / "running", "running/kafka.md")
    assert back == "[e](../examples.md)"


def test_examples_of_docstrings_are_fenced():
    assert fenced("One.\n>>> [1]\n[1]") == "One.\n\n```pycon\n>>> [1]\n[1]\n```"
    assert fenced("One.\n\nTwo.") == "One.\n\nTwo."
