"""Bodies of requests that wait are read ahead, so that a client is seen to leave; together they are bounded."""

import pytest

from fairlead.gateway import body
from fairlead.gateway.body import MOST_BUFFERED
from fairlead.testing import run_virtual
from tests.gateway.virtual import Client, Scene, ticks

PIECE = 64 * 1024
OWN_PART = MOST_BUFFERED // PIECE  # pieces
CHUNKED = (b"transfer-encoding", b"chunked")


def read(client: Client, pieces: int) -> int:
    """How many of its pieces were read."""
    return pieces - client.incoming.qsize()


async def uploading(scene: Scene, pieces: int) -> Client:
    client = await scene.waiting(headers=[CHUNKED], body=[b"x" * PIECE] * pieces)
    await ticks(4 * pieces)
    return client


def test_a_client_that_leaves_in_the_middle_of_a_large_body_frees_its_place():
    async def main() -> None:
        scene = Scene()
        holder, held = await scene.running()
        waiting = await uploading(scene, 10 * OWN_PART)
        assert scene.admission.pools[""].read_ahead == 10 * OWN_PART * PIECE
        waiting.leave()
        await ticks()
        assert waiting.task.done()
        assert scene.depth() == 0
        assert scene.admission.pools[""].read_ahead == 0
        await held.answer()
        await holder.done()
        scene.quiet()

    run_virtual(main())


@pytest.mark.parametrize("together", [0, 1, 20 * PIECE])
def test_beyond_what_they_may_together_each_has_its_own_part(together, monkeypatch):
    monkeypatch.setattr(body, "MOST_BUFFERED_TOGETHER", together)

    async def main() -> None:
        scene = Scene()
        holder, held = await scene.running()
        waiting = [await uploading(scene, 30) for _ in range(3)]
        first = max(OWN_PART, together // PIECE)
        assert [read(client, 30) for client in waiting] == [first, OWN_PART, OWN_PART]
        pool = scene.admission.pools[""]
        assert pool.read_ahead == (first + 2 * OWN_PART) * PIECE
        await held.answer()
        await holder.done()
        for left, client in zip((2, 1, 0), waiting, strict=True):
            held = await scene.app.next()
            assert pool.read_ahead == left * OWN_PART * PIECE, "one that runs does not wait"
            assert [len((await held.read())["body"]) for _ in range(30)] == [PIECE] * 30
            await held.answer()
            assert (await client.done()).status == 200
        scene.quiet()

    run_virtual(main())


def test_no_more_is_read_than_a_body_may_have():
    async def main() -> None:
        scene = Scene(limits={"body_bytes": 10 * PIECE})
        holder, held = await scene.running()
        waiting = await uploading(scene, 30)
        assert read(waiting, 30) == 11
        await held.answer()
        await holder.done()
        held = await scene.app.next()
        for _ in range(10):
            await held.read()
        held.post(held.receive)
        assert (await waiting.done()).status == 413
        scene.quiet()

    run_virtual(main())
