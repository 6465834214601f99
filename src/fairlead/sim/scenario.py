"""A scenario: who comes when, with what work.  From a document to arrivals, drawn by a seed.

Each source of arrivals draws from a generator of its own, seeded by the seed and its place in the document, so what
one source does changes nothing in another, and every policy meets the very same arrivals.
"""

from __future__ import annotations

from difflib import get_close_matches
from math import inf
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fairlead.config import shown
from fairlead.documents.values import Duration, DurationOrZero, Model
from fairlead.errors import BadFile, ConfigError
from fairlead.sim.arrivals import MOST_ARRIVALS, Client, merged
from fairlead.sim.reading import Draft
from fairlead.sim.sources import MOST_CLIENTS, Burst, Closed, Poisson, Source, Steady, Trace
from fairlead.sim.workflows import Dags

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from fairlead.sim.building import PolicySpec
    from fairlead.sim.result import Arrival

KINDS: dict[str, type[Source]] = {
    "poisson": Poisson,
    "steady": Steady,
    "burst": Burst,
    "closed": Closed,
    "trace": Trace,
    "dags": Dags,
}


class _Document(Model):
    name: str | None = None
    seconds: Duration | None = None
    count: Annotated[int, Field(strict=True, ge=1, le=MOST_ARRIVALS)] | None = None
    seed: Annotated[int, Field(strict=True, ge=0)] = 0
    until: DurationOrZero | None = None
    policy: Any = None
    arrivals: Annotated[list[Any], Field(min_length=1)]


class Scenario:
    """Sources of arrivals, or arrivals; `until` is when the simulation stops though somebody still waits."""

    def __init__(
        self,
        sources: Sequence[Source] = (),
        *,
        name: str = "scenario",
        seconds: float = inf,
        count: int | None = None,
        seed: int = 0,
        until: float = inf,
        given: Sequence[Arrival] = (),
        policy: PolicySpec | None = None,
    ) -> None:
        self.name = name
        self.sources = tuple(sources)
        self.seconds = seconds
        self.count = count
        self.seed = seed
        self.until = until
        self.policy = policy  # the one it runs under unless another is given
        self._given = list(given)

    @classmethod
    def of(
        cls, arrivals: Iterable[Arrival], *, name: str = "scenario", until: float = inf
    ) -> Scenario:
        """Make a scenario of arrivals that are known; `deps` are indices into them."""
        return cls(name=name, given=list(arrivals), until=until)

    def arrivals(self, seed: int | None = None) -> list[Arrival]:
        """Draw all arrivals that do not depend on what becomes of others, in order of time."""
        seed = self.seed if seed is None else seed
        seconds, count = self._guess(), self.count
        while True:
            drawn = [self._given] if self._given else []
            for number, source in enumerate(self.sources):
                if not isinstance(source, Closed):
                    drawn.append(source.draw(Random(f"{seed}/{number}"), seconds, count))
            found = merged(drawn, self.seconds, count)
            if seconds >= self.seconds or count is None or len(found) >= count:
                return found
            seconds = min(2 * seconds, self.seconds)

    def _guess(self) -> float:
        """Guess by when so many will have come, lest each source draw as many as all together."""
        rates = [source.per_second() for source in self.sources if source.endless]
        if self.count is None or len(rates) < 2 or any(isinstance(s, Dags) for s in self.sources):
            return self.seconds
        rate = sum(rates)
        return min(self.seconds, 1.1 * self.count / rate) if rate else self.seconds

    def clients(self, seed: int | None = None) -> list[Client]:
        """Make the clients that come again when their last work has ended."""
        seed = self.seed if seed is None else seed
        found: list[Client] = []
        for number, source in enumerate(self.sources):
            if isinstance(source, Closed):
                found += source.clients_of(f"{seed}/{number}", self.seconds)
        return found


