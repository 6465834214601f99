"""Whose a request is, and the highest class it may have; no header raises it."""

import hashlib
import ipaddress
import json
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway import asking
from fairlead.gateway.admission import Admission
from fairlead.gateway.exchange import Exchange
from fairlead.gateway.loading import load
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.gateway.settings import BULK, CLASSES, DEFAULT, INTERACTIVE, SYSTEM
from fairlead.gateway.tenants import REMEMBERED, Tenants
from fairlead.testing import run_virtual
from tests.gateway.virtual import Scene, config

KEY = b"sk-acme-1"
TRUSTED, STRANGER = "127.0.0.1", "203.0.113.9"


def sha(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def tenants(policies=None, default_max_class=None, **said) -> Tenants:
    scheduler = {} if default_max_class is None else {"default_max_class": default_max_class}
    settings = config(
        policies=policies or {},
        scheduler=scheduler,
        tenants={"api_keys": [{"sha256": sha(KEY), "tenant": "acme"}]} | said,
    )
    admission = Admission(settings)
    assert not admission.problems, admission.problems
    return admission.tenants


def key_of(found: Tenants, address: str | None = TRUSTED, **fields: bytes | list[bytes]) -> str:
    given = {
        name.replace("_", "-").encode(): value if isinstance(value, list) else [value]
        for name, value in fields.items()
    }
    return found.of(address, given).key


class TestKeys:
    def test_a_key_beats_the_trusted_header_and_the_address(self):
        found = tenants()
        assert key_of(found, authorization=b"Bearer " + KEY, x_tenant_id=b"other") == "auth:acme"
        assert key_of(found, STRANGER, authorization=b"Bearer " + KEY) == "auth:acme"
        assert key_of(found, None, authorization=b"Bearer " + KEY) == "auth:acme"

    @pytest.mark.parametrize(
        "value", [b"bearer " + KEY, b"BEARER " + KEY, b"Bearer  " + KEY + b" "]
    )
    def test_the_scheme_is_case_insensitive_and_space_around_the_key_is_not_part_of_it(self, value):
        assert key_of(tenants(), authorization=value) == "auth:acme"

    @pytest.mark.parametrize(
        "value",
        [
            *(
                KEY,
                b"Basic " + KEY,
                b"Bearer",
                b"Bearer ",
                b"Bearer " + KEY.upper(),
                b"Bearer \xff",
            ),
            *(b"Bearer " + sha(KEY).encode(), b"Bearer " + KEY + b"x", b"Bearer" + KEY, b""),
        ],
    )
    def test_what_is_no_known_key_says_nothing(self, value):
        assert key_of(tenants(), authorization=value) == f"ip:{TRUSTED}"
        assert key_of(tenants(), authorization=value, x_tenant_id=b"a") == "header:a"

    def test_two_keys_are_none(self):
        both = [b"Bearer " + KEY, b"Bearer " + KEY]
        assert key_of(tenants(), authorization=both) == f"ip:{TRUSTED}"

    def test_hashes_are_read_in_either_case(self):
        found = tenants(api_keys=[{"sha256": sha(KEY).upper(), "tenant": "acme"}])
        assert key_of(found, authorization=b"Bearer " + KEY) == "auth:acme"

    def test_without_keys_the_field_is_not_even_looked_at(self):
        found = tenants(api_keys=[])
        assert b"authorization" not in found.fields
        assert key_of(found, authorization=b"Bearer " + KEY) == f"ip:{TRUSTED}"


class TestTheTrustedHeader:
    @pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1"])
    def test_is_believed_from_loopback(self, address):
        assert key_of(tenants(), address, x_tenant_id=b" acme ") == "header:acme"

    @pytest.mark.parametrize("address", [STRANGER, "10.0.0.1", "::2", "testclient", "", None])
    def test_is_not_believed_from_elsewhere(self, address):
        by_address = "anonymous" if address is None else f"ip:{address}"
        assert key_of(tenants(), address, x_tenant_id=b"acme") == by_address

    def test_proxies_are_networks_and_replace_loopback(self):
        found = tenants(trusted_proxies=["10.0.0.0/8", "2001:db8::/32"])
        assert key_of(found, "10.1.2.3", x_tenant_id=b"acme") == "header:acme"
        assert key_of(found, "2001:db8::7", x_tenant_id=b"acme") == "header:acme"
        assert key_of(found, "11.1.2.3", x_tenant_id=b"acme") == "ip:11.1.2.3"
        assert key_of(found, TRUSTED, x_tenant_id=b"acme") == f"ip:{TRUSTED}"

    def test_no_proxies_no_belief(self):
        assert key_of(tenants(trusted_proxies=[]), x_tenant_id=b"acme") == f"ip:{TRUSTED}"

    @pytest.mark.parametrize("values", [[b"a", b"b"], [b"a", b"a"], [b""], [b"  "]])
    def test_twice_or_empty_says_nothing(self, values):
        assert key_of(tenants(), x_tenant_id=values) == f"ip:{TRUSTED}"

    def test_long_names_go_by_their_hash(self):
        name = b"n" * 8192
        assert key_of(tenants(), x_tenant_id=name) == f"header:sha256-{sha(name)}"

    def test_none_configured_none_believed(self):
        found = tenants(trusted_header=None)
        assert b"x-tenant-id" not in found.fields
        assert key_of(found, x_tenant_id=b"acme") == f"ip:{TRUSTED}"

    def test_a_header_cannot_name_an_authenticated_tenant(self):
        found = tenants({"auth:acme": {"max_class": "system"}})
        tenant = found.of(TRUSTED, {b"x-tenant-id": [b"auth:acme"]})
        assert (tenant.key, tenant.ceiling) == ("header:auth:acme", INTERACTIVE)


class TestForwardedFor:
    def test_is_followed_from_the_right_as_far_as_proxies_are_trusted(self):
        found = tenants(trusted_proxies=["127.0.0.0/8", "10.0.0.0/8"])
        line = b"6.6.6.6, 1.2.3.4, 10.0.0.2,10.0.0.1"
        assert key_of(found, x_forwarded_for=line) == "ip:1.2.3.4"
        split = [b"6.6.6.6, 1.2.3.4", b"10.0.0.2", b"10.0.0.1"]
        assert key_of(found, x_forwarded_for=split) == "ip:1.2.3.4"
        assert key_of(found, x_forwarded_for=b"10.0.0.3, 10.0.0.2") == "ip:10.0.0.3"

    def test_is_ignored_from_strangers(self):
        assert key_of(tenants(), STRANGER, x_forwarded_for=b"1.2.3.4") == f"ip:{STRANGER}"

    @pytest.mark.parametrize("hop", [b"unknown", b"", b"1.2.3.4:80", b"1.2.3", b"_hidden", b"\xff"])
    def test_ends_at_what_is_no_address(self, hop):
        assert key_of(tenants(), x_forwarded_for=b"6.6.6.6, " + hop) == f"ip:{TRUSTED}"
        line = b"6.6.6.6, " + hop + b", 127.0.0.9"
        assert key_of(tenants(), x_forwarded_for=line) == "ip:127.0.0.9"

    def test_addresses_are_written_one_way(self):
        line = b"2001:DB8:0:0:0:0:0:1"
        assert key_of(tenants(ipv6_prefix=128), x_forwarded_for=line) == "ip:2001:db8::1"
        assert key_of(tenants(), x_forwarded_for=line) == "ip:2001:db8::/64"

    def test_the_trusted_header_beats_it(self):
        assert key_of(tenants(), x_forwarded_for=b"1.2.3.4", x_tenant_id=b"a") == "header:a"

    def test_ipv4_is_ipv4_on_a_listener_that_maps_it(self):
        found = tenants(policies={"ip:203.0.113.9": {"max_class": "bulk"}})
        assert key_of(found, "::ffff:127.0.0.1", x_tenant_id=b"acme") == "header:acme"
        assert key_of(found, "::ffff:127.0.0.1", x_forwarded_for=b"::ffff:203.0.113.9") == (
            "ip:203.0.113.9"
        )
        assert found.of("::ffff:203.0.113.9", {}).ceiling == BULK

    def test_a_thousand_hops_cost_no_more_than_a_few(self):
        line = b",".join([b"1.1.1.1"] + [b"127.0.0.1"] * 1000)
        assert key_of(tenants(), x_forwarded_for=line) == "ip:127.0.0.1"


class TestNetworks:
    """An IPv6 client chooses its address among those of its network: the network is the tenant."""

    @given(
        network=st.ip_addresses(v=6, network="2000::/3"),
        host=st.integers(0, 2**128 - 1),
        prefix=st.integers(8, 128),
    )
    def test_all_addresses_of_a_network_are_one_tenant_and_no_other_is(self, network, host, prefix):
        found = tenants(ipv6_prefix=prefix)
        rest = 2 ** (128 - prefix) - 1
        same = ipaddress.IPv6Address(int(network) & ~rest | host & rest)
        other = ipaddress.IPv6Address(int(network) ^ (rest + 1))  # one bit of the network
        key = key_of(found, str(network))
        assert key_of(found, str(same)) == key
        assert key_of(found, str(same), x_forwarded_for=b"1.1.1.1") == key
        assert key_of(found, TRUSTED, x_forwarded_for=str(same).encode()) == key
        assert key_of(found, f"{same}%eth0") == key
        assert key_of(found, str(other)) != key

    @given(st.ip_addresses(v=4))
    def test_ipv4_is_told_apart_by_address_however_it_comes(self, address):
        found = tenants()
        for written in (f"{address}", f"::ffff:{address}"):
            assert key_of(found, TRUSTED, x_forwarded_for=written.encode()) == f"ip:{address}"
        translated = ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | int(address))
        assert key_of(found, str(translated)) == f"ip:{translated}"

    def test_the_default_is_64_and_loopback_is_one_machine(self):
        found = tenants()
        assert key_of(found, "2001:db8:0:1::7") == "ip:2001:db8:0:1::/64"
        assert key_of(found, "2001:db8:0:1:ffff:ffff:ffff:ffff") == "ip:2001:db8:0:1::/64"
        assert key_of(found, "2001:db8:0:2::7") == "ip:2001:db8:0:2::/64"
        assert key_of(found, "::1") == "ip:::1"

    def test_a_policy_is_for_a_network_or_singles_out_an_address(self):
        found = tenants(
            {
                "ip:2001:DB8:0:1::/64": {"max_class": "bulk"},
                "ip:2001:db8:0:1::9": {"max_class": "system"},
            }
        )
        assert found.of("2001:db8:0:1::7", {}).ceiling == BULK
        assert found.of("2001:db8:0:1::9", {}).ceiling == SYSTEM
        assert found.of("2001:db8:0:2::7", {}).ceiling == INTERACTIVE

    def test_a_policy_for_another_network_makes_it_one_tenant(self):
        named = {"ip:2001:db8::/48": {"max_class": "bulk"}, "ip:2001:db8:0:1:2::/80": {}}
        found = tenants(named)
        assert key_of(found, "2001:db8:0:7::1") == key_of(found, "2001:db8:0:8::1")
        assert found.of("2001:db8:0:7::1", {}).ceiling == BULK
        assert key_of(found, "2001:db8:0:1:2::7") == "ip:2001:db8:0:1:2::/80"
        assert key_of(found, "2001:db8:1::1") == "ip:2001:db8:1::/64"

    @pytest.mark.parametrize("prefix", [0, 129, "64", True, 64.0])
    def test_a_prefix_that_is_none_is_refused(self, prefix):
        assert Admission(config(tenants={"ipv6_prefix": prefix})).problems


