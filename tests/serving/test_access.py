"""Who may ask: one token, tokens with roles, and pages in a browser."""

from hashlib import sha256
from typing import Any

import pytest

from fairlead.serving.access import LOCAL, Access, Role, Token, authorize
from fairlead.serving.http import Problem

TOKENS = [
    Token(role.name.lower(), role, sha256(role.name.lower().encode()).hexdigest()) for role in Role
]
JSON = (b"content-type", b"application/json")


def asking(*headers: tuple[bytes, bytes], method: str = "GET") -> dict[str, Any]:
    """A request of this machine, unless its headers say otherwise."""
    named = any(name == b"host" for name, _ in headers)
    host = [] if named else [(b"host", b"localhost:8080")]
    return {"type": "http", "method": method, "path": "/", "headers": [*host, *headers]}


def token(text: str) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + text.encode()


def refused(deed: Any, *args: Any, **given: Any) -> int:
    with pytest.raises(Problem) as caught:
        deed(*args, **given)
    status: int = caught.value.answer.status
    return status


@pytest.mark.parametrize("needed", Role)
@pytest.mark.parametrize("shown", ["viewer", "operator", "admin"])
def test_each_role_may_do_what_those_below_it_may(shown, needed):
    access = Access(TOKENS)
    scope = asking(token(shown), JSON, method="POST")
    if Role[shown.upper()] >= needed:
        assert access.allow(scope, needed).name == shown
    else:
        assert refused(access.allow, scope, needed) == 403


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (token("wrong"),),
        (token(""),),
        (token("admin"), token("admin")),
        ((b"authorization", b"Basic admin"),),
        ((b"authorization", b"Bearer"),),
        ((b"authorization", b"Bearer \xff\xfe"),),
        ((b"authorization", TOKENS[2].sha256.encode()),),
        (token(TOKENS[2].sha256),),
    ],
)
def test_without_a_known_token_nothing_is_answered(headers):
    assert refused(Access(TOKENS).allow, asking(*headers), Role.VIEWER) == 401


def test_without_tokens_this_machine_may_do_everything():
    access = Access()
    assert access.open
    for host in (b"127.0.0.1:8080", b"localhost:8080", b"[::1]:8080", b"localhost"):
        assert access.allow(asking((b"host", host)), Role.ADMIN) == LOCAL


@pytest.mark.parametrize("host", [b"evil.example:8080", b"10.0.0.7", b"127.0.0.1.evil.example"])
def test_without_tokens_a_name_made_to_mean_this_machine_is_refused(host):
    assert refused(Access().allow, asking((b"host", host)), Role.VIEWER) == 403


PAGES = [
    ((b"origin", b"http://evil.example"), "GET", False),
    ((b"origin", b"null"), "GET", False),
    ((b"origin", b"http://localhost:9999"), "POST", False),  # another service of this machine
    ((b"origin", b"http://localhost:8080"), "POST", True),
    ((b"origin", b"https://LOCALHOST:8080"), "POST", True),  # TLS ended before us
    ((b"sec-fetch-site", b"cross-site"), "POST", False),
    ((b"sec-fetch-site", b"same-site"), "DELETE", False),
    ((b"sec-fetch-site", b"cross-site"), "GET", True),  # a link somebody follows
    ((b"sec-fetch-site", b"same-origin"), "POST", True),
    ((b"sec-fetch-site", b"none"), "POST", True),
]


@pytest.mark.parametrize("tokens", [[], TOKENS])
@pytest.mark.parametrize(("header", "method", "allowed"), PAGES)
def test_pages_from_elsewhere_are_refused(tokens, header, method, allowed):
    access = Access(tokens)
    scope = asking((b"host", b"localhost:8080"), token("admin"), JSON, header, method=method)
    if allowed:
        assert access.allow(scope, Role.ADMIN)
    else:
        assert refused(access.allow, scope, Role.ADMIN) == 403


@pytest.mark.parametrize("kind", [None, b"text/plain", b"application/x-www-form-urlencoded"])
def test_what_a_form_can_send_changes_nothing(kind):
    headers = [] if kind is None else [(b"content-type", kind)]
    for method in ("POST", "PUT", "PATCH"):
        assert refused(Access().allow, asking(*headers, method=method), Role.ADMIN) == 415
    assert Access().allow(asking(*headers, method="DELETE"), Role.ADMIN)


def test_an_empty_secret_is_none():
    nothing = Token("nobody", Role.ADMIN, sha256(b"").hexdigest())
    for header in (token(""), token("  "), (b"authorization", b"Bearer")):
        assert refused(Access([nothing]).allow, asking(header), Role.VIEWER) == 401
        assert refused(authorize, asking(header), "") == 401


def test_one_token():
    authorize(asking(token("secret")), "secret")
    assert refused(authorize, asking(), "secret") == 401
    assert refused(authorize, asking(token("Secret")), "secret") == 401
    with pytest.raises(Problem) as caught:
        authorize(asking(), "secret", realm="fairlead jobs", setting="admin.token")
    assert (b"www-authenticate", b'Bearer realm="fairlead jobs"') in caught.value.answer.headers
    assert b"Bearer <admin.token>" in caught.value.answer.body


def test_without_a_token_pages_of_this_machine_alone():
    authorize(asking(), None)
    authorize(asking((b"origin", b"http://[::1]:3000")), None)
    assert refused(authorize, asking((b"origin", b"http://evil.example")), None) == 403
    assert refused(authorize, asking((b"origin", b"http://[broken")), None) == 403


@pytest.mark.parametrize(
    "host",
    [b"evil.example", b"evil.example:8188", b"10.0.0.7", b"127.0.0.1.evil.example", b"[broken"],
)
def test_without_a_token_a_name_made_to_mean_this_machine_is_refused(host):
    assert refused(authorize, asking((b"host", host)), None) == 403
    authorize(asking((b"host", host), token("secret")), "secret")
    for here in (b"127.0.0.1:8188", b"localhost", b"[::1]:8188"):
        authorize(asking((b"host", here)), None)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ((), None),
        (((b"host", b""),), b"foreign_host"),
        (((b"host", b"LOCALHOST:80"), (b"origin", b"http://[::1]:9999")), None),
        (((b"host", b"localhost@evil.example"),), b"foreign_host"),
        (((b"host", b"localhost"), (b"host", b"evil.example")), b"foreign_host"),
        (((b"origin", b"null"), (b"host", b"localhost")), b"foreign_origin"),
        (((b"host", b"localhost"), (b"origin", b"")), b"foreign_origin"),
    ],
)
def test_without_a_token_whoever_asks_is_told_the_same_each_time(headers, code):
    for _ in range(2):
        if code is None:
            authorize(asking(*headers), None)
            continue
        with pytest.raises(Problem) as caught:
            authorize(asking(*headers), None)
        assert b'"code":"%s"' % code in caught.value.answer.body
