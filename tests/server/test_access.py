"""Who may do what: every route of the API × every role, pages from elsewhere, and TLS."""

import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead.server.loading import load_mapping
from fairlead.serving.access import LOCAL, Access, Role
from tests.server.rig import HERE, ROLES, TOKENS, configured, run, served

TLS = Path(__file__).parent / "tls"
OPEN = {"/livez", "/readyz"}
# What stands in the holes of a path, and a body each route would take.
HOLES = {"{id:path}": "gateway%2Fdefault", "{run}": "1", "{node}": "0"}
BODIES: dict[str, Any] = {
    "/api/v1/gates/{id:path}/adjust": {"part": "slots", "verb": "resize", "args": [8]},
    "/api/v1/whatif": {"gate": "gateway/default"},
    "/api/v1/config/validate": {"text": "server: {}"},
    "/api/v1/config": {"text": "server: {}"},
    "/api/v1/jobs/planner": {"planner": None},
}
# What the contract says, written down a second time: a route whose role changes has to change here too.
OPERATORS = {
    ("POST", "/api/v1/gates/{id:path}/adjust"),
    ("DELETE", "/api/v1/overrides/{id:path}"),
    ("POST", "/api/v1/jobs/runs/{run}/cancel"),
    ("POST", "/api/v1/jobs/runs/{run}/retry"),
    ("POST", "/api/v1/jobs/runs/{run}/sla"),
    ("POST", "/api/v1/whatif"),
    ("POST", "/api/v1/config/validate"),
}
ADMINS = {("PUT", "/api/v1/config"), ("PUT", "/api/v1/jobs/planner")}


def guarded(tmp_path: Path) -> dict[str, Any]:
    return configured(tmp_path, server={"listen": HERE, "tokens": TOKENS, "shutdown_grace": "2s"})


def filled(path: str) -> str:
    for hole, value in HOLES.items():
        path = path.replace(hole, value)
    return path


def test_every_route_asks_for_its_role(tmp_path: Path):
    async def test() -> None:
        async with served(guarded(tmp_path)) as client:
            seen = set()
            for deed in client.server.api.deeds:
                route = (deed.method, deed.path)
                seen.add(route)
                needed = Role.OPERATOR if route in OPERATORS else Role.VIEWER
                needed = Role.ADMIN if route in ADMINS else needed
                assert deed.role is needed, route
                if deed.path == "/api/v1/events":
                    continue  # it goes on for ever; see below
                body = BODIES.get(deed.path, {}) if deed.method != "GET" else None
                for token in (None, "wrong", *ROLES):
                    secret = None if token is None else f"{token}-secret"
                    status, found = await client.ask(
                        deed.method, filled(deed.path), body, token=secret
                    )
                    if deed.path in OPEN:
                        assert status == 200, (route, token)
                    elif token in (None, "wrong"):
                        assert status == 401, (route, token, found)
                        assert client.headers["www-authenticate"].startswith("Bearer")
                    elif Role[token.upper()] < needed:
                        assert (status, found["code"]) == (403, "forbidden"), (route, token)
                    else:
                        assert status not in (401, 403), (route, token, found)
            assert seen >= OPERATORS | ADMINS
            for path in ("/api/v1/nothing", "/api/", "/metrics/nothing"):
                assert (await client.ask("GET", path))[0] == 401
                assert (await client.ask("GET", path, token="viewer-secret"))[0] == 404

    run(test)


def test_events_ask_for_a_token_too(tmp_path: Path):
    async def test() -> None:
        async with served(guarded(tmp_path)) as client:
            url = f"{client.url}/api/v1/events"
            async with client.session.get(url) as answer:
                assert answer.status == 401
            headers = {"authorization": "Bearer viewer-secret"}
            async with client.session.get(url, headers=headers) as answer:
                assert answer.status == 200
            overview = await client.get("/api/v1/overview", token="operator-secret")
            assert overview["role"] == "operator"

    run(test)


