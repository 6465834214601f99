"""A configuration, from a file or a mapping to settings, with everything that is wrong said at once.

Content never raises.  A section with a problem is left at its default, so that what is right can run: with problems in
`priority_scheduler` alone the plain limiter takes over; problems elsewhere are `fatal`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fairlead.documents import loading
from fairlead.documents.advice import Adviser, Wrong
from fairlead.documents.reading import Node, Problem, digest_of, written
from fairlead.documents.repeats import errors_of
from fairlead.gateway.reservations import refusals, shortages
from fairlead.gateway.settings import (
    CLASSES,
    INTERACTIVE,
    SMG_NAMES,
    SYSTEM,
    ClassSettings,
    PrioritySettings,
    Settings,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from fairlead.documents.reading import Path

MOST_PROBLEMS = 100
SCHEDULER = "priority_scheduler"
CLASSES_PATH = (SCHEDULER, "classes")
# A file with these and nothing else is one of SMG's.
SMG_FILE = frozenset({"classes", "tenant_policies"})
ADVISER = Adviser(
    Settings,
    # What stands there may be a key somebody forgot to hash, or hold a password.
    secret={"api_keys", "redis", "token", "sha256"},
    keys=CLASSES,
    called="class",
    spellings={ClassSettings: SMG_NAMES},
)


class Loaded(loading.Loaded[Settings]):
    """Settings, where they came from, and what was wrong; `digest` identifies a file's content."""

    __slots__ = ()

    @property
    def fatal(self) -> tuple[Problem, ...]:
        """The problems that the plain limiter cannot stand in for."""
        return tuple(problem for problem in self.problems if problem.section != SCHEDULER)


def load(config: str | os.PathLike[str] | Mapping[str, Any] | Settings | None) -> Loaded:
    """Read a configuration: a path, a mapping, settings, or None for the defaults.

    >>> for line in load({"listen": "8080", "capacty": 64}).lines:
    ...     print(line)
    configuration capacty: unknown key 'capacty'; did you mean capacity?
    configuration listen: must be host:port, such as 127.0.0.1:8080 or [::1]:8080; got '8080'
    """
    if config is None:
        return Loaded(Settings(), (), "defaults")
    if isinstance(config, Settings):
        return _judged(config, "settings")
    tree, digest = loading.tree_and_digest_of(config)
    return load_tree(*tree)._replace(digest=digest)


def load_content(content: bytes | Problem, source: str) -> Loaded:
    """Read what a file held, or what `content_of` said of it."""
    return load_tree(*loading.tree_of(content, source))._replace(digest=digest_of(content))


def _judged(settings: Settings, source: str) -> Loaded:
    """Settings made by hand are valid in every part; whether the parts fit together is asked here."""
    if not (messages := refusals(settings)):
        return Loaded(settings, (), source, warnings_of(settings))
    problems = tuple(Problem(0, 0, written(CLASSES_PATH), message) for message in messages)
    fallback = settings.model_copy(update={SCHEDULER: PrioritySettings()})
    return Loaded(fallback, problems, source, warnings_of(settings))


def load_tree(tree: Node | None, problems: list[Problem], source: str) -> Loaded:
    """Read a tree, which may be a part of a larger document: what is said of it keeps its whereabouts."""
    if tree is None or tree.value is None:  # unreadable, or an empty document
        return Loaded(Settings(), tuple(problems), source)
    if not isinstance(tree.value, dict):
        kind = "a list" if isinstance(tree.value, list) else "a single value"
        problems.append(Problem(*tree.at, "", f"must be a mapping of settings; got {kind}"))
        return Loaded(Settings(), tuple(problems), source)
    if tree.value and SMG_FILE.issuperset(tree.value):
        tree, problems = _smg(tree, problems)

    data = tree.plain()
    errors = _errors(data)
    problems = sorted([*problems, *ADVISER.advised([_placed(tree, error) for error in errors])])
    bad = {problem.section for problem in problems}
    good = {key: data[key] for key in Settings.model_fields if key in data and key not in bad}
    whole = Settings.model_validate(good | _sound_part(data.get(SCHEDULER), errors))
    warnings = warnings_of(whole)
    if _comparable(whole, bad, errors):
        at = _first(tree, CLASSES_PATH, ("capacity",), ("upstreams",), (SCHEDULER,))
        for message in refusals(whole):
            problems.append(Problem(*at, written(CLASSES_PATH), message))
            good.pop(SCHEDULER, None)
    return Loaded(Settings.model_validate(good), _capped(sorted(problems)), source, warnings)


