"""Flows over gRPC, as Aperture's service: decisions, deadlines, ends, the cache, and who may ask."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from fairlead.errors import ConfigError
from fairlead.flows import messages as wire
from fairlead.flows.cache import LONGEST, ResultCache
from fairlead.flows.loading import load
from fairlead.flows.serving import FlowServer
from tests.flows.service_rig import ONE, active, serving, until_waiting, waiting
from tests.gateway.rig import run, until, within

POINTS = {
    "control_points": {
        "one": {
            "concurrency": {"max_concurrency": 1},
            "scheduler": {"decision_deadline_margin": "50ms"},  # these machines are busy
        },
        "keyed": {
            "concurrency": {"max_concurrency": 2, "limit_by_label_key": "user"},
            "quota": {
                "bucket_capacity": 5,
                "fill_amount": 1,
                "interval": "1h",
                "limit_by_label_key": "key",
            },
            "scheduler": {
                "workloads": [{"name": "paid", "match_labels": {"tier": "paid"}, "priority": 3}],
                "tokens_label_key": "tokens",
                "denied_response_status_code": 429,
                "decision_deadline_margin": "50ms",
            },
        },
        "loaded": {"load": {"signal": "pressure", "setpoint": 1}},
        "brief": {"concurrency": {"max_concurrency": 1, "max_inflight_duration": "50ms"}},
    }
}


class Stub:
    """A client made of nothing but names and bytes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def call(self, method: str, timeout: float | None = None, **given: Any) -> Any:
        metadata = given.pop("metadata", None)
        make = self._channel.unary_unary(
            f"/{wire.SERVICE}/{method}",
            request_serializer=wire.message(f"{method}Request").SerializeToString,
            response_deserializer=wire.message(f"{method}Response").FromString,
        )
        return make(wire.message(f"{method}Request")(**given), timeout=timeout, metadata=metadata)

    def check(self, control_point: str = "one", *, expect_end: bool = True, **given: Any) -> Any:
        return self.call("Check", control_point=control_point, expect_end=expect_end, **given)

    async def end(self, control_point: str, *request_ids: str) -> list[Any]:
        refs = [{"request_id": request_id} for request_id in request_ids]
        reply = await self.call("FlowEnd", control_point=control_point, inflight_requests=refs)
        return list(reply.token_return_statuses)


@asynccontextmanager
async def connected(config: Any = POINTS, **given: Any) -> AsyncIterator[tuple[FlowServer, Stub]]:
    async with serving(config, grpc=True, http=None, **given) as server:
        assert server.grpc is not None
        async with grpc.aio.insecure_channel(server.grpc.address) as channel:
            yield server, Stub(channel)


def raw(channel: grpc.aio.Channel, path: str) -> Any:
    """Call with bytes."""
    return channel.unary_unary(path)


def info_of(reply: Any, name: str = "concurrency_scheduler_info") -> Any:
    (found,) = [one for one in reply.limiter_decisions if one.WhichOneof("details") == name]
    return getattr(found, name)


def test_a_flow_is_accepted_and_ended_once():
    async def main():
        async with connected() as (server, stub):
            reply = await stub.check(labels={"b": "2", "a": "1"})
            assert (reply.decision_type, reply.reject_reason) == (wire.ACCEPTED, 0)
            assert (reply.control_point, reply.expect_end) == ("one", True)
            assert list(reply.flow_label_keys) == ["a", "b"]
            assert 0 < reply.start.seconds <= reply.end.seconds
            (decision,) = reply.limiter_decisions
            assert (decision.component_id, decision.dropped) == ("concurrency", False)
            info = info_of(reply)
            assert (info.workload_index, info.priority) == ("default", 1)
            assert (info.tokens_info.consumed, info.tokens_info.current) == (1, 1)
            assert info.request_id
            assert active(server) == 1
            (status,) = await stub.end("one", info.request_id)
            assert (status.returned, status.error) == (True, "")
            assert status.inflight_request_ref.request_id == info.request_id
            assert active(server) == 0
            (status,) = await stub.end("one", info.request_id)
            assert (status.returned, status.error[:12]) == (False, "no such flow")

    run(main())


