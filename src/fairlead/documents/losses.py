"""What a configuration that is followed may lose only on purpose.

A door declares in a table what its configuration must keep once it has it: a token, the backends, the limit of a
control point.  `losses` compares two valid configurations by such a table and is pure: what a reload and a `PUT` refuse
is decided here alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.documents.reading import written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

EACH = "*"  # in the path of a `Keep`: each name of a mapping

_NAME = r"""(?:\.[A-Za-z0-9_-]{1,80}|\["(?:[^"\\]|\\.)*"\])"""


class Keep(NamedTuple):
    """Something to keep: where it stands, and what it is.

    With `parts` it is the last of them that is kept: a control point may exchange its quota for a concurrency limit,
    but must have one of them.  `counts` judges a value: a limit that is tried in a dry run is no limit.
    """

    path: tuple[str, ...]
    what: str
    parts: tuple[str, ...] = ()
    counts: Callable[[Any], bool] = bool

    def there(self, settings: Any) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Find what settings have of it: each path with the parts that count."""
        for path, value in _found(settings, self.path, ()):
            if not self.parts:
                if self.counts(value):
                    yield path, ()
            elif parts := tuple(one for one in self.parts if self.counts(_step(value, one))):
                yield path, parts

    def pattern(self) -> str:
        """Match the written path of whatever this could be."""
        text = "".join(
            _NAME if part == EACH else (r"\." if index else "") + re.escape(part)
            for index, part in enumerate(self.path)
        )
        return text + (rf"\.(?:{'|'.join(map(re.escape, self.parts))})" if self.parts else "")


Keeps = tuple[Keep, ...]


class Loss(NamedTuple):
    """What would be lost, by its path in the configuration file."""

    path: str
    what: str


def under(section: str, keeps: Keeps) -> Keeps:
    """Move a door's table into a section of a larger configuration."""
    return tuple(keep._replace(path=(section, *keep.path)) for keep in keeps)


def losses(before: Any, after: Any, keeps: Keeps) -> tuple[Loss, ...]:
    """Find what settings would lose by a change; of what is within a loss nothing more is reported.

    >>> point = (Keep(("points", EACH), "the control point"), Keep(("points", EACH), "its last limit", ("quota",)))
    >>> before = {"points": {"a": {"quota": 1}, "b": {"quota": 1}, "c": {"quota": 1}}}
    >>> after = {"points": {"a": {"quota": 2}, "b": {"quota": None}}}
    >>> [loss.path for loss in losses(before, after, point)]
    ['points.c', 'points.b.quota']
    """
    found: list[Loss] = []
    gone: set[tuple[str, ...]] = set()
    for keep in keeps:
        left = dict(keep.there(after))
        for path, parts in keep.there(before):
            if path in left or any(path[:end] in gone for end in range(1, len(path) + 1)):
                continue
            if not parts:
                gone.add(path)
            found += [Loss(path_text((*path, *part)), keep.what) for part in _each(parts)]
    return tuple(found)


def _each(parts: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    return [(part,) for part in parts] or [()]


def strange_paths(paths: Iterable[str], keeps: Keeps) -> list[str]:
    """Find the paths that no loss by this table could have."""
    known = re.compile("|".join(keep.pattern() for keep in keeps))
    return [path for path in paths if not known.fullmatch(path)]


def path_text(path: tuple[str, ...]) -> str:
    """Write a path in full: no two are written alike.

    >>> path_text(("flows", "control_points", "check out"))
    'flows.control_points["check out"]'
    """
    text = ""
    for part in path:
        long = len(part) > 80
        said = f"[{json.dumps(part)}]" if long else written((part,))
        text += f".{said}" if text and not said.startswith("[") else said
    return text


def told(found: Iterable[Loss]) -> str:
    """Name losses in a sentence: `server.tokens (the last token)`."""
    return ", ".join(f"{loss.path} ({loss.what})" for loss in found)


def _found(
    value: Any, path: tuple[str, ...], before: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    if value is None:
        return
    if not path:
        yield before, value
    elif path[0] == EACH:
        for name, inner in value.items():
            yield from _found(inner, path[1:], (*before, name))
    else:
        yield from _found(_step(value, path[0]), path[1:], (*before, path[0]))


def _step(value: Any, part: str) -> Any:
    return value.get(part) if isinstance(value, Mapping) else getattr(value, part)
