"""The engine behind both forms of the gateway: settings and live capacity in, pools of slots out."""

from __future__ import annotations

import logging
import secrets
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.core.ticket import MOVED, WITHDRAWN
from fairlead.documents.losses import losses
from fairlead.gateway import priority
from fairlead.gateway.held import HeldBytes
from fairlead.gateway.loading import Loaded, load
from fairlead.gateway.metrics import Metrics
from fairlead.gateway.pile import Turns
from fairlead.gateway.pool import Pool, Tuning
from fairlead.gateway.reservations import ONLY, gate_name
from fairlead.gateway.settings import KEEPS
from fairlead.gateway.sharing import Sharing
from fairlead.gateway.tenants import Tenants
from fairlead.runtime import plain_gates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlead.core import Ticket
    from fairlead.documents.losses import Loss
    from fairlead.gateway.asking import Asker, Said
    from fairlead.gateway.exchange import Exchange
    from fairlead.gateway.fleet import Fleet
    from fairlead.gateway.settings import Settings
    from fairlead.runtime import MakeGates

logger = logging.getLogger("fairlead.gateway")

RETRY_TOKEN = b"x-fairlead-retry-token"
DECISION = b"x-fairlead-decision"
CONTENT_LENGTH = b"content-length"
CONTENT_TYPE = b"content-type"
TRANSFER_ENCODING = b"transfer-encoding"
OWN_FIELDS = frozenset(
    {
        priority.PRIORITY,
        priority.SMG_PRIORITY,
        priority.URGENCY,
        priority.REQUEST_TIMEOUT,
        priority.GRPC_TIMEOUT,
        RETRY_TOKEN,
        DECISION,
        CONTENT_LENGTH,
        CONTENT_TYPE,
        TRANSFER_ENCODING,
    }
)
TOKENS = 10_000  # preempted requests whose return is waited for


class Backends(Protocol):
    """What there is to know of a fleet."""

    @property
    def empty(self) -> bool:
        """Whether there is no backend at all."""

    @property
    def lists_models(self) -> bool:
        """Whether it depends on the model who may run a request."""

    def pool_of(self, model: str | None) -> str | None:
        """Name the pool of a model; None if nobody serves it, or none was named and it matters."""

    def runs(self, model: str | None) -> bool:
        """Whether somebody can take a call for a model now."""

    def may_run(self, model: str | None) -> bool:
        """Whether it is worth it to wait for somebody who can."""


