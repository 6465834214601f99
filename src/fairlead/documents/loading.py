"""What loading has in common, whatever the document: a tree from anything given, and the form of what was loaded.

Content never raises: what is wrong with it is among the problems.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from fairlead.config import shown
from fairlead.documents.reading import (
    Node,
    Problem,
    content_of,
    digest_of,
    lines_of,
    tree_of_mapping,
    tree_of_yaml,
)

Settings = TypeVar("Settings")
EMPTY = (
    "is empty, which no configuration may be: a file that was cut short looks like it; "
    "write {} for one that says nothing"
)
# What was read, what is wrong with it, where it came from.
Tree = tuple[Node | None, list[Problem], str]


class Loaded(NamedTuple, Generic[Settings]):
    """Settings, where they came from, and what was wrong; `digest` identifies a file's content."""

    settings: Settings
    problems: tuple[Problem, ...]
    source: str
    warnings: tuple[str, ...] = ()
    digest: str = ""

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Other files that were read, with their digests: none."""
        return ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Each problem on a line: `gateway.yaml:17:3 priority_scheduler.classes.bulk: what is wrong`."""
        return lines_of(self.problems, self.source)


def tree_of(content: bytes | Problem, source: str) -> Tree:
    """Read what a file held, or what `content_of` said of it; an empty document is a problem."""
    if isinstance(content, Problem):
        return None, [content], source
    tree, problems = tree_of_yaml(content)
    if not problems and (tree is None or tree.value is None):
        problems = [Problem(0, 0, "", EMPTY)]
    return tree, problems, source


def tree_and_digest_of(config: Any) -> tuple[Tree, str]:
    """Read a mapping, or the file that a path names; only a file has a digest."""
    if isinstance(config, Mapping):
        return (*tree_of_mapping(config), "configuration"), ""
    if isinstance(config, str | bytes | os.PathLike):
        source = os.fsdecode(config)
        content = content_of(source)
        return tree_of(content, source), digest_of(content)
    problem = Problem(0, 0, "", f"must be a path, a mapping or Settings; got {shown(config)}")
    return (None, [problem], "configuration"), ""
