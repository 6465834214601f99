"""Where a service listens, and whether that is this machine alone.  Needs nothing but the standard library."""

from __future__ import annotations

import ipaddress
import re

from fairlead.config import shown

_HOST = re.compile(r"[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]")


def split_address(text: str) -> tuple[str, int]:
    """Split host:port; an IPv6 host stands in brackets, an empty one means every interface.

    >>> split_address("[::1]:8080"), split_address(":80")
    (('::1', 8080), ('', 80))
    """
    host, colon, port = text.rpartition(":")
    good = colon and _HOST.fullmatch(host) and re.fullmatch(r"[0-9]{1,5}", port)
    if not good or int(port) > 65_535:
        raise ValueError(
            f"must be host:port, such as 127.0.0.1:8080 or [::1]:8080; got {shown(text)}"
        )
    if host.startswith("["):
        host = str(ipaddress.IPv6Address(host[1:-1]))
    return host, int(port)


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach a listener."""
    return is_here(split_address(address)[0])


def is_here(host: str | None) -> bool:
    """Tell whether a host is this machine, by an address or a name that no name server has a say in."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    # How a socket of both families tells an IPv4 peer; older Pythons do not see through it.
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
