"""Reading the documents of the simulator: all that is wrong is said at once, with its place, and nothing runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from fairlead.config import shown
from fairlead.documents.advice import Adviser
from fairlead.documents.reading import (
    Node,
    Problem,
    content_of,
    lines_of,
    tree_of_mapping,
    tree_of_yaml,
    written,
)
from fairlead.documents.repeats import errors_of
from fairlead.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.documents.reading import Path
    from fairlead.documents.values import Model

    Read = TypeVar("Read", bound=Model)


@cache
def _adviser(model: type[Model]) -> Adviser:
    return Adviser(model)


class Draft:
    """A document being read, and what was found wrong in it so far."""

    def __init__(self, given: Any, what: str, planners: Mapping[str, Any] | None = None) -> None:
        self.what = what
        self.planners = planners or {}  # which names in it may mean
        self.folder = File()
        self.problems: list[Problem] = []
        self.source = what
        self.name = what
        tree: Node | None = None
        if isinstance(given, Mapping):
            tree, self.problems = tree_of_mapping(given)
        elif isinstance(given, str | os.PathLike):
            tree = self._from_text(given)
        else:
            self.problems.append(
                Problem(0, 0, "", f"must be a path, YAML text or a mapping; got {shown(given)}")
            )
        if tree is not None and not isinstance(tree.value, dict):
            self.problems.append(Problem(*tree.at, "", f"a {what} must be a mapping"))
            tree = None
        elif tree is None and not self.problems:
            self.problems.append(Problem(0, 0, "", f"is empty; a {what} must be a mapping"))
        if tree is None:
            self.stop()
        self.tree: Node = tree  # type: ignore[assignment]
        self.plain: dict[str, Any] = self.tree.plain()

    def _from_text(self, given: str | os.PathLike[str]) -> Node | None:
        text = os.fspath(given)
        if isinstance(given, str) and (not text or "\n" in text or ":" in text.replace(":\\", "")):
            content: bytes | Problem = text.encode("utf-8", "surrogatepass")
        else:
            self.source = text
            path = File(text)
            self.folder, self.name = path.parent, path.stem
            content = content_of(text)
        if isinstance(content, Problem):
            self.problems.append(content)
            return None
        tree, problems = tree_of_yaml(content)
        self.problems += problems
        return tree

    def enter(self, key: str) -> None:
        """Go on with one part alone, as if the document were no more than that."""
        self.tree = self.tree.value[key]
        self.plain = self.plain[key]

    def read(
        self,
        model: type[Read],
        path: Path = (),
        *,
        without: Iterable[str] = (),
        adviser: Adviser | None = None,
    ) -> Read | None:
        """Read the part at a path, less some of its keys; None if there is something wrong with it."""
        adviser = adviser or _adviser(model)
        part: Any = self.plain
        for step in path:
            part = part[step]
        if isinstance(part, dict):
            left_out = set(without)
            part = {key: value for key, value in part.items() if key not in left_out}
        try:
            return model.model_validate(part, context=self.planners)
        except ValidationError as error:
            for one in errors_of(error):
                self._refused(adviser, path, one)
        return None

    def _refused(self, adviser: Adviser, path: Path, error: Any) -> None:
        inner: Path = tuple(part for part in error["loc"] if part != "[key]")
        at, found = self.tree.find((*path, *inner))
        if error["type"] == "missing":
            found = (*path, *inner)
        elif len(found) < len(path):
            found = path
        advice = adviser.advice(error, found[len(path) :] or ("",))
        problem = Problem(*at, written(found), advice)
        if problem not in self.problems:
            self.problems.append(problem)

    def wrong(self, path: Path, message: str) -> None:
        """Note something that the models cannot see."""
        at, found = self.tree.find(path)
        self.problems.append(Problem(*at, written(found), message))

    def stop(self) -> None:
        """Raise if anything was wrong."""
        if self.problems:
            raise BadFile(lines_of(sorted(self.problems), self.source))
