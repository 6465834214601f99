"""Retries: what is repeated, where, and within which budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway.retries import LEAST, WINDOW, Budget
from tests.gateway.proxies import proxied
from tests.gateway.rig import Backend, connected
from tests.gateway.rig import run_on_uvloop as run


@given(
    st.lists(st.tuples(st.sampled_from(["request", "retry"]), st.floats(0, 0.5)), max_size=400),
    st.floats(0, 1),
)
def test_retries_stay_within_the_budget_of_the_last_seconds(verbs, share):
    budget, now = Budget(share), 1000.0
    requests: list[float] = []
    retries: list[float] = []
    for verb, later in verbs:
        now += later
        if verb == "request":
            budget.count(now)
            requests.append(now)
            continue
        before = sum(at > now - WINDOW + 0.1 for at in retries)
        possible = max(LEAST, share * sum(at > now - WINDOW - 0.1 for at in requests))
        if budget.spend(now):
            retries.append(now)
            assert before < possible
        else:
            assert sum(at > now - WINDOW - 0.1 for at in retries) >= LEAST


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("method", "path", "repeated"),
    [("GET", "/x", True), ("PUT", "/x", True), ("POST", CHAT, True), ("POST", "/x", False)],
)
@pytest.mark.parametrize("fault", ["reset", 502, 503, 504, "full", 500])
def test_what_is_safe_to_repeat_is_answered_by_another_backend(method, path, repeated, fault):
    async def main() -> None:
        async with (
            Backend() as one,
            Backend(auto=True) as two,
            proxied(one, two) as (url, _),
            connected(url) as client,
        ):
            client.request(method, path, body=b"hi")
            held = await one.arrival()
            assert held.body == b"hi"
            if fault == "reset":
                held.die()
            elif fault == "full":
                held.answer(503, b"no", [("retry-after", "1")])
            else:
                held.answer(fault, b"no")
            head, _ = await client.response()
            again = repeated and fault != 500
            assert two.seen == again
            own = {"reset": 502, "full": 503}.get(fault, fault)
            assert head.status == (200 if again else own)

    run(main())


def test_no_more_tries_than_attempts_and_none_where_inference_is_not_repeated():
    async def main() -> None:
        retries = {"attempts": 2, "inference": False}
        async with (
            Backend() as one,
            Backend() as two,
            Backend() as three,
            proxied(one, two, three, retries=retries) as (url, _),
            connected(url) as client,
        ):
            client.request("GET", "/")
            (await one.arrival()).answer(503, b"one")
            (await two.arrival()).answer(503, b"two")
            assert (await client.response())[1] == b"two"
            client.request("POST", CHAT, body=b"x")
            (await three.arrival()).answer(503, b"three")
            assert (await client.response())[1] == b"three"

    run(main())
