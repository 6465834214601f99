"""The gateway in the server's process."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from fairlead.core import Change
from fairlead.gateway.exchange import Exchange
from fairlead.gateway.reservations import ONLY, gate_name
from fairlead.gateway.serving import Gateway
from fairlead.gateway.settings import CLASSES
from fairlead.server.hosted_pool import shared
from fairlead.server.hosting import Hosted, Reserve, View, ceiling_of, weight_for
from fairlead.server.overrides import AT_A_RELOAD, Override
from fairlead.server.recording import lines_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from prometheus_client import Metric

    from fairlead.core import Ticket
    from fairlead.gateway.loading import Loaded as GatewayLoaded
    from fairlead.gateway.pool import Pool
    from fairlead.observe.passed import Passed
    from fairlead.observe.watched import Feed
    from fairlead.server.hosted_pool import HostedPool
    from fairlead.server.loading import Loaded
    from fairlead.serving.auditing import Audit


def class_of(ticket: Ticket) -> str:
    """Name the class of a request."""
    return CLASSES[ticket.rank]


def class_at_the_door(ticket: Ticket) -> str:
    """Name the class of a request that asked no pool; that of bytes that are no request is unread."""
    return class_of(ticket) if isinstance(ticket, Exchange) else "unread"


class HostedGateway(Hosted):
    """A whole gateway: its own two listeners, its pools watched."""

    name = kind = "gateway"

    def __init__(self, loaded: GatewayLoaded, feed: Feed, pools: Sequence[HostedPool] = ()) -> None:
        self._feed = feed
        gates = shared(pools, self.name, class_of, feed.gates(self.name, class_of))
        self.gateway = Gateway(loaded, gates=gates)
        self._at_the_door = feed.channel(self.name, class_at_the_door)
        self.gateway.admission.metrics.ledger = self._at_the_door.turn_away

    async def start(self) -> None:
        """Take both addresses and begin."""
        await self.gateway.__aenter__()
        self.state, self.detail = "running", self.gateway.describe().partition("\n")[0]

    async def stop(self, grace: float) -> None:
        """Finish what runs or waits."""
        self.state = "stopped"
        await self.gateway.__aexit__()

    def hurry(self) -> None:
        """End at once what still runs."""
        self.gateway.hurry()

    def left(self) -> str:
        """Tell of requests."""
        return self.gateway.left()

    @property
    def settings(self) -> Any:
        return self.gateway.admission.settings

    def retune(self, loaded: Loaded) -> list[str]:
        """Follow another configuration with everybody who waits."""
        if loaded.gateway is None:
            return ["gateway: the section is gone; the gateway runs on until the next start"]
        self.gateway.retune(loaded.gateway)
        return []

    def views(self) -> list[View]:
        """One gate for each pool; and the door itself, once it has turned away a request that asked no pool."""
        channels = self._feed.channels
        views = [
            self._view(gate, pool, channels[gate])
            for gate, pool in self._pools().items()
            if gate in channels
        ]
        door = self._at_the_door
        if any(door.totals().values()):
            views.append(View(self.name, self.name, door, now=monotonic, total=lambda: None))
        return views

    def _pools(self) -> dict[str, Pool]:
        """The pools there are now, by their gates."""
        pools = list(self.gateway.admission.pools.values())
        return {f"{self.name}/{gate_name(pool.name)}": pool for pool in pools}

    def _view(self, gate: str, pool: Pool, channel: Any) -> View:
        capacity, admission = pool.capacity, self.gateway.admission
        fleet = self.gateway.fleet
        ranks = range(len(CLASSES))

        def reserved() -> list[Reserve]:
            now = pool.runtime.now()
            return [reserve(rank, now) for rank in reversed(ranks) if capacity.reserved[rank]]

        def reserve(rank: int, now: float) -> Reserve:
            held = capacity.reserved[rank]
            kept, lent_at = capacity.kept(rank, now)
            lent_in = None if lent_at is None else max(0.0, lent_at - now)
            return Reserve(CLASSES[rank], held, min(held, capacity.inflight[rank]), kept, lent_in)

        def weight_of(tenant: Hashable) -> float:
            # As it is now, which an operator may have changed; of all classes alike, unless somebody asked for less.
            queue: Any = pool.policy.part(pool.tuning.levels[0].name)
            return float(queue.weight_of(tenant))

        def adjust(change: Change) -> None:
            if change.verb == "resize":  # the fleet says how many there are, again and again
                admission.limit(pool.name, *change.args)
            else:
                pool.runtime.adjust(change)

        def values(part: str, verb: str, args: tuple[Any, ...]) -> Any:
            if verb == "resize":
                return admission.ceilings.get(pool.name)
            queue: Any = pool.policy.part(part)
            return queue.weight_of(args[0])

        def overrides() -> list[Override]:
            return [*ceiling(), *weights()]

        def ceiling() -> list[Override]:
            most = admission.ceilings.get(pool.name)
            if most is None:
                return []
            what, undo = "a ceiling on the slots", lambda: admission.limit(pool.name, None)
            ends = "when it is reset, or at the next start; a changed configuration keeps it"
            return [Override(f"{gate}:resize", gate, what, None, most, ends, undo)]

        def weights() -> list[Override]:
            levels = [one.name for one in pool.tuning.levels]
            queues: dict[str, Any] = {name: pool.policy.part(name) for name in levels}
            said = pool.tuning.weights
            changed = {
                key
                for queue in queues.values()
                if queue.weights != said
                for key in {**queue.weights, **said}
                if queue.weight_of(key) != said.get(key, 1.0)
            }
            return [weight(key, said.get(key, 1.0), queues) for key in sorted(changed, key=str)]

        def weight(key: Hashable, configured: float, queues: dict[str, Any]) -> Override:
            now = {name: queue.weight_of(key) for name, queue in queues.items()}
            same = len(set(now.values())) == 1

            def undo() -> None:
                for name in queues:
                    pool.runtime.adjust(Change(name, "set_weight", (key, configured)))

            return Override(
                f"{gate}:set_weight:{key}",
                gate,
                f"the weight of {key}",
                configured,
                next(iter(now.values())) if same else now,
                AT_A_RELOAD,
                undo,
            )

        return View(
            gate,
            self.name,
            channel,
            now=pool.runtime.now,
            total=lambda: capacity.total,
            ceiling=lambda: admission.ceilings.get(pool.name),
            reserved=reserved,
            degraded=lambda: fleet.outages().get(pool.name),
            backends=lambda: [one.describe() for one in fleet.members(pool.name)],
            weight_of=weight_of,
            values=values,
            overrides=overrides,
            adjust=adjust,
            adjustable={
                ("slots", "resize"): ceiling_of,
                **{(name, "set_weight"): weight_for for name in CLASSES},
            },
        )

    def unready(self) -> str | None:
        """Refuse traffic while no backend of any pool is up, unless the settings say otherwise."""
        gateway = self.gateway
        if not gateway.fleet.down or gateway.admission.settings.ready_without_backends:
            return super().unready()
        return self._outages()

    def degraded(self) -> str | None:
        """Tell of pools without a backend, and of a configuration that is wrong."""
        problems = self.gateway.admission.problems
        return self.unready() or self._outages() or (problems[0] if problems else None)

    def _outages(self) -> str | None:
        found = self.gateway.fleet.outages()
        if list(found) == [ONLY]:
            return found[ONLY]
        return "; ".join(f"pool {name}: {why}" for name, why in found.items()) or None

    def record_in(self, audit: Audit) -> None:
        """Record what the admin port changes."""
        self.gateway.admin.audit = audit

    def links(self) -> dict[str, str]:
        """Where requests go, and where operators look."""
        return {
            "proxy": self.gateway.data_listener.url,
            "admin": self.gateway.admin_listener.url,
        }

    def policy(self, gate: str) -> dict[str, Any] | None:
        """The classes and tenants as they are set now, over the slots there are now."""
        pool = self._pools().get(gate)
        settings = self.gateway.admission.settings.priority_scheduler
        if pool is None or self.gateway.admission.plain:
            return None
        said = settings.model_dump()
        if (
            pool.shortage() is not None
        ):  # as they are in force: more slots may be declared than there are now
            for rank, name in enumerate(CLASSES):
                floor = {"reserved_floor": pool.capacity.reserved[rank], "reserved_per_slot": 0.0}
                said["classes"][name] |= floor
        return {"preset": "gateway", **said, "capacity": max(1, pool.capacity.total)}

    async def recorded(self, rows: Sequence[Passed]) -> Iterable[dict[str, Any]]:
        """A line for each ticket."""
        return lines_of(rows)

    def families(self) -> Iterable[Metric]:
        """The gateway's own metrics."""
        return self.gateway.admission.metrics.collect()
