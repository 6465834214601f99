"""The engine behind both forms of the gateway: settings and live capacity in, pools of slots out."""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from fairlead.core.ticket import WITHDRAWN
from fairlead.gateway import priority
from fairlead.gateway.loading import Loaded, load
from fairlead.gateway.metrics import Metrics, TenantLabels
from fairlead.gateway.pool import Pool, Tuning
from fairlead.gateway.sharing import Sharing
from fairlead.gateway.tenants import Tenants
from fairlead.runtime import plain_gates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
ONLY = ""  # the name of the pool, where there is but one
DEFAULT_POOL = "default"  # how that one is called outside


class Admission:
    """Decides for every request of a gateway; belongs to one event loop, the first that asks it."""

    def __init__(self, config: Any, gates: MakeGates = plain_gates) -> None:
        self._gates = gates
        self._pool_of: Callable[[str | None], str | None] | None = None
        self._capacities: Mapping[str, int] = {}
        self._tokens: OrderedDict[bytes, int] = OrderedDict()
        self.pools: dict[str, Pool] = {}
        self.ceilings: dict[
            str, int
        ] = {}  # operators', by pool; they outlive the pool and a reload
        loaded = config if isinstance(config, Loaded) else load(config)
        self._labels = TenantLabels()
        self.metrics = Metrics(self)
        self.sharing: Sharing | None = None
        if loaded.settings.shared_capacity is not None:
            self.sharing = Sharing(loaded.settings.shared_capacity)
        self._apply(loaded)
        for line in loaded.lines:
            logger.error("%s", line)
        if self.problems:
            logger.error(
                "the priority scheduler is OFF: %d problem(s) in %s; a plain limiter of %d requests runs instead",
                len(self.problems),
                loaded.source,
                loaded.settings.fallback.max_concurrent_requests,
            )
        for warning in loaded.warnings:
            logger.warning("%s", warning)
        slots = self.settings.capacity
        self.set_capacities({ONLY: self._limit if slots is None else slots})

    def _apply(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.settings: Settings = loaded.settings
        self.problems: tuple[str, ...] = loaded.lines
        self.plain = bool(loaded.problems) or not loaded.settings.priority_scheduler.enabled
        self.tuning = Tuning.of(loaded.settings, plain=self.plain)
        keys = [f"auth:{key.tenant}" for key in loaded.settings.tenants.api_keys]
        self._labels.most = loaded.settings.tenants.metric_labels
        self._labels.expect([*loaded.settings.priority_scheduler.tenant_policies, *keys])
        self.tenants = Tenants(loaded.settings, self._labels.of)
        self.wanted = OWN_FIELDS | self.tenants.fields
        self.exempt = frozenset(loaded.settings.exempt)
        self.logs = loaded.settings.access_log
        self.body_limit = loaded.settings.limits.body_bytes
        self._limit = loaded.settings.fallback.max_concurrent_requests

    def retune(self, loaded: Loaded) -> None:
        """Apply other settings without dropping anybody who waits."""
        if loaded.settings.shared_capacity != self.settings.shared_capacity:
            logger.warning("shared_capacity changes only when the gateway starts anew")
        self._apply(loaded)
        self.metrics.reloads += 1
        for pool in self.pools.values():
            pool.retune(self.tuning)
        if self._pool_of is None:
            slots = loaded.settings.capacity
            self._capacities = {ONLY: self._limit if slots is None else slots}
        self.set_capacities(self._capacities)

    # Pools

    def follow(self, pool_of: Callable[[str | None], str | None]) -> None:
        """Take capacity from a fleet, which tells the pool of a model; until it does there is none."""
        self._pool_of = pool_of
        self.set_capacities({})

    def set_capacities(self, capacities: Mapping[str, int]) -> None:
        """Follow the live capacity of each pool; the waiters of a pool that is no more go to where they belong now."""
        self._capacities = capacities
        if self.plain:
            # The limiter counts requests, not what upstreams can take; but none can take some.
            alive = any(capacities.values()) if self._pool_of is not None else True
            capacities = {ONLY: self._limit if alive else 0}
        for name, total in capacities.items():
            if name not in self.pools:
                gate = self._gates(name or DEFAULT_POOL)
                self.pools[name] = Pool(name, self.tuning, gate, self.sharing)
            self.pools[name].resize(total, self.ceilings.get(name))
        for name in [name for name in self.pools if name not in capacities]:
            pool = self.pools[name]
            pool.resize(0)
            waiters = pool.gate.waiters()
            pool.runtime.withdraw(waiters)
            for waiter in waiters:
                if waiter.state is WITHDRAWN:  # a verb tells of others, not of those it was given
                    waiter.told()  # type: ignore[attr-defined]
            if not pool.gate.active:
                del self.pools[name]
                if self.sharing is not None:
                    self.sharing.leave(name)

    def limit(self, name: str, ceiling: int | None) -> None:
        """Use no more slots of a pool than this, whatever upstreams can take; None to use all again."""
        if ceiling is None:
            self.ceilings.pop(name, None)
        else:
            self.ceilings[name] = ceiling
        self.set_capacities(self._capacities)

    def pool(self, model: str | None) -> Pool | None:
        """Tell the pool of a request; None if nobody serves its model."""
        if self.plain or self._pool_of is None:
            return self.pools.get(ONLY)
        name = self._pool_of(model)
        return None if name is None else self.pools.get(name)

    @property
    def reads_model(self) -> bool:
        """Whether the pool, or behind the plain limiter the upstream, depends on what the body says."""
        return self._pool_of is not None and self.settings.pool_by == "model"

    # Preempted clients that come back

    def issue_token(self, evictions: int) -> bytes:
        """Give a preempted client proof of how often that has happened to its request."""
        token = secrets.token_urlsafe(18).encode()
        self._tokens[token] = evictions
        if len(self._tokens) > TOKENS:
            self._tokens.popitem(last=False)
        return token

    def redeem_token(self, token: bytes) -> int:
        """Tell how often the request that carries this token was preempted; it is good once."""
        return self._tokens.pop(token, 0)
