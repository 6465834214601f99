"""Settings and capacity change while requests run and wait: nobody who waits is dropped, and limits hold throughout."""

import asyncio
from typing import Any

import pytest

from fairlead.gateway.loading import load
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.testing import run_virtual
from tests.gateway.virtual import Backends, Client, HoldGate, Scene, config, reading, ticks


def retune(scene: Scene, **sections: Any) -> None:
    loaded = load(config(**sections))
    assert not loaded.lines, loaded.lines
    scene.admission.retune(loaded)


async def drain(scene: Scene, count: int) -> list[str]:
    """Answer that many requests as they come, one at a time; tell the order."""
    order = []
    for _ in range(count):
        held = await scene.app.next()
        order.append(held.path)
        await held.answer()
    await ticks()
    return order


class TestWaitersAreKept:
    @pytest.mark.parametrize(
        "sections",
        [
            {"classes": {"bulk": {"queue_size": 0}, "default": {"queue_size": 1}}},
            {"classes": {"bulk": {"queue_timeout": 1}, "default": {"queue_timeout": 1}}},
            {"classes": {"interactive": {"starvation_threshold": 1, "can_preempt": False}}},
            {"classes": {"system": {"reserved_floor": 1}}},
            {"classes": {"interactive": {"reserved_per_slot": 1.0}}},
            {"scheduler": {"lend_reservations": False, "promotion_budget": 1}},
            {"scheduler": {"default_max_class": "bulk"}},
            {"policies": {"header:a": {"weight": 5.0, "max_class": "bulk"}}},
            {"tenants": {"trusted_header": None, "trusted_proxies": []}},
            {"limits": {"body_bytes": 10}},
            {"exempt": ["/x"]},
            {"scheduler": {"enabled": False}, "fallback": {"max_concurrent_requests": 1}},
            {"fallback": {"max_concurrent_requests": 1, "queue_size": 0, "queue_timeout": 1}},
        ],
        ids=str,
    )
    def test_whatever_changes(self, sections):
        async def main() -> None:
            scene = Scene()
            holder, held = await scene.running("interactive")
            names = ["bulk", "default", "interactive"]
            waiting = [await scene.waiting(name, tenant="a") for name in names for _ in range(3)]
            assert scene.depth() == 9
            retune(scene, **{"capacity": 1, **sections})
            await asyncio.sleep(2)
            assert scene.depth() == 9
            assert scene.inflight() == 1
            await held.answer()
            await holder.done()
            assert await drain(scene, 9) == [client.path for client in reversed_by_three(waiting)]
            assert [(await client.done()).status for client in waiting] == [200] * 9
            scene.quiet()

        run_virtual(main())

    def test_off_and_on_again(self):
        async def main() -> None:
            scene = Scene(fallback={"max_concurrent_requests": 1})
            holder, held = await scene.running("interactive")
            waiting = [await scene.waiting(name) for name in ("bulk", "interactive")]
            retune(scene, scheduler={"enabled": False}, fallback={"max_concurrent_requests": 1})
            assert scene.admission.plain
            waiting.append(await scene.waiting("interactive"))
            assert scene.depth("default") == 1, "without classes everybody is default"
            retune(scene)
            waiting.append(await scene.waiting("interactive"))
            await held.answer()
            await holder.done()
            order = await drain(scene, 4)
            expected = [waiting[1], waiting[3], waiting[2], waiting[0]]
            assert order == [client.path for client in expected]
            for client in waiting:
                assert (await client.done()).status == 200
            scene.quiet()

        run_virtual(main())


def reversed_by_three(clients: list[Any]) -> list[Any]:
    """Highest class first, each class in order."""
    return clients[6:] + clients[3:6] + clients[:3]


