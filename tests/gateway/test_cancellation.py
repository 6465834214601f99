"""Somebody else ends the task, at every await of every request: afterwards nothing is held and all is counted."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.testing import run_virtual
from tests.doors.rig import Injected, at_every_step, cancelled_at
from tests.gateway.virtual import Client, Scene, ticks

JSON = (b"content-type", b"application/json")
CLASSES = {"default": {"queue_timeout": 5, "starvation_threshold": 4}, "bulk": {"queue_size": 3}}


async def prompt(scope: Any, receive: Any, send: Any) -> None:
    """An application with several awaits: it reads, thinks, and streams."""
    await asyncio.sleep(0)
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(1)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.sleep(1)
    for more in (True, True, False):
        await send({"type": "http.response.body", "body": b"x", "more_body": more})
        await asyncio.sleep(0)


class Occasion:
    """A way for one request to go through the middleware, with whatever company that takes."""

    def __init__(self) -> None:
        self.scene = Scene(classes=CLASSES)
        self.scene.guarded.app = self.app
        self.company: list[Client] = []

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        app = self.scene.app if scope["path"].startswith("/held") else prompt
        await app(scope, receive, send)

    async def holder(self, priority: str) -> Any:
        client = self.scene.client(priority, path="/held")
        self.company.append(client)
        held = await self.scene.app.next()
        await held.head()
        await held.chunk()
        return held

    def later(self, delay: float, fn: Callable[..., Any], *args: Any) -> None:
        asyncio.get_running_loop().call_later(delay, fn, *args)

    def arrive(self, priority: str, tenant: str | None = None) -> None:
        self.company.append(self.scene.client(priority, tenant=tenant))


async def straight(occasion: Occasion) -> dict[str, Any]:
    return {"priority": "bulk"}


async def not_evictable(occasion: Occasion) -> dict[str, Any]:
    return {"priority": "system", "tenant": "root"}


async def after_a_wait(occasion: Occasion) -> dict[str, Any]:
    held = await occasion.holder("default")
    occasion.later(2, held.post, lambda: held.raw_send({"type": "http.response.body"}))
    occasion.later(3, held.post, None)
    return {"priority": "default", "body": [b"a", b"b"]}


async def timed_out(occasion: Occasion) -> dict[str, Any]:
    held = await occasion.holder("default")
    occasion.later(20, held.post, None)
    return {"priority": "default"}


async def preempted(occasion: Occasion) -> dict[str, Any]:
    occasion.later(0.5, occasion.arrive, "interactive")
    return {"priority": "bulk"}


async def preempted_after_a_wait(occasion: Occasion) -> dict[str, Any]:
    held = await occasion.holder("default")
    occasion.later(2, held.post, None)
    occasion.later(2.5, occasion.arrive, "interactive")
    return {"priority": "bulk"}


async def preempting(occasion: Occasion) -> dict[str, Any]:
    occasion.arrive("bulk")
    await ticks()
    return {"priority": "interactive"}


async def full(occasion: Occasion) -> dict[str, Any]:
    held = await occasion.holder("default")
    for _ in range(3):
        occasion.arrive("bulk")
    await ticks()
    occasion.later(20, held.post, None)
    return {"priority": "bulk"}


async def tier_in_the_body(occasion: Occasion) -> dict[str, Any]:
    body = [b'{"service_tier"', b': "flex"}']
    return {"method": "POST", "path": "/v1/x", "headers": [JSON], "body": body}


async def too_large(occasion: Occasion) -> dict[str, Any]:
    headers = [(b"transfer-encoding", b"chunked")]
    return {"priority": "bulk", "headers": headers, "body": [b"x" * (1 << 20)] * 9}


OCCASIONS: list[Callable[[Occasion], Awaitable[dict[str, Any]]]] = [
    *(straight, not_evictable, after_a_wait, timed_out, preempted, preempted_after_a_wait),
    *(preempting, full, tier_in_the_body, too_large),
]


@pytest.mark.parametrize("make", OCCASIONS, ids=lambda make: make.__name__)
def test_at_every_suspension(make):
    async def attempt(step: int, resumed: bool) -> bool:
        occasion = Occasion()
        options = await make(occasion)
        reached = True

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal reached
            try:
                await cancelled_at(occasion.scene.guarded(scope, receive, send), step, resumed)
            except Injected:
                reached = False

        client = Client(app, **options)
        try:
            await asyncio.wait_for(client.task, 1000)
        except asyncio.CancelledError:
            pass
        client.check()
        for other in occasion.company:
            await other.done()
        await asyncio.sleep(100)  # what was to come later has come
        await asyncio.gather(*(other.done() for other in occasion.company))
        occasion.scene.quiet()
        return reached

    injections = run_virtual(at_every_step(attempt))
    assert injections >= 4


@pytest.mark.parametrize("make", OCCASIONS, ids=lambda make: make.__name__)
def test_at_every_moment_by_the_task(make):
    """The same by `task.cancel`, as a server does it: after each number of turns of the loop and each half second."""

    async def attempt(turns: int, halves: int) -> bool:
        occasion = Occasion()
        options = await make(occasion)
        client = occasion.scene.client(**options)
        await asyncio.sleep(halves / 2)
        await ticks(turns)
        over = client.task.done()
        client.task.cancel()
        try:
            await client.task
        except asyncio.CancelledError:
            pass
        client.check()
        await asyncio.sleep(100)
        await asyncio.gather(*(other.done() for other in occasion.company))
        occasion.scene.quiet()
        return not over

    async def main() -> int:
        found = 0
        for halves in range(12):
            for turns in range(12):
                found += await attempt(turns, halves)
        return found

    assert run_virtual(main()) >= 2


@pytest.mark.parametrize("cancelled_first", [True, False])
def test_cancelled_from_outside_and_preempted_at_once(cancelled_first):
    """The server's wish that the task end is not mistaken for ours."""

    async def main() -> None:
        scene = Scene()
        victim, _ = await scene.running("bulk")
        if cancelled_first:
            victim.task.cancel()
        by = scene.client("interactive")
        if not cancelled_first:
            await asyncio.sleep(0)
            victim.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await victim.task
        assert not victim.sent
        await (await scene.app.next()).answer()
        assert (await by.done()).status == 200
        scene.quiet()

    run_virtual(main())


def test_a_preempted_task_can_be_used_again():
    """The cancellation was ours and is taken back: a server that keeps its task sees nothing of it."""

    async def main() -> None:
        scene = Scene()
        after: list[str] = []

        async def server(scope: Any, receive: Any, send: Any) -> None:
            await scene.guarded(scope, receive, send)
            await asyncio.sleep(1)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            async with asyncio.timeout(1):
                await asyncio.sleep(0.5)
            after.append("served")

        victim = Client(server, priority="bulk")
        await scene.app.next()
        by, held = await scene.running("interactive")
        assert (await victim.done()).status == 503
        assert after == ["served"]
        await held.answer()
        await by.done()
        scene.quiet()

    run_virtual(main())


def test_a_request_that_preempts_its_own_caller():
    """An application that calls itself in its own task: the inner request makes the outer one its victim."""

    async def main() -> None:
        scene = Scene()
        outcomes: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            inner = scope | {"headers": [(b"x-fairlead-priority", b"interactive")]}
            try:
                await scene.guarded(inner, asyncio.get_running_loop().create_future, send)
            except asyncio.CancelledError:
                outcomes.append("cancelled")
                raise

        scene.guarded.app = app
        outer = scene.client("bulk")
        assert (await outer.done()).status == 503
        assert outcomes == ["cancelled"]
        scene.quiet()

    run_virtual(main())
