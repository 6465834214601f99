"""What a client cannot say to a backend: who it is, in whatever spelling, or that a proxy said nothing.

Tried: 60 names that proxies write, each as a stranger and as a trusted proxy sends it, and random spellings of them:
case, underscores and other separators, suffixes, names in Connection.
"""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway import forwarding
from fairlead.gateway.forwarding import request_headers, response_headers, trust
from fairlead.gateway.settings import Tenants
from tests.gateway.proxies import proxied
from tests.gateway.rig import Backend, connected, run

TENANTS = Tenants(trusted_header="X-Tenant-Id")
PROXY, STRANGER = "127.0.0.1", "203.0.113.9"
# What some proxy, balancer or framework calls the client, its user, or the URL it asked for.
HEARSAY = """
    Forwarded X-Forwarded X-Forwarded-By X-Forwarded-Port X-Forwarded-Prefix X-Forwarded-User X-Forwarded-Email
    X-Forwarded-Groups X-Forwarded-Preferred-Username X-Forwarded-Access-Token X-Forwarded-Ssl X-Forwarded-Scheme
    X-Forwarded-Protocol X-Forwarded-Server X-ForwardedFor X-Forwarded-Client-Cert CloudFront-Forwarded-Proto
    X-Real-IP X-Real-Port Client-IP True-Client-IP X-Client-IP X-Cluster-Client-IP Fastly-Client-IP CF-Connecting-IP
    CF-Connecting-IPv6 CF-Pseudo-IPv4 X-Azure-ClientIP X-Originating-IP X-Remote-Addr Remote-Addr X-ProxyUser-Ip
    X-Envoy-External-Address CloudFront-Viewer-Address X-Appengine-User-IP X-Original-URL X-Original-URI X-Original-Host
    X-Original-Forwarded-For X-Rewrite-URL X-Override-URL X-HTTP-DestinationURL X-Host X-HTTP-Host-Override X-Url-Scheme
    Front-End-Https Remote-User X-Remote-User Remote-Groups X-Auth-Request-Email Client-Cert X-SSL-Client-Verify
    X-Goog-Authenticated-User-Email Cf-Access-Authenticated-User-Email X-Amzn-Oidc-Identity X-authentik-username
    X-MS-CLIENT-PRINCIPAL X-MS-CLIENT-PRINCIPAL-NAME X-WEBAUTH-USER Tailscale-User-Login
""".split()
HARMLESS = """
    accept authorization cookie content-type content-length user-agent x-api-key x-request-id x-custom x-client-version
    x-realtime x-zip x-user-address x-hosting x-description x-fairlead-priority x-stainless-os openai-organization
    anthropic-version traceparent via origin referer x-origin-trial priority range if-none-match x-membership
    x-authenticator x-ms-version
""".split()
OURS = {"x-forwarded-for": STRANGER, "x-forwarded-proto": "http", "x-forwarded-host": "asked"}


def text(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def passed(peer: str, *headers: tuple[bytes, bytes], **more: Any) -> dict[str, str]:
    scope = {"headers": headers, "client": (peer, 1)}
    return text(request_headers(scope, TENANTS, trust(TENANTS.trusted_proxies), **more))


def plain(name: str) -> str:
    """Read a name as a server does that makes CGI variables of them."""
    return re.sub("[^a-z0-9]", "-", name.lower())


@pytest.mark.parametrize("peer", [PROXY, STRANGER])
@pytest.mark.parametrize(
    "name",
    [b"x_tenant_id", b"x-tenant_id", b"x_forwarded_for", b"x_forwarded-proto", b"x_real_ip"],
)
def test_an_underscore_does_not_pass_for_a_hyphen(peer, name):
    found = passed(peer, (name, b"root"), (b"x_own", b"1"), keep_underscores=True)
    assert name.decode() not in found
    assert found["x_own"] == "1"
    assert "x_own" not in passed(peer, (b"x_own", b"1"))


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


@pytest.mark.parametrize("name", HEARSAY)
def test_what_proxies_say_of_a_client_comes_from_a_trusted_proxy_only(name):
    line = (name.lower().encode(), b"63")
    assert "63" not in passed(STRANGER, line).values()
    assert passed(PROXY, line)[name.lower()] == "63"


@pytest.mark.parametrize("name", HARMLESS)
def test_other_headers_pass_from_anybody(name):
    assert passed(STRANGER, (name.encode(), b"63"))[name] == "63"


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "name",
    ["transfer_encoding", "content_length", "keep_alive", "transfer.encoding", "proxy~connection"],
)
def test_framing_has_one_spelling(name, keep):
    found = passed(PROXY, (name.encode(), b"63"), keep_underscores=keep)
    assert "63" not in found.values()