class TestCeilings:
    def test_a_policy_is_found_by_its_exact_key(self):
        found = tenants(
            {"header:acme": {"max_class": "bulk"}, "auth:acme": {"max_class": "system"}}
        )
        assert found.of(TRUSTED, {b"x-tenant-id": [b"acme"]}).ceiling == BULK
        assert found.of(TRUSTED, {b"authorization": [b"Bearer " + KEY]}).ceiling == SYSTEM
        for other in (b"Acme", b"acme2", b"acm", b"header:acme"):
            assert found.of(TRUSTED, {b"x-tenant-id": [other]}).ceiling == INTERACTIVE

    @pytest.mark.parametrize("default", CLASSES)
    def test_the_default_holds_for_everybody_else_and_never_means_system(self, default):
        found = tenants(default_max_class=default)
        ceiling = found.of(STRANGER, {}).ceiling
        assert ceiling == min(CLASSES.index(default), INTERACTIVE)

    @pytest.mark.parametrize("default", CLASSES)
    def test_a_policy_without_a_class_has_the_default(self, default):
        found = tenants({"header:acme": {"weight": 3}}, default_max_class=default)
        tenant = found.of(TRUSTED, {b"x-tenant-id": [b"acme"]})
        assert tenant.ceiling == min(CLASSES.index(default), INTERACTIVE)

    def test_a_policy_finds_its_tenant_however_an_address_or_a_name_is_written(self):
        found = tenants(
            policies={
                "ip:2001:DB8:0::9": {"max_class": "bulk"},
                "header:Zürich": {"max_class": "bulk"},
            }
        )
        assert found.of("2001:db8::9", {}).ceiling == BULK
        assert found.of(TRUSTED, {b"x-tenant-id": ["Zürich".encode()]}).ceiling == BULK

    def test_a_network_is_no_tenant(self):
        (line,) = Admission(config(policies={"ip:10.0.0.0/8": {"max_class": "bulk"}})).problems
        assert "a policy is for one address" in line

    def test_system_by_explicit_policy_also_for_addresses(self):
        found = tenants({f"ip:{STRANGER}": {"max_class": "system"}})
        assert found.of(STRANGER, {}).ceiling == SYSTEM
        assert found.of("203.0.113.8", {}).ceiling == INTERACTIVE

    def test_without_settings_the_default_is_default(self):
        assert Admission(None).tenants.of(STRANGER, {}).ceiling == DEFAULT

    def test_memory_is_bounded(self):
        found = tenants()
        for number in range(2 * REMEMBERED + 5):
            found.of(TRUSTED, {b"x-tenant-id": [b"%d" % number]})
            found.of(f"fe80::{number % 65536:x}", {b"x-tenant-id": [b"x"]})
        assert len(found._known) <= REMEMBERED


