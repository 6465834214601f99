"""What docs/attacks.md says was tried is what the suite tries."""

import importlib
import re

import pytest

from tests.docs.reader import ROOT

PAGE = ROOT / "docs" / "attacks.md"
ROW = re.compile(
    r"^\| (?P<tried>[^|]+) \| (?P<count>[\d,]+) \| [^|]+ \| `(?P<file>[^`]+)` \|$", re.MULTILINE
)


def counted() -> dict[str, tuple[str, str]]:
    """Read each suite's count of what it tries, and the file that has it."""
    found: dict[str, tuple[str, str]] = {}
    suites = [*(ROOT / "tests" / "attacks").glob("test_*.py")]
    suites.append(ROOT / "tests" / "gateway" / "client" / "test_misbehaviour.py")
    for path in suites:
        if "\nTRIED = " in path.read_text(encoding="utf-8"):
            name = path.relative_to(ROOT).as_posix()
            suite = importlib.import_module(name.removesuffix(".py").replace("/", "."))
            found |= {tried: (f"{count:,}", name) for tried, count in suite.TRIED.items()}
    return found


def shown(text: str) -> dict[str, tuple[str, str]]:
    return {row["tried"]: (row["count"], row["file"]) for row in ROW.finditer(text)}


def test_the_page_has_the_counts_of_the_suite() -> None:
    assert shown(PAGE.read_text(encoding="utf-8")) == counted()


def test_each_file_that_the_page_names_is_there() -> None:
    for name in re.findall(r"`(tests/[^`]+)`", PAGE.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(("right", "wrong"), [("| 246 |", "| 247 |"), ("mutated requests", "all")])
def test_another_count_is_noticed(right: str, wrong: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert right in text
    assert shown(text.replace(right, wrong)) != counted()