def test_a_flow_waits_for_its_turn():
    async def main():
        async with connected() as (server, stub):
            first = await stub.check()
            second = asyncio.ensure_future(stub.check(timeout=20))
            await until_waiting(server)
            await stub.end("one", info_of(first).request_id)
            reply = await within(second)
            assert reply.decision_type == wire.ACCEPTED

    run(main())


@pytest.mark.parametrize("deadline", [0.1, 0.3])
def test_a_refusal_beats_the_deadline(deadline):
    async def main():
        async with connected() as (server, stub):
            await stub.check(timeout=20)  # the connection stands
            for _ in range(5):
                reply = await stub.check(timeout=deadline)
                assert (reply.decision_type, reply.reject_reason) == (wire.REJECTED, wire.NO_TOKENS)
                assert reply.denied_response_status_code == 503
                assert reply.wait_time.seconds >= 1
                assert reply.wait_time.nanos == 0
                (decision,) = reply.limiter_decisions
                assert decision.dropped
                assert decision.denied_response_status_code == 503
                info = info_of(reply)
                assert (info.request_id, info.tokens_info.consumed) == ("", 0)
            await until_waiting(server, 0)

    run(main())


def test_without_a_deadline_it_waits_until_its_call_is_cancelled():
    async def main():
        async with connected() as (server, stub):
            first = await stub.check()
            call = stub.check()
            task = asyncio.ensure_future(call)
            await until_waiting(server)
            call.cancel()
            await until_waiting(server, 0)
            with pytest.raises(asyncio.CancelledError):
                await task
            (status,) = await stub.end("one", info_of(first).request_id)
            assert status.returned
            assert active(server) == 0

    run(main())


def test_a_connection_that_breaks_frees_its_places():
    async def main():
        async with connected() as (server, stub):
            await stub.check()
            assert server.grpc is not None
            other = grpc.aio.insecure_channel(server.grpc.address)
            tasks = [asyncio.ensure_future(Stub(other).check()) for _ in range(3)]
            await until_waiting(server, 3)
            await other.close()
            await until_waiting(server, 0)
            await asyncio.gather(*tasks, return_exceptions=True)

    run(main())


def test_each_limit_is_told():
    async def main():
        async with connected() as (_, stub):
            labels = {"user": "u1", "key": "k1", "tier": "paid", "tokens": "2"}
            reply = await stub.check("keyed", labels=labels)
            assert [one.component_id for one in reply.limiter_decisions] == ["concurrency", "quota"]
            assert {one.policy_name for one in reply.limiter_decisions} == {"keyed"}
            quota, slots = info_of(reply, "quota_scheduler_info"), info_of(reply)
            assert (quota.label, slots.label) == ("key:k1", "user:u1")
            assert (quota.workload_index, quota.priority) == ("paid", 3)
            assert quota.tokens_info.remaining == pytest.approx(3, abs=0.01)
            assert (slots.tokens_info.current, slots.tokens_info.remaining) == (2, 0)
            labels["user"] = "u2"
            reply = await stub.check("keyed", labels=labels | {"tokens": "2"})
            assert reply.decision_type == wire.ACCEPTED
            labels["user"] = "u3"
            reply = await stub.check("keyed", timeout=0.2, labels=labels)
            assert reply.decision_type == wire.REJECTED
            assert reply.denied_response_status_code == 429
            assert reply.wait_time.seconds > 3000
            dropped = {one.component_id for one in reply.limiter_decisions if one.dropped}
            assert dropped == {"quota"}
            reply = await stub.check("keyed", labels={"tokens": "6", "key": "k1"})
            assert reply.decision_type == wire.REJECTED  # it can never be admitted
            assert not reply.HasField("wait_time")

    run(main())


def test_a_limit_whose_label_is_missing_lets_pass():
    async def main():
        async with connected() as (_, stub):
            reply = await stub.check("keyed", labels={"user": "u1"})
            reasons = {one.component_id: one.reason for one in reply.limiter_decisions}
            assert reasons == {"concurrency": 0, "quota": wire.KEY_NOT_FOUND}

    run(main())


