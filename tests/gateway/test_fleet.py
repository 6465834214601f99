"""The fleet: who is well, how many slots there are, and where the next call goes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import Misuse
from fairlead.gateway.fleet import Fleet
from fairlead.gateway.settings import Health, Settings, Upstream
from fairlead.gateway.upstream import BELIEVED_FOR, reported_capacity
from fairlead.gateway.upstream import Upstream as Member
from tests.gateway.rig import HEALTHY, Backend, run, until

NOWHERE = "http://127.0.0.1:9"


class Changes(list[dict[str, int]]):
    """The capacities told, in order."""

    fleet: Fleet

    def note(self) -> None:
        self.append(self.fleet.capacities())


def settings(*upstreams: dict[str, Any], **more: Any) -> Settings:
    health = {"interval": 0.02, "timeout": 2.0}
    return Settings(upstreams=upstreams, health=health, **more)  # type: ignore[arg-type]


def fleet_of(*upstreams: dict[str, Any], **more: Any) -> Fleet:
    """Make a fleet that nobody looks at; those without a health path are well."""
    return Fleet(settings(*upstreams, **more), lambda: None)


@asynccontextmanager
async def watched(*upstreams: dict[str, Any], **more: Any) -> AsyncIterator[tuple[Fleet, Changes]]:
    changes = Changes()
    fleet = changes.fleet = Fleet(settings(*upstreams, **more), changes.note)
    await fleet.start()
    try:
        yield fleet, changes
    finally:
        await fleet.stop()


def test_capacity_is_zero_until_the_first_look_and_known_after_start():
    async def main():
        async with Backend() as one, Backend() as two:
            two.health_status = 503
            async with watched(
                {"url": one.url, "capacity": 4, **HEALTHY},
                {"url": two.url, "capacity": 8, **HEALTHY},
                {"url": NOWHERE, "capacity": 16, **HEALTHY},
            ) as (fleet, changes):
                assert fleet.capacities() == {"": 4}
                assert changes[-1] == {"": 4}
                two.health_status = 200
                await until(lambda: fleet.capacities() == {"": 12})
                one.health_status = 500
                await until(lambda: fleet.capacities() == {"": 8})
                assert changes[-3:] == [{"": 4}, {"": 12}, {"": 8}]

    run(main())


def test_nothing_is_told_that_did_not_change():
    async def main():
        async with (
            Backend() as one,
            watched({"url": one.url, "capacity": 4, **HEALTHY}) as (_, changes),
        ):
            checks = one.health_checks
            await until(lambda: one.health_checks > checks + 3)
            assert changes == [{"": 4}]

    run(main())


def test_a_backend_that_stops_and_comes_back_is_used_again():
    async def main():
        async with (
            Backend() as one,
            watched({"url": one.url, "capacity": 4, **HEALTHY}) as (fleet, _),
        ):
            await one.stop()
            await until(lambda: fleet.capacities() == {"": 0})
            assert fleet.choose(None) is None
            await one.start()
            await until(lambda: fleet.capacities() == {"": 4}, 5.0)

    run(main())


def test_without_a_health_path_a_failed_connection_tells_and_tcp_brings_it_back():
    async def main():
        async with Backend() as one, watched({"url": one.url, "capacity": 4}) as (fleet, changes):
            assert fleet.capacities() == {"": 4}
            upstream = fleet.choose(None)
            assert upstream is not None
            await one.stop()
            fleet.unreachable(upstream, "refused")
            assert changes == [{"": 0}]  # at once
            await one.start()
            await until(lambda: fleet.capacities() == {"": 4}, 5.0)
            assert one.health_checks == 0

    run(main())


def test_one_that_is_seldom_asked_comes_back_as_fast():
    async def main():
        async with Backend() as one:
            given = settings({"url": one.url, "capacity": 4, **HEALTHY})
            seldom = given.model_copy(update={"health": Health(interval=3600.0)})
            fleet = Fleet(seldom, lambda: None)
            await fleet.start()
            upstream = fleet.choose(None)
            assert upstream is not None
            fleet.unreachable(upstream, "refused")
            await until(lambda: fleet.capacities() == {"": 4}, 5.0)
            await fleet.stop()

    run(main())


def test_a_first_look_that_hangs_does_not_hold_up_the_start():
    async def main():
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        given = Settings(
            upstreams=[Upstream(url=url, capacity=4, health="/health")],
            health={"timeout": 0.1},  # type: ignore[arg-type]
        )
        fleet = Fleet(given, lambda: None)
        async with asyncio.timeout(2.0):
            await fleet.start()
        assert fleet.capacities() == {"": 0}
        await fleet.stop()
        server.close()

    run(main())


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"max_running_requests": 256}, 256),
        ({"max_running_requests": 256.0}, 256),
        ({"max_running_requests": 70_000}, 65_535),
        ({"labels": {"max_running_requests": "128"}}, 128),
        ({"max_running_requests": 0, "labels": {"max_running_requests": 7}}, 7),
        ({"max_running_requests": 0}, None),
        ({"max_running_requests": -4}, None),
        ({"max_running_requests": float("nan")}, None),
        ({"max_running_requests": float("inf")}, None),
        ({"max_running_requests": True}, None),
        ({"max_running_requests": "many"}, None),
        ({"max_running_requests": "9" * 5000}, None),
        ({"max_running_requests": None}, None),
        ({"max_running_requests": [256]}, None),
        ({"labels": []}, None),
        ([], None),
        (None, None),
        ("256", None),
    ],
)
def test_a_reported_capacity_is_believed_if_it_can_be(document, expected):
    assert reported_capacity(document) == expected


def test_reported_capacity_is_followed_up_and_down():
    async def main():
        async with Backend() as one:
            one.health_document = {"max_running_requests": 10}
            async with watched({"url": one.url, "capacity": "reported", **HEALTHY}) as (fleet, _):
                assert fleet.capacities() == {"": 10}
                one.health_document = {"max_running_requests": 300}
                await until(lambda: fleet.capacities() == {"": 300})
                one.health_document = {"labels": {"max_running_requests": "5"}}
                await until(lambda: fleet.capacities() == {"": 5})
                one.health_document = {"max_running_requests": -1}
                checks = one.health_checks
                await until(lambda: one.health_checks > checks + 2)
                assert fleet.capacities() == {"": 5}  # the last good value

    run(main())


@pytest.mark.parametrize("health", [None, "/health"])
def test_reported_capacity_comes_from_server_info_where_health_is_silent(health):
    async def main():
        async with Backend() as one:
            one.server_info = {"max_running_requests": 48}
            given = {"url": one.url, "capacity": "reported", "health": health}
            async with watched(given) as (fleet, _):
                assert fleet.capacities() == {"": 48}
                one.server_info = {"max_running_requests": 24}
                await until(lambda: fleet.capacities() == {"": 24})

    run(main())


def test_what_never_reports_has_64_slots():
    async def main():
        async with Backend() as one:
            one.health_document = "well"
            given = {"url": one.url, "capacity": "reported", **HEALTHY}
            async with watched(given) as (fleet, _):
                assert fleet.capacities() == {"": 64}

    run(main())


def test_a_report_is_forgotten_after_a_while():
    member = Member(Upstream(url=NOWHERE, capacity="reported"), from_file=True)
    member.report(10, 100.0)
    member.report(None, 100.0 + BELIEVED_FOR)
    assert member.capacity == 10
    member.report(None, 100.1 + BELIEVED_FOR)
    assert member.capacity == 64


def test_adaptive_capacity_follows_the_latency_of_calls():
    async def main():
        told: list[int] = []
        fleet = Fleet(
            settings({"url": NOWHERE, "capacity": "adaptive"}), lambda: told.append(slots())
        )

        def slots() -> int:
            return fleet.capacities()[""]

        assert slots() == 3
        upstream = fleet.choose(None)
        assert upstream is not None
        upstream.in_flight = 3
        for now in range(20):
            fleet.answered(upstream, 0.5, float(now))
        assert slots() == 20
        assert told == [20]

    run(main())


def test_models_that_begin_or_cease_to_matter_are_told():
    """Until then nobody is asked which model it wants."""
    told: list[bool] = []
    plain, listed = {"url": NOWHERE, "capacity": 4}, {"models": ["a"]}
    fleet = Fleet(settings(plain), lambda: told.append(fleet.lists_models))
    fleet.retune(settings(plain | listed))
    fleet.retune(settings(plain | listed))
    fleet.retune(settings(plain))
    assert told == [True, False]


def test_the_sum_saturates():
    upstreams = [{"url": f"http://10.0.0.{n}", "capacity": 60_000} for n in range(3)]
    assert fleet_of(*upstreams).capacities() == {"": 65_535}


def test_a_fixed_capacity_takes_no_more_than_is_declared_while_anybody_is_well():
    assert fleet_of({"url": NOWHERE, "capacity": 400}, capacity=100).capacities() == {"": 100}
    assert fleet_of({"url": NOWHERE, "capacity": "reported"}, capacity=100).capacities() == {
        "": 100
    }
    fleet = fleet_of({"url": NOWHERE, "capacity": 4}, capacity=100)
    assert fleet.capacities() == {"": 4}
    upstream = fleet.choose(None)
    assert upstream is not None
    fleet.unreachable(upstream, "refused")
    assert fleet.capacities() == {"": 0}


def test_the_least_loaded_is_chosen_and_of_equals_the_least_recently_used():
    fleet = fleet_of(
        {"url": "http://a", "capacity": 10},
        {"url": "http://b", "capacity": 20},
        {"url": "http://c", "capacity": 0},
    )
    order = []
    for _ in range(33):
        upstream = fleet.choose(None)
        assert upstream is not None
        upstream.in_flight += 1
        order.append(upstream.url)
    assert order.count("http://a") == 11
    assert order.count("http://b") == 22  # in proportion, also beyond capacity
    assert order[:2] == ["http://a", "http://b"]
    assert "http://c" not in order


def test_idle_ones_take_turns():
    fleet = fleet_of(*({"url": f"http://{name}", "capacity": 1} for name in "abc"))
    chosen = [fleet.choose(None) for _ in range(6)]
    assert [each and each.url[-1] for each in chosen] == list("abcabc")


def test_one_that_was_tried_is_not_chosen_again():
    fleet = fleet_of({"url": "http://a", "capacity": 10}, {"url": "http://b", "capacity": 1})
    first = fleet.choose(None)
    assert first is not None
    second = fleet.choose(None, [first])
    assert second is not None
    assert second is not first
    assert fleet.choose(None, [first, second]) is None


def test_a_model_goes_where_it_is_served():
    fleet = fleet_of(
        {"url": "http://a", "capacity": 10, "models": ["m"]},
        {"url": "http://b", "capacity": 10, "models": ["n"]},
        pool_by="model",
    )
    for _ in range(3):
        upstream = fleet.choose("n")
        assert upstream is not None
        assert upstream.url == "http://b"
        upstream.in_flight += 1
    assert fleet.choose("x") is None


def test_pools_are_the_backends_that_share_models():
    fleet = fleet_of(
        {"url": "http://a", "capacity": 1, "models": ["m", "n"]},
        {"url": "http://b", "capacity": 2, "models": ["x"]},
        {"url": "http://c", "capacity": 4, "models": ["o"]},
        {"url": "http://d", "capacity": 8, "models": ["n", "o"]},
        pool_by="model",
    )
    assert fleet.capacities() == {"m,n,o": 13, "x": 2}
    assert [fleet.pool_of(model) for model in "mnox"] == ["m,n,o"] * 3 + ["x"]
    assert fleet.pool_of("y") is None
    assert fleet.pool_of(None) is None  # which one would it be?


def test_a_comma_in_a_model_makes_no_other_pool_of_it():
    listed = (["a", "b"], ["a,b"], ["a\\", "c"], ["a\\,c"])
    fleet = fleet_of(
        *(
            {"url": f"http://10.0.0.{n}", "capacity": 1, "models": models}
            for n, models in enumerate(listed)
        ),
        pool_by="model",
    )
    assert list(fleet.capacities().values()) == [1] * 4
    assert len({fleet.pool_of(models[0]) for models in listed}) == 4


def test_one_that_serves_every_model_makes_one_pool():
    fleet = fleet_of(
        {"url": "http://a", "capacity": 1, "models": ["m"]},
        {"url": "http://b", "capacity": 2, "models": ["x"]},
        {"url": "http://c", "capacity": 4},
        pool_by="model",
    )
    assert fleet.capacities() == {"m,x": 7}
    assert [fleet.pool_of(model) for model in ("m", "x", "new", None)] == ["m,x"] * 4


def test_without_pools_every_model_that_is_served_is_in_the_one():
    fleet = fleet_of({"url": "http://a", "capacity": 1, "models": ["m"]})
    assert [fleet.pool_of(model) for model in ("m", "x", None)] == ["", None, ""]
    assert fleet_of().pool_of("m") == "", "that nobody is there is no fault of the model"


def test_a_pool_whose_backends_are_down_has_no_slots_but_is_known():
    fleet = fleet_of(
        {"url": "http://a", "capacity": 1, "models": ["m"]},
        {"url": "http://b", "capacity": 2, "models": ["x"], **HEALTHY},
        pool_by="model",
    )
    assert fleet.capacities() == {"m": 1, "x": 0}
    assert fleet.pool_of("x") == "x"


@given(st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=1, max_size=8))
def test_pools_partition_the_fleet(listed):
    upstreams = [
        {"url": f"http://10.0.0.{n}", "capacity": 1, "models": sorted(models)}
        for n, models in enumerate(listed)
    ]
    fleet = fleet_of(*upstreams, pool_by="model")
    assert sum(fleet.capacities().values()) == len(listed)
    for models in listed:
        assert len({fleet.pool_of(model) for model in models}) == 1
    for name in fleet.capacities():
        assert all(fleet.pool_of(model) == name for model in name.split(","))


def test_what_is_removed_drops_at_once_and_drains():
    async def main():
        async with Backend() as one:
            given = {"url": one.url, "capacity": 4, **HEALTHY}
            async with watched(given) as (fleet, changes):
                upstream = fleet.choose(None)
                assert upstream is not None
                upstream.in_flight = 2
                assert fleet.remove(one.url)
                assert changes[-1] == {"": 0}
                assert fleet.choose(None) is None
                assert [found["state"] for found in fleet.describe()] == ["draining"]
                again = fleet.add(Upstream(url=one.url, capacity=2))
                assert fleet.capacities() == {"": 2}
                fleet.finished(upstream)
                assert len(fleet.describe()) == 2
                fleet.finished(upstream)
                assert fleet.describe() == [again.describe()]
                assert not fleet.remove("http://unknown")

    run(main())


def test_a_backend_is_added_once():
    async def main():
        fleet = fleet_of({"url": "http://a", "capacity": 1})
        with pytest.raises(Misuse, match="already"):
            fleet.add(Upstream(url="http://a"))
        assert fleet.capacities() == {"": 1}

    run(main())


def test_one_added_while_running_is_looked_at_before_it_is_used():
    async def main():
        async with Backend() as one, watched() as (fleet, changes):
            assert fleet.capacities() == {"": 0}
            fleet.add(Upstream(url=one.url, capacity=4, health="/health"))
            assert fleet.capacities() == {"": 0}
            await until(lambda: changes == [{"": 4}])

    run(main())


def test_a_new_configuration_decides_on_what_it_lists_and_leaves_the_rest():
    async def main():
        async with watched(
            {"url": "http://a", "capacity": 1}, {"url": "http://b", "capacity": 2}
        ) as (fleet, changes):
            fleet.add(Upstream(url="http://c", capacity=4))
            fleet.add(Upstream(url="http://d", capacity=8))
            kept = fleet.choose(None)
            fleet.retune(
                settings(
                    {"url": "http://a", "capacity": 16},
                    {"url": "http://d", "capacity": 32},
                    {"url": "http://e", "capacity": 64},
                )
            )
            found = {each["url"]: (each["capacity"], each["added_by"]) for each in fleet.describe()}
            assert found == {
                "http://a": (16, "file"),
                "http://c": (4, "api"),
                "http://d": (32, "file"),
                "http://e": (64, "file"),
            }
            assert changes[-1] == {"": 116}
            assert kept is not None
            assert kept.capacity == 16  # the same one, with what it runs

    run(main())


def test_a_health_path_that_is_new_is_used():
    async def main():
        async with Backend() as one, watched({"url": one.url, "capacity": 4}) as (fleet, _):
            one.health_status = 500
            fleet.retune(settings({"url": one.url, "capacity": 4, **HEALTHY}))
            await until(lambda: fleet.capacities() == {"": 0})

    run(main())


class TestBackendsThatFail:
    URLS = ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")

    def fleet(self, number: int = 2, **outliers: Any) -> tuple[Fleet, Changes, list[Member]]:
        changes = Changes()
        listed = [{"url": url, "capacity": 8} for url in self.URLS[:number]]
        fleet = changes.fleet = Fleet(settings(*listed, outliers=outliers), changes.note)
        return fleet, changes, list(fleet._upstreams.values())

    def call(self, fleet: Fleet, bad: set[str]) -> str:
        """Send one call to where the fleet says, which fails at once if the backend is bad."""
        chosen = fleet.choose(None)
        assert chosen is not None
        number = chosen.used
        chosen.in_flight += 1
        fleet.tried(chosen, "error" if chosen.url in bad else "ok", perf_counter(), number)
        fleet.finished(chosen, number)
        return chosen.url

    def test_do_not_draw_traffic_by_failing_fast(self):
        fleet, _, (one, _) = self.fleet(enabled=True, consecutive=1000, requests=1000)
        found = [self.call(fleet, {one.url}) for _ in range(100)]
        assert found.count(one.url) <= 3
        fleet, _, (one, _) = self.fleet(enabled=False)  # they would take turns
        assert [self.call(fleet, {one.url}) for _ in range(100)].count(one.url) == 50

    def test_are_ejected_with_their_slots_and_one_request_at_a_time_probes_them(self, monkeypatch):
        now = 100.0
        monkeypatch.setattr("fairlead.gateway.fleet.perf_counter", lambda: now)
        fleet, changes, (one, two) = self.fleet()
        for _ in range(5):
            fleet.tried(one, "failed", now)
        assert changes == [{"": 8}]
        assert one.describe()["state"] == "ejected"
        assert one.describe()["errors"] == 5
        assert {fleet.choose(None) for _ in range(10)} == {two}
        now += 5.0
        assert fleet.choose(None) is one
        probe = one.used
        assert {fleet.choose(None) for _ in range(10)} == {two}
        assert changes == [{"": 8}]
        fleet.answered(one, 0.01, now, probe)
        assert changes == [{"": 8}, {"": 16}]
        assert one.describe()["state"] == "healthy"
        assert {fleet.choose(None) for _ in range(10)} == {one, two}

    def test_say_what_was_first_known_of_their_failure(self):
        fleet, _, (one, _) = self.fleet()
        fleet.unreachable(one, "connection refused")
        fleet.tried(one, "failed", perf_counter())
        assert one.describe()["last_failure"]["what"] == "it is unreachable: connection refused"

    def test_are_not_probed_by_a_request_that_has_failed_elsewhere(self, monkeypatch):
        now = 100.0
        monkeypatch.setattr("fairlead.gateway.fleet.perf_counter", lambda: now)
        fleet, _, (one, two, three) = self.fleet(3)
        for _ in range(5):
            fleet.tried(one, "failed", now)
        now += 5.0
        assert fleet.choose(None, [two]) is three
        assert fleet.choose(None) is one

    def test_are_used_where_there_is_no_other(self):
        fleet, changes, (one, two) = self.fleet()
        for _ in range(5):
            fleet.tried(one, "error", perf_counter())
        assert changes == [{"": 8}]
        fleet.unreachable(two, "refused")  # of those that are well none may be out now
        assert changes == [{"": 8}, {"": 8}]
        assert fleet.choose(None) is one
        assert one.describe()["state"] == "healthy"

    def test_serve_a_model_that_is_nowhere_else(self):
        fleet = fleet_of(
            {"url": self.URLS[0], "capacity": 8, "models": ["only"]},
            {"url": self.URLS[1], "capacity": 8, "models": ["other"]},
        )
        one, _ = fleet._upstreams.values()
        for _ in range(5):
            fleet.tried(one, "error", perf_counter())
        assert one.describe()["state"] == "ejected"
        assert fleet.runs("only")
        assert fleet.choose("only") is one

    def test_slow_ones_get_less(self):
        fleet, _, (one, two) = self.fleet()
        for _ in range(20):
            fleet.answered(one, 2.0, perf_counter())
            fleet.answered(two, 0.1, perf_counter())
        found = []
        for _ in range(8):
            chosen = fleet.choose(None)
            assert chosen is not None
            chosen.in_flight += 1
            found.append(chosen)
        assert found.count(one) <= 1

    @given(st.data())
    def test_those_that_are_equally_well_are_told_apart_by_load_alone(self, data):
        fleet, _, members = self.fleet(3)
        for member in members:
            member.in_flight = data.draw(st.integers(0, 7))
            for _ in range(data.draw(st.integers(0, 3))):
                fleet.answered(member, data.draw(st.floats(0.1, 0.14)), perf_counter())
        chosen = fleet.choose(None)
        assert chosen is not None
        assert chosen.in_flight == min(member.in_flight for member in members)
