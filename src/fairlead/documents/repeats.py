"""Lists whose entries each have something of their own: a name, an address, a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydantic import ValidationError

    from fairlead.documents.reading import Path


class Repeated(ValueError):
    """Values that stand in a list for a second time: where in it each of them stands, and what to say of it."""

    def __init__(self, places: Sequence[tuple[Path, str]]) -> None:
        super().__init__("; ".join(said for _, said in places))
        self.places = tuple(places)


def refuse_repeats(
    given: Sequence[Any], *fields: str, same: Callable[[Any, Any], bool] = lambda one, other: False
) -> None:
    """Refuse a value that stands in one of these fields of two entries, unless the entries say the same."""
    places = []
    for field in fields:
        first: dict[Any, int] = {}
        for index, one in enumerate(given):
            number = first.setdefault(getattr(one, field), index)
            if number != index and not same(given[number], one):
                said = f"is given twice, first in entry {number + 1}; keep one"
                places.append(((index, field), said))
    if places:
        raise Repeated(sorted(places))


def errors_of(error: ValidationError) -> Iterator[dict[str, Any]]:
    """Read what a model found wrong; each repeated value is an error of its own, at its second place."""
    for one in error.errors(include_url=False):
        found: dict[str, Any] = dict(one)
        cause = found.get("ctx", {}).get("error")
        if not isinstance(cause, Repeated):
            yield found
            continue
        for path, said in cause.places:
            yield found | {"loc": (*one["loc"], *path), "ctx": {"error": ValueError(said)}}