def test_load_is_told_and_needs_no_end():
    async def main():
        async with connected() as (server, stub):
            reply = await stub.check("loaded")
            assert info_of(reply, "load_scheduler_info").workload_index == "default"
            assert (active(server, "loaded"), len(server.table)) == (0, 0)

    run(main())


def test_a_quota_alone_needs_no_end_and_is_not_given_back():
    point = {
        "quota": {"bucket_capacity": 3, "fill_amount": 1, "interval": "1h"},
        "scheduler": {"default_workload": {"queue_timeout": 0}},
    }

    async def main():
        async with connected({"control_points": {"quota": point}}) as (server, stub):
            replies = [await stub.check("quota") for _ in range(4)]
            decisions = [reply.decision_type for reply in replies]
            assert decisions == [wire.ACCEPTED] * 3 + [wire.REJECTED]
            counts = server.flows.points["quota"].counts
            assert (active(server, "quota"), counts.ended_flows, len(server.table)) == (0, 3, 0)

    run(main())


def test_an_unknown_control_point_is_accepted_and_counted():
    async def main():
        async with connected() as (server, stub):
            reply = await stub.check("elsewhere", ramp_mode=True)
            assert reply.decision_type == wire.ACCEPTED
            assert not reply.limiter_decisions
            assert server.flows.unknown["elsewhere"] == 1

    run(main())


def test_what_nobody_will_end_holds_no_slot():
    async def main():
        async with connected() as (server, stub):
            for _ in range(3):
                reply = await stub.check(expect_end=False, timeout=5)
                assert reply.decision_type == wire.ACCEPTED
                assert info_of(reply).request_id == ""
            assert (active(server), len(server.table)) == (0, 0)

    run(main())


def test_ends_that_are_late_unknown_or_of_another_place_return_nothing():
    async def main():
        async with connected() as (server, stub):
            reply = await stub.check("brief")
            key = info_of(reply).request_id
            one = info_of(await stub.check("one")).request_id
            await until(lambda: active(server, "brief") == 0)
            (late,) = await stub.end("brief", key)
            assert not late.returned
            unknown, foreign = await stub.end("elsewhere", "", one)
            assert not unknown.returned
            assert not foreign.returned
            assert unknown.error
            assert foreign.error
            assert active(server) == 1
            first, second = await stub.end("one", one, one)
            assert (first.returned, second.returned) == (True, False)
            assert await stub.end("one") == []

    run(main())


def test_unknown_methods_and_broken_messages_harm_nothing():
    async def main():
        async with connected() as (server, stub):
            assert server.grpc is not None
            async with grpc.aio.insecure_channel(server.grpc.address) as channel:
                spans = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await raw(channel, spans)(b"anything")
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await raw(channel, f"/{wire.SERVICE}/Check")(b"\xff\xff\xff")
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (await stub.check()).decision_type == wire.ACCEPTED

    run(main())