class Admission:
    """Decides for every request of a gateway; belongs to one event loop, the first that asks it."""

    def __init__(self, config: Any, gates: MakeGates = plain_gates) -> None:
        self._gates = gates
        self._fleet: Backends | None = None
        self._capacities: Mapping[str, int] = {}
        self._declared: Mapping[str, int] = {}
        self._bound: int | None = None
        self._places: Fleet | None = None  # where requests take places
        self._tokens: OrderedDict[bytes, int] = OrderedDict()
        self.pools: dict[str, Pool] = {}
        self.everyones: Pool | None = None  # where it depends on no model who may run a request
        # Operators', by pool; they outlive the pool and a reload.
        self.ceilings: dict[str, int] = {}
        loaded = config if isinstance(config, Loaded) else load(config)
        self.held = HeldBytes(loaded.settings.limits.held_bytes)
        self.turns = Turns()  # of bodies that are read
        self.metrics = Metrics(self)
        self.sharing: Sharing | None = None
        if loaded.settings.shared_capacity is not None:
            self.sharing = Sharing(loaded.settings.shared_capacity)
        self._apply(loaded)
        for line in loaded.lines:
            logger.error("%s", line)
        if self.problems:
            logger.error(
                "the priority scheduler is OFF: %d problem(s) in %s; a plain limiter of %d requests, "
                "or of what the upstreams are declared to take if that is less, runs instead",
                len(self.problems),
                loaded.source,
                self._limit,
            )
        for warning in loaded.warnings:
            logger.warning("%s", warning)
        self.set_capacities({ONLY: self._own_slots()})

    def _apply(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.settings: Settings = loaded.settings
        self.problems: tuple[str, ...] = loaded.lines
        self.plain = bool(loaded.problems) or not loaded.settings.priority_scheduler.enabled
        self.tuning = Tuning.of(loaded.settings, plain=self.plain)
        keys = [f"auth:{key.tenant}" for key in loaded.settings.tenants.api_keys]
        labels = self.metrics.labels
        labels.most = loaded.settings.tenants.metric_labels
        labels.expect([*loaded.settings.priority_scheduler.tenant_policies, *keys])
        self.tenants = Tenants(loaded.settings, labels.of)
        self.askers: dict[Said, Asker] = {}  # those who have asked, as `asking` knows them
        self.wanted = OWN_FIELDS | self.tenants.fields
        self.exempt = frozenset(loaded.settings.exempt)
        self.logs = loaded.settings.access_log
        self.limits = loaded.settings.limits
        self.held.bound = self.limits.held_bytes
        self._limit = loaded.settings.fallback.max_concurrent_requests

    def forget(self) -> None:
        """Look up everybody anew: labels have changed hands."""
        self.tenants.forget()
        self.askers.clear()

    def losses(self, loaded: Loaded) -> tuple[Loss, ...]:
        """Find what other settings would lose that these have."""
        return losses(self.settings, loaded.settings, KEEPS)

    def retune(self, loaded: Loaded) -> None:
        """Apply other settings without dropping anybody who waits."""
        scheduler = loaded.settings.priority_scheduler
        if self.settings.priority_scheduler.enabled and not scheduler.enabled:
            logger.warning(
                "priority_scheduler.enabled is no longer true: without classes the plain limiter admits, "
                "%d requests at once",
                loaded.settings.fallback.max_concurrent_requests,
            )
        if loaded.settings.shared_capacity != self.settings.shared_capacity:
            logger.warning("shared_capacity changes only when the gateway starts anew")
        self._apply(loaded)
        self.metrics.reloads += 1
        for pool in self.pools.values():
            pool.retune(self.tuning)
        if self._fleet is None:
            self._capacities = {ONLY: self._own_slots()}
        self.set_capacities(self._capacities)

    # Pools

    def follow(self, fleet: Backends) -> None:
        """Take capacity from a fleet; until it tells of some there is none."""
        self._fleet = fleet
        self.set_capacities({})

    def follow_fleet(self, fleet: Fleet) -> None:
        """Follow what a fleet can take now, and what it is declared to take."""
        self._declared, self._bound, self._places = fleet.declared(), fleet.bound(), fleet
        for pool in self.pools.values():
            pool.follow(fleet)
        self.set_capacities(fleet.capacities())

    def set_capacities(self, capacities: Mapping[str, int]) -> None:
        """Follow the live capacity of each pool; the waiters of a pool that is no more go to where they belong now."""
        self._capacities = capacities
        declared = self._declared if self._fleet is not None else {ONLY: self._own_slots()}
        if self.plain:
            capacities, declared = {ONLY: self._limiter(capacities)}, {}
        for name in capacities:
            if name not in self.pools:
                gate = self._gates(gate_name(name))
                self.pools[name] = Pool(name, self.tuning, gate, self.sharing)
                if self._places is not None:
                    self.pools[name].follow(self._places)
        gone = [pool for name, pool in self.pools.items() if name not in capacities]
        taken = self._taken_by(gone)
        for name, total in capacities.items():
            pool = self.pools[name]
            pool.on_end = None
            pool.resize(total, self.ceilings.get(name), taken[name], declared.get(name, 0))
            self._send_away(pool, self._hopeless(pool))
        for pool in gone:
            pool.on_end = self._follow_on
            pool.resize(0)
            self._send_away(pool, pool.gate.waiters())
            if not pool.gate.active:
                del self.pools[pool.name]
                if self.sharing is not None:
                    self.sharing.leave(pool.name)

        everywhere = self._fleet is None or not self._fleet.lists_models
        self.everyones = self.pools.get(ONLY) if everywhere else None

    def _own_slots(self) -> int:
        """Return how many slots there are without a fleet."""
        slots = self.settings.capacity
        return self._limit if slots is None else slots

    def _limiter(self, capacities: Mapping[str, int]) -> int:
        """Return how many requests the plain limiter lets run: never more than is declared."""
        bounds = [self._limit]
        if self._fleet is not None:
            if not any(capacities.values()):
                return 0
            if self._bound is not None:
                bounds.append(self._bound)
        # A limit that was asked for by name, and not as a stand-in, is the more particular of the two.
        meant = "max_concurrent_requests" in self.settings.fallback.model_fields_set
        if self.problems or not meant:
            bounds.append(self._own_slots())
        return min(bounds)

    def _follow_on(self) -> None:
        self.set_capacities(self._capacities)

    def _taken_by(self, gone: Iterable[Pool]) -> Counter[str]:
        """Count what pools that are no more still run, by the pool of its model now, which has so much less to give."""
        heirs = [self.pool(ticket.model) for pool in gone for ticket in pool.gate.holders]  # type: ignore[attr-defined]
        return Counter(heir.name for heir in heirs if heir is not None)

    def _hopeless(self, pool: Pool) -> list[Ticket]:
        """Tell who waits for upstreams that are all down."""
        if self._fleet is None:
            return []
        waiters = pool.gate.waiters()
        models = {waiter.model for waiter in waiters}  # type: ignore[attr-defined]
        lost = {model for model in models if not self._fleet.may_run(model)}
        return [waiter for waiter in waiters if waiter.model in lost] if lost else []  # type: ignore[attr-defined]

    def _send_away(self, pool: Pool, waiters: list[Ticket]) -> None:
        """Have some ask anew: another pool may have room, or somebody has to tell them that none has."""
        if not waiters:
            return
        for waiter in waiters:
            waiter.reason = MOVED
        pool.runtime.withdraw(waiters)
        for waiter in waiters:
            if waiter.state is WITHDRAWN:  # a verb tells of others, not of those it was given
                waiter.told()  # type: ignore[attr-defined]

    def shortages(self) -> list[dict[str, Any]]:
        """Describe each pool whose reservations ask for more than they have."""
        found = ((pool.name, pool.shortage()) for pool in self.pools.values())
        return [
            {"pool": gate_name(name), **shortage._asdict()}
            for name, shortage in found
            if shortage is not None
        ]

    def limit(self, name: str, ceiling: int | None) -> None:
        """Use no more slots of a pool than this, whatever upstreams can take; None to use all again."""
        if ceiling is None:
            self.ceilings.pop(name, None)
        else:
            self.ceilings[name] = ceiling
        self.set_capacities(self._capacities)

    def pool(self, model: str | None) -> Pool | None:
        """Tell the pool of a request; None if nobody serves its model."""
        fleet = self._fleet
        if fleet is None or not fleet.lists_models:
            return self.everyones
        name: str | None = ONLY
        if not (self.plain and fleet.empty):
            name = fleet.pool_of(model)
        if self.plain and (name is not None or model is None):
            name = ONLY
        return None if name is None else self.pools.get(name)

    def runs(self, exchange: Exchange) -> bool:
        """Whether a request could run, were there room in its pool; who has waited already may wait a little longer."""
        if self._fleet is None:
            return True
        if exchange.moved:
            return self._fleet.may_run(exchange.model)
        return exchange.model is None or self._fleet.runs(exchange.model)

    @property
    def reads_model(self) -> bool:
        """Whether the pool or the upstream of a request depends on what its body says."""
        return self._fleet is not None and self._fleet.lists_models

    # Preempted clients that come back

    def issue_token(self, evictions: int) -> bytes:
        """Give a preempted client proof of how often that has happened to its request."""
        token = secrets.token_urlsafe(18).encode()
        self.keep_token(token, evictions)
        return token

    def keep_token(self, token: bytes, evictions: int) -> None:
        """Let a token be good: a new one, or one whose request was not served and that no other stands for."""
        self._tokens[token] = evictions
        if len(self._tokens) > TOKENS:
            self._tokens.popitem(last=False)

    def redeem_token(self, token: bytes) -> int:
        """Tell how often the request that carries this token was preempted; it is good once at a time."""
        return self._tokens.pop(token, 0)
