"""Policies from documents: the presets of the doors, or one put together from parts.

A preset is built by the very functions that its door uses, from the very settings; what is wrong in a document is said
with its place, before anything runs.
"""

from __future__ import annotations

import copy
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.errors import ConfigError
from fairlead.sim.presets import PRESETS, door_of, preset_of
from fairlead.sim.reading import Draft

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from fairlead.sim.site import Site


class PolicySpec:
    """A policy that was read and found right; each `build` makes it anew."""

    def __init__(
        self,
        name: str,
        document: dict[str, Any],
        build: Callable[[], Site],
        source: str,
        planners: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.document = document
        self.source = source
        self._build = build
        self._planners = planners

    def build(self) -> Site:
        """Make a fresh gate with nobody in it."""
        return self._build()

    def with_settings(self, changes: Mapping[str, Any], *, name: str | None = None) -> PolicySpec:
        """Change settings by their dotted paths into the document; the result is checked as a file would be.

        >>> tasks = read_policy({"preset": "tasks", "max_concurrency": 4})
        >>> tasks.with_settings({"max_concurrency": 8}).document["max_concurrency"]
        8
        """
        document = copy.deepcopy(self.document)
        for path, value in changes.items():
            _set(document, path, value)
        try:
            changed = read_policy(document, planners=self._planners)
        except ConfigError as error:
            said = ", ".join(f"{path}={shown(value)}" for path, value in changes.items())
            raise ConfigError(f"{self.name} with {said}: {error}") from error
        changed.name = self.name if name is None else name
        changed.source = self.source
        return changed

    def __repr__(self) -> str:
        return f"<PolicySpec {self.name}>"


def _set(document: dict[str, Any], path: str, value: Any) -> None:
    parts = path.split(".")
    if not all(parts):
        raise ConfigError(f"{shown(path)} is no path; write one such as classes.bulk.queue_size")
    if "priority_scheduler" in document and parts[0] not in document and len(parts) > 1:
        parts.insert(0, "priority_scheduler")  # what is short in a policy is long in a gateway.yaml
    inner: Any = document
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if isinstance(inner, list):
            if not part.isdecimal() or int(part) >= len(inner):
                raise ConfigError(f"{path}: there is no item {part} in a list of {len(inner)}")
            if last:
                inner[int(part)] = value
            else:
                inner = inner[int(part)]
        elif isinstance(inner, dict):
            if last:
                inner[part] = value
            else:
                if inner.get(part) is None:
                    inner[part] = {}
                inner = inner[part]
        else:
            raise ConfigError(
                f"{path}: {'.'.join(parts[:number])} is a single value, with nothing inside"
            )


def read_policy(
    given: str | os.PathLike[str] | Mapping[str, Any],
    *,
    planners: Mapping[str, Any] = MappingProxyType({}),
) -> PolicySpec:
    """Read a policy: a path, YAML text, or a mapping.  Whatever is wrong is raised at once, as BadFile.

    `planners` are those of your own that a policy of jobs may name, as `Jobs` takes them.

    >>> read_policy({"policy": "fifo", "capacity": {"slots": 2}}).build().slots
    2
    """
    draft = Draft(given, "policy", planners)
    door = door_of(draft.plain)
    if door is not None:
        draft.enter(door)
    preset = preset_of(draft.plain) if door is None else door
    reader = PRESETS.get(preset) if isinstance(preset, str) else None
    if reader is None:
        near = get_close_matches(preset, PRESETS, n=1) if isinstance(preset, str) else []
        meant = f"; did you mean {near[0]}?" if near else ""
        known = ", ".join(name for name in PRESETS if name)
        draft.wrong(("preset",), f"preset must be one of {known}; got {shown(preset)}{meant}")
        draft.stop()
    assert reader is not None  # noqa: S101
    name = draft.plain.get("name")
    if name is not None and not isinstance(name, str):
        draft.wrong(("name",), f"must be text; got {shown(name)}")
    build = None
    try:
        build = reader(draft)
    except ModuleNotFoundError as error:
        if not preset or (error.name or "").startswith("fairlead"):
            raise
        extra = "serve" if preset == "pool" else preset
        message = f'the preset {preset} needs {error.name}: pip install "fairlead[{extra}]"'
        draft.wrong(("preset",), message)
    draft.stop()
    assert build is not None  # noqa: S101
    try:
        build()  # what only the making finds is found now
    except ConfigError as error:
        draft.wrong((), str(error))
        draft.stop()
    document = copy.deepcopy(draft.plain)
    return PolicySpec(name or draft.name, document, build, draft.source, planners)
