"""What a reload or `PUT config` of `fairlead serve` may lose only on purpose: tokens, doors, what each door keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.documents.losses import Keep, Keeps, losses, strange_paths, under

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.documents.losses import Loss
    from fairlead.server.loading import Loaded
    from fairlead.server.settings import ServerSettings

DOORS = ("gateway", "flows", "jobs", "streams")
KEEPS = (
    Keep(("server", "tokens"), "the last token"),
    *(Keep((door,), "the door") for door in DOORS),
)


class Settings(NamedTuple):
    """The settings of the server and of each door, by their sections; None for a door that is not there."""

    server: ServerSettings
    gateway: Any = None
    flows: Any = None
    jobs: Any = None
    streams: Any = None


def settings_of(loaded: Loaded) -> Settings:
    """Read what a configuration says, section by section."""
    settings = loaded.settings
    gateway = None if loaded.gateway is None else loaded.gateway.settings
    flows = None if loaded.flows is None else loaded.flows.settings
    return Settings(settings.server, gateway, flows, settings.jobs, settings.streams)


class Keeping:
    """The table of a running server, and what it was allowed to lose: an allowance ends once the thing is back."""

    def __init__(self) -> None:
        self._allowed: set[str] = set()

    def losses(
        self, before: Settings, after: Settings, allowed: Iterable[str] = ()
    ) -> tuple[Loss, ...]:
        """Find what a change would lose that neither is nor was allowed."""
        given = self._allowed.union(allowed)
        found = losses(before, after, _table(before))
        return tuple(loss for loss in found if loss.path not in given)

    def strange(self, before: Settings, allowed: Iterable[str]) -> list[str]:
        """Find allowances that no loss of this server could use."""
        return strange_paths(allowed, _table(before))

    def follow(self, before: Settings, after: Settings) -> None:
        """Remember what a change that is applied loses."""
        self._allowed = {loss.path for loss in losses(before, after, _table(before))}


def _table(before: Settings) -> Keeps:
    """Put the tables of the doors that are there together."""
    table: Keeps = KEEPS
    if before.gateway is not None:
        from fairlead.gateway.settings import KEEPS as OF_GATEWAY

        table += under("gateway", OF_GATEWAY)
    if before.flows is not None:
        from fairlead.flows.settings import KEEPS as OF_FLOWS

        table += under("flows", OF_FLOWS)
    return table
