"""What `fairlead.yaml` may say; these names are public.

A section names a door, and the door's own document stands in it or in a file beside it.  Reading, with line and column
for what is wrong, is `loading`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from fairlead.config import shown
from fairlead.documents.addresses import is_loopback
from fairlead.documents.repeats import refuse_repeats
from fairlead.documents.values import (
    Address,
    Digest,
    DurationOrZero,
    Flag,
    Model,
    Secret,
)

Role = Literal["viewer", "operator", "admin"]
OF_JOBS = (
    "planner",
    "tenants",
    "max_concurrent_dags",
    "max_running_per_dag",
    "retention",
    "webhook",
)
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Slots = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
SharedGate = Annotated[
    str,
    StringConstraints(
        pattern=r"^((gateway|flows)/[^\x00-\x1f]{1,200}|jobs/leader|streams/workers)$"
    ),
]
Weight = Annotated[float, Field(strict=True, gt=0, le=1_000_000, allow_inf_nan=False)]


class Tls(Model):
    """A certificate and its key, in PEM."""

    certificate: Text
    key: Text


class Token(Model):
    """Who may ask, by the hash of a secret."""

    name: Name
    role: Role = "viewer"
    sha256: Digest


class Otel(Model):
    """Where traces go."""

    endpoint: Text | None = None
    sample: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.01


class ServerSettings(Model):
    """The process itself: its port, who may use it, how it logs and ends."""

    listen: Address = "127.0.0.1:8080"
    tls: Tls | None = None
    tokens: list[Token] = []
    logs: Literal["text", "json"] = "text"
    shutdown_grace: DurationOrZero = 30.0
    otel: Otel | None = None
    audit_log: Text | None = None  # a file; each change through the API is a line of JSON in it

    never_blank: ClassVar[Mapping[str, Any]] = {"tokens": None}

    @field_validator("tokens")
    @classmethod
    def _each_once(cls, given: list[Token]) -> list[Token]:
        refuse_repeats(given, "name", "sha256")
        return given

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if not self.tokens and not is_loopback(self.listen):
            raise ValueError(
                f"listen {self.listen} can be reached from other machines, so tokens are required: "
                "add one to tokens, or listen on 127.0.0.1"
            )
        return self


class Pool(Model):
    """Slots that gates of several doors share: one gate, under an outer fair queue by door.

    `doors` names the gates, such as gateway/default, flows/checkout, jobs/leader and streams/workers, and the weight of
    each.
    """

    slots: Slots
    doors: Annotated[dict[SharedGate, Weight], Field(min_length=1)]


class JobsSettings(Model):
    """Durable jobs: a database, and the application that knows the tasks."""

    database: Text | None = Field(default=None, repr=False)
    app: Text | None = None
    http: Address | None = None
    token: Secret | None = Field(default=None, repr=False)
    executors: dict[Name, Any] | None = None
    planner: Text | None = None
    tenants: dict[str, Any] | None = None
    max_concurrent_dags: int | None = None
    max_running_per_dag: int | None = None
    retention: Any = None
    webhook: Text | None = Field(default=None, repr=False)

    never_blank: ClassVar[Mapping[str, Any]] = {"token": ""}

    @property
    def own(self) -> dict[str, Any]:
        """What is told to a `Jobs` that no module of the user's has made."""
        given = {name: getattr(self, name) for name in OF_JOBS}
        return {name: value for name, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.database is None and self.app is None:
            raise ValueError("needs a database, such as sqlite:///fairlead.db, or an app")
        if self.app is not None and (self.executors is not None or self.own):
            named = "executors" if self.executors is not None else next(iter(self.own))
            raise ValueError(f"app has its own {named}; give app or {named}, not both")
        if self.own:
            from fairlead.jobs.settings import settings_of

            settings_of(**self.own)  # what is wrong is a ValueError
        _guard(self.http, self.token)
        return self


class StreamsSettings(Model):
    """A stream app of the user's."""

    app: Text


class FlowsListening(Model):
    """Where flows are served; what limits them stands in the same section."""

    http: Address | None = "127.0.0.1:8088"
    grpc: Address | None = None
    token: Secret | None = Field(default=None, repr=False)

    never_blank: ClassVar[Mapping[str, Any]] = {"token": ""}

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        for address in (self.http, self.grpc):
            _guard(address, self.token)
        return self


class Demo(Model):
    """What shows something when nothing else does."""

    upstream: Flag = True
    traffic: Flag = True


class Settings(Model):
    """A whole configuration; the documents of the gateway and of flows are judged by those doors."""

    server: ServerSettings = ServerSettings()
    pools: dict[Name, Pool] = {}
    gateway: dict[str, Any] | None = None
    flows: dict[str, Any] | None = None
    jobs: JobsSettings | None = None
    streams: StreamsSettings | None = None
    demo: Demo | None = None


def _guard(address: str | None, token: str | None) -> None:
    if address is not None and token is None and not is_loopback(address):
        raise ValueError(
            f"{shown(address)[1:-1]} can be reached from other machines, so a token is required: "
            "set token, or listen on 127.0.0.1"
        )
