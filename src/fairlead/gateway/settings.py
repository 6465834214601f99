"""What a gateway's configuration may say; these names are public.

Every model refuses keys it does not know and takes a key without a value as absent.  Reading files, with line and
column for what is wrong, is `loading`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from fairlead.documents.addresses import is_loopback
from fairlead.documents.losses import Keep
from fairlead.documents.repeats import refuse_repeats
from fairlead.documents.values import (
    Address,
    Digest,
    Duration,
    DurationOrZero,
    Flag,
    Model,
    RedisUrl,
    Secret,
    Share,
)
from fairlead.gateway.limits import GatewayLimits
from fairlead.gateway.values import (
    MOST_SLOTS,
    HeaderName,
    MaxSlots,
    Network,
    Path,
    PathPrefix,
    Slots,
    TenantKey,
    UpstreamCapacity,
    UpstreamUrl,
)

ClassName = Literal["bulk", "default", "interactive", "system"]
# Lowest first: the index of a name is its rank.
CLASSES: tuple[ClassName, ...] = ("bulk", "default", "interactive", "system")
BULK, DEFAULT, INTERACTIVE, SYSTEM = range(4)


MOST_OUT = 0.5  # of the backends of a pool, at once
SMG_NAMES = {
    "queue_timeout_secs": "queue_timeout",
    "starvation_threshold_secs": "starvation_threshold",
}


def with_smg_names(data: Any) -> Any:
    """Read `queue_timeout_secs` and `starvation_threshold_secs` as what they are called here.

    Where both spellings are given the one with `_secs` stays, to be refused as unknown.
    """
    if not isinstance(data, dict):
        return data
    return {
        SMG_NAMES[key] if key in SMG_NAMES and SMG_NAMES[key] not in data else key: value
        for key, value in data.items()
    }


def _class_schema(schema: dict[str, Any]) -> None:
    """What an entry leaves out has a default, though it is another one in each class."""
    schema.pop("required", None)
    schema["properties"]["reserved_per_slot"].pop("default", None)
    for smg, name in SMG_NAMES.items():
        schema["properties"][smg] = schema["properties"][name] | {"title": smg}


class ClassSettings(Model):
    """One class; what an entry leaves out keeps the built-in value of its class."""

    model_config = ConfigDict(json_schema_extra=_class_schema)

    reserved_floor: Slots
    reserved_per_slot: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = 0.0
    queue_size: Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
    queue_timeout: Duration
    starvation_threshold: Duration
    can_preempt: Flag

    @model_validator(mode="before")
    @classmethod
    def _smg_names(cls, data: Any) -> Any:
        return with_smg_names(data)


BUILT_IN: dict[ClassName, ClassSettings] = {
    "bulk": ClassSettings(
        reserved_floor=0,
        queue_size=1024,
        queue_timeout=300.0,
        starvation_threshold=120.0,
        can_preempt=False,
    ),
    "default": ClassSettings(
        reserved_floor=0,
        reserved_per_slot=0.10,
        queue_size=512,
        queue_timeout=60.0,
        starvation_threshold=30.0,
        can_preempt=False,
    ),
    "interactive": ClassSettings(
        reserved_floor=128,
        reserved_per_slot=0.25,
        queue_size=256,
        queue_timeout=30.0,
        starvation_threshold=5.0,
        can_preempt=True,
    ),
    "system": ClassSettings(
        reserved_floor=32,
        queue_size=64,
        queue_timeout=30.0,
        starvation_threshold=5.0,
        can_preempt=True,
    ),
}


class TenantPolicy(Model):
    """What one tenant may do."""

    max_class: ClassName | None = None
    weight: Annotated[float, Field(strict=True, gt=0, le=1_000_000, allow_inf_nan=False)] = 1.0
    # How many slots of a pool it may hold at once; None: default_max_slots.
    max_slots: MaxSlots | None = None


class PrioritySettings(Model):
    """The classes and who may use them."""

    enabled: Flag = False
    default_max_class: ClassName = "default"
    classes: dict[ClassName, ClassSettings] = Field(default_factory=lambda: dict(BUILT_IN))
    tenant_policies: dict[TenantKey, TenantPolicy] = {}
    # How many slots of a pool a tenant may hold at once that has no max_slots; None: any number.
    default_max_slots: MaxSlots | None = None
    lend_reservations: Flag = True
    # What to do with reservations that ask for more slots than are declared.
    reservations_exceed: Literal["scale", "fallback"] = "scale"
    promotion_budget: Annotated[int, Field(strict=True, ge=1, le=1000)] = 4

    @field_validator("classes", mode="before")
    @classmethod
    def _merged(cls, given: Any) -> Any:
        """Lay what is given over the built-in table, field by field."""
        if not isinstance(given, dict):
            return given
        merged: dict[Any, Any] = {name: entry.model_dump() for name, entry in BUILT_IN.items()}
        for name, entry in given.items():
            if entry is None or isinstance(entry, dict):
                # An unknown class is refused for its name alone, whatever its entry leaves out.
                built_in = merged.get(name) or BUILT_IN["default"].model_dump()
                entry = {
                    key: value
                    for key, value in with_smg_names(entry or {}).items()
                    if value is not None or key not in built_in
                }
                merged[name] = built_in | entry
            else:
                merged[name] = entry
        return merged


class ApiKey(Model):
    """A key, by its hash, and whose it is."""

    sha256: Digest
    tenant: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Tenants(Model):
    """How a request's tenant is known."""

    api_keys: list[ApiKey] = []
    trusted_header: HeaderName | None = None
    trusted_proxies: list[Network] = ["127.0.0.0/8", "::1/128"]
    unknown: Literal["address", "refuse"] = "address"
    ipv6_prefix: Annotated[int, Field(strict=True, ge=1, le=128)] = 64
    metric_labels: Annotated[int, Field(strict=True, ge=0, le=100)] = 100

    @field_validator("api_keys")
    @classmethod
    def _one_tenant_each(cls, given: list[ApiKey]) -> list[ApiKey]:
        refuse_repeats(given, "sha256", same=lambda one, other: bool(one.tenant == other.tenant))
        return given

    @model_validator(mode="after")
    def _known_by_something(self) -> Self:
        if self.unknown == "refuse" and not self.api_keys and self.trusted_header is None:
            raise ValueError(
                "unknown: refuse would refuse every request: add api_keys or a trusted_header"
            )
        return self


