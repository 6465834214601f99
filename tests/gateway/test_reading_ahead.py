"""Bodies before their requests have slots: how much is read of them, what is counted, and what is cut."""

import asyncio
import json
import random
from typing import Any

import pytest

from fairlead.gateway.body import WINDOW
from fairlead.testing import run_virtual
from tests.gateway.virtual import Client, Scene, ticks

PIECE = 64 * 1024
MIB = 1 << 20
CHUNKED = (b"transfer-encoding", b"chunked")
JSON = (b"content-type", b"application/json")
LENGTH = b"content-length"


def read(client: Client, pieces: int) -> int:
    """How many of its pieces were read."""
    return pieces - client.incoming.qsize()


def held(scene: Scene) -> int:
    return scene.admission.held.held


async def uploading(scene: Scene, pieces: int, **options: Any) -> Client:
    """Start an upload that does not end, and let everything be read that will be."""
    client = scene.client(headers=[CHUNKED], stay=False, **options)
    for _ in range(pieces):
        client.give(b"x" * PIECE, more=True)
    await ticks(4 * pieces + 10)
    return client


class TestASlot:
    def test_is_taken_once_the_body_is_there(self):
        async def main() -> None:
            scene = Scene()
            client = await uploading(scene, 2)
            assert scene.inflight() == 0
            assert held(scene) == 2 * PIECE
            client.give(b"end")
            taken = await scene.app.next()
            assert scene.inflight() == 1
            assert len((await taken.read())["body"]) == 2 * PIECE + 3
            assert held(scene) == 0, "what the application has is not held"
            await taken.answer()
            await client.done()
            scene.quiet()

        run_virtual(main())

    def test_is_taken_once_the_first_part_of_a_large_body_is_there(self):
        async def main() -> None:
            scene = Scene(limits={"body_before_slot": 3 * PIECE})
            client = await uploading(scene, 2)
            assert scene.inflight() == 0
            client.give(b"x" * PIECE, more=True)
            taken = await scene.app.next()
            first = await taken.read()
            assert (len(first["body"]), first["more_body"]) == (3 * PIECE, True)
            client.give(b"rest")
            assert (await taken.read())["body"] == b"rest"
            await taken.answer()
            assert (await client.done()).status == 200
            scene.quiet()

        run_virtual(main())

    def test_leaves_the_others_their_turn_while_bodies_trickle(self):
        async def main() -> None:
            scene = Scene(capacity=2)
            trickling = [await uploading(scene, 1, address="10.0.0.1") for _ in range(10)]
            other = scene.client(address="10.0.0.2")
            await (await asyncio.wait_for(scene.app.next(), 1)).answer()
            assert (await other.done()).status == 200
            for client in trickling:
                client.leave()
                await client.done()
            assert held(scene) == 0
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize("pieces", [0, 3])
    def test_is_not_asked_for_by_a_client_that_leaves_before(self, pieces):
        async def main() -> None:
            scene = Scene()
            client = await uploading(scene, pieces)
            client.leave()
            await client.done()
            assert scene.app.arrivals.empty()
            assert scene.refused("client_cancelled") == 1
            assert held(scene) == 0
            scene.quiet()

        run_virtual(main())

    def test_costs_a_small_body_that_is_there_no_task(self):
        async def main() -> None:
            scene = Scene()
            before = len(asyncio.all_tasks())
            client, taken = await scene.running(headers=[(LENGTH, b"5")], body=b"small")
            assert len(asyncio.all_tasks()) == before + 1, "its own"
            assert (await taken.read())["body"] == b"small"
            await taken.answer()
            await client.done()

        run_virtual(main())