class TestNewLimitsHoldFromNowOn:
    def test_queue_size(self):
        async def main() -> None:
            scene = Scene(classes={"bulk": {"queue_size": 2}})
            _, held = await scene.running("default")
            await scene.waiting("bulk")
            await scene.waiting("bulk")
            retune(scene, classes={"bulk": {"queue_size": 1}})
            assert (await scene.client("bulk").done()).status == 429
            retune(scene, classes={"bulk": {"queue_size": 3}})
            await scene.waiting("bulk")
            assert (await scene.client("bulk").done()).status == 429
            await held.answer()

        run_virtual(main())

    def test_queue_timeout(self):
        async def main() -> None:
            scene = Scene(classes={"bulk": {"queue_timeout": 10, "starvation_threshold": 1}})
            await scene.running("default")
            before = await scene.waiting("bulk")
            retune(scene, classes={"bulk": {"queue_timeout": 3, "starvation_threshold": 1}})
            after = await scene.waiting("bulk")
            loop = asyncio.get_running_loop()
            await after.done()
            assert (after.status, loop.time()) == (408, 3.0)
            await before.done()
            assert (before.status, loop.time()) == (408, 10.0)

        run_virtual(main())

    def test_weights(self):
        async def main() -> None:
            scene = Scene()
            _, held = await scene.running()
            for tenant in "ab":
                for number in range(9):
                    await scene.waiting(tenant=tenant, path=f"/{tenant}{number}")
            retune(scene, policies={"header:a": {"weight": 3}})
            await held.answer()
            order = await drain(scene, 8)
            assert [path[1] for path in order].count("a") == 6

        run_virtual(main())

    def test_reservations_taken_and_given_back(self):
        async def main() -> None:
            scene = Scene(capacity=2)
            reserving = {
                "capacity": 2,
                "classes": {"interactive": {"reserved_floor": 1}},
                "scheduler": {"lend_reservations": False},
            }
            retune(scene, **reserving)
            first, held = await scene.running("bulk")
            second = await scene.waiting("bulk")
            retune(scene, capacity=2)
            assert (await scene.app.next()).path == second.path
            retune(scene, **reserving)
            assert scene.inflight("bulk") == 2
            await held.answer()
            await first.done()
            await scene.waiting("bulk")

        run_virtual(main())

    def test_can_preempt(self):
        async def main() -> None:
            scene = Scene(classes={"interactive": {"can_preempt": False}})
            victim, held = await scene.running("bulk")
            by = await scene.waiting("interactive")
            retune(scene)
            late = await scene.waiting("interactive")
            await ticks()
            # One that may preempt has come, but it stands behind one that may not.
            assert not victim.task.done()
            await held.answer()
            await (await scene.app.next()).answer()
            await by.done()
            await (await scene.app.next()).answer()
            await late.done()
            scene.quiet()

        run_virtual(main())

    def test_a_class_that_nobody_may_have_preempts_nobody_until_somebody_may(self):
        async def main() -> None:
            nobody = {"header:root": {"max_class": "interactive"}}
            scene = Scene(policies=nobody)
            early, first = await scene.running("interactive", tenant="a")
            await first.head()
            assert not early.sent, (
                "the head is kept back all the same: a failure may take its place"
            )
            retune(scene)
            by = await scene.waiting("system", tenant="root")
            assert not first.cancellations, "when it came nobody could preempt it"
            await first.chunk(b"x", more=False)
            await first.leave()
            await (await scene.app.next()).answer()
            assert [(await one.done()).status for one in (early, by)] == [200, 200]
            scene.quiet()

        run_virtual(main())

    def test_who_waits_when_somebody_may_preempt_can_be_preempted_once_it_runs(self):
        async def main() -> None:
            scene = Scene(policies={"header:root": {"max_class": "interactive"}})
            early, first = await scene.running("interactive", tenant="a")
            late = await scene.waiting("interactive", tenant="a")
            retune(scene)
            await first.answer()
            await early.done()
            await scene.app.next()
            by = scene.client("system", tenant="root")
            assert (await late.done()).status == 503
            await (await scene.app.next()).answer()
            assert (await by.done()).status == 200
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("said", ["nothing", "its head", "its first byte"])
    def test_who_waits_when_classes_may_first_preempt_is_preempted_before_its_first_byte(
        self, said
    ):
        async def main() -> None:
            peaceful = {"can_preempt": False}
            scene = Scene(classes={"interactive": peaceful, "system": peaceful})
            early, first = await scene.running("bulk")
            late = await scene.waiting("bulk")
            retune(scene)
            await first.answer()
            await early.done()
            held = await scene.app.next()
            if said != "nothing":
                await held.head()
            if said == "its first byte":
                await held.chunk()
            by = scene.client("interactive")
            await ticks()
            if said == "its first byte":
                assert not held.cancellations
                await held.chunk(more=False)
                await held.leave()
            assert (await late.done()).status == (200 if said == "its first byte" else 503)
            await (await scene.app.next()).answer()
            assert (await by.done()).status == 200
            scene.quiet()

        run_virtual(main())

    def test_ceilings(self):
        async def main() -> None:
            scene = Scene(capacity=9)
            await scene.running("interactive")
            retune(scene, capacity=9, scheduler={"default_max_class": "bulk"})
            await scene.running("interactive")
            assert (scene.inflight("interactive"), scene.inflight("bulk")) == (1, 1)

        run_virtual(main())

    def test_body_limit_and_exempt_paths(self):
        async def main() -> None:
            scene = Scene(capacity=0)
            long = [(b"content-length", b"20")]
            retune(scene, capacity=0, limits={"body_bytes": 10}, exempt=["/free"])
            assert (await scene.client(headers=long).done()).status == 413
            client, held = await scene.running(path="/free")
            await held.answer()
            assert (await client.done()).status == 200

        run_virtual(main())

    def test_capacity(self):
        async def main() -> None:
            scene = Scene(capacity=1)
            await scene.running()
            waiting = [await scene.waiting() for _ in range(3)]
            retune(scene, capacity=3)
            assert [(await scene.app.next()).path for _ in range(2)] == [
                client.path for client in waiting[:2]
            ]
            retune(scene, capacity=1)
            assert (scene.inflight(), scene.depth()) == (3, 1)
            for client in waiting[:2]:
                await scene.app.inside[client.path].answer()
            await ticks()
            assert (scene.inflight(), scene.depth()) == (1, 1), "after a shrink it only falls"

        run_virtual(main())


