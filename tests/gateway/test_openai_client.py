"""The official `openai` client, unmodified, through the whole proxy to a fake server of ours."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.gateway.rig import Held, run, until, within
from tests.gateway.sockets import Site, site

MESSAGES: Any = [{"role": "user", "content": "Who goes next?"}]


def piece(text: str | None, finish: str | None = None) -> str:
    """One event of a stream, as OpenAI writes it."""
    delta = {} if text is None else {"role": "assistant", "content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }
    )


def answer(held: Held, text: str = "you") -> None:
    """A whole completion."""
    message = {"role": "assistant", "content": text}
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    held.answer(body=json.dumps(document).encode(), headers=[("content-type", "application/json")])


@asynccontextmanager
async def talking(
    max_retries: int = 0, **sections: Any
) -> AsyncIterator[tuple[Site, openai.AsyncOpenAI]]:
    async with site(**{"capacity": 1, **sections}) as here:
        async with openai.AsyncOpenAI(
            base_url=f"{here.url}/v1", api_key="sk-test", max_retries=max_retries, timeout=20
        ) as client:
            yield here, client
        await here.quiet()


def ask(client: openai.AsyncOpenAI, priority: str | None = None, **options: Any) -> Any:
    """Start a completion."""
    headers = {} if priority is None else {"x-fairlead-priority": priority}
    return asyncio.create_task(
        client.chat.completions.create(
            model="m", messages=MESSAGES, extra_headers=headers, **options
        )
    )


def test_a_completion_passes():
    async def main() -> None:
        async with talking() as (here, client):
            asked = ask(client, "interactive")
            held = await here.backend.arrival()
            assert (held.method, held.target) == ("POST", "/v1/chat/completions")
            assert json.loads(held.body)["messages"] == MESSAGES
            assert here.inflight("interactive") == 1
            answer(held)
            completion = await within(asked)
            assert completion.choices[0].message.content == "you"

    run(main())


def test_tokens_arrive_one_by_one():
    async def main() -> None:
        async with talking() as (here, client):
            asked = ask(client, "bulk", stream=True)
            held = await here.backend.arrival()
            held.stream()
            held.event(piece("a"))
            stream = await within(asked)
            chunks = aiter(stream)
            for token in "abcdef":
                if token != "a":
                    held.event(piece(token))  # the next is written only when the last was read
                chunk = await within(anext(chunks))
                assert chunk.choices[0].delta.content == token
                assert here.inflight() == 1
            held.event(piece(None, "stop"))
            held.event("[DONE]")
            held.finish()
            assert [chunk.choices[0].finish_reason async for chunk in chunks] == ["stop"]

    run(main())


def test_leaving_a_stream_early_cancels_the_call_upstream():
    async def main() -> None:
        async with talking() as (here, client):
            asked = ask(client, stream=True)
            held = await here.backend.arrival()
            held.stream()
            held.event(piece("a"))
            stream = await within(asked)
            await within(anext(aiter(stream)))
            await stream.close()
            await within(held.gone.wait())
            await until(lambda: here.inflight() == 0)

    run(main())


@pytest.mark.parametrize(("tier", "name"), [("priority", "interactive"), ("flex", "bulk")])
def test_the_service_tier_is_a_class(tier, name):
    async def main() -> None:
        async with talking() as (here, client):
            asked = ask(client, service_tier=tier)
            held = await here.backend.arrival()
            assert here.inflight(name) == 1
            answer(held)
            await within(asked)

    run(main())


def test_refusals_are_errors_of_its_own_kinds():
    async def main() -> None:
        classes = {"default": {"queue_size": 0}, "interactive": {"queue_timeout": "100ms"}}
        async with talking(classes=classes) as (here, client):
            holder = ask(client, stream=True)
            held = await here.backend.arrival()
            held.stream()
            held.event(piece("a"))
            await within(holder)
            with pytest.raises(openai.RateLimitError) as full:
                await within(ask(client))
            assert full.value.code == "scheduler_queue_full"
            assert full.value.type == "rate_limit_error"
            with pytest.raises(openai.APIStatusError) as late:
                await within(ask(client, "interactive"))
            assert (late.value.status_code, late.value.code) == (408, "scheduler_queue_timeout")
            held.finish()
            await until(lambda: here.inflight() == 0)
            victim = ask(client, "bulk")
            await here.backend.arrival()
            by = ask(client, "interactive")
            with pytest.raises(openai.InternalServerError) as preempted:
                await within(victim)
            assert preempted.value.code == "scheduler_preempted"
            assert preempted.value.response.headers["x-fairlead-preempted"] == "true"
            answer(await here.backend.arrival())
            await within(by)

    run(main())


def test_its_own_retries_honour_retry_after():
    """A 503 and then a 429, each tried again by the client itself, not before a second has passed."""

    async def main() -> None:
        async with talking(max_retries=1, classes={"default": {"queue_size": 0}}) as (here, client):
            loop = asyncio.get_running_loop()

            async def comes_back(task: asyncio.Task[Any], refused_at: float) -> None:
                held = await here.backend.arrival()
                assert loop.time() - refused_at >= 0.9
                assert held.head.get("x-stainless-retry-count") == "1"
                answer(held)
                assert (await within(task)).choices[0].message.content == "you"

            victim = ask(client, "bulk")
            await here.backend.arrival()
            began = loop.time()
            by = ask(client, "interactive")
            held = await here.backend.arrival()
            answer(held)
            await within(by)
            await comes_back(victim, began)

            holder = ask(client, "interactive")
            held = await here.backend.arrival()
            began = loop.time()
            refused = ask(client)
            full = {"outcome": "rejected_queue_full"}
            await until(lambda: here.gauge("admissions_total", **full) == 1)
            answer(held)
            await within(holder)
            await comes_back(refused, began)

    run(main())
