"""Runs of one job each that differ in nothing but names and arguments: queues are filled with them by the thousand.

They are kept as columns and stored by fewer steps than runs of any other shape; to whoever asks they are runs like any
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from fairlead.jobs.graph import Dag
from fairlead.jobs.records import NewRun
from fairlead.jobs.rows import Registered, run_of_one

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Alike(Sequence[NewRun]):
    """Such runs: the first of them, and of all what may differ."""

    __slots__ = ("first", "names", "nodes", "payloads")

    def __init__(
        self, first: NewRun, names: list[str], nodes: list[str], payloads: list[str]
    ) -> None:
        self.first = first
        self.names = names
        self.nodes = nodes  # the names of the jobs
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> NewRun: ...
    @overload
    def __getitem__(self, place: slice) -> list[NewRun]: ...
    def __getitem__(self, place: int | slice) -> NewRun | list[NewRun]:
        if isinstance(place, slice):
            return [self._run(one) for one in range(*place.indices(len(self)))]
        return self._run(place)

    def __iter__(self) -> Iterator[NewRun]:
        return map(self._run, range(len(self)))

    def _run(self, place: int) -> NewRun:
        first = self.first
        job = first.jobs[0]._replace(name=self.nodes[place], payload=self.payloads[place])
        return first._replace(name=self.names[place], jobs=(job,))


def alike(
    dags: Sequence[Any],
    registered: Registered,
    estimates: Mapping[str, float],
    start_at: float | None,
) -> Alike | None:
    """Make the columns of DAGs that are alike, without a key; None if one of them is another."""
    first = dags[0] if dags else None
    if not isinstance(first, Dag):
        return None
    run = run_of_one(first, registered, estimates, start_at)
    if run is None:
        return None
    call, tenant = first.nodes[0].call, run.tenant
    names, node_names, payloads = [], [], []
    for dag in dags:
        if not isinstance(dag, Dag) or dag.key is not None or dag.tenant != tenant:
            return None
        nodes = dag.nodes
        if len(nodes) != 1 or dag.soft or dag.hard:
            return None
        node = nodes[0]
        if node.call is not call or node.fault or node.uses or node.after or node.soft or node.hard:
            return None
        names.append(dag.name)
        node_names.append(node.name)
        payloads.append(node.payload)
    return Alike(run, names, node_names, payloads)