class TestPools:
    """Capacity by pool, as a fleet tells it."""

    def scene(self, capacities: dict[str, int], pool_of: Any) -> Scene:
        scene = Scene(pool_by="model")
        scene.admission.follow(Backends(pool_of))
        scene.admission.set_capacities(capacities)
        return scene

    def post(self, model: str) -> dict[str, Any]:
        return {
            "method": "POST",
            "headers": [(b"content-type", b"application/json")],
            "body": b'{"model": "%s"}' % model.encode(),
        }

    def test_one_model_does_not_wait_for_another(self):
        async def main() -> None:
            scene = self.scene({"a": 1, "b": 1}, lambda model: model)
            await scene.running(**self.post("a"))
            await scene.waiting(**self.post("a"))
            await scene.running(**self.post("b"))
            assert (scene.depth(pool="a"), scene.depth(pool="b")) == (1, 0)

        run_virtual(main())

    @pytest.mark.parametrize("path", ["/x", "/v1/x"])
    def test_a_model_nobody_serves_is_404(self, path):
        async def main() -> None:
            scene = self.scene({"a": 1}, lambda model: "a" if model == "a" else None)
            client = await scene.client(**self.post("zzz") | {"path": path}).done()
            assert (client.status, client.code) == (404, "model_not_found")
            scene.quiet()

        run_virtual(main())

    def test_waiters_of_a_pool_that_is_no_more_go_where_they_belong_now(self):
        async def main() -> None:
            pools = {"a": "one"}
            scene = self.scene({"one": 1}, lambda model: pools.get(model or ""))
            holder, held = await scene.running(**self.post("a"))
            waiting = [await scene.waiting(**self.post("a")) for _ in range(3)]
            pools["a"] = "two"
            scene.admission.set_capacities({"two": 1})
            await ticks()
            assert (scene.depth(pool="two"), scene.inflight(pool="two")) == (3, 0)
            assert scene.inflight(pool="one") == 1, "what runs goes on, and counts"
            await held.answer()
            await holder.done()
            assert set(scene.admission.pools) == {"two"}
            assert await drain(scene, 3) == [client.path for client in waiting]
            for client in waiting:
                assert (await client.done()).status == 200
            scene.quiet()

        run_virtual(main())

    def test_waiters_whose_model_is_no_more_are_told(self):
        async def main() -> None:
            pools = {"a": "one"}
            scene = self.scene({"one": 1, "two": 1}, lambda model: pools.get(model or ""))
            await scene.running(**self.post("a"))
            waiting = await scene.waiting(**self.post("a"))
            del pools["a"]
            scene.admission.set_capacities({"two": 1})
            assert (await waiting.done()).status == 404

        run_virtual(main())

    def test_waiters_of_the_plain_limiter_find_their_pool_when_classes_are_switched_on(self):
        async def main() -> None:
            limiter = {"max_concurrent_requests": 1}
            scene = Scene(pool_by="model", scheduler={"enabled": False}, fallback=limiter)
            scene.admission.follow(Backends(lambda model: model))
            scene.admission.set_capacities({"a": 1})
            holder, held = await scene.running(**self.post("a"))
            waiting = await scene.waiting(**self.post("a"))
            retune(scene, pool_by="model")
            await ticks()
            assert (scene.depth(pool="a"), scene.inflight(pool="a")) == (1, 0)
            await held.answer()
            await (await scene.app.next()).answer()
            for client in (holder, waiting):
                assert (await client.done()).status == 200
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("sections", [{}, {"scheduler": {"enabled": False}}], ids=str)
    def test_no_queue_is_too_full_for_those_who_have_waited_already(self, sections):
        async def main() -> None:
            short = {"default": {"queue_size": 2}}
            limiter = {"max_concurrent_requests": 2, "queue_size": 2}
            scene = Scene(pool_by="model", classes=short, fallback=limiter)
            pools = {"a": "one", "b": "two"}
            scene.admission.follow(Backends(lambda model: pools.get(model or "")))
            scene.admission.set_capacities({"one": 1, "two": 1})
            running = [await scene.running(**self.post(model)) for model in "ab"]
            waiting = [await scene.waiting(**self.post(model)) for model in "aabb"]
            retune(scene, pool_by="model", classes=short, fallback=limiter, **sections)
            pools.update(a="both", b="both")
            scene.admission.set_capacities({"both": 2})
            await ticks()
            assert reading(scene.admission, "queue_depth") == 4
            assert (await scene.client(**self.post("a")).done()).status == 429, "but for others"
            for client, held in running:
                await held.answer()
                await client.done()
            await drain(scene, 4)
            assert [(await client.done()).status for client in waiting] == [200] * 4
            scene.quiet()

        run_virtual(main())

    def test_what_a_pool_that_is_no_more_runs_counts_in_the_pools_it_became(self):
        async def main() -> None:
            pools = {"a": "both", "b": "both"}
            scene = self.scene({"both": 4}, lambda model: pools.get(model or ""))
            running = [await scene.running(**self.post(model)) for model in "aab"]
            pools.update(a="one", b="two")
            scene.admission.set_capacities({"one": 2, "two": 2})
            await scene.running(**self.post("b"))
            late = [await scene.waiting(**self.post(model)) for model in "ab"]
            for (_, held), client in zip(running[1:], late, strict=True):
                await held.answer()
                assert (await scene.app.next()).path == client.path
            assert set(scene.admission.pools) == {"both", "one", "two"}
            await running[0][1].answer()
            assert set(scene.admission.pools) == {"one", "two"}

        run_virtual(main())

    def test_a_moved_waiter_that_waits_again_times_out_when_it_would_have(self):
        async def main() -> None:
            pools = {"a": "one", "b": "two"}
            scene = self.scene({"one": 1, "two": 1}, lambda model: pools.get(model or ""))
            await scene.running(**self.post("a"))
            await scene.running(**self.post("b"))
            request = self.post("a")
            request["headers"].append((b"x-request-timeout", b"4"))
            waiting = await scene.waiting(**request)
            await asyncio.sleep(3)
            pools["a"] = "two"
            scene.admission.set_capacities({"two": 1})
            await ticks()
            assert scene.depth(pool="two") == 1
            await waiting.done()
            assert waiting.status == 408
            assert asyncio.get_running_loop().time() == pytest.approx(4)

        run_virtual(main())

    def test_leaving_while_it_moves(self):
        async def main() -> None:
            pools = {"a": "one", "b": "two"}
            scene = self.scene({"one": 1, "two": 1}, lambda model: pools.get(model or ""))
            await scene.running(**self.post("a"))
            await scene.running(**self.post("b"))
            waiting = await scene.waiting(**self.post("a"))
            pools["a"] = "two"
            scene.admission.set_capacities({"two": 1})
            waiting.leave()
            await ticks()
            assert waiting.task.done()
            assert scene.depth(pool="two") == 0
            assert scene.refused("client_cancelled") == 1

        run_virtual(main())


