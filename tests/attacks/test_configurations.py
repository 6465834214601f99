"""Configuration files that are emptied, cut short or badly written while they are followed: nothing opens."""

import asyncio
import json
import logging
import random
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.flows import FlowScheduler
from fairlead.gateway import serving as gateway_serving
from fairlead.gateway.loading import load as load_gateway
from fairlead.gateway.serving import Gateway
from fairlead.server.loading import load
from fairlead.server.losses import settings_of
from fairlead.server.running import follow
from fairlead.server.service import Server
from tests.server.rig import HERE, Client, run

SHA = sha256(b"admin-secret").hexdigest()
POINT = {"concurrency": {"max_concurrency": 1}}
ADMIN = {"authorization": "Bearer admin-secret"}
TEXT = f"""\
server:
  listen: {HERE}
  tokens:
    - {{name: a, role: admin, sha256: {SHA}}}
flows:
  http: {HERE}
  control_points:
    checkout: {{concurrency: {{max_concurrency: 1}}}}
    refund:
      quota: {{bucket_capacity: 5, fill_amount: 1, interval: 1s}}
gateway:
  listen: {HERE}
  admin:
    listen: {HERE}
    token: hunter2
  upstreams:
    - url: http://127.0.0.1:9
"""
TRIED = {"configuration files cut short": len(TEXT)}


class Followed:
    """A server that does not listen, and looks at its file when a test says so."""

    def __init__(self, path: Path, content: str | bytes) -> None:
        self.path = path
        self.write(content)
        loaded = load(str(path))
        assert not loaded.problems, loaded.lines
        self.server = Server(loaded, path=str(path))
        self.watch = follow(self.server, str(path), loaded)

    def write(self, content: str | bytes) -> None:
        self.path.write_bytes(content.encode() if isinstance(content, str) else content)

    def look(self) -> bool:
        """Look as often as a change needs; tell whether it was applied."""
        before = self.server.reloads
        self.watch.look()
        self.watch.look()
        return self.server.reloads > before

    def holdings(self) -> tuple[Any, ...]:
        """Read from the running parts, not from any configuration, what protects them."""
        gateway, flows = self.server.doors[0], self.server.doors[1]
        points = flows.server.flows.points  # type: ignore[attr-defined]
        return (
            bool(self.server.api.access.tokens),
            bool(gateway.gateway.admin.token),  # type: ignore[attr-defined]
            len(gateway.gateway.fleet.describe()),  # type: ignore[attr-defined]
            {
                name: type(point.parts.concurrency or point.parts.quota)
                for name, point in points.items()
            },
        )


@pytest.fixture
def followed(tmp_path: Path) -> Callable[[str | bytes], Followed]:
    return lambda content: Followed(tmp_path / "fairlead.yaml", content)


def test_no_prefix_of_a_file_takes_anything_away(followed, caplog):
    """Whatever part of the file has reached the disk: with one of each thing, none is lost."""

    async def test() -> None:
        one = followed(TEXT)
        before = one.holdings()
        for end in range(len(TEXT)):
            one.write(TEXT[:end])
            one.look()
            assert one.holdings() == before, TEXT[:end]
        one.write(TEXT)
        one.look()
        assert one.holdings() == before

    caplog.set_level(logging.CRITICAL)
    run(test)


