"""The bytes of a body as they come in: all of them, in order, whatever the pieces."""

import asyncio
import random

from fairlead.gateway.pile import AT_ONCE, CHUNK, SMALL, Pile, Turns
from fairlead.testing import run_virtual


def test_over_random_pieces_it_gives_back_what_was_put_in():
    chance = random.Random(7)
    for _ in range(300):
        pile, expected = Pile(), b""
        most = chance.choice((10, SMALL, CHUNK, 3 * CHUNK))
        for left in reversed(range(chance.randrange(8))):
            piece = chance.randbytes(chance.choice((1, chance.randint(1, most), most)))
            pile.add(piece, last=not left)
            expected += piece
            assert pile.size == len(expected)
            if chance.random() < 0.2:
                assert pile.read() == expected
        assert pile.read() == expected
        assert pile.take() == expected
        assert (pile.size, pile.read()) == (0, b"")


def test_a_body_in_one_piece_is_not_copied():
    pile, piece = Pile(), bytes(CHUNK)
    pile.add(piece, last=True)
    assert pile.take() is piece


def test_turns_are_taken_in_order_and_so_many_in_each_round():
    async def main() -> None:
        turns, loop, went = Turns(), asyncio.get_running_loop(), []

        async def one(number: int) -> None:
            await turns.wait(loop)
            went.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(3 * AT_ONCE)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        seen = []
        while not all(task.done() for task in tasks):
            before = len(went)
            await asyncio.sleep(0)
            seen.append(len(went) - before)
        assert went == [0, *range(2, 3 * AT_ONCE)]
        assert max(seen) <= AT_ONCE

    run_virtual(main())
