"""What to say about a value that the models refused: what was expected, what was given, what was probably meant.

Sentences go to logs and terminals: values are escaped and cut, and what may be a secret is never shown.
"""

from __future__ import annotations

import re
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from fairlead.config import shown
from fairlead.documents.reading import Problem, written
from fairlead.documents.repeats import errors_of
from fairlead.documents.values import Model

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

    from fairlead.documents.reading import Node, Path

MOST_ADVISED = 100  # problems of one document; beyond, a problem has a place and no advice
NO_ADVICE = "is wrong too"
_EXPECTED = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "model_type": "must be a mapping",
    "string_type": "must be text",
}


# An error of pydantic with its place and its path, written and as it is.
Wrong = tuple[tuple[int, int], str, "Path", Any]


class Adviser:
    """Knows the keys of one kind of configuration.

    `secret` are keys beneath which nothing is shown; `keys` the literal keys of its mappings, and what they are called;
    `spellings` the second names of keys, by model.
    """

    def __init__(
        self,
        root: type[Model],
        *,
        secret: Collection[str] = (),
        keys: Collection[str] = (),
        called: str = "key",
        spellings: Mapping[type[Model], Mapping[str, str]] | None = None,
    ) -> None:
        self._root = root
        self._secret = frozenset(secret)
        self._literal = tuple(keys)
        self._called = called
        self._spellings = spellings or {}

    def problems(self, error: ValidationError, tree: Node, prefix: Path = ()) -> Iterator[Problem]:
        """Tell all that a model found wrong with a tree, each where it stands; `prefix` leads to the tree."""
        found: list[Wrong] = []
        for one in errors_of(error):
            path = tuple(part for part in one["loc"] if part != "[key]")
            at, there = tree.find(path)
            where = path if one["type"] == "missing" else there
            found.append((at, written((*prefix, *where)), where, one))
        yield from self.advised(found)

    def advised(self, found: list[Wrong]) -> Iterator[Problem]:
        """Make problems of errors, each with its place and path; advice costs time, so only the first get some."""
        found.sort(key=itemgetter(0, 1))
        for index, (at, text, where, one) in enumerate(found):
            advice = self.advice(one, where) if index < MOST_ADVISED else NO_ADVICE
            yield Problem(*at, text, advice)

    def advice(self, error: Mapping[str, Any], path: Path) -> str:
        """Put one error of pydantic into a sentence; the path is where it is."""
        kind = error["type"]
        if kind == "missing":
            return "is required"
        if kind == "extra_forbidden":
            return self._unknown(path)
        if kind == "literal_error" and error["loc"][-1] == "[key]":
            near = _near(error["input"], self._literal)
            plural = self._called + ("es" if self._called.endswith("s") else "s")
            known = f"the {plural} are {', '.join(self._literal)}"
            meant = f"did you mean {near}?" if near else known
            return f"unknown {self._called} {shown(error['input'])}; {meant}"
        if kind == "value_error":
            return str(error["ctx"]["error"]).removeprefix("it ")
        if kind == "literal_error":
            expected = str(error["ctx"]["expected"])
            names = re.findall(r"'([^']*)'", expected)
            near = _near(error["input"], names)
            meant = f"; did you mean {near}?" if near else ""
            return f"must be {expected.replace(chr(39), '')}{self._got(error, path)}{meant}"
        message = re.sub(r"^(Input|String|List) should", "must", error["msg"])
        # A hash of nothing but digits, say, is a number in YAML.
        quoted = "; put it in quotes" * (
            kind == "string_type" and isinstance(error["input"], int | float)
        )
        return _EXPECTED.get(kind, message) + self._got(error, path) + quoted

    def _got(self, error: Mapping[str, Any], path: Path) -> str:
        given = error["input"]
        if given is not None and self._secret.intersection(path):
            return ""
        if isinstance(given, dict):
            return "; got a mapping"
        if isinstance(given, list):
            return "; got a list"
        if given is None:
            return "; got nothing"
        known = isinstance(given, str | int | float | timedelta)
        return f"; got {shown(given) if known else type(given).__name__}"

    def _unknown(self, path: Path) -> str:
        """Name the nearest key of this place, and other places where the very key would be right."""
        key = path[-1]
        model = self._model_at(path[:-1])
        here = self._keys(model) if model else []
        second = self._spellings.get(model, {}).get(str(key)) if model else None
        if second is not None:
            return f"says the same as {second}, which is given too; keep one"
        near = _near(key, here)
        elsewhere = [place or "the top level" for place in self.places.get(str(key), ())]
        said = [f"unknown key {shown(key)}"]
        if near:
            said.append(f"did you mean {near}?")
        if elsewhere:
            said.append(f"{key} belongs in {' or '.join(elsewhere)}")
        if not near and not elsewhere and (far := _near(key, list(self.places))):
            place = self.places[far][0] or "the top level"
            said.append(f"did you mean {far}, which belongs in {place}?")
        if len(said) == 1:
            said.append(f"valid keys are {', '.join(here)}")
        return "; ".join(said).replace("?; ", "? ")

    def _model_at(self, path: Path) -> type[Model] | None:
        model: type[Model] | None = self._root
        parts = iter(path)
        for part in parts:
            field = _field(model, str(part)) if model is not None else None
            if field is None:
                return None
            model = _model_in(field.annotation)
            if _many(field.annotation):
                next(parts, None)
        return model

    def _keys(self, model: type[Model]) -> list[str]:
        names = [field.alias or name for name, field in model.model_fields.items()]
        return [*names, *self._spellings.get(model, ())]

    @cached_property
    def places(self) -> dict[str, list[str]]:
        """Every key there is, and the places in which it may stand."""
        found: dict[str, list[str]] = {}

        def walk(
            model: type[Model], path: tuple[str, ...], outside: tuple[type[Model], ...]
        ) -> None:
            for key in self._keys(model):
                found.setdefault(key, []).append(written(path).replace('["*"]', "[]"))
                field = _field(model, key)
                inner = _model_in(field.annotation) if field else None
                if inner is None or inner in outside:  # a model may hold others of its own kind
                    continue
                many = field is not None and _many(field.annotation)
                walk(inner, (*path, key, "*") if many else (*path, key), (*outside, inner))
                if field is not None and _literal_keys(field.annotation):
                    for name in self._literal:
                        found.setdefault(name, []).insert(0, written((*path, key)))

        walk(self._root, (), (self._root,))
        return found


def _near(given: Any, names: Any) -> str | None:
    if not isinstance(given, str) or len(given) > 100:
        return None
    return next(iter(get_close_matches(given.lower(), names, n=1)), None)


def _field(model: type[Model], key: str) -> FieldInfo | None:
    fields = model.model_fields
    found = fields.get(key)
    return found or next((field for field in fields.values() if field.alias == key), None)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _many(annotation: Any) -> bool:
    return any(get_origin(part) in {list, dict} for part in _parts(annotation))


def _literal_keys(annotation: Any) -> bool:
    return any(
        get_origin(part) is dict and get_origin(get_args(part)[0]) is Literal
        for part in _parts(annotation)
    )


def _model_in(annotation: Any) -> type[Model] | None:
    models = (
        part for part in _parts(annotation) if isinstance(part, type) and issubclass(part, Model)
    )
    return next(models, None)