@pytest.mark.parametrize("text", ["", "# server:\n", "---\n", "null\n"])
def test_an_emptied_file_changes_nothing_and_one_error_names_what_it_would_lose(
    followed, caplog, text
):
    async def test() -> None:
        one = followed(TEXT)
        before = one.holdings()
        one.write(text)
        assert not one.look()
        assert one.holdings() == before
        assert one.server.refused_reloads == 1
        (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        for path in ("server.tokens", "gateway", "flows"):
            assert path in error.getMessage()
        assert "is empty" in error.getMessage()
        assert "the old configuration stays" in error.getMessage()

    run(test)


def some_configuration(rng: random.Random) -> dict[str, Any]:
    """Make a valid configuration; the doors that take a process of their own are left out."""
    said: dict[str, Any] = {"server": {"listen": HERE}}
    if rng.random() < 0.6:
        said["server"]["tokens"] = [{"name": rng.choice("ab"), "sha256": SHA}]
    if rng.random() < 0.7:
        said["gateway"] = {"listen": HERE, "admin": {"listen": HERE}}
        if rng.random() < 0.6:
            said["gateway"]["admin"]["token"] = rng.choice(["s", "t"])
        if rng.random() < 0.6:
            said["gateway"]["upstreams"] = [{"url": f"http://127.0.0.1:{rng.randint(1, 3)}"}]
    if rng.random() < 0.7:
        quota = {"quota": {"bucket_capacity": 1, "fill_amount": 1, "interval": "1s"}}
        points = {name: rng.choice([{}, POINT, quota, POINT | quota]) for name in "ab"}
        said["flows"] = {
            "http": HERE,
            "control_points": {name: one for name, one in points.items() if rng.random() < 0.7},
        }
    return said


def kept_by(said: dict[str, Any]) -> set[str]:
    """List what a configuration has, read from its text: each thing that may not be lost."""
    found = {f"door {door}" for door in ("gateway", "flows") if door in said}
    if said["server"].get("tokens"):
        found.add("tokens")
    gateway = said.get("gateway", {})
    found |= {"admin.token"} if gateway.get("admin", {}).get("token") else set()
    found |= {"upstreams"} if gateway.get("upstreams") else set()
    for name, point in said.get("flows", {}).get("control_points", {}).items():
        found.add(f"point {name}")
        if point:
            found.add(f"limit of {name}")
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_a_change_is_applied_exactly_when_it_loses_nothing(followed, seed: int):
    async def test() -> None:
        rng = random.Random(seed)
        said = some_configuration(rng)
        one = followed(json.dumps(said))
        has = kept_by(said)
        doors = {name for name in ("gateway", "flows") if name in said}
        for _ in range(4):
            after = some_configuration(rng)
            if json.dumps(after) == one.path.read_text():
                continue
            one.write(json.dumps(after))
            # A door that is new counts at the next start: nothing of it is in force.
            fresh = {name: part for name, part in after.items() if name in {"server", *doors}}
            lossless = has <= kept_by(fresh)
            assert one.look() == lossless, (said, after)
            if lossless:
                said, has = after, kept_by(fresh)

    run(test)


def test_a_put_that_loses_something_names_the_paths_that_allow_it(followed):
    async def test() -> None:
        one = followed(TEXT)
        bare = f"server: {{listen: '{HERE}'}}\nflows: {{http: '{HERE}', control_points: {{checkout: {{}}}}}}\n"
        async with one.server as server, aiohttp.ClientSession(headers=ADMIN) as session:
            client = Client(server, session)

            async def put(text: str, **more: Any) -> tuple[int, Any]:
                return await client.ask("PUT", "/api/v1/config", {"text": text, **more})

            before = one.holdings()
            assert (await put(""))[0] == 422
            status, said = await put(bare)
            assert (status, said["code"]) == (422, "would_lose")
            assert said["losses"] == [
                "server.tokens",
                "gateway",
                "flows.control_points.refund",
                "flows.control_points.checkout.concurrency",
            ]
            assert all(path in said["detail"] for path in said["losses"])
            assert [one["path"] for one in said["problems"]] == said["losses"]
            for strange in ("flows.control_point.refund", "tokens", "jobs.token"):
                status, refused = await put(bare, allow_loss=[*said["losses"], strange])
                assert (status, refused["code"]) == (422, "bad_allow_loss")
                assert strange in refused["detail"]
            assert (await put(bare, allow_loss=said["losses"][1:]))[0] == 422
            assert (one.path.read_text(), one.holdings(), server.reloads) == (TEXT, before, 0)
            assert (await put(bare, allow_loss=said["losses"]))[0] == 200
            assert one.path.read_text() == bare
            tokens, token, upstreams, points = one.holdings()
            assert not tokens
            assert set(points) == {"checkout"}
            assert (token, upstreams) == (True, 1)  # a door ends only with the process
            # What was allowed to go may stay away, and is kept again once it is back.
            one.write(bare + "# a note\n")
            assert one.look()
            one.write(bare + "gateway: {}\n")
            assert not one.look()
            one.write(TEXT)
            assert one.look()
            one.write(bare)
            assert not one.look()

    run(test)


def test_a_scheduler_that_is_switched_off_is_warned_of(tmp_path: Path, caplog):
    """It is no loss by the rule, yet seldom meant."""
    path = tmp_path / "gateway.yaml"
    common = "capacity: 400\nlisten: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\n"
    path.write_text(common + "priority_scheduler: {enabled: true}\n")

    async def test() -> None:
        loaded = load_gateway(path)
        watch = gateway_serving.follow(Gateway(loaded), loaded, path)
        path.write_text(common)
        for _ in range(2):
            watch.look()

    asyncio.run(test())
    assert "priority_scheduler.enabled is no longer true" in caplog.text


def test_a_library_that_follows_a_file_keeps_its_limits(tmp_path: Path):
    path = tmp_path / "flows.yaml"
    path.write_text(json.dumps({"control_points": {"checkout": POINT}}))

    async def test() -> None:
        flows = FlowScheduler.from_config(path)
        watch: Any = flows._watch
        for text in ("", "{}", "control_points:\n", "control_points: {checkout: {}}"):
            path.write_text(text)
            watch.look()
            watch.look()
            assert set(flows.points) == {"checkout"}
            assert flows.points["checkout"].parts.concurrency is not None
        path.write_text("control_points: {checkout: {concurrency: {max_concurrency: 3}}}")
        watch.look()
        watch.look()
        limit: Any = flows.points["checkout"].parts.concurrency
        assert limit.limit == 3

    asyncio.run(test())


def test_every_byte_that_is_applied_was_read_twice(tmp_path: Path):
    """Of a file that is named too, also while the one that names it is settled."""
    inner = tmp_path / "flows.yaml"
    inner.write_text(json.dumps({"control_points": {"a": POINT}}))
    said = f"server: {{listen: '{HERE}'}}\nflows: {{http: '{HERE}', file: flows.yaml}}\n"

    async def test() -> None:
        one = Followed(tmp_path / "fairlead.yaml", said)
        flows: Any = one.server.doors[0]

        def limit() -> float:
            found: float = flows.server.flows.points["a"].parts.concurrency.limit
            return found

        one.write(said + "# changed\n")
        one.watch.look()
        inner.write_text("control_points: {a: {concurrency: {max_concurrency: 2}}}")
        one.watch.look()
        assert (limit(), one.server.reloads) == (1, 0)
        inner.write_text("control_points: {a: {concurrency: {max_concurrency: 25}}}")
        one.watch.look()
        assert (limit(), one.server.reloads) == (1, 0)
        one.watch.look()
        assert (limit(), one.server.reloads) == (25, 1)

    run(test)


def test_losses_are_judged_by_what_runs_not_by_the_last_file(followed):
    """A section that is gone for a while takes nothing with it, so that it may not come back without its token."""

    async def test() -> None:
        one = followed(TEXT)
        without = json.loads(json.dumps({"server": {"listen": HERE}}))
        loaded = load(str(one.path))
        assert settings_of(loaded).gateway.admin.token == "hunter2"
        one.write(json.dumps(without))
        assert not one.look()
        one.write(TEXT.replace("    token: hunter2\n", ""))
        assert not one.look()
        assert one.holdings()[1]

    run(test)