def _smg(tree: Node, problems: list[Problem]) -> tuple[Node, list[Problem]]:
    inner = Node({"enabled": Node(True, tree.at), **tree.value}, tree.at)
    inner.keys = tree.keys
    outer = Node({SCHEDULER: inner}, tree.at)
    outer.keys = {SCHEDULER: tree.at}
    moved = [
        problem._replace(path=f"{SCHEDULER}.{problem.path}".rstrip(".")) for problem in problems
    ]
    return outer, moved


def _errors(data: dict[str, Any]) -> list[Any]:
    try:
        Settings.model_validate(data)
    except ValidationError as error:
        return list(errors_of(error))
    return []


def _placed(tree: Node, error: Any) -> Wrong:
    path: Path = error["loc"]
    at, found = tree.find(path)
    if len(found) < len(path):
        smg = next((smg for smg, name in SMG_NAMES.items() if name == path[-1]), "")
        at, found = tree.find((*path[:-1], smg))
    if error["type"] == "missing":
        found = path
    return at, written(found), found, error


def _sound_part(scheduler: Any, errors: list[Any]) -> dict[str, Any]:
    """What of the scheduler's section is right: more can be said about it although it will not be used."""
    bad = _wrong_keys(errors)
    if not isinstance(scheduler, dict):
        return {} if scheduler is None or bad else {SCHEDULER: scheduler}
    return {SCHEDULER: {key: value for key, value in scheduler.items() if (key,) not in bad}}


def _comparable(settings: Settings, bad: set[str], errors: list[Any]) -> bool:
    """Tell whether classes and capacity are both as the file has them."""
    if bad & {"capacity", "pool_by"} or ("upstreams" in bad and settings.capacity is None):
        return False
    return not _wrong_keys(errors) & {(), ("classes",), ("enabled",)}


def _wrong_keys(errors: list[Any]) -> set[Path]:
    """The scheduler's own keys with errors in them; () if the section is none."""
    return {error["loc"][1:2] for error in errors if error["loc"][:1] == (SCHEDULER,)}


def _first(tree: Node, *paths: Path) -> tuple[int, int]:
    return next((at for path in paths for at, found in [tree.find(path)] if found == path), tree.at)


def _capped(problems: list[Problem]) -> tuple[Problem, ...]:
    if len(problems) <= MOST_PROBLEMS:
        return tuple(problems)
    left = problems[MOST_PROBLEMS - 1 :]
    # Fatal if any that it stands for is.
    last = next((problem for problem in left if problem.section != SCHEDULER), left[0])
    more = last._replace(message=f"{last.message}; and {len(left) - 1} more problems")
    return (*problems[: MOST_PROBLEMS - 1], more)


def warnings_of(settings: Settings) -> tuple[str, ...]:
    """Say what is allowed but hardly meant."""
    scheduler = settings.priority_scheduler
    if not scheduler.enabled:
        return ()
    found = []
    if scheduler.default_max_class == "system":
        found.append(
            "default_max_class: system means interactive; system needs an explicit max_class: system "
            "in a tenant's policy"
        )
    if not refusals(settings):
        found += shortages(settings)
    if settings.capacity is not None and settings.pool_by and settings.upstreams:
        found.append("capacity is not used with pool_by: each pool has what its upstreams have")
    ceilings = [policy.max_class for policy in scheduler.tenant_policies.values()]
    reach = max(
        min(INTERACTIVE, CLASSES.index(scheduler.default_max_class)),
        *(CLASSES.index(ceiling) for ceiling in ceilings if ceiling is not None),
        0,
    )
    for rank in range(SYSTEM, -1, -1):
        name, entry = CLASSES[rank], scheduler.classes[CLASSES[rank]]
        if rank > reach and (entry.reserved_floor or entry.reserved_per_slot):
            found.append(
                f"class {name} reserves slots but no tenant can reach it: give a tenant "
                f"max_class: {name}, or set its reserved_floor and reserved_per_slot to 0"
            )
        if entry.queue_size and entry.starvation_threshold >= entry.queue_timeout:
            found.append(
                f"class {name}: starvation_threshold ({entry.starvation_threshold:g} s) is not below "
                f"queue_timeout ({entry.queue_timeout:g} s), so nothing of it is ever promoted"
            )
    return tuple(found)
