"""What the configuration of flows may say; these names are public, and defaults are those of Aperture unless said.

Every model refuses keys it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import SchemaError

from fairlead.config import seconds, shown
from fairlead.documents.losses import EACH, Keep
from fairlead.documents.repeats import Repeated
from fairlead.documents.values import Duration, DurationOrZero, Flag, Model, RedisUrl
from fairlead.errors import ConfigError
from fairlead.flows.controllers import SHORTEST_PERIOD
from fairlead.flows.matchers import searching
from fairlead.flows.signals import finite, percentile_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_TOKENS = 1e15
NAME_TAKEN = "each workload needs a name of its own"
NO_ENDS = "needs low_throttle_threshold and high_throttle_threshold for controller: range"
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Tokens = Annotated[float, Field(ge=0, le=MOST_TOKENS, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=MOST_TOKENS, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Status = Annotated[int, Field(strict=True, ge=400, le=599)]
LossPolicy = Literal["local", "closed", "open"]


def _pattern(text: str) -> str:
    if len(text) > 1000:
        raise ValueError("must be at most 1000 characters")
    try:
        searching(text)
    except SchemaError as error:
        why = str(error).splitlines()[-1].rpartition("rror: ")[2]
        raise ValueError(f"must be a regular expression as RE2 has them: {why}") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]


class Matcher(Model):
    """A test on labels: the AND of what is given."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    match_labels: dict[str, str] = {}
    in_: dict[str, list[str]] = Field({}, alias="in")
    not_in: dict[str, list[str]] = {}
    exists: list[str] = []
    regex: dict[str, Pattern] = {}
    all: list[Matcher] | None = None
    any: list[Matcher] | None = None
    not_: Matcher | None = Field(None, alias="not")


class Workload(Matcher):
    """A class of flows: which, and what they get; the first that matches counts."""

    name: Name | None = None
    priority: Tokens = 1.0
    tokens: Tokens = 1.0
    queue_timeout: DurationOrZero | None = None


class DefaultWorkload(Model):
    """What flows get that no workload matches."""

    priority: Tokens = 1.0
    tokens: Tokens = 1.0
    queue_timeout: DurationOrZero | None = None


def taken(names: list[str | None]) -> Iterator[tuple[int, str]]:
    """Tell which workloads have a name that another has: where there is none, the index is it."""
    seen: set[str] = {"default"}
    for index, given in enumerate(names):
        name = given or str(index)
        if name in seen:
            yield index, name
        seen.add(name)


class TenantCeiling(Model):
    """How much a tenant may claim by its labels."""

    max_priority: Positive


class Scheduler(Model):
    """Who goes first when tokens are short."""

    workloads: list[Workload] = []
    default_workload: DefaultWorkload = DefaultWorkload()
    workload_label_key: Name | None = None
    priority_label_key: Name | None = None
    tokens_label_key: Name | None = None
    fairness_label_key: Name | None = None
    tenant_label_key: Name | None = None
    tenants: dict[str, TenantCeiling] = {}
    default_max_priority: Positive | None = None
    decision_deadline_margin: DurationOrZero = 0.01
    max_queue: Annotated[int, Field(strict=True, ge=0, le=10_000_000)] = 100_000
    denied_response_status_code: Status = 503
    workload_latency_based_tokens: Flag = False

    @field_validator("workloads")
    @classmethod
    def _distinct(cls, given: list[Workload]) -> list[Workload]:
        found = list(taken([workload.name for workload in given]))
        if found:
            raise Repeated(
                [((index, "name"), f"{NAME_TAKEN}; {name!r} is taken") for index, name in found]
            )
        return given


class Quota(Model):
    """Tokens per time."""

    bucket_capacity: Positive
    fill_amount: Positive
    interval: Duration
    pass_through: Flag = False
    continuous_fill: Flag = True
    delay_initial_fill: Flag = False
    limit_by_label_key: Name | None = None
    max_idle_time: DurationOrZero = 7200.0
    on_redis_loss: LossPolicy = "local"


class Concurrency(Model):
    """Tokens in flight: a number, or a limit that learns."""

    max_concurrency: Positive | Literal["vegas", "gradient2"]
    pass_through: Flag = False
    max_inflight_duration: Duration = 60.0
    limit_by_label_key: Name | None = None
    max_idle_time: DurationOrZero = 7200.0
    on_redis_loss: LossPolicy = "local"


class Gradient(Model):
    """How strongly AIMD answers: (signal / setpoint) to the power of slope, within bounds."""

    slope: Finite = -1.0
    min_gradient: Finite = 0.1
    max_gradient: Finite = Field(default=1.0, validate_default=True)

    @field_validator("slope")
    @classmethod
    def _has_a_direction(cls, given: float) -> float:
        if given == 0:
            raise ValueError("must be below 0 (the signal rises with load) or above 0; got 0")
        return given

    @field_validator("max_gradient")
    @classmethod
    def _not_below_the_least(cls, given: float, others: ValidationInfo) -> float:
        least = others.data.get("min_gradient", given)
        if given < least:
            raise ValueError(f"must have max_gradient >= min_gradient; got {given:g} < {least:g}")
        return given


