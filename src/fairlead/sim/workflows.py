"""Graphs of work: recorded workflows in WfFormat, submitted again and again."""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator

from fairlead.config import shown
from fairlead.documents.values import Duration
from fairlead.errors import ConfigError
from fairlead.sim.arrivals import MOST_ARRIVALS
from fairlead.sim.result import Arrival
from fairlead.sim.sources import Rate, Source
from fairlead.sim.traces import see_file
from fairlead.sim.values import chooser

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

MOST_BYTES = 64 * 1024 * 1024


def read_workflow(path: Path) -> list[Arrival]:
    """Read a file of WfFormat: its tasks as arrivals at 0, each after its parents.

    A task's workload is its program; its tenant is the workflow.
    """
    try:
        see_file(path)
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path} is larger than {MOST_BYTES:,} bytes; is it a workflow?")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {shown(str(error))}") from None
    try:
        workflow = document["workflow"]
        steps = list(workflow["specification"]["tasks"])
        ran = {task["id"]: task for task in workflow["execution"]["tasks"]}
        numbers = {step["id"]: number for number, step in enumerate(steps)}
        if len(numbers) < len(steps):
            raise ConfigError(f"{path}: two tasks have one id")
        arrivals = [_step(path, step, ran, numbers) for step in steps]
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not WfFormat 1.5: {error!r}") from None
    if not arrivals:
        raise ConfigError(f"{path} has no tasks")
    _see_no_circle(path, arrivals)
    return arrivals


def _step(path: Path, step: Any, ran: dict[Any, Any], numbers: dict[Any, int]) -> Arrival:
    unknown = [parent for parent in step["parents"] if parent not in numbers]
    if unknown:
        raise ConfigError(
            f"{path}: {shown(step['id'])} follows {shown(unknown[0])}, which is not there"
        )
    task = ran.get(step["id"], {})
    seconds = task.get("runtimeInSeconds") or 0.0
    if not isinstance(seconds, int | float) or not isfinite(seconds) or seconds < 0:
        raise ConfigError(f"{path}: {shown(step['id'])} took {shown(seconds)} seconds")
    command = task.get("command")
    program = command.get("program") if isinstance(command, dict) else None
    deps = tuple(dict.fromkeys(numbers[parent] for parent in step["parents"]))
    return Arrival(
        0.0,
        float(seconds),
        workload=str(program or step.get("name") or step["id"])[-200:],
        key=str(step["id"]),
        deps=deps,
        dag=0,
    )


def _see_no_circle(path: Path, arrivals: list[Arrival]) -> None:
    waits = [len(arrival.deps) for arrival in arrivals]
    followers: dict[int, list[int]] = {}
    for number, arrival in enumerate(arrivals):
        for dep in arrival.deps:
            followers.setdefault(dep, []).append(number)
    ready = [number for number, count in enumerate(waits) if not count]
    for number in ready:
        for follower in followers.get(number, ()):
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    if len(ready) < len(arrivals):
        stuck = next(number for number, count in enumerate(waits) if count)
        raise ConfigError(f"{path}: {shown(arrivals[stuck].key)} follows itself, through others")


class Dags(Source):
    """Recorded workflows, each submitted as a whole: at a rate, or all of them at once, so many times."""

    field: ClassVar[str] = "files"

    kind: Literal["dags"]
    files: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    rate: Rate | None = None
    every: Duration | None = None
    runs: Annotated[int, Field(strict=True, ge=1, le=100_000)] | None = None
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    _read: list[tuple[str, list[Arrival]]] = PrivateAttr(default_factory=list)

    @field_validator("files", mode="before")
    @classmethod
    def _one(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    @property
    def endless(self) -> bool:
        return self.runs is None and self.end is None and (self.rate or self.every) is not None

    def prepare(self, folder: Path) -> None:
        for name in self.files:
            path = folder / name
            paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
            if not paths:
                raise ConfigError(f"{path} holds no workflows (*.json)")
            self._read.extend((one.stem, read_workflow(one)) for one in paths)

    def draw(self, random: Random, seconds: float, count: int | None) -> list[Arrival]:
        last = self._last(seconds)
        tenant_of = chooser(random, self.tenants or {self.tenant or "": 1.0})
        cost_of = self.cost.draw(random)
        named = self.tenant is not None or self.tenants is not None
        spaced = self.rate is not None or self.every is not None
        most = self.runs if self.runs is not None else (None if spaced else len(self._read))
        at, run = self.start, 0
        drawn: list[Arrival] = []
        while (most is None or run < most) and (count is None or run < count):
            if self.rate is not None:
                at += random.expovariate(self.rate)
            elif self.every is not None and run:
                at = self.start + run * self.every
            if at > last:
                break
            name, steps = self._read[run % len(self._read)]
            tenant = tenant_of() if named else name
            drawn += self._submitted(steps, at, run, tenant, len(drawn), cost_of)
            run += 1
            if len(drawn) > MOST_ARRIVALS:
                raise ConfigError(
                    f"{run} workflows are {len(drawn):,} jobs; a simulation is of {MOST_ARRIVALS:,} at most"
                )
        return drawn

    def _submitted(
        self, steps: list[Arrival], at: float, run: int, tenant: str, base: int, cost_of: Any
    ) -> list[Arrival]:
        said = self.model_fields_set
        return [
            step._replace(
                at=at,
                service=step.service * self.scale,
                cls=self.cls,
                tenant=tenant,
                workload=self.workload if self.workload is not None else step.workload,
                priority=self.priority,
                cost=cost_of() if "cost" in said else 1.0,
                deadline=None if self.deadline is None else at + self.deadline,
                patience=self.patience,
                key=f"{run}/{step.key}",
                deps=tuple(base + dep for dep in step.deps),
                pool=self.pool,
                dag=run,
                leaves=self.leaves,
                retries=self.retries,
                pause=self.pause,
                labels=self.labels,
            )
            for step in steps
        ]