def test_a_trusted_header_with_an_underscore_is_its_proxy_s_alone():
    tenants = Tenants(trusted_header="X_Tenant")
    scope = {"headers": [(b"x_tenant", b"acme"), (b"x-tenant", b"root")], "client": (PROXY, 1)}
    found = text(request_headers(scope, tenants, trust(tenants.trusted_proxies)))
    assert (found.get("x_tenant"), found.get("x-tenant")) == ("acme", None)
    scope["client"] = (STRANGER, 1)
    found = text(request_headers(scope, tenants, trust(tenants.trusted_proxies)))
    assert {"x_tenant", "x-tenant"} & set(found) == set()


@st.composite
def spellings(draw: st.DrawFn) -> bytes:
    """Write a name that proxies write in any way that some server reads as that name."""
    name = draw(st.sampled_from([*HEARSAY, "X-Tenant-Id", "X-Forwarded-For", "X-Forwarded-Proto"]))
    if name.startswith("X-Forwarded-") and draw(st.booleans()):
        name += "-" + draw(st.from_regex("[A-Za-z0-9]{1,8}", fullmatch=True))
    for at, letter in enumerate(name):
        if letter == "-":
            name = name[:at] + draw(st.sampled_from("---__.~!")) + name[at + 1 :]
    return name.lower().encode()


@given(
    st.lists(spellings(), min_size=1, max_size=6),
    st.booleans(),
    st.lists(st.sampled_from(["x-forwarded-for", "X-Tenant-Id", "x-other", "close", "host"])),
)
def test_no_spelling_of_a_stranger_reaches_a_backend(names, keep, nominated):
    lines = [(name, b"63") for name in names]
    if nominated:
        lines.append((b"connection", ", ".join(nominated).encode()))
    found = passed(STRANGER, (b"host", b"asked"), *lines, keep_underscores=keep)
    assert found == OURS


@given(
    st.sets(spellings(), min_size=1, max_size=6),
    st.booleans(),
    st.lists(st.sampled_from([*map(str.lower, HEARSAY), "x-tenant-id", "x-other"])),
)
def test_a_trusted_proxy_is_believed_in_one_spelling(names, keep, nominated):
    lines = [(name, b"63") for name in sorted(names)]
    named = [(b"connection", ", ".join(nominated).encode())] if nominated else []
    found = passed(PROXY, (b"host", b"asked"), *lines, *named, keep_underscores=keep)
    exact = {name.decode() for name in names if re.fullmatch(rb"[a-z0-9-]+", name)}
    assert set(found) == exact | set(OURS)
    said = "63, " if "x-forwarded-for" in exact else ""
    assert found["x-forwarded-for"] == f"{said}{PROXY}"


def test_a_backend_does_not_speak_as_the_gateway():
    said = [
        (b"X-Fairlead-Retry-Token", b"1"),
        (b"x-fairlead-decision", b"1"),
        (b"x_fairlead_preempted", b"true"),
        (b"X-Fairlead-Error-Code", b"1"),
        (b"x-fairleading", b"1"),
    ]
    assert response_headers(said, 200) == [(b"x-fairleading", b"1")]


def test_over_the_wire_too():
    async def main() -> None:
        tenants = {"trusted_header": "X-Tenant-Id", "trusted_proxies": ["127.0.0.2/32"]}
        for mode in ("drop", "keep"):
            async with (
                Backend() as one,
                proxied(one, tenants=tenants, underscore_headers=mode) as (url, _),
                connected(url) as client,
            ):
                sent = [(name, "63") for name in (*HEARSAY[:20], "X_Forwarded_User", "X_Own")]
                client.request("GET", "/", sent)
                held = await one.arrival()
                passing = [name for name, value in held.head.headers if value == "63"]
                assert passing == (["x_own"] if mode == "keep" else [])
                held.answer(200, b"ok", [("X-Fairlead-Preempted", "true"), ("x-b", "1")])
                head, _ = await client.response()
                assert (head.get("x-fairlead-preempted"), head.get("x-b")) == ("", "1")

    run(main())


def test_rules_without_their_other_spellings_are_caught(monkeypatch):
    """A broken variant: names are compared as they are written."""
    monkeypatch.setattr(forwarding, "_plain", bytes.lower)
    forwarding._kind.cache_clear()
    try:
        with pytest.raises(AssertionError):
            test_no_spelling_of_a_stranger_reaches_a_backend()
    finally:
        forwarding._kind.cache_clear()