class Upstream(Model):
    """One backend."""

    url: UpstreamUrl
    capacity: UpstreamCapacity = "reported"
    health: Path | None = None
    models: (
        Annotated[list[Annotated[str, StringConstraints(min_length=1)]], Field(min_length=1)] | None
    ) = None

    @property
    def declared(self) -> int | None:
        """How many calls it is declared to take; None where only run time tells."""
        return self.capacity if isinstance(self.capacity, int) else None


class Health(Model):
    """How often and how patiently upstreams are looked at."""

    interval: Duration = 1.0
    timeout: Duration = 2.0


class Outliers(Model):
    """When a backend that fails is left out, and for how long."""

    enabled: Flag = True
    consecutive: Annotated[int, Field(strict=True, ge=1, le=1000)] = 5
    error_rate: Share = 0.5
    requests: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 20
    window: Duration = 10.0
    first: Duration = 5.0
    longest: Duration = 300.0
    share: Share = 0.5

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.share > MOST_OUT:
            raise ValueError(
                f"share is {self.share:g}: at most 50% of a pool's backends may be out at once"
            )
        if self.longest < self.first:
            raise ValueError(
                f"longest ({self.longest:g} s) is less than first ({self.first:g} s), with which it starts"
            )
        return self


RetriedOn = Literal["connect", "reset", 502, 503, 504]


class Retries(Model):
    """Which failed tries are repeated on another backend."""

    attempts: Annotated[int, Field(strict=True, ge=1, le=10)] = 2
    on: list[RetriedOn] = ["connect", "reset", 502, 503, 504]
    budget: Share = 0.1
    inference: Flag = True


class Admin(Model):
    """The port for operators."""

    listen: Address = "127.0.0.1:8081"
    token: Secret | None = Field(default=None, repr=False)

    never_blank: ClassVar[Mapping[str, Any]] = {"token": ""}

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if self.token is None and not is_loopback(self.listen):
            raise ValueError(
                f"listen {self.listen} is off loopback, so a token is required: "
                "set token, or listen on 127.0.0.1"
            )
        return self


class Fallback(Model):
    """The plain limiter: what runs without classes."""

    max_concurrent_requests: Annotated[int, Field(strict=True, ge=1, le=MOST_SLOTS)] = 256
    queue_size: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 100
    queue_timeout: Duration = 60.0


class SharedCapacity(Model):
    """Where gateways keep one capacity in common."""

    redis: RedisUrl = Field(repr=False)
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = "gateway"
    on_loss: Literal["local", "closed", "open"] = "local"


class Expose(Model):
    """Which paths of the backends clients reach, beside the table of engines."""

    allow: list[PathPrefix] = []
    deny: list[PathPrefix] = []

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        both = sorted({*self.allow} & {*self.deny})
        if both:
            raise ValueError(f"a path may be in allow or in deny; in both: {', '.join(both)}")
        return self


class Settings(Model):
    """A whole configuration."""

    listen: Address = "127.0.0.1:8080"
    admin: Admin = Admin()
    upstreams: list[Upstream] = []
    tenants: Tenants = Tenants()
    priority_scheduler: PrioritySettings = PrioritySettings()
    fallback: Fallback = Fallback()
    limits: GatewayLimits = GatewayLimits()
    health: Health = Health()
    outliers: Outliers = Outliers()
    retries: Retries = Retries()
    capacity: Slots | None = None
    pool_by: Literal["model"] | None = None
    shared_capacity: SharedCapacity | None = None
    exempt: list[Path] = [
        "/health",
        "/healthz",
        "/livez",
        "/readyz",
        "/models",
        "/v1/models",
    ]
    expose: Expose = Expose()
    ready_without_backends: Flag = False
    strict: Flag = False
    access_log: Flag = True
    shutdown_grace: DurationOrZero = 180.0
    upstream_timeout: Duration = 1800.0
    underscore_headers: Literal["drop", "keep"] = "drop"

    @field_validator("upstreams")
    @classmethod
    def _each_once(cls, given: list[Upstream]) -> list[Upstream]:
        refuse_repeats(given, "url")
        return given


# What a reload may not lose: without the token anybody on this machine has the admin port, without backends all is 503.
KEEPS = (
    Keep(("admin", "token"), "the token of the admin port"),
    Keep(("upstreams",), "all backends"),
)


def json_schema() -> dict[str, Any]:
    """Describe a configuration file as JSON Schema 2020-12."""
    described = Settings.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | described