def test_a_reload_that_is_refused_is_counted(tmp_path, caplog):
    async def main() -> None:
        caplog.set_level("CRITICAL", "fairlead.gateway")
        file = tmp_path / "gateway.yaml"
        file.write_text("fallback: {max_concurrent_requests: 1}\n")
        guarded = PriorityMiddleware(HoldGate(), str(file))
        client = Client(guarded)
        await ticks()
        file.write_text("fallback: {max_concurrent_requests: none}\n")
        await asyncio.sleep(3)
        await guarded.app.inside[client.path].answer()
        await client.done()
        assert reading(guarded.admission, "reloads_total", outcome="applied") == 0
        assert reading(guarded.admission, "reloads_total", outcome="refused") == 1

    run_virtual(main())


class TestModelsThatComeLater:
    """Nobody had asked for the model of who waits; now its pool, or its upstream, depends on it."""

    def scene(self) -> tuple[Scene, Backends]:
        scene, fleet = Scene(limits={"body_bytes": 1000}), Backends(lambda model: "")
        fleet.lists_models = False
        scene.admission.follow(fleet)
        scene.admission.set_capacities({"": 1})
        return scene, fleet

    async def waiting(self, scene: Scene, body: list[bytes], **options: Any) -> Client:
        headers = [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
        return await scene.waiting("bulk", method="POST", headers=headers, body=body, **options)

    def tell(self, scene: Scene, fleet: Backends, pools: dict[str, int]) -> None:
        fleet.lists_models = True
        if "" not in pools:
            fleet.pool_of = lambda model: model if model in pools else None
        scene.admission.set_capacities(pools)

    @pytest.mark.parametrize("pools", [{"m": 1, "n": 1}, {"": 2}], ids=["by model", "one"])
    def test_a_waiter_says_which_when_it_is_asked(self, pools):
        async def main() -> None:
            scene, fleet = self.scene()
            _, held = await scene.running()
            client = await self.waiting(scene, [b'{"model"', b': "m"}'])
            self.tell(scene, fleet, pools)
            inside = await scene.app.next()
            assert inside.scope["fairlead.model"] == "m"
            assert (await inside.read())["body"] == b'{"model": "m"}'
            await inside.answer()
            assert (await client.done()).status == 200
            await held.answer()
            await ticks()
            scene.quiet()

        run_virtual(main())

    def test_one_that_leaves_meanwhile_or_sends_too_much_gives_everything_back(self):
        async def main() -> None:
            scene, fleet = self.scene()
            _, held = await scene.running()
            leaving = await self.waiting(scene, [], stay=False)
            large = await self.waiting(scene, [], stay=False)
            self.tell(scene, fleet, {"m": 1})
            await ticks()
            leaving.leave()
            large.give(bytes(1001))
            await leaving.done()
            assert (await large.done()).status == 413
            await held.answer()
            await ticks()
            scene.quiet()

        run_virtual(main())
