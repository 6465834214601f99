"""What a gateway's configuration may say; these names are public.

Every model refuses keys it does not know.  Reading files, with line and column for what is wrong, is `loading`'s.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from fairlead.config import seconds

ClassName = Literal["bulk", "default", "interactive", "system"]
# Lowest first: the index of a name is its rank.
CLASSES: tuple[ClassName, ...] = ("bulk", "default", "interactive", "system")
BULK, DEFAULT, INTERACTIVE, SYSTEM = range(4)

MOST_SLOTS = 65_535
DURATION = {"type": ["string", "number"], "examples": ["30s", "400ms", "1h30m", 5]}


def _duration(value: Any) -> float:
    return seconds(value, "it")


def _duration_or_zero(value: Any) -> float:
    return seconds(value, "it", zero=True)


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"must be host:port, such as 127.0.0.1:8080; got {text!r}")
    return text


def _upstream_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"must be an http or https URL, such as http://10.0.0.7:9001; got {text!r}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(f"may not carry credentials, a query or a fragment; got {text!r}")
    _ = parts.port  # a port out of range raises here
    return text.rstrip("/")


def _network(text: str) -> str:
    ipaddress.ip_network(text, strict=False)
    return text


Duration = Annotated[float, BeforeValidator(_duration, json_schema_input_type=str | float)]
DurationOrZero = Annotated[
    float, BeforeValidator(_duration_or_zero, json_schema_input_type=str | float)
]
Address = Annotated[str, AfterValidator(_address)]
UpstreamUrl = Annotated[str, AfterValidator(_upstream_url)]
Network = Annotated[str, AfterValidator(_network)]
Path = Annotated[str, StringConstraints(pattern=r"^/")]
Slots = Annotated[int, Field(strict=True, ge=0, le=MOST_SLOTS)]


class Model(BaseModel):
    """What all parts share: nothing unknown, nothing changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ClassSettings(Model):
    """One class; what an entry leaves out keeps the built-in value of its class."""

    reserved_floor: Slots
    reserved_per_slot: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    queue_size: Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
    queue_timeout: Duration
    starvation_threshold: Duration
    can_preempt: bool

    @model_validator(mode="before")
    @classmethod
    def _smg_names(cls, data: Any) -> Any:
        return with_smg_names(data)


def with_smg_names(data: Any) -> Any:
    """Read `queue_timeout_secs` and `starvation_threshold_secs` as what they are called here."""
    if not isinstance(data, dict):
        return data
    smg = ("queue_timeout_secs", "starvation_threshold_secs")
    named = {name: data[name] for name in data if name not in smg}
    for name in smg:
        if name in data:
            named.setdefault(name.removesuffix("_secs"), data[name])
    return named


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
    weight: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = 1.0


class PrioritySettings(Model):
    """The classes and who may use them."""

    enabled: bool = False
    default_max_class: ClassName = "default"
    classes: dict[ClassName, ClassSettings] = Field(default_factory=lambda: dict(BUILT_IN))
    tenant_policies: dict[str, TenantPolicy] = {}
    lend_reservations: bool = True
    promotion_budget: Annotated[int, Field(strict=True, ge=1, le=1000)] = 4

    @field_validator("classes", mode="before")
    @classmethod
    def _merged(cls, given: Any) -> Any:
        """Lay what is given over the built-in table, field by field."""
        if given is None:
            given = {}
        if not isinstance(given, dict):
            return given
        merged: dict[Any, Any] = {name: entry.model_dump() for name, entry in BUILT_IN.items()}
        for name, entry in given.items():
            entry = with_smg_names({} if entry is None else entry)
            if isinstance(entry, ClassSettings):
                merged[name] = entry
            elif name in merged and isinstance(entry, dict):
                merged[name] |= entry
            else:
                merged[name] = entry
        return merged

    @field_validator("tenant_policies", mode="before")
    @classmethod
    def _none_is_empty(cls, given: Any) -> Any:
        return {} if given is None else given

    @field_validator("tenant_policies")
    @classmethod
    def _canonical(cls, given: dict[str, TenantPolicy]) -> dict[str, TenantPolicy]:
        for key in given:
            kind, colon, name = key.partition(":")
            if key != "anonymous" and (kind not in {"auth", "header", "ip"} or not colon or not name):
                raise ValueError(
                    f"{key!r} names no tenant: write auth:<tenant>, header:<value>, ip:<address> "
                    "or anonymous"
                )
        return given


class ApiKey(Model):
    """A key, by its hash, and whose it is."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$", to_lower=True)]
    tenant: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Tenants(Model):
    """How a request's tenant is known."""

    api_keys: list[ApiKey] = []
    trusted_header: str | None = None
    trusted_proxies: list[Network] = ["127.0.0.0/8", "::1/128"]
    metric_labels: Annotated[int, Field(strict=True, ge=0, le=100)] = 100


class Upstream(Model):
    """One backend."""

    url: UpstreamUrl
    capacity: Slots | Literal["reported", "adaptive"] = "reported"
    health: Path | None = None
    models: list[Annotated[str, StringConstraints(min_length=1)]] | None = None


class Health(Model):
    """How often and how patiently upstreams are looked at."""

    interval: Duration = 1.0
    timeout: Duration = 2.0


class Admin(Model):
    """The port for operators."""

    listen: Address = "127.0.0.1:8081"
    token: Annotated[str, StringConstraints(min_length=1)] | None = None


class Fallback(Model):
    """The plain limiter: what runs without classes."""

    max_concurrent_requests: Annotated[int, Field(strict=True, ge=1, le=MOST_SLOTS)] = 256
    queue_size: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 100
    queue_timeout: Duration = 60.0


class Limits(Model):
    """What one request may bring."""

    header_fields: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 100
    header_bytes: Annotated[int, Field(strict=True, ge=256, le=1 << 24)] = 64 * 1024
    header_timeout: Duration = 10.0
    body_bytes: Annotated[int, Field(strict=True, ge=0)] = 8 * 1024 * 1024
    body_timeout: Duration = 30.0  # the time for each 1 kB/s: slower bodies are cut


class Settings(Model):
    """A whole configuration."""

    listen: Address = "127.0.0.1:8080"
    admin: Admin = Admin()
    upstreams: list[Upstream] = []
    tenants: Tenants = Tenants()
    priority_scheduler: PrioritySettings = PrioritySettings()
    fallback: Fallback = Fallback()
    limits: Limits = Limits()
    health: Health = Health()
    capacity: Slots | None = None
    pool_by: Literal["model"] | None = None
    exempt: list[Path] = [
        "/health",
        "/healthz",
        "/livez",
        "/readyz",
        "/models",
        "/v1/models",
    ]
    strict: bool = False
    access_log: bool = True
    shutdown_grace: DurationOrZero = 180.0

    @field_validator("upstreams")
    @classmethod
    def _each_once(cls, given: list[Upstream]) -> list[Upstream]:
        urls = [upstream.url for upstream in given]
        twice = sorted({url for url in urls if urls.count(url) > 1})
        if twice:
            raise ValueError(f"each upstream may be listed once; twice: {', '.join(twice)}")
        return given
