"""Events: snapshots and decisions as they come, what was missed, a heartbeat, and readers that leave or are slow."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.capacities import Slots
from fairlead.core.ticket import Ticket
from fairlead.observe.watched import Feed
from fairlead.policies import FIFO
from fairlead.server import demo_traffic, history
from fairlead.server.history import History
from fairlead.server.snapshots import MOST_TOLD, Decisions
from tests.server.rig import configured, run, served


class Reader:
    """Reads server-sent events, one at a time."""

    def __init__(self, content: Any) -> None:
        self._content = content

    async def next(self) -> tuple[str, str, Any]:
        """Tell the next event's name, id and data; a comment is named so."""
        name = number = data = ""
        while True:
            line = (await self._content.readline()).decode().rstrip("\n")
            if line.startswith(": "):
                name = "comment"
            elif not line and (data or name):
                return name, number, json.loads(data) if data else None
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "id":
                number = value
            elif field == "data":
                data = value

    async def of(self, wanted: str) -> tuple[str, Any]:
        """Read on to the next event of a kind."""
        while True:
            name, number, data = await self.next()
            if name == wanted:
                return number, data


def test_snapshots_and_decisions_come_in_order(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            async with client.session.get(f"{client.url}/api/v1/events") as answer:
                assert answer.headers["content-type"] == "text/event-stream"
                assert answer.headers["cache-control"] == "no-store"
                reader = Reader(answer.content)
                numbers = []
                for _ in range(3):
                    number, found = await reader.of("snapshot")
                    assert int(number) == found["seq"]
                    numbers.append(int(number))
                assert numbers == list(range(numbers[0], numbers[0] + 3))
                assert client.server.history.followers == 1
                proxy = client.server.doors[0].links()["proxy"]
                async with client.session.get(f"{proxy}/v1/x") as other:
                    await other.read()
                _, told = await reader.of("decision")
                assert {item["gate"] for item in told["items"]} == {"gateway/default"}
                assert told["dropped"] == 0
            while client.server.history.followers:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

    run(test)


def test_what_was_missed_comes_first(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            url = f"{client.url}/api/v1/events"
            async with client.session.get(url) as answer:
                number, _ = await Reader(answer.content).of("snapshot")
            for _ in range(5):
                client.server.sample()
            headers = {"last-event-id": number}
            async with client.session.get(url, headers=headers) as answer:
                reader = Reader(answer.content)
                found = [int((await reader.of("snapshot"))[0]) for _ in range(6)]
            assert found == list(range(int(number) + 1, int(number) + 7))

    run(test)


@pytest.mark.parametrize("given", ["", "x", "-1", "1", "9" * 40, "99999999999999"])
def test_an_id_nobody_gave_begins_with_what_is_known(tmp_path: Path, given: str):
    async def test() -> None:
        async with served({"server": {"listen": "127.0.0.1:0"}}) as client:
            headers = {"last-event-id": given}
            async with client.session.get(f"{client.url}/api/v1/events", headers=headers) as answer:
                number, _ = await Reader(answer.content).of("snapshot")
                assert int(number) > 1

    run(test)


def test_a_heartbeat_keeps_the_line_alive(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history, "HEARTBEAT", 0.02)

    async def test() -> None:
        kept = History()
        pieces = kept.follow(None)
        assert await anext(pieces) == b"retry: 1000\n\n"
        assert await anext(pieces) == b": heartbeat\n\n"
        waiting = asyncio.ensure_future(anext(pieces))
        kept.add({"seq": kept.next_seq, "t": 0.0}, None)
        assert b"event: snapshot" in await waiting
        kept.close()
        with pytest.raises(StopAsyncIteration):
            while True:
                await anext(pieces)
        await pieces.aclose()
        assert kept.followers == 0

    run(test)


def test_a_slow_reader_skips_and_costs_nothing():
    async def test() -> None:
        kept = History()
        pieces = kept.follow(None)
        await anext(pieces)
        kept.add({"seq": kept.next_seq, "t": time.time()}, None)
        await anext(pieces)
        for _ in range(100):
            kept.add({"seq": kept.next_seq, "t": time.time()}, None)
        got = [await anext(pieces) for _ in range(history.MOST_BEHIND)]
        last = kept.next_seq - 1
        assert f"id: {last}\n".encode() in got[-1]
        assert f"id: {last - history.MOST_BEHIND + 1}\n".encode() in got[0]
        await pieces.aclose()

    run(test)


def decided(feed: Feed, tickets: int) -> None:
    """Let a gate start and end so many tickets: two decisions each."""
    gate = feed.gate("tasks/demo")(FIFO(), Slots(1))
    for number in range(tickets):
        ticket = Ticket(str(number))
        gate.offer(ticket, now=0.0)
        gate.finish(ticket, now=0.0)


def test_a_batch_of_decisions_is_bounded_and_says_what_it_leaves_out():
    feed = Feed()
    told = Decisions(feed)
    assert told.take() is None
    decided(feed, MOST_TOLD // 2)
    batch = told.take()
    assert batch is not None
    assert (len(batch["items"]), batch["dropped"]) == (MOST_TOLD, 0)
    decided(feed, MOST_TOLD)
    batch = told.take()
    assert batch is not None
    assert (len(batch["items"]), batch["dropped"]) == (MOST_TOLD, MOST_TOLD)
    assert batch["items"][-1]["number"] == 3 * MOST_TOLD


def test_every_decision_of_the_demonstration_can_be_told():
    asked = sum(caller.rate for caller in demo_traffic.CALLERS)
    asked += sum(rate for _, rate, _ in demo_traffic.PLANS) + sum(demo_traffic.RECORDS.values())
    crest = 1.5 * 2 * asked  # what starts also ends
    assert crest * history.INTERVAL < MOST_TOLD / 2  # chance may double it


def test_decisions_are_kept_only_while_somebody_may_be_sent_them():
    kept = History()
    for _ in range(3 * history.MOST_BEHIND):
        kept.add({"seq": kept.next_seq, "t": time.time()}, {"items": [], "dropped": 0})
    held = [bool(moment.decisions) for moment in kept._moments]
    assert held == [False] * (2 * history.MOST_BEHIND) + [True] * history.MOST_BEHIND


def test_history_is_bounded_and_thinned():
    kept = History()
    now = time.time()
    for number in range(2500):
        kept.add({"seq": kept.next_seq, "t": now - 2500 + number}, None)
    found = json.loads(kept.since(0.0))
    assert len(found) == history.MOST_POINTS
    assert found[-1]["seq"] == kept.next_seq - 1
    assert found[0]["seq"] == kept.next_seq - 1800  # a quarter of an hour, twice a second
    numbers = [one["seq"] for one in found]
    assert numbers == sorted(set(numbers))
    assert len(json.loads(kept.since(now - 100))) == 100


def test_history_survives_a_reload_of_the_page(tmp_path: Path):
    async def test() -> None:
        async with served(configured(tmp_path)) as client:
            for _ in range(4):
                client.server.sample()
            found = (await client.get("/api/v1/history?minutes=1"))["snapshots"]
            assert len(found) >= 4
            assert client.headers.get("content-encoding") == "gzip"
            _, plain = await client.ask("GET", "/api/v1/history", accept_encoding="identity")
            assert plain["snapshots"][0]["seq"] == found[0]["seq"]

    run(test)
