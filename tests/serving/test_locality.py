"""What comes from this machine alone, in every spelling of a Host and of a peer."""

import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.serving.locality import is_local_peer, passed_on, stranger

HERE = "127.0.0.1"
LOCAL_HOSTS = [
    b"localhost",
    b"LOCALHOST:80",
    b"LocalHost:8080",
    b"127.0.0.1",
    b"127.0.0.1:8080",
    b"127.1.2.3:1",
    b"[::1]",
    b"[::1]:8080",
    b"[0:0:0:0:0:0:0:1]",
    b"[::ffff:127.0.0.1]:80",
    b"[::FFFF:7f00:1]",
]
FOREIGN_HOSTS = [
    b"",
    b" ",
    b"evil.example",
    b"evil.example:8080",
    b"localhost.evil.example",
    b"127.0.0.1.evil.example",
    b"127.0.0.1.nip.io",
    b"localhost.",  # each of these is loopback to some readers and not to others
    b"sub.localhost",
    b"127.1",
    b"127.0.1",
    b"2130706433",
    b"0x7f000001",
    b"0x7f.0.0.1",
    b"0177.0.0.1",
    b"127.0.0.01",
    b"127.0.0.1.",
    b"0.0.0.0",
    b"0",
    b"::1",
    b"::1:80",
    b"[::]",
    b"[::1%25lo]",
    b"[::1",
    b"[localhost]",
    b"[127.0.0.1]",
    b"[::ffff:10.0.0.1]",
    b"10.0.0.7",
    b"user@localhost",
    b"localhost@evil.example",
    b"evil.example@localhost",
    b"localhost:80@evil.example",
    b"localhost/",
    b"localhost/evil.example",
    b"localhost?evil.example",
    b"localhost#evil.example",
    b"localhost\\evil.example",
    b"http://localhost",
    b"localhost:",
    b"localhost:80:80",
    b"localhost:x",
    b"localhost,evil.example",
    b"localhost evil.example",
    b"localhost\n",
    b"local\xc3\xb6st",
    "\uff11\uff12\uff17.0.0.1".encode(),
    b"\xff",
]
PROXIES = [
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-forwarded-user",
    b"x-forwarded-anything",
    b"x_forwarded_for",
    b"x-real-ip",
    b"true_client_ip",
    b"cf-connecting-ip",
    b"client-ip",
    b"x-envoy-external-address",
    b"forwarded",
    b"via",
    b"x-original-host",
]


def code(peer: str | None, *fields: tuple[bytes, bytes]) -> str | None:
    found = stranger(peer, fields)
    return None if found is None else found.code


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_this_machine_by_any_full_name_or_address(host):
    assert code(HERE, (b"host", host), (b"accept", b"*/*")) is None


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_another_host_or_one_that_can_be_read_in_two_ways(host):
    for _ in range(2):
        assert code(HERE, (b"host", host)) == "foreign_host"


def test_a_request_names_one_host():
    assert code(HERE) == "foreign_host"
    assert code(HERE, (b"host", b"localhost"), (b"host", b"localhost")) == "foreign_host"
    assert code(HERE, (b"host", b"localhost"), (b"host", b"evil.example")) == "foreign_host"


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        (None, True),  # a Unix socket
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.2", False),
        ("::ffff:192.0.2.2", False),
        ("fe80::1%lo", False),
        ("", False),
        ("localhost", False),
        ("0.0.0.0", False),
        ("::", False),
        ("testclient", False),
    ],
)
def test_the_peer_is_loopback_or_a_unix_socket(peer, local):
    assert is_local_peer(peer) is local
    assert code(peer, (b"host", b"localhost")) == (None if local else "foreign_peer")


@pytest.mark.parametrize("name", PROXIES)
def test_what_a_proxy_passed_on_is_refused_with_the_reason(name):
    found = stranger(HERE, [(b"host", b"localhost"), (name, b"")], "admin.token")
    assert found is not None
    assert found.code == "behind_proxy"
    assert "behind a proxy admin.token is needed" in found.detail
    assert passed_on([b"user-agent", name]) is not None
    assert passed_on([b"user-agent", b"x-forwarded"]) is None


@given(st.text(alphabet="0123456789abcdefx.:[]@/%localhst", max_size=30))
@example("127.0.0.1")
@example("[::1]")
def test_what_is_taken_for_this_machine_is_written_in_full(text):
    """Whatever is accepted is `localhost` or an address that the strictest reader finds to be loopback."""
    if code(HERE, (b"host", text.encode())) is not None:
        return
    host = text.rpartition(":")[0] if text[-1] != "]" and ":" in text else text
    if host != "localhost":
        address = ipaddress.ip_address(host.strip("[]"))
        mapped = getattr(address, "ipv4_mapped", None)
        assert (mapped or address).is_loopback