def test_a_token_that_is_taken_away_ends_what_it_follows(tmp_path: Path):
    async def test() -> None:
        async with served(guarded(tmp_path)) as client:
            url, headers = f"{client.url}/api/v1/events", {"authorization": "Bearer viewer-secret"}
            async with client.session.get(url, headers=headers) as answer:
                await answer.content.readline()
                said = guarded(tmp_path)
                said["server"]["tokens"] = TOKENS[1:]
                client.server.retune(load_mapping(said))
                await answer.content.read()  # to its end
            async with client.session.get(url, headers=headers) as answer:
                assert answer.status == 401
            await client.get("/api/v1/overview", token="admin-secret")

    run(test)


def test_files_are_for_everybody_and_tell_nothing(tmp_path: Path):
    async def test() -> None:
        async with served(guarded(tmp_path)) as client:
            assert (await client.ask("GET", "/"))[0] == 200

    run(test)


def test_a_token_is_right_or_wrong():
    async def test() -> None:
        async with served({"server": {"listen": HERE, "tokens": TOKENS}}) as client:
            for secret in ("", "viewer-secret extra", "Viewer-Secret", "\u00e9"):
                assert (await client.ask("GET", "/api/v1/overview", token=secret))[0] == 401

    run(test)


FOREIGN: list[tuple[dict[str, str], str]] = [
    ({"origin": "https://evil.example"}, "foreign_origin"),
    ({"origin": "null"}, "foreign_origin"),
    ({"origin": "http://127.0.0.1:1"}, "foreign_origin"),
    ({"host": "rebound.example"}, "foreign_host"),
    ({"sec_fetch_site": "cross-site"}, "foreign_origin"),
    ({"sec_fetch_site": "same-site"}, "foreign_origin"),
    ({"content_type": "text/plain"}, "not_json"),
    ({"content_type": "application/x-www-form-urlencoded"}, "not_json"),
]


def test_a_page_from_elsewhere_changes_nothing(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            body = {"part": "slots", "verb": "resize", "args": [3]}
            path = "/api/v1/gates/gateway/default/adjust"
            pool = client.server.doors[0].gateway.admission.pools[""]  # type: ignore[attr-defined]
            for headers, code in FOREIGN:
                sent = {name.replace("_", "-"): value for name, value in headers.items()}
                status, found = await client.ask("POST", path, body, **sent)
                assert status in (403, 415), headers
                assert found["code"] == code
                assert pool.capacity.total == 8
            own = {"origin": client.url, "sec_fetch_site": "same-origin"}
            assert (await client.ask("POST", path, body, **own))[0] == 200
            assert pool.capacity.total == 3

    run(test)


def test_no_other_site_may_ask_first():
    """A browser asks with OPTIONS before it sends JSON across origins; it is not told yes."""

    async def test() -> None:
        async with served({"server": {"listen": HERE}}) as client:
            origin = {"origin": "https://evil.example", "access_control_request_method": "PUT"}
            status, _ = await client.ask("OPTIONS", "/api/v1/config", **origin)
            assert status in (403, 405)
            assert not [
                name for name in client.headers if name.lower().startswith("access-control")
            ]

    run(test)


def test_a_route_that_asks_for_too_little_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The test above must be able to fail."""
    monkeypatch.setattr(Access, "allow", lambda self, scope, needed: LOCAL)
    with pytest.raises(AssertionError):
        test_every_route_asks_for_its_role(tmp_path)


def test_tls_is_spoken_and_plain_is_not():
    async def test() -> None:
        tls = {"certificate": str(TLS / "certificate.pem"), "key": str(TLS / "key.pem")}
        settings = {"server": {"listen": HERE, "tls": tls, "tokens": TOKENS}}
        async with served(settings) as client:
            assert client.url.startswith("https://")
            trusting = ssl.create_default_context(cafile=tls["certificate"])
            headers = {"authorization": "Bearer viewer-secret"}
            async with client.session.get(
                f"{client.url}/api/v1/overview", ssl=trusting, headers=headers
            ) as answer:
                assert answer.status == 200
            plain = client.url.replace("https", "http")
            with pytest.raises(aiohttp.ClientError):
                await client.session.get(f"{plain}/livez")

    run(test)


def test_beyond_loopback_tokens_are_required():
    (line,) = load_mapping({"server": {"listen": "0.0.0.0:8080"}}).lines
    assert "tokens are required" in line
    assert not load_mapping({"server": {"listen": "0.0.0.0:8080", "tokens": TOKENS}}).problems
