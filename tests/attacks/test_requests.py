"""Requests that ask the gateway and its backend to disagree: where one ends, whose it is, what it asks for.

Tried: the cases of `requests.CASES` and `requests.UNFINISHED` (246), each on a connection of its own with a request to
smuggle behind it, before a naive backend; random mutations of them (2,000, a fifth of that in CI); and 40,000 requests
(a fifth in CI) with tenants, models, priorities, paths, header names and addresses that never repeat.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from ipaddress import IPv4Address
from typing import NamedTuple

import pytest

from fairlead.gateway.front.exposure import REMEMBERED as JUDGED
from fairlead.gateway.serving import Gateway
from fairlead.gateway.tenants import REMEMBERED
from tests.attacks.requests import CASES, LAST, SMUGGLED, UNFINISHED, Case, mutated
from tests.gateway.rig import connected, gateway, run_on_uvloop, within
from tests.sizes import times

TRIED = {  # for the page that counts
    "requests that smuggle": len(CASES) + len(UNFINISHED),
    "mutated requests": 2000,
    "requests with names that never repeat": 40_000,
}
AT_ONCE = 32
TRUSTED = {"trusted_header": "x-tenant-id", "trusted_proxies": ["127.0.0.2/32"]}
_LINE = re.compile(rb"[A-Z-]+ /[\x21-\xff]* HTTP/1\.1")
_FIELD = re.compile(rb"[!#-'*+.^`|~0-9A-Za-z-]+: ?[\t\x20-\x7e\x80-\xff]*")
_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) ")
FORBIDDEN = {
    *(b"x-tenant-id", b"forwarded", b"x-real-ip", b"x-forwarded-user", b"x-original-url"),
    *(b"proxy-authorization", b"te", b"trailer", b"upgrade", b"http2-settings", b"expect"),
}


class Seen(NamedTuple):
    """One whole request that the backend has run."""

    head: bytes
    body: bytes


class Naive:
    """A backend that believes its bytes: it frames as it is told, and answers each request that it takes for whole."""

    def __init__(self) -> None:
        self.seen: dict[bytes, list[Seen]] = defaultdict(list)  # by the client's address

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
                body = await self._body(reader, head)
                self.seen[_field(head, b"x-forwarded-for")].append(Seen(head, body))
                path = head.split(b" ")[1][:100]
                sent = b"" if head.startswith(b"HEAD ") else path
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(path) + sent)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        lines = head.lower().replace(b"_", b"-")
        if b"\r\ntransfer-encoding:" in lines:
            body = b""
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readuntil(b"\r\n")
            return body
        length = _field(lines, b"content-length")
        return await reader.readexactly(int(length)) if length else b""


def _field(head: bytes, name: bytes) -> bytes:
    values = [
        line.partition(b":")[2].strip()
        for line in head.split(b"\r\n")[1:]
        if line.lower().startswith(name + b":")
    ]
    return values[0] if values else b""


class Outcome(NamedTuple):
    """What a client got, and what the backend has run for it."""

    raw: bytes
    statuses: tuple[int, ...]
    seen: list[Seen]


@asynccontextmanager
async def attacked() -> AsyncIterator[tuple[Gateway, Naive]]:
    naive = Naive()
    server = await asyncio.start_server(naive.serve, "127.0.0.1", 0, limit=1 << 22)
    upstream = {"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "capacity": 64}
    limits = {"header_timeout": "1s", "body_timeout": "1s"}
    async with gateway(upstream, limits=limits, tenants=TRUSTED, access_log=False) as running:
        yield running, naive
    server.close()


async def attack(running: Gateway, naive: Naive, number: int, raw: bytes) -> Outcome:
    """Send bytes from an address of its own, and read until the gateway hangs up."""
    address = str(IPv4Address("127.1.0.0") + number)
    port = running.data_listener.url.rpartition(":")[2]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port), local_addr=(address, 0))
    got = b""
    try:
        writer.write(raw)
        while piece := await within(reader.read(65536)):
            got += piece
    except (ConnectionError, TimeoutError):
        pass  # it has hung up while we were sending, or waits for another request
    finally:
        writer.close()
    # A path is all that an answer's body holds, so a line that begins with HTTP/1.1 is the start of an answer.
    statuses = tuple(int(status) for status in _STATUS.findall(got) if status != b"100")
    return Outcome(got, statuses, naive.seen[address.encode()])


def assaults(raws: list[bytes]) -> list[Outcome]:
    """Try all of them before one gateway, some at once."""

    async def main() -> list[Outcome]:
        async with attacked() as (running, naive):
            room = asyncio.Semaphore(AT_ONCE)

            async def one(number: int, raw: bytes) -> Outcome:
                async with room:
                    return await attack(running, naive, number, raw)

            found = await asyncio.gather(*(one(number, raw) for number, raw in enumerate(raws, 1)))
            known = {
                str(IPv4Address("127.1.0.0") + number).encode()
                for number in range(1, len(raws) + 1)
            }
            assert set(naive.seen) <= known  # nobody has spoken for another
            for pool in running.admission.pools.values():
                assert pool.gate.active == pool.gate.waiting == 0
            return found

    found: list[Outcome] = run_on_uvloop(main(), 600)
    return found


def check(outcome: Outcome) -> None:
    """Hold what must hold whatever was sent."""
    answered = [status for status in outcome.statuses if status == 200]
    assert len(outcome.seen) <= len(answered), "the backend has run more than was answered"
    assert all(status < 500 or status == 505 for status in outcome.statuses)
    for seen in outcome.seen:
        line, *fields = seen.head.split(b"\r\n")
        assert _LINE.fullmatch(line)
        assert all(_FIELD.fullmatch(field) for field in fields)
        names = [field.partition(b":")[0].lower() for field in fields]
        assert b"_" not in b"".join(names)
        assert not FORBIDDEN & set(names)
        framing = [name for name in names if name in (b"content-length", b"transfer-encoding")]
        assert len(framing) <= 1
        assert names.count(b"host") == names.count(b"x-forwarded-for") == 1
        assert _field(seen.head, b"x-forwarded-proto") == b"http"


@cache
def outcomes() -> dict[str, Outcome]:
    cases = [*CASES, *UNFINISHED]
    # Behind an unfinished one a last request would be its rest.
    raws = [case.raw + (LAST if case in CASES else b"") for case in cases]
    return {case.name: found for case, found in zip(cases, assaults(raws), strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_case_has_its_answer(case: Case) -> None:
    outcome = outcomes()[case.name]
    check(outcome)
    expected = case.statuses if case.closes else (*case.statuses, 200)
    assert outcome.statuses == expected
    assert len(outcome.seen) == expected.count(200)
    paths = [seen.head.split(b" ")[1] for seen in outcome.seen]
    assert (b"/last" in paths) is not case.closes
    if SMUGGLED not in case.raw:
        assert b"/smuggled" not in paths


@pytest.mark.parametrize("case", UNFINISHED, ids=lambda case: case.name)
def test_what_is_never_finished_is_cut(case: Case) -> None:
    outcome = outcomes()[case.name]
    check(outcome)
    assert outcome.statuses in ((408,), (413,))
    assert not outcome.seen


def test_no_mutation_of_them_smuggles() -> None:
    # A body or a trailer may swallow the first of them, and still be whole.
    raws = [mutated(seed) + 3 * LAST for seed in range(times(TRIED["mutated requests"]))]
    for raw, outcome in zip(raws, assaults(raws), strict=True):
        try:
            check(outcome)
        except AssertionError as error:
            raise AssertionError(f"{raw!r}: {outcome}") from error


def named(number: int) -> list[tuple[str, str]]:
    """Write headers that no other request has."""
    return [
        ("x-fairlead-priority", f"p{number}"),
        ("x-forwarded-for", str(IPv4Address("10.0.0.0") + number)),
        ("authorization", f"Bearer key-{number}"),
        (f"x-{number}", "y"),
        ("content-type", "application/json"),
    ]


def test_names_that_never_repeat_are_not_remembered_for_ever() -> None:
    async def main() -> None:
        async with attacked() as (running, _):
            every, each = times(TRIED["requests with names that never repeat"]), 8
            port = running.data_listener.url

            async def some(start: int) -> None:
                async with connected(port) as client:
                    for number in range(start, every, each):
                        body = b'{"model": "model-%d"}' % number
                        client.request("POST", f"/v1/{number}", named(number), body)
                        head, _ = await client.response()
                        assert head.status == 200

            await asyncio.gather(*(some(start) for start in range(each)))
            admission = running.admission
            assert len(admission.askers) <= REMEMBERED
            assert len(running.front._exposure._remembered) <= JUDGED
            assert len(admission.metrics.tenants) <= 101
            assert len(admission.metrics.unknown) <= 101

    run_on_uvloop(main(), 600)


@pytest.mark.parametrize(
    "broken",
    [
        lambda outcome: outcome._replace(seen=[*outcome.seen, *outcome.seen]),
        lambda outcome: outcome._replace(statuses=(502,)),
        lambda outcome: outcome._replace(
            seen=[Seen(outcome.seen[0].head + b"\r\nX-Tenant-Id: admin", b"")]
        ),
        lambda outcome: outcome._replace(
            seen=[Seen(outcome.seen[0].head + b"\r\ntransfer_encoding: chunked", b"")]
        ),
    ],
)
def test_the_checks_can_fail(broken: Callable[[Outcome], Outcome]) -> None:
    fine = outcomes()[next(case.name for case in CASES if case.statuses == (200,))]
    check(fine)
    with pytest.raises(AssertionError):
        check(broken(fine))
