"""DAG files: the same DAGs, written as YAML or JSON, with everything that is wrong said at once.

    name: invoice
    soft_sla: 15m
    tenant: acme
    jobs:
      - {name: first, task: extract, args: [a.pdf]}
      - {name: all, task: merge, args: [[{$result: first}]], after: [first]}

`{$result: first}` stands for the result of the job of that name.  A key that shall read `$result` itself is written
`$$result`.  The same goes for a mapping, which is what the HTTP API and schedules have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WithJsonSchema

from fairlead.config import shown
from fairlead.documents.advice import Adviser
from fairlead.documents.json_reading import MOST_PROBLEMS, read_json
from fairlead.documents.reading import (
    MOST_BYTES,
    Problem,
    content_of,
    lines_of,
    tree_of_yaml,
    written,
)
from fairlead.documents.values import Model
from fairlead.errors import BadFile, ConfigError
from fairlead.jobs.alike import take_alike
from fairlead.jobs.graph import Dag
from fairlead.jobs.nodes import text_of
from fairlead.jobs.payload import DEEPEST
from fairlead.jobs.rows import MOST_NODES, Plan, Registered, only_job, run_of_one
from fairlead.jobs.sla import instant, sla_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlead.documents.reading import Path
    from fairlead.jobs.nodes import Node
    from fairlead.jobs.records import NewRun
    from fairlead.jobs.registry import Task

MOST_FILE_BYTES = 16 << 20
MOST_VALUES = 600_000  # of one job; fewer fill what it may hold
_ESCAPED = re.compile(r"\$\$+result", re.ASCII)


def _text(value: Any) -> str:
    return text_of(value, "it")


def _sla(value: Any) -> Any:
    sla_of(value, "it")
    return value


SLA = {
    "anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}],
    "description": "a duration from when the run may start, or an instant with a time zone",
    "examples": ["15m", "2026-03-01T12:00:00Z"],
}
Text = Annotated[
    str,
    BeforeValidator(_text),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 255}),
]
SlaText = Annotated[Any, AfterValidator(_sla), WithJsonSchema(SLA)]


class JobEntry(Model):
    """A job of a DAG file."""

    name: Text
    task: Text
    args: list[Any] = Field(default_factory=list)
    # Keys are judged with the values, by the same rules as those of calls written in Python.
    kwargs: Annotated[
        dict[Any, Any], WithJsonSchema({"type": "object", "additionalProperties": True})
    ] = Field(default_factory=dict)
    after: list[Text] = Field(default_factory=list)
    soft_sla: SlaText = None
    hard_sla: SlaText = None


class DagFile(Model):
    """A DAG file."""

    name: Text
    soft_sla: SlaText = None
    hard_sla: SlaText = None
    tenant: Text | None = None
    key: Text | None = None
    jobs: Annotated[list[JobEntry], Field(min_length=1, max_length=MOST_NODES)]


ADVISER = Adviser(DagFile)


class Source(NamedTuple):
    """A value as read, and what is called what; `find` tells where a path stands."""

    value: Any
    name: str
    find: Callable[[Path], tuple[tuple[int, int], Path]]

    def problem(self, path: Path, message: str) -> Problem:
        """Say something of a place."""
        at, found = self.find(path)
        return Problem(*at, written(found), message)


def run_of_file(
    given: Any,
    tasks: Mapping[str, Task],
    *,
    now: float,
    start_at: Any = None,
    estimates: Mapping[str, float] | None = None,
) -> NewRun:
    """Make a run of a DAG file, given by its path or as a mapping; BadFile says everything that is wrong.

    >>> from fairlead.jobs.registry import task_of
    >>> tasks = {"print": task_of(print)}
    >>> run_of_file({"name": "hello", "jobs": [{"name": "a", "task": "prnt"}]}, tasks, now=0.0)
    Traceback (most recent call last):
    ...
    fairlead.errors.BadFile: DAG jobs[0].task: no task is called 'prnt'; did you mean 'print'?
    """
    if isinstance(given, Mapping):
        source = Source(given, "DAG", lambda path: ((0, 0), path))
    elif isinstance(given, str | os.PathLike):
        name = os.fsdecode(given)
        content = content_of(name, MOST_FILE_BYTES)
        if isinstance(content, Problem):
            raise BadFile(lines_of([content], name))
        source = source_of(content, name)
    else:
        raise ConfigError(f"a DAG must be a Dag, a path or a mapping; got {shown(given)}")
    return _run_of(source, tasks, now, start_at, estimates)


def run_of_content(
    content: bytes,
    tasks: Mapping[str, Task],
    *,
    now: float,
    start_at: Any = None,
    estimates: Mapping[str, float] | None = None,
    name: str = "DAG",
) -> NewRun:
    """Make a run of what a DAG file held, or the body of a request; `name` is what errors call it."""
    return _run_of(source_of(content, name), tasks, now, start_at, estimates)


def source_of(content: bytes, name: str = "DAG") -> Source:
    """Read JSON or YAML."""
    said: Problem | None = None
    if content.lstrip()[:1] in (b"{", b"["):
        read = read_json(content)
        if isinstance(read, list):
            raise BadFile(lines_of(read, name))
        if not isinstance(read, Problem):
            return Source(read.value, name, read.find)
        said = read  # YAML may begin with a brace as well
    if said is not None and name.endswith(".json"):
        raise BadFile(lines_of([said], name))
    if len(content) > MOST_BYTES:
        said = said or Problem(0, 0, "", f"is larger than {MOST_BYTES:,} bytes; write it as JSON")
        raise BadFile(lines_of([said], name))
    tree, problems = tree_of_yaml(content)
    if tree is None and said is not None and not name.endswith((".yaml", ".yml")):
        problems = [said]
    if tree is None or problems:
        raise BadFile(lines_of(problems or [Problem(0, 0, "", "is empty")], name))
    return Source(tree.plain(), name, tree.find)


def runs_of(
    dags: Iterable[Any],
    tasks: Mapping[str, Task],
    *,
    now: float,
    start_at: float | None = None,
    estimates: Mapping[str, float] | None = None,
) -> Sequence[NewRun]:
    """Check DAGs and DAG files, and make the rows to store of all of them."""
    registered = Registered(tasks)
    known = estimates or {}
    rest = iter(dags)
    same, other = take_alike(rest, registered, known, start_at)
    if same is not None and not other:
        return same
    runs = list(same or ())
    for dag in chain(other, rest):
        node = only_job(dag) if isinstance(dag, Dag) else None
        if node is not None:
            run = run_of_one(dag, node, registered.find(node.call), known, start_at)
        elif (plan := getattr(dag, "plan", None)) is not None:
            run = plan(registered, now=now, start_at=start_at, estimates=estimates)
        else:
            run = run_of_file(dag, tasks, now=now, start_at=start_at, estimates=estimates)
        runs.append(run)
    return runs


def _run_of(
    source: Source,
    tasks: Mapping[str, Task],
    now: float,
    start_at: Any,
    estimates: Mapping[str, float] | None,
) -> NewRun:
    begin = None if start_at is None else instant(start_at, "start_at")
    file, problems = _file_of(source)
    if file is None:
        raise BadFile(lines_of(problems, source.name))
    dag = Dag(file.name, tenant=file.tenant, key=file.key)
    # Judged by the plan, with everything else.
    dag.soft, dag.hard = sla_of(file.soft_sla, "soft_sla"), sla_of(file.hard_sla, "hard_sla")
    for entry in file.jobs:
        dag.add(entry.task).options(
            name=entry.name, after=entry.after, soft_sla=entry.soft_sla, hard_sla=entry.hard_sla
        )
    _Filling(source, dag, problems).fill(file.jobs)
    plan = Plan(dag, tasks, max(now, begin or now), estimates or {})
    for fault in islice(plan.faults(), MOST_PROBLEMS):
        path: Path = () if fault.node is None else ("jobs", fault.node)
        problems.append(source.problem((*path, fault.key), str(fault.error)))
    if problems:
        raise BadFile(lines_of(sorted(problems), source.name))
    return plan.run(begin)


def _file_of(source: Source) -> tuple[DagFile | None, list[Problem]]:
    value = source.value
    if not isinstance(value, Mapping):
        message = "must be a mapping with name and jobs"
        return None, [source.problem((), message)]
    problems = []
    try:
        return DagFile.model_validate(dict(value)), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
        for one in islice(errors, MOST_PROBLEMS):
            path = tuple(part for part in one["loc"] if part != "[key]")
            at, found = source.find(path)
            where = path if one["type"] == "missing" else found
            problems.append(Problem(*at, written(where), ADVISER.advice(one, where)))
        if all(one["type"] == "extra_forbidden" for one in errors):
            return DagFile.model_validate(_known(value)), problems
    except Exception as error:  # a mapping is anybody's code
        problems.append(Problem(0, 0, "", f"cannot be read: {shown(error)}"))
    return None, sorted(problems)


def _known(value: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the keys that nobody knows, where nothing else is wrong: what remains can be judged."""
    kept = {key: inner for key, inner in value.items() if key in DagFile.model_fields}
    kept["jobs"] = [
        {key: inner for key, inner in job.items() if key in JobEntry.model_fields}
        for job in kept["jobs"]
    ]
    return kept