def read_scenario(given: str | os.PathLike[str] | Mapping[str, Any]) -> Scenario:
    """Read a scenario: a path, YAML text, or a mapping.  Whatever is wrong is raised at once, as BadFile.

    >>> source = {"kind": "poisson", "rate": 5, "service": "100ms"}
    >>> len(read_scenario({"count": 3, "arrivals": [source]}).arrivals())
    3
    """
    draft = Draft(given, "scenario")
    document = draft.read(_Document)
    items = draft.plain.get("arrivals")
    sources: list[Source] = []
    policy = None if document is None else _policy(draft, document.policy)
    for index, item in enumerate(items if isinstance(items, list) else ()):
        source = _source(draft, index, item)
        if source is not None:
            sources.append(source)
            _prepare(draft, index, source)
            if document is not None:
                _bound(draft, index, source, document)
    if document is not None and not draft.problems:
        _bound_all(draft, sources, document)
    draft.stop()
    assert document is not None  # noqa: S101
    return Scenario(
        sources,
        name=document.name or draft.name,
        seconds=inf if document.seconds is None else document.seconds,
        count=document.count,
        seed=document.seed,
        until=inf if document.until is None else document.until,
        policy=policy,
    )


def _policy(draft: Draft, given: Any) -> PolicySpec | None:
    """Read the policy a scenario names (a file that stands beside it) or holds."""
    if given is None:
        return None
    if not isinstance(given, str | dict) or not given:
        draft.wrong(("policy",), f"must be a policy, or the path of one; got {shown(given)}")
        return None
    from fairlead.sim.building import read_policy

    try:
        return read_policy(draft.folder / given if isinstance(given, str) else given)
    except BadFile as error:
        for line in error.lines:
            draft.wrong(("policy",), line.removeprefix("policy "))
    return None


def _source(draft: Draft, index: int, item: Any) -> Source | None:
    path = ("arrivals", index)
    if not isinstance(item, dict):
        draft.wrong(path, "must be a mapping with a kind")
        return None
    kind = item.get("kind")
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        known = ", ".join(KINDS)
        draft.wrong((*path, "kind"), f"kind must be one of {known}" + _meant(kind))
        return None
    for one, many in (("tenant", "tenants"), ("workload", "workloads")):
        if item.get(one) is not None and item.get(many) is not None:
            draft.wrong((*path, many), f"needs {one} or {many}, and not both")
    return draft.read(model, path)


def _prepare(draft: Draft, index: int, source: Source) -> None:
    """Let a source read its files."""
    try:
        source.prepare(draft.folder)
    except ConfigError as error:
        draft.wrong(("arrivals", index, source.field), str(error))


def _bound(draft: Draft, index: int, source: Source, document: _Document) -> None:
    """See that a source comes to an end, and before the memory does."""
    if source.endless and document.seconds is None and document.count is None:
        draft.wrong(
            ("arrivals", index),
            f"kind: {source.kind} goes on for ever; say how long with seconds or count, or with end",
        )
    expected = _expected(source, document)
    if MOST_ARRIVALS < expected < inf:
        draft.wrong(
            ("arrivals", index),
            f"would come {expected:,.0f} times; a simulation is of {MOST_ARRIVALS:,} at most",
        )


def _bound_all(draft: Draft, sources: Sequence[Source], document: _Document) -> None:
    """See that all sources together keep the bounds that each of them keeps."""
    expected = sum(_expected(source, document) for source in sources)
    if document.count is None and MOST_ARRIVALS < expected < inf:
        draft.wrong(
            ("arrivals",),
            f"would come {expected:,.0f} times together; a simulation is of {MOST_ARRIVALS:,} at most",
        )
    clients = sum(source.clients for source in sources if isinstance(source, Closed))
    if clients > MOST_CLIENTS:
        draft.wrong(
            ("arrivals",), f"are {clients:,} clients together; {MOST_CLIENTS:,} are the most"
        )


def _expected(source: Source, document: _Document) -> float:
    last = min(document.seconds or inf, source.end or inf)
    return min(source.per_second() * (last - source.start), document.count or inf)


def _meant(kind: Any) -> str:
    near = get_close_matches(kind, KINDS, n=1) if isinstance(kind, str) else []
    return f"; did you mean {near[0]}?" if near else ""