class Threshold(Model):
    """One end of the range a range-driven controller works in."""

    signal_value: Finite
    load_multiplier: Annotated[float, Field(ge=0, le=1)]


class Pid(Model):
    """The gains of a PID controller."""

    kp: Tokens = 0.2
    ki: Tokens = 0.01
    kd: Tokens = 0.0


class Alerter(Model):
    """How it is told that less than the recent load passes, or in a dry run would."""

    severity: Literal["info", "warn", "crit"] = "info"
    resolve_timeout: DurationOrZero = 5.0


class Load(Model):
    """A share of the recent load, moved by a controller on a signal."""

    controller: Literal["aimd", "aiad", "range", "pid"] = "aimd"
    signal: Name = "latency_p95"
    setpoint: Annotated[Any, Field(description="a number, a duration, or learned")] = "learned"
    period: Duration = 10.0
    gradient: Gradient = Gradient()
    max_load_multiplier: Positive = 2.0
    min_load_multiplier: Tokens = 0.0
    load_multiplier_linear_increment: Tokens = 0.025
    load_multiplier_linear_decrement: Tokens = 0.05
    overload_condition: Literal["gt", "lt", "gte", "lte"] = "gt"
    low_throttle_threshold: Threshold | None = None
    high_throttle_threshold: Threshold | None = None
    degree: Positive = 1.0
    pid: Pid = Pid()
    confirmation: Name | None = None
    confirmation_above: Finite | None = None
    workload_latency_based_tokens: Flag = False  # as in the scheduler
    dry_run: Flag = False
    alerter: Alerter = Alerter()

    @model_validator(mode="before")
    @classmethod
    def _largest_of_pid(cls, given: Any) -> Any:
        """A PID rests at its largest multiplier: from above 1 it would throttle late, so its default is 1."""
        if isinstance(given, dict) and given.get("controller") == "pid":
            return {"max_load_multiplier": 1.0} | given
        return given

    @field_validator("signal", "confirmation")
    @classmethod
    def _is_no_broken_percentile(cls, given: str | None) -> str | None:
        if given is not None:
            percentile_of(given)
        return given

    @field_validator("setpoint")
    @classmethod
    def _readable(cls, given: Any, others: ValidationInfo) -> Any:
        if given == "learned":
            return given
        if isinstance(given, int | float) and not isinstance(given, bool):
            if finite(given) is None:
                raise ValueError("must be a finite number, a duration such as 250ms, or learned")
            if given == 0 and others.data.get("controller") == "pid":
                raise ValueError("must not be 0 for controller: pid, which divides by it")
            return given
        try:
            return seconds(given, "it")
        except ConfigError:
            raise ValueError(
                f"must be a number, a duration such as 250ms, or learned; got {shown(given)}"
            ) from None

    @field_validator("period")
    @classmethod
    def _not_too_short(cls, given: float) -> float:
        if given < SHORTEST_PERIOD:
            raise ValueError(f"must be {SHORTEST_PERIOD * 1000:g}ms or more; got {given:g} s")
        return given

    @field_validator("min_load_multiplier")
    @classmethod
    def _below_the_largest(cls, given: float, others: ValidationInfo) -> float:
        most = others.data.get("max_load_multiplier")
        if most is not None and given >= most:
            raise ValueError(f"must be below max_load_multiplier, {most:g}; got {given:g}")
        return given

    @field_validator("high_throttle_threshold")
    @classmethod
    def _apart(cls, high: Threshold | None, others: ValidationInfo) -> Threshold | None:
        low = others.data.get("low_throttle_threshold")
        if high is not None and low is not None and low.signal_value == high.signal_value:
            raise ValueError(
                "must have another signal_value than low_throttle_threshold; "
                f"both have {low.signal_value:g}"
            )
        return high

    @model_validator(mode="after")
    def _range_has_ends(self) -> Self:
        ends = (self.low_throttle_threshold, self.high_throttle_threshold)
        if self.controller == "range" and None in ends:
            raise ValueError(NO_ENDS)
        return self


class ControlPoint(Model):
    """What limits one place in the code, and who goes first there."""

    quota: Quota | None = None
    concurrency: Concurrency | None = None
    load: Load | None = None
    scheduler: Scheduler = Scheduler()

    @field_validator("quota", "concurrency")
    @classmethod
    def _in_force(cls, given: Quota | Concurrency | None) -> Quota | Concurrency | None:
        """A limit that lets everything pass is read, so that its faults are told, and then as good as not there."""
        return None if given is None or given.pass_through else given


class Settings(Model):
    """A whole configuration."""

    redis: RedisUrl | None = Field(default=None, repr=False)
    control_points: dict[Name, ControlPoint] = {}


def limits(given: Any) -> bool:
    """Tell whether a limit is there and in force: a dry run lets everything pass."""
    return given is not None and not getattr(given, "dry_run", False)


# What a reload may not lose: flows at a control point that is not there, or has no limit, all pass.
KEEPS = (
    Keep(("control_points", EACH), "the control point"),
    Keep(
        ("control_points", EACH),
        "the last limit of the control point",
        ("quota", "concurrency", "load"),
        limits,
    ),
)
