"""What a client cannot say to a backend: who it is, in whatever spelling, or that a proxy said nothing."""

import pytest

from fairlead.gateway.forwarding import request_headers, trust
from fairlead.gateway.settings import Tenants

TENANTS = Tenants(trusted_header="X-Tenant-Id")
PROXY, STRANGER = "127.0.0.1", "203.0.113.9"


def passed(peer: str, *headers: tuple[bytes, bytes]) -> dict[str, str]:
    scope = {"headers": headers, "client": (peer, 1)}
    return dict(request_headers(scope, TENANTS, trust(TENANTS.trusted_proxies)))


@pytest.mark.parametrize("peer", [PROXY, STRANGER])
@pytest.mark.parametrize(
    "name",
    [b"x_tenant_id", b"x-tenant_id", b"x_forwarded_for", b"x_forwarded-proto", b"x_real_ip"],
)
def test_an_underscore_does_not_pass_for_a_hyphen(peer, name):
    found = passed(peer, (name, b"root"), (b"x_own", b"1"))
    assert name.decode() not in found
    assert found["x_own"] == "1"


@pytest.mark.parametrize("name", [b"x-tenant-id", b"x-forwarded-port", b"x-forwarded-prefix"])
def test_who_it_is_comes_from_a_trusted_proxy_only(name):
    assert name.decode() not in passed(STRANGER, (name, b"root"))
    assert passed(PROXY, (name, b"root"))[name.decode()] == "root"


def test_a_client_cannot_have_taken_out_what_its_proxy_wrote():
    found = passed(
        PROXY,
        (b"x-tenant-id", b"acme"),
        (b"x-forwarded-for", b"203.0.113.9"),
        (b"x-other", b"1"),
        (b"connection", b"close, X-Tenant-Id, x-forwarded-for, x-other"),
    )
    assert found["x-tenant-id"] == "acme"
    assert found["x-forwarded-for"] == "203.0.113.9, 127.0.0.1"
    assert "x-other" not in found