@given(
    address=st.one_of(st.none(), st.sampled_from([TRUSTED, STRANGER, "::1"]), st.text(max_size=20)),
    fields=st.dictionaries(
        st.sampled_from([b"authorization", b"x-tenant-id", b"x-forwarded-for"]),
        st.lists(st.binary(max_size=300), min_size=1, max_size=3),
    ),
)
def test_nothing_a_client_sends_raises_or_gives_system(address, fields):
    found = tenants({"header:boss": {"max_class": "system"}}, default_max_class="system")
    tenant = found.of(address, fields)
    assert tenant.ceiling <= INTERACTIVE or fields.get(b"x-tenant-id") == [b"boss"]
    assert len(tenant.key) < 300


class TestThroughTheMiddleware:
    @pytest.mark.parametrize("asked", CLASSES)
    @pytest.mark.parametrize("ceiling", CLASSES)
    def test_the_class_is_the_lower_of_the_two_and_lowering_is_counted(self, asked, ceiling):
        async def main() -> None:
            scene = Scene(policies={"header:t": {"max_class": ceiling}})
            client, held = await scene.running(
                asked, tenant="t", headers=[(b"x-fairlead-decision", b"1")]
            )
            effective = min(CLASSES.index(asked), CLASSES.index(ceiling))
            assert scene.inflight(CLASSES[effective]) == 1
            await held.answer()
            decision = (await client.done()).head["x-fairlead-decision"]
            assert decision.startswith(f"class={CLASSES[effective]};")
            lowered = CLASSES.index(asked) > effective
            assert (f"requested={asked}" in decision) == lowered
            key = ("header:t", CLASSES.index(asked), effective)
            assert scene.metrics.clamps == ({key: 1} if lowered else {})
            scene.quiet()

        run_virtual(main())

    def test_tenants_of_one_class_take_turns_by_weight(self):
        async def main() -> None:
            scene = Scene(policies={"header:heavy": {"weight": 2}, "header:light": {"weight": 1}})
            order = []
            _, held = await scene.running(tenant="x")
            for tenant in ("heavy", "light"):
                for number in range(12):
                    await scene.waiting(tenant=tenant, path=f"/{tenant}/{number}")
            for _ in range(12):
                await held.answer()
                held = await scene.app.next()
                order.append(held.path)
            heavy = [path for path in order if path.startswith("/heavy")]
            light = [path for path in order if path.startswith("/light")]
            assert (len(heavy), len(light)) == (8, 4)
            assert heavy == [f"/heavy/{number}" for number in range(8)], "FIFO within a tenant"
            assert light == [f"/light/{number}" for number in range(4)], "FIFO within a tenant"

        run_virtual(main())


