"""The quickstart, step by step as a reader would."""

import re
import shutil

import pytest

from tests.docs.reader import ROOT, follow, on_free_ports, save, shape, steps

PAGE = ROOT / "docs" / "quickstart.md"


@pytest.mark.skipif(not shutil.which("curl"), reason="the page uses curl")
def test_every_step(tmp_path):
    page = on_free_ports(PAGE.read_text(encoding="utf-8"), "8000", "8001", "8002")
    named = ["app.py", "flood.py", "gateway.yaml", "guarded.py", "observed.py"]
    assert save(page, tmp_path) == named
    printed = follow(page, tmp_path)
    plain, guarded, _ = (
        lines for command, lines in printed.items() if command.startswith("python flood.py")
    )
    # The point of the page: who is interactive does not wait for the export.
    assert worst(guarded) < worst(plain)
    # Nobody is lost: everybody heard something.
    for lines in (plain, guarded):
        assert sum(int(line.split(": ")[1]) for line in lines if ": " in line) == 210


def worst(lines: list[str]) -> float:
    (line,) = (line for line in lines if line.startswith("interactive p50"))
    return float(line.split("worst ")[1].removesuffix(" s"))


def test_the_page_is_read_as_it_is_written():
    assert steps("```console\n$ a\nb\n$ c\n$ pip install x\n```\n") == [("a", ["b"]), ("c", [])]
    assert shape("interactive p50 0.05 s, worst 1.10 s") == "interactive p50 # s, worst # s"
    assert shape("bulk        429: 92") == "bulk        429: #"
    assert shape("1.2  all") != shape("run 1")


def test_a_page_that_shows_what_is_not_printed_is_noticed(tmp_path):
    follow("```console\n$ echo 1.5\n2.5\n```\n", tmp_path)
    with pytest.raises(AssertionError, match="echo a printed\na"):
        follow("```console\n$ echo a\nb\n```\n", tmp_path)
    assert not re.search("pip", "".join(command for command, _ in steps(PAGE.read_text("utf-8"))))