class TestReadingAhead:
    def test_a_client_that_leaves_in_the_middle_of_a_large_body_frees_its_place(self):
        async def main() -> None:
            scene = Scene()
            holder, first = await scene.running()
            waiting = await uploading(scene, 40)
            assert scene.depth() == 1
            assert held(scene) == 40 * PIECE
            waiting.leave()
            await ticks()
            assert waiting.task.done()
            assert scene.depth() == 0
            assert held(scene) == 0
            await first.answer()
            await holder.done()
            scene.quiet()

        run_virtual(main())

    def test_beyond_its_first_part_a_body_is_read_only_while_there_is_plenty_of_room(self):
        async def main() -> None:
            limits = {"held_bytes": 64 * PIECE, "body_before_slot": 2 * PIECE}
            scene = Scene(limits=limits)
            holder, first = await scene.running()
            waiting = [await uploading(scene, 30) for _ in range(3)]
            assert [read(client, 30) for client in waiting] == [8, 2, 2]
            assert scene.depth() == 3, "none was cut"
            await first.answer()
            await holder.done()
            for client in waiting:
                client.give(b"")
                taken = await scene.app.next()
                got = 0
                while (message := await taken.read()).get("more_body"):
                    got += len(message["body"])
                assert got == 30 * PIECE
                await taken.answer()
                assert (await client.done()).status == 200
            assert held(scene) == 0
            scene.quiet()

        run_virtual(main())


class TestTheBound:
    LIMITS = {"held_bytes": 64 * PIECE}  # noqa: RUF012

    def test_of_one_client_cuts_its_slowest_upload(self):
        async def main() -> None:
            scene = Scene(limits=self.LIMITS)
            slow = await uploading(scene, 4)
            await asyncio.sleep(10)
            clients = []
            for _ in range(3):
                clients.append(await uploading(scene, 4))
                await asyncio.sleep(1)
            assert not slow.task.done()
            last = await uploading(scene, 1)
            await slow.done()
            assert (slow.status, slow.code) == (408, "held_bytes_exceeded")
            assert slow.head["retry-after"] == "1"
            assert held(scene) == 13 * PIECE
            assert scene.metrics.refused_requests["held_bytes_exceeded"] == 1
            for client in (*clients, last):
                client.leave()
                await client.done()
            scene.quiet()

        run_virtual(main())

    def test_lets_another_client_through(self):
        async def main() -> None:
            scene = Scene(limits=self.LIMITS, pool_by="model")
            flood = [await uploading(scene, 3, address="10.0.0.1") for _ in range(20)]
            assert held(scene) <= 16 * PIECE
            other, taken = await scene.running(
                headers=[JSON, (LENGTH, b"2000")], body=b" " * 2000, address="10.0.0.2"
            )
            await taken.answer()
            assert (await other.done()).status == 200
            assert sum(client.task.done() for client in flood) == 15
            for client in flood:
                client.leave()
                await client.done()
            scene.quiet()

        run_virtual(main())

    def test_cuts_one_that_waits(self):
        async def main() -> None:
            scene = Scene(limits=self.LIMITS)
            holder, first = await scene.running()
            length = str(15 * PIECE).encode()
            waiting = scene.client(headers=[(LENGTH, length)], body=[b"x" * PIECE] * 15)
            await ticks(100)
            assert (scene.depth(), held(scene)) == (1, 15 * PIECE)
            for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"):
                await uploading(scene, 14, address=address)
            await waiting.done()
            assert (waiting.status, waiting.code) == (408, "held_bytes_exceeded")
            assert scene.depth() == 0
            await first.answer()
            await holder.done()

        run_virtual(main())

    def test_of_a_body_that_is_read_whole_is_a_client_s_part(self):
        async def main() -> None:
            limits = {"held_bytes": 64 * PIECE, "body_bytes": 64 * PIECE}
            scene = Scene(limits=limits, pool_by="model")
            scene.admission.follow(Lists())
            headers = [JSON, (LENGTH, str(16 * PIECE + 1).encode())]
            client = scene.client(method="POST", path="/v1/chat/completions", headers=headers)
            await client.done()
            assert (client.status, client.code) == (413, "body_too_large")

        run_virtual(main())

    def test_over_random_uploads_holds_at_every_step(self):
        async def main(seed: int) -> None:
            chance = random.Random(seed)
            scene = Scene(capacity=3, limits={"held_bytes": 64 * PIECE})
            served = asyncio.create_task(answer_all(scene))
            clients = []
            for _ in range(60):
                await asyncio.sleep(chance.choice((0, 0.5, 3)))
                pieces = chance.randrange(20)
                address = chance.choice(("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"))
                client = scene.client(headers=[CHUNKED], stay=False, address=address)
                clients.append(client)
                for _ in range(pieces):
                    client.give(b"x" * chance.randrange(PIECE), more=True)
                    await ticks(chance.randrange(3))
                    ledger = scene.admission.held
                    assert ledger.held <= ledger.bound
                    assert all(one.held <= ledger.share for one in ledger.accounts.values())
                fate = chance.choice(("ends", "ends", "leaves", "stays", "is cancelled"))
                if fate == "ends":
                    client.give(b"")
                elif fate == "leaves":
                    client.leave()
                elif fate == "is cancelled":
                    client.task.cancel()
            for client in clients:
                client.leave()
                await asyncio.wait([client.task])
                assert client.status in {None, 200, 408}
                client.check()
            assert (held(scene), scene.admission.held.accounts) == (0, {})
            served.cancel()
            await asyncio.wait([served])
            await ticks()
            scene.quiet()

        for seed in range(30):
            run_virtual(main(seed))


