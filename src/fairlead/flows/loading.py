"""The configuration of flows, from a file or a mapping to settings, with everything that is wrong said at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fairlead.documents import loading
from fairlead.documents.advice import Adviser
from fairlead.documents.reading import Node, Problem, digest_of, written
from fairlead.flows.settings import NAME_TAKEN, NO_ENDS, Settings, taken

if TYPE_CHECKING:
    from collections.abc import Iterator

Path = tuple[int | str, ...]

ADVISER = Adviser(Settings, secret={"redis"})  # its URL may hold a password


class Loaded(loading.Loaded[Settings]):
    """Settings, where they came from, and what was wrong; `digest` identifies a file's content."""

    __slots__ = ()


def load(config: Any) -> Loaded:
    """Read a configuration: a path, a mapping, settings, or None for no limits at all.

    >>> load({"control_points": {"a": {"quota": {"bucket_capacity": 1, "fill_amount": 1}}}}).lines
    ('configuration control_points.a.quota.interval: is required',)
    """
    if config is None:
        return Loaded(Settings(), (), "defaults")
    if isinstance(config, Settings):
        return Loaded(config, (), "settings")
    tree, digest = loading.tree_and_digest_of(config)
    return load_tree(*tree)._replace(digest=digest)


def load_content(content: bytes | Problem, source: str) -> Loaded:
    """Read what a file held, or what `content_of` said of it."""
    return load_tree(*loading.tree_of(content, source))._replace(digest=digest_of(content))


def load_tree(tree: Node | None, problems: list[Problem], source: str) -> Loaded:
    """Read a tree, which may be a part of a larger document: what is said of it keeps its whereabouts."""
    if tree is None or tree.value is None:  # unreadable, or an empty document
        return Loaded(Settings(), tuple(problems), source)
    if not isinstance(tree.value, dict):
        kind = "a list" if isinstance(tree.value, list) else "a single value"
        problems.append(Problem(*tree.at, "", f"must be a mapping of settings; got {kind}"))
        return Loaded(Settings(), tuple(problems), source)
    settings, plain = Settings(), tree.plain()
    try:
        settings = Settings.model_validate(plain)
    except ValidationError as error:
        paths = [one["loc"] for one in error.errors(include_url=False)]
        for path, said in _unjudged(plain, paths):
            at, found = tree.find(path)
            problems.append(Problem(*at, written(found), said))
        problems.extend(ADVISER.problems(error, tree))
    if problems:
        settings = Settings()
    return Loaded(settings, tuple(sorted(problems)), source)


def _unjudged(plain: Any, paths: list[Path]) -> Iterator[tuple[Path, str]]:
    """Tell what is wrong with a whole that was not looked at, for a part of it was wrong by itself."""
    outer = _outer(paths)
    for name, point in _mapping(_mapping(plain).get("control_points")).items():
        at: Path = ("control_points", name, "load")
        load = _mapping(_mapping(point).get("load"))
        ends = {"low_throttle_threshold", "high_throttle_threshold"}
        if load.get("controller") == "range" and not ends <= load.keys() and at in outer:
            yield at, NO_ENDS
        at = ("control_points", name, "scheduler", "workloads")
        workloads = _mapping(_mapping(point).get("scheduler")).get("workloads")
        if isinstance(workloads, list) and at in outer:
            names = [_mapping(workload).get("name") for workload in workloads]
            for index, found in taken([one if isinstance(one, str) else None for one in names]):
                yield (*at, index, "name"), f"{NAME_TAKEN}; {found!r} is taken"


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _outer(paths: list[Path]) -> set[Path]:
    """Find every place that one of these paths leads through."""
    return {path[:end] for path in paths for end in range(len(path))}
