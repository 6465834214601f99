"""Whose a request is, and the highest class it may have.

An API key beats the trusted header, which is believed only from trusted proxies, and beats the address.  A tenant can
lower the class of its requests, never raise it above its ceiling; `system` needs a ceiling of its own that says so.
With `unknown: refuse` an address names no tenant: such a request is refused before anything of it is read or counted.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fairlead.gateway.forwarding import network_of, plain_address, text_of, trust
from fairlead.gateway.responses import Failure
from fairlead.gateway.settings import CLASSES, INTERACTIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlead.gateway.priority import Fields
    from fairlead.gateway.settings import PrioritySettings, Settings, TenantPolicy

logger = logging.getLogger("fairlead.gateway")
AUTHORIZATION = b"authorization"
FORWARDED_FOR = b"x-forwarded-for"
LONGEST = 200  # of a tenant's name; longer ones go by their hash
REMEMBERED = 10_000  # tenants whose policy has been looked up


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks: the key of its policy, the rank of its ceiling, and its label in metrics."""

    key: str
    ceiling: int
    label: str
    refusal: Failure | None = None  # of a tenant that is unknown, where those are refused


def default_ceiling(scheduler: PrioritySettings) -> int:
    """Tell the rank of the highest class that a tenant without a ceiling of its own may have."""
    return min(CLASSES.index(scheduler.default_max_class), INTERACTIVE)


def highest_ceiling(scheduler: PrioritySettings) -> int:
    """Tell the rank of the highest class that anybody may have."""
    own = [policy.max_class for policy in scheduler.tenant_policies.values()]
    ranks = [CLASSES.index(name) for name in own if name is not None]
    return max([default_ceiling(scheduler), *ranks])


class Tenants:
    """Tells the tenant of a request."""

    def __init__(self, settings: Settings, label_of: Callable[[str], str]) -> None:
        self._label_of = label_of
        said = settings.tenants
        scheduler = settings.priority_scheduler
        self._keys = {key.sha256: f"auth:{key.tenant}" for key in said.api_keys}
        self._header = said.trusted_header.lower().encode() if said.trusted_header else None
        self._trusts = trust(said.trusted_proxies)
        self._policies: Mapping[str, TenantPolicy] = scheduler.tenant_policies
        self._prefix = said.ipv6_prefix
        named = [key.removeprefix("ip:") for key in self._policies if key.startswith("ip:")]
        networks = [ipaddress.IPv6Network(name) for name in named if "/" in name]
        self._networks = sorted(networks, key=lambda network: -network.prefixlen)
        self._ceiling = default_ceiling(scheduler)
        self._refuses = said.unknown == "refuse"
        self._known: dict[str, Tenant] = {}  # by key
        self._told = False  # that the trusted header came from whom nobody trusts
        # The header fields that say whose a request is.
        self.fields = {FORWARDED_FOR}
        if self._keys or self._refuses:
            self.fields.add(AUTHORIZATION)
        if self._header is not None:
            self.fields.add(self._header)

    def of(self, address: str | None, fields: Fields) -> Tenant:
        """Tell whose a request from this address is."""
        if not self.fields.isdisjoint(fields):
            key = self._by_key(fields) if self._keys else None
            if key is None and address is not None and self._trusts(address):
                key = self._by_header(fields) if self._header is not None else None
                if key is None and FORWARDED_FOR in fields:
                    address = self._origin(address, fields)
            elif key is None and self._header in fields and not self._told:
                self._told = True
                logger.warning(
                    "%s is not believed from %s, which is none of tenants.trusted_proxies (told once); a server that "
                    "rewrites addresses itself, as uvicorn does without --no-proxy-headers, hides the proxy",
                    text_of(self._header or b""),
                    address,
                )
            if key is not None:
                return self._known.get(key) or self._look_up(key)
        key = self._by_address(address)
        found = self._known.get(key) or self._look_up(key)
        if self._refuses:
            return replace(found, refusal=_unknown(given=bool(fields.get(AUTHORIZATION))))
        return found

    def forget(self) -> None:
        """Look up everybody anew: labels have changed hands."""
        self._known.clear()

    def _look_up(self, key: str) -> Tenant:
        policy = self._policies.get(key)
        own = policy.max_class if policy is not None else None
        ceiling = self._ceiling if own is None else CLASSES.index(own)
        tenant = Tenant(key, ceiling, self._label_of(key))
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = tenant
        return tenant

    def _by_key(self, fields: Fields) -> str | None:
        values = fields.get(AUTHORIZATION, ())
        if len(values) != 1 or values[0][:7].lower() != b"bearer ":
            return None
        # Found by its hash: how long that takes tells nothing of the key.
        return self._keys.get(hashlib.sha256(values[0][7:].strip()).hexdigest())

    def _by_header(self, fields: Fields) -> str | None:
        values = fields.get(self._header or b"", ())
        if len(values) != 1:
            return None
        value = values[0].strip()
        if len(value) > LONGEST:
            return "header:sha256-" + hashlib.sha256(value).hexdigest()
        return "header:" + text_of(value) if value else None

    def _by_address(self, address: str | None) -> str:
        """Return the key of a client that is known by its address only: of IPv6, by its network."""
        if address is None:
            return "anonymous"
        try:
            address = plain_address(address)
        except ValueError:  # a name or the path of a socket
            return "ip:" + address
        key = "ip:" + address
        if ":" not in address or key in self._policies:
            return key
        for network in self._networks:
            if ipaddress.IPv6Address(address) in network:
                return f"ip:{network}"
        return "ip:" + network_of(address, self._prefix)

    def _origin(self, address: str, fields: Fields) -> str:
        """Follow `X-Forwarded-For` from its right end, as far as proxies that are trusted wrote it."""
        hops = b",".join(fields[FORWARDED_FOR]).decode("latin-1").split(",")
        for hop in reversed(hops[-20:]):
            try:
                found = plain_address(hop.strip())
            except ValueError:
                break
            address = found
            if not self._trusts(found):
                break
        return address


def _unknown(*, given: bool) -> Failure:
    """Refuse a request that no API key and no trusted header names a tenant for."""
    if given:
        text = "no tenant has this API key; check the key, or ask the operator for one"
        challenge = b'Bearer error="invalid_token"'
    else:
        text = "this service needs an API key: send Authorization: Bearer <key>"
        challenge = b"Bearer"
    return Failure(401, "invalid_api_key", text, headers=((b"www-authenticate", challenge),))