class Lists:
    """A fleet that runs a model here."""

    empty, lists_models = False, True

    def pool_of(self, model: str | None) -> str | None:
        return model and "pool"

    def runs(self, model: str | None) -> bool:
        return True

    may_run = runs


async def answer_all(scene: Scene) -> None:
    """Read each body to its end, and answer."""
    reading = set()

    async def one(taken: Any) -> None:
        while (message := await taken.read())["type"] != "http.disconnect":
            if not message["more_body"]:
                await taken.answer()
                return
        await taken.leave()

    try:
        while True:
            reading.add(asyncio.create_task(one(await scene.app.next())))
    finally:
        for task in reading:
            task.cancel()


class TestAnUploadWithASlot:
    """It must be faster than `slowest_upload` while the application waits for it."""

    LIMITS = {"body_before_slot": 0, "slowest_upload": 1000}  # noqa: RUF012

    async def reading(self, client: Client, scene: Scene) -> Any:
        taken = await scene.app.next()

        async def to_the_end() -> int:
            got = 0
            while (message := await taken.receive()).get("more_body"):
                got += len(message["body"])
            return got

        taken.post(to_the_end)
        return taken

    @pytest.mark.parametrize("priority", ["bulk", "system"])
    def test_is_cut_where_it_is_slower_and_the_slot_is_free(self, priority):
        async def main() -> None:
            scene = Scene(limits=self.LIMITS)
            client = scene.client(priority, tenant="root", headers=[CHUNKED], stay=False)
            await self.reading(client, scene)
            start = asyncio.get_running_loop().time()
            waiting = scene.client(priority, tenant="root")
            while not client.task.done():
                client.give(b"x" * 900, more=True)
                await asyncio.sleep(1)
            assert asyncio.get_running_loop().time() - start <= 2 * WINDOW
            assert (client.status, client.code) == (408, "body_too_slow")
            assert scene.ended("failed") == 1
            await (await scene.app.next()).answer()
            await waiting.done()
            scene.quiet()

        run_virtual(main())

    def test_goes_on_where_it_is_fast_enough(self):
        async def main() -> None:
            scene = Scene(limits=self.LIMITS)
            client = scene.client(headers=[CHUNKED], stay=False)
            taken = await self.reading(client, scene)
            for _ in range(50):
                client.give(b"x" * 1100, more=True)
                await asyncio.sleep(1)
            client.give(b"")
            await taken.answer()
            assert (await client.done()).status == 200
            scene.quiet()

        run_virtual(main())

    def test_is_not_measured_while_the_application_does_not_ask(self):
        async def main() -> None:
            scene = Scene(limits=self.LIMITS)
            client = scene.client(headers=[CHUNKED], stay=False)
            taken = await scene.app.next()
            for _ in range(10):
                client.give(b"x" * 5000, more=True)
                assert len((await taken.read())["body"]) == 5000
                await asyncio.sleep(20)
            client.give(b"")
            await taken.read()
            await taken.answer()
            assert (await client.done()).status == 200
            scene.quiet()

        run_virtual(main())

    def test_is_cut_also_where_it_was_being_read_ahead(self):
        async def main() -> None:
            scene = Scene(limits=self.LIMITS)
            holder, first = await scene.running()
            client = await scene.waiting(headers=[CHUNKED], stay=False)
            await first.answer()
            await holder.done()
            await self.reading(client, scene)
            await client.done()
            assert (client.status, client.code) == (408, "body_too_slow")
            scene.quiet()

        run_virtual(main())

    def test_is_never_cut_where_there_is_no_such_speed(self):
        async def main() -> None:
            scene = Scene(limits={"body_before_slot": 0, "slowest_upload": 0})
            client = scene.client(headers=[CHUNKED], stay=False)
            taken = await self.reading(client, scene)
            await asyncio.sleep(3600)
            client.give(b"")
            await taken.answer()
            assert (await client.done()).status == 200

        run_virtual(main())


