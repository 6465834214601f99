"""`fairlead doctor`: is this machine, and is this configuration, fit to serve?

Each check ends by itself within `PATIENCE`, changes nothing, and says what to do about what it found.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit

from fairlead.documents.values import split_address
from fairlead.errors import FairleadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlead.server.loading import Loaded

PATIENCE = 3.0  # seconds for anything on the network
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


def machine() -> Iterator[Finding]:
    """Look at what every server needs."""
    version = ".".join(map(str, sys.version_info[:3]))
    fit = sys.version_info >= (3, 11)
    yield Finding(
        "python", "ok" if fit else "wrong", f"{version}{'' if fit else '; 3.11 or newer is needed'}"
    )
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if not _installed(name)]
        if missing:
            said = f"not installed ({', '.join(missing)}): pip install 'fairlead[{extra}]' if you want it"
            yield Finding(f"extra {extra}", "note", said)
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
    """Look at everything a valid configuration names: addresses, databases, backends."""
    found = [_address(name, address) for name, address in _addresses(loaded)]
    checks = []
    jobs = loaded.settings.jobs
    if jobs is not None and jobs.database is not None:
        checks.append(_database(jobs.database))
    for name, url in _servers(loaded):
        checks.append(_reachable(name, url))
    return found + list(await asyncio.gather(*checks))


def _addresses(loaded: Loaded) -> Iterator[tuple[str, str]]:
    settings = loaded.settings
    yield "server.listen", settings.server.listen
    if loaded.gateway is not None:
        yield "gateway.listen", loaded.gateway.settings.listen
        yield "gateway.admin.listen", loaded.gateway.settings.admin.listen
    if loaded.flows is not None:
        for name in ("http", "grpc"):
            address = getattr(loaded.flows_listening, name)
            if address is not None:
                yield f"flows.{name}", address
    if settings.jobs is not None and settings.jobs.http is not None:
        yield "jobs.http", settings.jobs.http


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
    parts = urlsplit(url)
    if parts.scheme == "unix":
        connecting = asyncio.open_unix_connection(parts.path)
    else:
        usual = {"http": 80, "https": 443}.get(parts.scheme, 6379)
        connecting = asyncio.open_connection(parts.hostname, parts.port or usual)
    try:
        async with asyncio.timeout(PATIENCE):
            _, writer = await connecting
    except TimeoutError:
        return Finding(
            name,
            "wrong",
            f"nothing answered within {PATIENCE:g} s: is it up, and is the way to it open?",
        )
    except OSError as error:
        return Finding(name, "wrong", f"cannot be reached ({error.strerror or error}): is it up?")
    writer.close()
    return Finding(name, "ok", "accepts connections")
