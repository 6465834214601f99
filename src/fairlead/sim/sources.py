"""The kinds of arrivals a scenario may name: each is a model that draws."""

from __future__ import annotations

from math import inf, log
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from fairlead.documents.values import Duration, DurationOrZero, Model
from fairlead.sim.arrivals import MOST_ARRIVALS, Client
from fairlead.sim.result import Arrival
from fairlead.sim.traces import Costs, read_trace
from fairlead.sim.values import Amounts, Times, chooser

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Rate = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=200)]
MOST_CLIENTS = 100_000  # each has a generator of its own, of 2.5 kB
ONE = Amounts.model_validate(1.0)


class Source(Model):
    """What all kinds share: what the work is like, whose it is, and when it comes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    field: ClassVar[str] = "kind"  # the one that names files

    kind: str
    cls: Name = Field("default", alias="class")
    tenant: Name | None = None
    tenants: dict[Name, Weight] | None = None
    workload: Name | None = None
    workloads: dict[Name, Weight] | None = None
    pool: Name = ""
    priority: Annotated[int, Field(strict=True, ge=0, le=100)] = 50
    cost: Amounts = ONE
    deadline: Duration | None = None
    patience: DurationOrZero | None = None
    leaves: DurationOrZero | None = None
    commits: DurationOrZero | None = None
    retries: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    pause: DurationOrZero = 0.0
    labels: dict[str, str] | None = None
    door: Name = ""
    start: DurationOrZero = 0.0
    end: Duration | None = None

    @field_validator("tenants", "workloads", mode="before")
    @classmethod
    def _list(cls, given: Any) -> Any:
        """A list of names is a mapping of equal weights."""
        if isinstance(given, list) and all(isinstance(name, str) for name in given):
            return dict.fromkeys(given, 1.0)
        return given

    @field_validator("tenants", "workloads")
    @classmethod
    def _some(cls, given: dict[str, float] | None) -> dict[str, float] | None:
        if given is not None and not given:
            raise ValueError("must name at least one")
        return given

    @model_validator(mode="after")
    def _span(self) -> Self:
        if self.end is not None and self.end <= self.start:
            raise ValueError("end must be later than start")
        return self

    @property
    def endless(self) -> bool:
        """Whether it never stops coming by itself."""
        return self.end is None

    def prepare(self, folder: Path) -> None:
        """Read the files it names, which stand in that folder."""

    def per_second(self) -> float:
        """Tell how many come in a second, of a kind that is endless."""
        return 0.0

    def draw(self, random: Random, seconds: float, count: int | None) -> list[Arrival]:
        """Draw arrivals up to an instant, or so many of them."""
        raise NotImplementedError

    def maker(self, random: Random, service: Times) -> Callable[[float], Arrival]:
        """Make the function from an instant to an arrival."""
        tenant_of = chooser(random, self.tenants or {self.tenant or "": 1.0})
        workload_of = chooser(random, self.workloads or {self.workload or "": 1.0})
        service_of, cost_of = service.draw(random), self.cost.draw(random)
        waits = (self.patience, "", (), self.pool, -1, self.leaves, self.commits)
        rest = (*waits, self.retries, self.pause, None, self.labels, self.door)
        cls, priority, deadline = self.cls, self.priority, self.deadline

        def make(at: float) -> Arrival:
            due = None if deadline is None else at + deadline
            drawn = (at, service_of(), cls, tenant_of(), workload_of(), priority, cost_of(), due)
            # What calling Arrival does, in half of the time.
            return tuple.__new__(Arrival, drawn + rest)

        return make

    def _last(self, seconds: float) -> float:
        return min(seconds, inf if self.end is None else self.end)


class Poisson(Source):
    """Independent callers: exponential gaps."""

    kind: Literal["poisson"]
    rate: Rate
    service: Times

    def per_second(self) -> float:
        return self.rate

    def draw(self, random: Random, seconds: float, count: int | None) -> list[Arrival]:
        last, make, rate = self._last(seconds), self.maker(random, self.service), self.rate
        most = inf if count is None else count
        chance, at = random.random, self.start
        drawn: list[Arrival] = []
        while len(drawn) < most:
            at -= log(1.0 - chance()) / rate  # as expovariate, with a call less
            if at > last:
                break
            drawn.append(make(at))
        return drawn


class Steady(Source):
    """One each 1/rate seconds."""

    kind: Literal["steady"]
    rate: Rate
    service: Times

    def per_second(self) -> float:
        return self.rate

    def draw(self, random: Random, seconds: float, count: int | None) -> list[Arrival]:
        last, make = self._last(seconds), self.maker(random, self.service)
        most = inf if count is None else count
        drawn: list[Arrival] = []
        while len(drawn) < most and (at := self.start + len(drawn) / self.rate) <= last:
            drawn.append(make(at))
        return drawn


class Burst(Source):
    """Many at once, or within a short time, once or again and again."""

    kind: Literal["burst"]
    size: Annotated[int, Field(strict=True, ge=1, le=MOST_ARRIVALS)]
    at: DurationOrZero = 0.0
    every: Duration | None = None
    over: DurationOrZero = 0.0
    service: Times

    @property
    def endless(self) -> bool:
        return self.every is not None and self.end is None

    def per_second(self) -> float:
        return 0.0 if self.every is None else self.size / self.every

    def draw(self, random: Random, seconds: float, count: int | None) -> list[Arrival]:
        last, make = self._last(seconds), self.maker(random, self.service)
        most = inf if count is None else count
        drawn: list[Arrival] = []
        begin, number = self.start + self.at, 0
        while begin <= last and len(drawn) < most:
            times = sorted(begin + random.random() * self.over for _ in range(self.size))
            drawn += [make(at) for at in times if at <= last]
            if self.every is None:
                break
            number += 1
            begin = self.start + self.at + number * self.every
        return drawn


class Closed(Source):
    """Clients that wait for their answer before they ask again."""

    kind: Literal["closed"]
    clients: Annotated[int, Field(strict=True, ge=1, le=MOST_CLIENTS)]
    think: Times = Times.model_validate(0.0)
    service: Times
    ramp: DurationOrZero = 0.0

    def clients_of(self, seed: str, seconds: float) -> list[Client]:
        """Make the clients; each draws from a generator of its own."""
        return [self._client(seed, number, self._last(seconds)) for number in range(self.clients)]

    def _client(self, seed: str, number: int, last: float) -> Client:
        random = Random(f"{seed}/{number}")
        drawn = self.maker(random, self.service)
        if self.tenants:  # one client is of one tenant
            tenant = chooser(random, self.tenants)()
            only = self.model_copy(update={"tenants": None, "tenant": tenant})
            drawn = only.maker(random, self.service)

        def make(at: float) -> Arrival | None:
            return drawn(at) if at <= last else None

        return Client(self.start + number * self.ramp / self.clients, make, self.think.draw(random))


class Trace(Source):
    """What was recorded, of others or of ours."""

    field: ClassVar[str] = "file"

    kind: Literal["trace"]
    file: Annotated[str, Field(min_length=1)]
    format: Literal["azure-llm", "alibaba", "jsonl", "recorder"] | None = None
    speed: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    limit: Annotated[int, Field(strict=True, ge=1)] | None = None
    skip: DurationOrZero = 0.0
    classes: list[Name] = Field(default_factory=list)
    recorded_under: str | None = None
    costs: Costs = Costs()
    _read: list[Arrival] = PrivateAttr(default_factory=list)

    @property
    def endless(self) -> bool:
        return False

    def prepare(self, folder: Path) -> None:
        self._read.extend(read_trace(self, folder))

    def draw(self, random: Random, seconds: float, count: int | None) -> list[Arrival]:
        return dressed(self, random, self._read)


def dressed(source: Source, random: Random, read: list[Arrival]) -> list[Arrival]:
    """Give recorded arrivals what the document says of them; where it says nothing the record stands."""
    said = source.model_fields_set
    tenant_of = chooser(random, source.tenants or {source.tenant or "": 1.0})
    workload_of = chooser(random, source.workloads or {source.workload or "": 1.0})
    cost_of = source.cost.draw(random) if "cost" in said else None
    last = source._last(inf) if source.end is not None else inf
    drawn = []
    for one in read:
        at = source.start + one.at
        if at > last:
            break
        if "deadline" in said:
            deadline = None if source.deadline is None else at + source.deadline
        else:
            deadline = None if one.deadline is None else source.start + one.deadline
        drawn.append(
            Arrival(
                at,
                one.service,
                source.cls if "cls" in said else one.cls,
                tenant_of() if {"tenant", "tenants"} & said else one.tenant,
                workload_of() if {"workload", "workloads"} & said else one.workload,
                source.priority if "priority" in said else one.priority,
                one.cost if cost_of is None else cost_of(),
                deadline,
                source.patience if "patience" in said else one.patience,
                one.key,
                one.deps,
                source.pool if "pool" in said else one.pool,
                one.dag,
                source.leaves if "leaves" in said else one.leaves,
                source.commits if "commits" in said else one.commits,
                source.retries,
                source.pause,
                one.estimate,
                source.labels if source.labels is not None else one.labels,
                source.door if "door" in said else one.door,
            )
        )
    return drawn