def test_a_trusted_header_from_whom_nobody_trusts_is_told_once(caplog):
    found = tenants(trusted_header="x-tenant-id")
    with caplog.at_level("WARNING", "fairlead.gateway"):
        assert key_of(found, TRUSTED, x_tenant_id=b"root") == "header:root"
        assert not caplog.messages
        for _ in range(3):
            assert key_of(found, STRANGER, x_tenant_id=b"root") == f"ip:{STRANGER}"
    (said,) = caplog.messages
    assert f"x-tenant-id is not believed from {STRANGER}" in said
    assert "--no-proxy-headers" in said


def ask(admission: Admission, address: str, *fields: tuple[bytes, bytes]) -> Exchange:
    scope = {"client": (address, 1), "headers": fields, "http_version": "1.1", "path": "/"}
    exchange = Exchange(admission.metrics, None, None)
    assert asking.identify(admission, scope, exchange) is None
    asking.settle(admission, exchange)
    return exchange


class TestWhoHasAskedBefore:
    def test_is_known_by_all_that_is_said_of_it(self):
        admission = Admission(config())
        lower, higher = (b"x-fairlead-priority", b"bulk"), (b"x-fairlead-priority", b"default")
        for _ in range(2):
            assert ask(admission, STRANGER, lower).rank == BULK
            assert ask(admission, STRANGER, higher).rank == DEFAULT
            assert ask(admission, STRANGER, lower, higher).rank == DEFAULT
            assert ask(admission, TRUSTED, (b"x-tenant-id", b"acme")).tenant == "header:acme"
            assert ask(admission, STRANGER, (b"x-tenant-id", b"acme")).tenant == f"ip:{STRANGER}"

    def test_is_remembered_within_bounds(self):
        admission = Admission(config())
        for number in range(REMEMBERED + 5):
            ask(admission, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
            assert len(admission.askers) <= REMEMBERED
        before = len(admission.askers)
        ask(admission, STRANGER, (b"priority", b"u=1," + b"x" * asking.MEMORABLE))
        assert len(admission.askers) == before

    def test_is_looked_up_anew_after_a_reload(self):
        admission = Admission(config())
        fields = (b"x-tenant-id", b"acme"), (b"x-fairlead-priority", b"default")
        assert ask(admission, TRUSTED, *fields).rank == DEFAULT
        admission.retune(load(config(policies={"header:acme": {"max_class": "bulk"}})))
        assert ask(admission, TRUSTED, *fields).rank == BULK


class TestUnknownTenants:
    """`unknown: refuse`: an address names no tenant."""

    SAID: ClassVar[dict[str, Any]] = {
        "api_keys": [{"sha256": sha(KEY), "tenant": "acme"}],
        "trusted_header": "x-tenant-id",
        "unknown": "refuse",
    }

    @pytest.mark.parametrize(
        ("headers", "address", "challenge"),
        [
            ((), TRUSTED, "Bearer"),
            ((), STRANGER, "Bearer"),
            ((), None, "Bearer"),
            (((b"x-tenant-id", b"acme"),), STRANGER, "Bearer"),
            (((b"x-tenant-id", b""),), TRUSTED, "Bearer"),
            (((b"x-forwarded-for", b"10.0.0.1"),), TRUSTED, "Bearer"),
            (((b"authorization", b"Bearer nobodys"),), TRUSTED, 'Bearer error="invalid_token"'),
            (((b"authorization", b"Basic " + KEY),), TRUSTED, 'Bearer error="invalid_token"'),
            (((b"authorization", b"Bearer " + KEY),) * 2, TRUSTED, 'Bearer error="invalid_token"'),
        ],
    )
    def test_is_refused_with_401_in_the_clients_own_form(self, headers, address, challenge):
        async def test():
            scene = Scene(tenants=self.SAID)
            for path in ("/v1/chat/completions", "/elsewhere"):
                client = await scene.client(
                    path=path, headers=headers, address=address, method="POST"
                ).done()
                assert (client.status, client.head["www-authenticate"]) == (401, challenge)
                said = json.loads(client.body)
                found = said["error"] if path.startswith("/v1") else said
                assert found["code"] == "invalid_api_key"
            assert scene.metrics.refused_requests == {"invalid_api_key": 2}
            assert scene.app.arrivals.empty()
            scene.quiet()

        run_virtual(test())

    @pytest.mark.parametrize(
        "headers", [((b"authorization", b"Bearer " + KEY),), ((b"x-tenant-id", b"acme"),)]
    )
    def test_a_known_one_is_served_and_so_is_an_exempt_path(self, headers):
        async def test():
            scene = Scene(tenants=self.SAID)
            for sent, path in ((headers, "/a"), ((), "/health")):
                client = scene.client(headers=sent, path=path)
                await (await scene.app.next()).answer()
                assert (await client.done()).status == 200

        run_virtual(test())

    def test_a_refused_body_is_not_read(self):
        async def test():
            scene = Scene(tenants=self.SAID)
            client = scene.client(
                path="/v1/completions",
                method="POST",
                headers=[(b"content-type", b"application/json"), (b"content-length", b"9")],
                stay=False,
            )
            assert (await client.done()).status == 401

        run_virtual(test())

    def test_a_websocket_is_closed_before_the_application_hears_of_it(self):
        async def test():
            served: list[str] = []

            async def app(scope, receive, send):
                served.append(scope["path"])

            guarded = PriorityMiddleware(app, config(tenants=self.SAID))
            sent: list[Any] = []

            async def receive():
                return {"type": "websocket.connect"}

            async def send(message):
                sent.append(message["type"])

            key = (b"authorization", b"Bearer " + KEY)
            for path, headers in (("/a", []), ("/b", [key]), ("/health", [])):
                scope = {"type": "websocket", "path": path, "headers": headers}
                await guarded(scope, receive, send)
            assert (served, sent) == (["/b", "/health"], ["websocket.close"])

        run_virtual(test())

    def test_changes_with_the_file(self):
        async def test():
            scene = Scene(tenants=self.SAID)
            assert (await scene.client().done()).status == 401
            scene.admission.retune(load(config(tenants=self.SAID | {"unknown": "address"})))
            client = scene.client()
            await (await scene.app.next()).answer()
            assert (await client.done()).status == 200

        run_virtual(test())

    def test_without_a_way_to_be_known_it_is_no_configuration(self):
        (line,) = load(config(tenants={"unknown": "refuse", "trusted_header": None})).lines
        assert "would refuse every request: add api_keys or a trusted_header" in line
