"""The cure for starvation through the middleware: bounded waits (P6), and no inversion by the cure (P7)."""

import asyncio

import pytest

from fairlead.testing import run_virtual
from tests.gateway.virtual import Scene, ticks

AGED = {"starvation_threshold": 1, "queue_timeout": 10_000, "queue_size": 100}
CLASSES = {
    "bulk": AGED,
    "default": AGED,
    "interactive": {**AGED, "can_preempt": False},
    "system": {**AGED, "can_preempt": False},
}


async def backlog(scene: Scene, names: list[str], each: int) -> None:
    """Fill the slot and the queues, and let everybody starve."""
    await scene.running("interactive", path="/holder")
    for name in names:
        for number in range(each):
            scene.client(name, path=f"/{name}/{number}", tenant="root")
    await ticks()
    assert scene.depth() == each * len(names)
    await asyncio.sleep(5)


async def dispatch(scene: Scene, path: str) -> str:
    """End the request that runs; tell which comes next."""
    await scene.app.inside[path].answer()
    return (await scene.app.next()).path


@pytest.mark.parametrize("budget", [1, 2, 4, 10])
def test_one_dispatch_in_so_many_goes_to_the_starved(budget):
    async def main() -> None:
        scene = Scene(classes=CLASSES, scheduler={"promotion_budget": budget})
        await backlog(scene, ["bulk", "default", "interactive"], 40)
        order, path = [], "/holder"
        for _ in range(40):
            path = await dispatch(scene, path)
            order.append(path.split("/")[1])
        lower = [name != "interactive" for name in order]
        for start in range(len(lower) - budget + 1):
            assert sum(lower[start : start + budget]) <= 1, "at most one in every so many"
        assert sum(lower) >= 40 // budget
        if budget > 1:
            promoted = [name for name in order if name != "interactive"]
            assert abs(promoted.count("bulk") - promoted.count("default")) <= 1, "in turn"

    run_virtual(main())


def test_a_starved_head_starts_within_twelve_releases():
    async def main() -> None:
        scene = Scene(classes=CLASSES)
        await backlog(scene, ["bulk", "default", "interactive", "system"], 30)
        path, seen = "/holder", []
        for _ in range(12):
            path = await dispatch(scene, path)
            seen.append(path.split("/")[1])
        assert {"bulk", "default", "interactive"} <= set(seen)
        assert seen.count("system") >= 9

    run_virtual(main())


def test_a_system_request_is_passed_by_one_promotion_at_most():
    async def main() -> None:
        scene = Scene(classes=CLASSES)
        await backlog(scene, ["bulk", "default", "interactive"], 40)
        path = "/holder"
        for number in range(12):
            for _ in range(number % 4):
                path = await dispatch(scene, path)
            await scene.waiting("system", tenant="root", path=f"/system/{number}")
            order = []
            while not path.startswith("/system"):
                path = await dispatch(scene, path)
                order.append(path)
            assert len(order) <= 2, order

    run_virtual(main())
