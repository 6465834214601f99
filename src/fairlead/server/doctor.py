"""`fairlead doctor`: is this machine, and is this configuration, fit to serve?

Each check changes nothing, says what to do about what it found, and ends by itself within `PATIENCE`, but for the
import of somebody's application: that takes as long as it does at a start.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit

from fairlead.config import is_readable
from fairlead.documents.addresses import split_address
from fairlead.errors import FairleadError, NoDatabase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fairlead.server.hosting import Hosted
    from fairlead.server.loading import Loaded
    from fairlead.server.settings import Tls

PATIENCE = 3.0  # seconds for anything on the network
PORTS = {"http": 80, "https": 443, "kafka": 9092}  # where none is named; else that of Redis
FEW_FILES = 4096  # open files; each request of the gateway takes two
# What each extra brings that its door cannot do without.
EXTRAS = {
    "gateway": ("aiohttp", "httptools", "msgspec", "pydantic", "ruamel.yaml", "uvicorn"),
    "flows": ("aiohttp", "pydantic", "redis", "ruamel.yaml", "uvicorn"),
    "grpc": ("grpc", "google.protobuf"),
    "jobs": ("cronsim", "pydantic", "ruamel.yaml", "uvicorn"),
    "postgres": ("asyncpg",),
    "ray": ("ray",),
    "streams": ("confluent_kafka",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter"),
}

Grade = Literal["ok", "note", "wrong"]


class Finding(NamedTuple):
    """One thing looked at: how it stands, and what to do."""

    what: str
    grade: Grade
    said: str


def extras_of(loaded: Loaded) -> Collection[str]:
    """Name the extras that a configuration cannot do without; what a stream app needs, it tells itself."""
    settings = loaded.settings
    named = {
        "gateway": loaded.gateway,
        "flows": loaded.flows,
        "grpc": loaded.flows and loaded.flows_listening.grpc,
        "jobs": settings.jobs,
        "otel": settings.server.otel,
    }
    return [extra for extra, section in named.items() if section is not None]


def machine(needed: Collection[str] = ()) -> Iterator[Finding]:
    """Look at what every server needs, and at the extras; those needed must be there."""
    version = ".".join(map(str, sys.version_info[:3]))
    fit = sys.version_info >= (3, 11)
    yield Finding(
        "python", "ok" if fit else "wrong", f"{version}{'' if fit else '; 3.11 or newer is needed'}"
    )
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if not _installed(name)]
        if missing:
            said = f"not installed ({', '.join(missing)}): pip install 'fairlead[{extra}]'"
            if extra in needed:
                yield Finding(f"extra {extra}", "wrong", f"{said}: the configuration needs it")
            else:
                yield Finding(f"extra {extra}", "note", f"{said} if you want it")
        else:
            yield Finding(f"extra {extra}", "ok", "installed")
    if not _installed("uvloop"):
        yield Finding(
            "uvloop", "note", "not installed: servers answer more slowly on the stock loop"
        )
    yield from _open_files()


def _open_files() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # on Windows there is no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= FEW_FILES:
        yield Finding("open files", "ok", "as many as needed" if hard < 0 else f"up to {hard:,}")
    else:
        said = f"at most {hard:,}; each request of the gateway takes two: raise it with ulimit -n or LimitNOFILE"
        yield Finding("open files", "note", said)


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def configuration(loaded: Loaded) -> Iterator[Finding]:
    """Tell what is wrong with a configuration; where anything is, nothing else of it is looked at."""
    for line in loaded.lines:
        yield Finding("configuration", "wrong", line)
    for warning in loaded.warnings:
        yield Finding("configuration", "note", warning)
    if not loaded.problems:
        yield Finding("configuration", "ok", f"{loaded.source} is valid")


async def surroundings(loaded: Loaded) -> list[Finding]:
    """Look at everything a valid configuration names: addresses, certificate, applications, databases, backends."""
    found = [_address(name, address) for name, address in loaded.addresses]
    if loaded.settings.server.tls is not None:
        found.append(_certificate(loaded.settings.server.tls))
    doors, said = _doors(loaded)
    found.append(said)
    checks = []
    jobs = loaded.settings.jobs
    database = None if jobs is None else jobs.database or _of(doors, "jobs", "jobs.url")
    if database is not None:
        checks.append(_database(database))
    for name, url in _servers(loaded):
        checks.append(_reachable(name, url))
    kafka = _of(doors, "streams", "app.settings.bootstrap_servers")
    if kafka is not None:
        checks.append(_kafka(kafka))
    return found + list(await asyncio.gather(*checks))


def _doors(loaded: Loaded) -> tuple[list[Hosted], Finding]:
    """Make the doors as a server does, and start none: applications are imported, and join their pools."""
    from fairlead.observe.watched import Feed
    from fairlead.server.doors import doors_of

    try:
        with redirect_stdout(sys.stderr):  # what an application prints is no finding
            doors = doors_of(loaded, Feed())
    except FairleadError as error:
        return [], Finding("doors", "wrong", " ".join(str(error).split()))
    except ModuleNotFoundError as error:
        return [], Finding("doors", "wrong", f"{error.name} is not installed; see the extras")
    named = ", ".join(door.name for door in doors)
    return doors, Finding("doors", "ok", f"{named or 'none'}: can be started")


def _of(doors: list[Hosted], kind: str, path: str) -> str | None:
    """Read what a door knows, if there is one of that kind."""
    door = next((door for door in doors if door.kind == kind), None)
    found: str | None = None if door is None else attrgetter(path)(door)
    return found


def _certificate(tls: Tls) -> Finding:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key, "none")  # nobody is asked for a password
    except OSError as error:  # ssl.SSLError is one
        told = error.strerror or error
        said = f"cannot use {tls.certificate} with the key {tls.key}: {told}"
        return Finding("server.tls", "wrong", said)
    return Finding("server.tls", "ok", f"{tls.certificate} and its key can be used")


async def _kafka(servers: str) -> Finding:
    """See whether any of the servers named accepts a connection; it tells of the others."""
    if not _installed("confluent_kafka"):
        said = "bootstrap_servers needs confluent_kafka: pip install 'fairlead[streams]'"
        return Finding("streams.app", "wrong", said)
    places = [one.strip().rpartition("://")[2] for one in servers.split(",")]
    found = await asyncio.gather(
        *(_reachable("streams.app", f"kafka://{place}") for place in places if place)
    )
    named = Finding("streams.app", "wrong", f"Kafka at {servers}: nothing is named")
    best = next((one for one in found if one.grade == "ok"), (found or [named])[0])
    return best._replace(said=f"Kafka at {servers} {best.said}")


def _servers(loaded: Loaded) -> Iterator[tuple[str, str]]:
    if loaded.gateway is not None:
        for upstream in loaded.gateway.settings.upstreams:
            yield f"upstream {upstream.url}", upstream.url
        shared = loaded.gateway.settings.shared_capacity
        if shared is not None:
            yield "gateway.shared_capacity.redis", shared.redis
    if loaded.flows is not None and loaded.flows.settings.redis is not None:
        yield "flows.redis", loaded.flows.settings.redis


def _address(name: str, address: str) -> Finding:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            said = f"{address} cannot be listened on ({error.strerror or error}): stop what has it, or take another"
            return Finding(name, "wrong", said)
    return Finding(name, "ok", f"{address} is free")


async def _database(url: str) -> Finding:
    from fairlead.jobs.stores.opening import hidden, open_store

    named = hidden(url)
    try:
        store = open_store(url)
        try:
            async with asyncio.timeout(PATIENCE):
                has, wanted = await store.versions()
        finally:
            await store.close()
    except TimeoutError:
        return Finding("jobs.database", "wrong", f"{named} did not answer within {PATIENCE:g} s")
    except NoDatabase as error:
        return Finding("jobs.database", "note", f"{error}: it is made at the start")
    except FairleadError as error:
        return Finding("jobs.database", "wrong", str(error))
    if has == wanted:
        return Finding("jobs.database", "ok", f"{named} answers, its schema is the newest")
    if has > wanted:
        return Finding(
            "jobs.database", "wrong", f"{named} was made by a newer Fairlead: upgrade this one"
        )
    what = "is empty" if not has else f"has schema {has} of {wanted}"
    if url.startswith("sqlite"):  # a file is brought up to date whenever it is opened
        return Finding("jobs.database", "note", f"{named} {what}: it is made ready at the start")
    return Finding("jobs.database", "wrong", f"{named} {what}: fairlead db migrate --db {named}")


async def _reachable(name: str, url: str) -> Finding:
    """See whether anything accepts a connection where a URL points; what it says is its door's to judge."""
    if not is_readable(url):
        return Finding(name, "wrong", "is no address: its host and port cannot be read")
    parts = urlsplit(url)
    port = parts.port or PORTS.get(parts.scheme, 6379)
    if parts.scheme == "unix":
        connecting = asyncio.open_unix_connection(parts.path)
    else:
        connecting = asyncio.open_connection(parts.hostname, port)
    try:
        async with asyncio.timeout(PATIENCE):
            _, writer = await connecting
    except TimeoutError:
        return Finding(
            name,
            "wrong",
            f"nothing answered within {PATIENCE:g} s: is it up, and is the way to it open?",
        )
    except UnicodeError:  # of a name that cannot be looked up
        return Finding(name, "wrong", "is no address: the parts of a host have 1 to 63 characters")
    except OSError as error:
        return Finding(name, "wrong", f"cannot be reached ({error.strerror or error}): is it up?")
    writer.close()
    return Finding(name, "ok", "accepts connections")