class TestACopyForAnotherTry:
    """The proxy may send a body again: it is kept, counted, and dropped before any upload is cut."""

    async def kept(self, scene: Scene, size: int = PIECE) -> tuple[Client, Any, Any]:
        body = json.dumps({"model": "m", "pad": "x" * size}).encode()
        client, taken = await scene.running(
            method="POST",
            path="/v1/chat/completions",
            headers=[JSON, (LENGTH, str(len(body)).encode())],
            body=[body[:100], body[100:]],
        )
        copy = taken.scope["fairlead.body"]
        copy.keeps = True
        assert (await taken.read())["body"] == body == copy.kept
        assert held(scene) == len(body)
        return client, taken, copy

    def test_is_counted_until_it_is_forgotten(self):
        async def main() -> None:
            scene = Scene()
            client, taken, copy = await self.kept(scene)
            copy.forget()
            assert (copy.kept, held(scene)) == (None, 0)
            await taken.answer()
            await client.done()
            scene.quiet()

        run_virtual(main())

    def test_is_counted_until_the_request_ends(self):
        async def main() -> None:
            scene = Scene()
            client, taken, _ = await self.kept(scene)
            await taken.answer()
            await client.done()
            assert held(scene) == 0
            scene.quiet()

        run_virtual(main())

    def test_is_dropped_before_an_upload_is_cut(self):
        async def main() -> None:
            scene = Scene(limits={"held_bytes": 64 * PIECE})
            client, taken, copy = await self.kept(scene, 14 * PIECE)
            upload = await uploading(scene, 3)
            assert copy.kept is None
            assert not upload.task.done()
            await taken.answer()
            assert (await client.done()).status == 200
            upload.leave()
            await upload.done()
            scene.quiet()

        run_virtual(main())


@pytest.mark.parametrize("waits", [False, True])
def test_a_cancellation_at_any_step_of_an_upload_leaves_nothing(waits):
    async def main(steps: int) -> bool:
        scene = Scene(limits={"body_before_slot": 2 * PIECE})
        first = (await scene.running())[1] if waits else None
        client = scene.client(headers=[CHUNKED], body=[b"x" * PIECE] * 4)
        await ticks(steps)
        over = client.task.done() or not scene.app.arrivals.empty() or scene.depth() == 1
        client.task.cancel()
        await asyncio.wait([client.task])
        if first is not None:
            await first.answer()
        await ticks()
        assert (held(scene), scene.depth(), scene.inflight()) == (0, 0, 0)
        return over

    overs = [run_virtual(main(steps)) for steps in range(30)]
    assert any(overs)
