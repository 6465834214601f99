"""Graphs of work: recorded workflows in WfFormat, submitted again and again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator

from fairlead.config import shown
from fairlead.documents.values import LONGEST, Duration
from fairlead.errors import ConfigError
from fairlead.sim.arrivals import MOST_ARRIVALS
from fairlead.sim.graphs import followers_of, in_a_circle
from fairlead.sim.result import Arrival
from fairlead.sim.sources import Rate, Source
from fairlead.sim.traces import see_file
from fairlead.sim.values import chooser

if TYPE_CHECKING:
    from collections.abc import Callable
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
    except ConfigError:
        raise
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
    stuck = in_a_circle(arrivals, followers_of(arrivals))
    if stuck is not None:
        raise ConfigError(f"{path}: {shown(stuck.key)} follows itself, through others")
    return arrivals


def _step(path: Path, step: Any, ran: dict[Any, Any], numbers: dict[Any, int]) -> Arrival:
    unknown = [parent for parent in step["parents"] if parent not in numbers]
    if unknown:
        raise ConfigError(
            f"{path}: {shown(step['id'])} follows {shown(unknown[0])}, which is not there"
        )
    task = ran.get(step["id"], {})
    seconds = task.get("runtimeInSeconds") or 0.0
    if not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST:  # nan is neither
        raise ConfigError(
            f"{path}: {shown(step['id'])} must have taken from 0 to {LONGEST:,.0f} seconds; "
            f"got {shown(seconds)}"
        )
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
            try:
                paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
            except OSError as error:
                raise ConfigError(f"{path} cannot be read ({error.strerror or error})") from None
            if not paths:
                raise ConfigError(f"{path} holds no workflows (*.json)")
            self._read.extend((one.stem, read_workflow(one)) for one in paths)
        longest = max(step.service for _, steps in self._read for step in steps)
        if longest * self.scale > LONGEST:
            raise ConfigError(
                f"its longest job would take {longest * self.scale:,.0f} s at this scale; "
                f"{LONGEST:,.0f} s are the most"
            )

    def draw(self, random: Random, seconds: float, count: int | None) -> list[Arrival]:
        last = self._last(seconds)
        tenant_of = chooser(random, self.tenants or {self.tenant or "": 1.0})
        workload_of = chooser(random, self.workloads or {self.workload or "": 1.0})
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
            drawn += self._submitted(steps, at, run, tenant, len(drawn), cost_of, workload_of)
            run += 1
            if len(drawn) > MOST_ARRIVALS:
                raise ConfigError(
                    f"{run} workflows are {len(drawn):,} jobs; a simulation is of {MOST_ARRIVALS:,} at most"
                )
        return drawn

    def _submitted(
        self,
        steps: list[Arrival],
        at: float,
        run: int,
        tenant: str,
        base: int,
        cost_of: Callable[[], float],
        workload_of: Callable[[], str],
    ) -> list[Arrival]:
        said = self.model_fields_set
        told = self.workload is not None or self.workloads is not None
        return [
            step._replace(
                at=at,
                service=step.service * self.scale,
                cls=self.cls,
                tenant=tenant,
                workload=workload_of() if told else step.workload,
                priority=self.priority,
                cost=cost_of() if "cost" in said else 1.0,
                deadline=None if self.deadline is None else at + self.deadline,
                patience=self.patience,
                key=f"{run}/{step.key}",
                deps=tuple(base + dep for dep in step.deps),
                pool=self.pool,
                dag=run,
                leaves=self.leaves,
                commits=self.commits,
                retries=self.retries,
                pause=self.pause,
                labels=self.labels,
                door=self.door,
            )
            for step in steps
        ]