class _Filling:
    """Puts arguments into the jobs of a DAG, with nodes where results are named."""

    def __init__(self, source: Source, dag: Dag, problems: list[Problem]) -> None:
        self._source = source
        self._dag = dag
        self._problems = problems
        self._named: dict[str, Node] = {}
        self._left = MOST_VALUES
        for node in dag.nodes:
            self._named.setdefault(node.name, node)

    def fill(self, entries: list[JobEntry]) -> None:
        for index, (node, entry) in enumerate(zip(self._dag.nodes, entries, strict=True)):
            if entry.args or entry.kwargs:
                self._left = MOST_VALUES
                node.give(
                    self._placed(entry.args, ("jobs", index, "args")),
                    self._placed(entry.kwargs, ("jobs", index, "kwargs")),
                )

    def _placed(self, value: Any, path: Path) -> Any:
        # Deeper than anything that may be stored: `give` will say so.
        self._left -= 1
        if not isinstance(value, list | tuple | dict) or len(path) > DEEPEST + 5 or self._left < 0:
            return value
        if not isinstance(value, dict):
            return [self._placed(inner, (*path, index)) for index, inner in enumerate(value)]
        if "$result" in value:
            return self._result(value, path)
        return {
            key[1:] if isinstance(key, str) and _ESCAPED.fullmatch(key) else key: self._placed(
                inner, (*path, key)
            )
            for key, inner in value.items()
        }

    def _result(self, value: dict[Any, Any], path: Path) -> Any:
        name = value["$result"]
        if len(value) == 1 and isinstance(name, str) and name in self._named:
            return self._named[name]
        if len(value) > 1:
            said = "$result stands alone in its mapping; write $$result for a key of that name"
        elif isinstance(name, str):
            said = f"no job is called {shown(name)}"
        else:
            said = f"$result takes the name of a job; got {shown(name)}"
        self._problems.append(self._source.problem((*path, "$result"), said))
        return None