def test_with_a_token_every_call_must_show_it():
    async def main():
        async with connected(token="secret") as (_, stub):
            for metadata in (None, [("x-api-key", "wrong")], [("x-api-key", "secret")] * 2):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.check(metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            reply = await stub.check(metadata=[("x-api-key", "secret")])
            assert reply.decision_type == wire.ACCEPTED

    run(main())


@pytest.mark.parametrize("token", ["", " ", "\t\n"])
def test_a_blank_token_opens_nothing(token):
    for ports in ({"http": "0.0.0.0:0"}, {"http": None, "grpc": "0.0.0.0:0"}, {}):
        with pytest.raises(ConfigError, match="token is blank"):
            FlowServer(load(ONE), token=token, **ports)

    async def main():
        async with connected(token="secret") as (server, stub):
            assert server.grpc is not None
            server.grpc.service.token = token
            for metadata in (None, [("x-api-key", "")], [("x-api-key", " ")]):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.check(metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

    run(main())


# The cache


def entry(value: bytes, ttl: float = 60.0, key: str = "") -> Any:
    whole = int(ttl)
    return {
        "key": key,
        "value": value,
        "ttl": {"seconds": whole, "nanos": int((ttl - whole) * 1e9)},
    }


def test_a_cached_result_is_accepted_without_asking_any_limit():
    async def main():
        async with connected() as (server, stub):
            await stub.check()  # nobody else gets in
            upsert = {"control_point": "one", "result_cache_entry": entry(b"known", key="k")}
            reply = await stub.call("CacheUpsert", **upsert)
            assert reply.result_cache_response.operation_status == wire.SUCCESS
            reply = await stub.check(cache_lookup_request={"result_cache_key": "k"}, timeout=5)
            assert reply.decision_type == wire.ACCEPTED
            found = reply.cache_lookup_response.result_cache_response
            assert (found.lookup_status, found.value) == (wire.HIT, b"known")
            assert (active(server), waiting(server)) == (1, 0)
            for cached in ({"result_cache_key": "other"}, {}):
                reply = await stub.check(cache_lookup_request=cached, timeout=0.1)
                assert reply.decision_type == wire.REJECTED
                found = reply.cache_lookup_response.result_cache_response
                assert found.lookup_status == wire.MISS
            assert (found.operation_status, found.error != "") == (wire.ERROR, True)

    run(main())


def test_results_belong_to_a_control_point_and_global_values_to_none():
    async def main():
        async with connected() as (_, stub):
            await stub.call(
                "CacheUpsert",
                control_point="one",
                result_cache_entry=entry(b"r", key="k"),
                global_cache_entries={"g": entry(b"v"), "": entry(b"x"), "neg": entry(b"x", -1)},
            )
            for place, status in (("one", wire.HIT), ("other", wire.MISS)):
                asked: dict[str, Any] = {
                    "result_cache_key": "k",
                    "global_cache_keys": ["g", "k", "", "neg"],
                }
                reply = await stub.call("CacheLookup", control_point=place, **asked)
                assert reply.result_cache_response.lookup_status == status
                found = reply.global_cache_responses
                assert (found["g"].lookup_status, found["g"].value) == (wire.HIT, b"v")
                assert found["k"].lookup_status == wire.MISS
                assert (found[""].operation_status, found[""].error != "") == (wire.ERROR, True)
                assert (found["neg"].lookup_status, found["neg"].error) == (wire.MISS, "")
            deleted: dict[str, Any] = {"result_cache_key": "k", "global_cache_keys": ["g", "g2"]}
            reply = await stub.call("CacheDelete", control_point="one", **deleted)
            assert reply.result_cache_response.operation_status == wire.SUCCESS
            assert reply.global_cache_responses["g2"].operation_status == wire.SUCCESS
            reply = await stub.call(
                "CacheLookup", control_point="one", result_cache_key="k", global_cache_keys=["g"]
            )
            assert reply.result_cache_response.lookup_status == wire.MISS
            assert reply.global_cache_responses["g"].lookup_status == wire.MISS
            reply = await stub.call("CacheDelete", control_point="one")
            assert reply.result_cache_response.operation_status == wire.ERROR

    run(main())


@pytest.mark.parametrize(
    ("ttl", "kept"), [(0.0, LONGEST), (60.0, 60.0), (LONGEST + 1, LONGEST), (0.5, 0.5)]
)
def test_how_long_a_value_is_kept(ttl, kept):
    now = 100.0
    cache = ResultCache(clock=lambda: now)
    cache.put(("one", "k"), b"v", ttl)
    now += kept - 0.001
    assert cache.get(("one", "k")) == b"v"
    now += 0.002
    assert cache.get(("one", "k")) is None
    assert (len(cache), cache.bytes) == (0, 0)


def test_the_cache_is_bounded_and_keeps_what_was_used_last():
    cache = ResultCache(most_entries=3, most_bytes=10_000)
    for name in "abc":
        cache.put((None, name), b"v")
    cache.get((None, "a"))
    cache.put((None, "d"), b"v")
    assert [cache.get((None, name)) for name in "abcd"] == [b"v", None, b"v", b"v"]
    with pytest.raises(ValueError, match="too large"):
        cache.put((None, "e"), b"x" * 9_000)
    assert len(cache) == 3
    wide = ResultCache(most_bytes=10_000)
    for number in range(100):
        wide.put((None, str(number)), b"x" * 1_000)
    assert wide.bytes <= 10_000
    assert wide.get((None, "99")) is not None
