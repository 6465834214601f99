"""The proofs that docs/promises.md names are there."""

import ast
import re

import pytest

from tests.docs.reader import ROOT

PAGE = ROOT / "docs" / "promises.md"
PROOF = re.compile(r"`(?P<file>tests/[\w/]+\.py)(?:::(?P<name>\w+))?`")


def defined(path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def missing(text: str) -> list[str]:
    """Name what a text calls a proof and is none."""
    known: dict[str, set[str]] = {}
    found = []
    for match in PROOF.finditer(text):
        path = ROOT / match["file"]
        if not path.exists():
            found.append(match["file"])
        elif match["name"]:
            if match["file"] not in known:
                known[match["file"]] = defined(path)
            if match["name"] not in known[match["file"]]:
                found.append(f"{match['file']}::{match['name']}")
    return found


def test_every_proof_is_there():
    assert not missing(PAGE.read_text(encoding="utf-8"))


def test_every_promise_has_a_proof():
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    assert len(rows) >= 30
    for row in rows:
        # A bar inside a formula is escaped; the second column holds the proofs.
        promise, proof = re.split(r"(?<!\\)\|", row)[1:3]
        assert PROOF.search(proof), f"no proof for {promise}"


@pytest.mark.parametrize(
    "text",
    ["`tests/core/test_nothing.py`", "`tests/core/test_time.py::test_that_is_not_there`"],
)
def test_a_proof_that_is_none_is_noticed(text: str):
    assert missing(text) == [text.strip("`")]
    assert not missing("`tests/core/test_time.py::test_a_late_timer_changes_no_verdict`")
