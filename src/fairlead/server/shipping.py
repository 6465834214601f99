"""What is shipped beside the code: a commented configuration, and what a platform needs to run and watch a server."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

from fairlead.config import shown
from fairlead.errors import ConfigError


class Shipped(NamedTuple):
    """A file of the wheel: what it is called there, and what it is for."""

    file: str
    about: str


CONFIG = "config"
SHIPPED = {
    "alerts": Shipped("alerts.yaml", "Prometheus alert rules"),
    "compose": Shipped("compose.yaml", "docker compose: server, worker, PostgreSQL, Valkey"),
    CONFIG: Shipped("fairlead.yaml", "a commented configuration, as `fairlead init` writes it"),
    "dockerfile": Shipped("Dockerfile", "an image of the server"),
    "grafana": Shipped("grafana.json", "a Grafana dashboard"),
    "kubernetes": Shipped("kubernetes.yaml", "deployment, service and disruption budget"),
    "systemd": Shipped("fairlead.service", "a systemd unit"),
}


def read(name: str) -> str:
    """Read a shipped file by the name `fairlead export` knows it by."""
    known = SHIPPED.get(name)
    if known is None:
        raise ConfigError(f"nothing shipped is called {shown(name)}; there is {', '.join(SHIPPED)}")
    return (files("fairlead.server") / "shipped" / known.file).read_text(encoding="utf-8")
