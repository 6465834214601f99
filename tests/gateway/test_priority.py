"""What a request asks for: explicit header, RFC 9218, `service_tier`, and the wait it would accept."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway import priority
from fairlead.gateway.settings import BULK, CLASSES, DEFAULT, INTERACTIVE, SYSTEM
from fairlead.testing import run_virtual
from tests.gateway.virtual import Backends, Scene, ticks

FAIRLEAD, SMG = b"x-fairlead-priority", b"x-smg-priority"
TIER = b'{"service_tier": "flex"}'
JSON = (b"content-type", b"application/json")


def asked(*values: bytes, name: bytes = FAIRLEAD) -> tuple[int | None, bool]:
    return priority.explicit_rank({name: list(values)})


class TestTheExplicitHeader:
    @pytest.mark.parametrize("name", [FAIRLEAD, SMG])
    @pytest.mark.parametrize(("word", "rank"), list(zip(CLASSES, range(4), strict=True)))
    def test_names_a_class_in_any_case_and_with_space_around_it(self, name, word, rank):
        for text in (word, word.upper(), word.title(), f"  {word}\t", f"\r\n{word} \n"):
            assert asked(text.encode(), name=name) == (rank, False)

    def test_ranks_ascend(self):
        assert [BULK, DEFAULT, INTERACTIVE, SYSTEM] == [0, 1, 2, 3]
        assert CLASSES == ("bulk", "default", "interactive", "system")

    @pytest.mark.parametrize(
        "value",
        [
            *(b"urgent", b"0", b"3", b"interactiv", b"interactive!", b"sys tem", b"bulk;q=1"),
            *(b"interactive,interactive", b"bulk, system", b"system,", b",bulk", b'"bulk"'),
            *(b"interactive" * 800, b"bulk" + b" " * 8192 + b"x", b"None", b"true"),
        ],
    )
    def test_unknown_is_default_and_counted(self, value):
        assert asked(value) == (DEFAULT, True)

    @pytest.mark.parametrize("value", [b"", b"   ", b"\t\r\n"])
    def test_empty_is_default_and_not_counted(self, value):
        assert asked(value) == (DEFAULT, False)

    @pytest.mark.parametrize(
        "value",
        [
            *(
                "ınteractive".encode(),
                "ｓｙｓｔｅｍ".encode(),
                b"bulk\xff",
                b"\xff\xfe",
                b"\x00bulk",
            ),
            *(
                b"bulk\x00",
                b"sys\r\ntem",
                b"bulk\nx-fairlead-priority: system",
                "BULK".encode("utf-16"),
            ),
        ],
    )
    def test_what_is_not_visible_ascii_is_default_and_not_counted(self, value):
        assert asked(value) == (DEFAULT, False)

    def test_absent_is_no_answer(self):
        assert priority.explicit_rank({}) == (None, False)

    @pytest.mark.parametrize("values", [(b"bulk", b"bulk"), (b"bulk", b"system"), (b"", b"")])
    def test_a_duplicate_is_default(self, values):
        assert asked(*values) == (DEFAULT, True)

    @pytest.mark.parametrize("word", [*CLASSES, "", "urgent", "bulk, system", "é"])
    def test_both_headers_with_one_value_are_one(self, word):
        said = word.encode()
        for other in (said, b" " + said.upper() + b"\t"):
            both = {FAIRLEAD: [said], SMG: [other]}
            assert priority.explicit_rank(both) == asked(said)

    @given(st.lists(st.sampled_from(CLASSES), min_size=1, max_size=3), st.data())
    def test_both_headers_that_disagree_are_default(self, values, data):
        others = data.draw(st.lists(st.sampled_from(CLASSES), min_size=1, max_size=3))
        said = {FAIRLEAD: [v.encode() for v in values], SMG: [v.encode() for v in others]}
        if len(values) > 1 or values != others:
            assert priority.explicit_rank(said) == (DEFAULT, True)


class TestUrgency:
    @pytest.mark.parametrize(
        ("urgency", "rank"),
        list(zip(range(8), [INTERACTIVE] * 2 + [DEFAULT] * 3 + [BULK] * 3, strict=True)),
    )
    def test_table(self, urgency, rank):
        for text in (
            f"u={urgency}",
            f"u={urgency}, i",
            f"i,u={urgency}",
            f"i ,\tu={urgency};x=1",
            f' u={urgency};a="b;,\\"u=1";c;d=?0, t=a/b:c*, n=-1.5, l=(1 "2"; x  tok ), b=:aGk=: ',
        ):
            assert priority.urgency_rank({b"priority": [text.encode()]}) == rank

    @pytest.mark.parametrize(
        "value",
        [
            *(
                b"",
                b"i",
                b"u",
                b"u=",
                b"u=8",
                b"u=-1",
                b"u=10",
                b"u=1.0",
                b"u = 1",
                b"U=1",
                b"xu=1",
            ),
            *(b"u=\xb2", b"u=?1", b"u=a", b"u=11;x", b"\x00u=1", b"u=1 2"),
            # The last of a name counts, though it cannot be used; what is not a dictionary is nothing at all.
            *(b"u=1, u=9", b"u=1, u", b"u=0, u=?1", b"u=0, u=(1 2)", b'u=0, u="1"'),
            *(
                b"u=0, !!!",
                b"u=0,",
                b",u=0",
                b"u=0,,i",
                b"u=0 i",
                b'u=0, a="x',
                b"u=0;",
                b"u=0, A=1",
            ),
            b'a="x,u=0,y"',
            b"u=0," + b"i," * 600 + b"i",
        ],
    )
    def test_what_it_does_not_say_is_no_answer(self, value):
        assert priority.urgency_rank({b"priority": [value]}) is None

    def test_absent_is_no_answer(self):
        assert priority.urgency_rank({}) is None

    def test_of_several_the_last_counts(self):
        assert priority.urgency_rank({b"priority": [b"u=0, u=7"]}) == BULK
        assert priority.urgency_rank({b"priority": [b"u=7", b"u=0"]}) == INTERACTIVE

    def test_never_means_system(self):
        assert SYSTEM not in priority.BY_URGENCY


class TestTier:
    @pytest.mark.parametrize(
        ("tier", "rank"),
        [
            *(("priority", INTERACTIVE), ("flex", BULK), ("auto", DEFAULT), ("default", DEFAULT)),
            *(("", DEFAULT), ("PRIORITY", DEFAULT), ("system", DEFAULT), (None, DEFAULT)),
            *((1, DEFAULT), (True, DEFAULT), ([], DEFAULT), ({}, DEFAULT), (["flex"], DEFAULT)),
        ],
    )
    def test_table(self, tier, rank):
        assert priority.tier_rank(tier) == rank


class TestOwnWaitLimit:
    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            *(("0.4", 0.4), ("400ms", 0.4), ("2", 2.0), ("0", 0.0), ("0s", 0.0), (" 1.5 ", 1.5)),
            *(("1m30s", 90.0), ("1h", 3600.0), ("007", 7.0), ("2S", 2.0)),
        ],
    )
    def test_request_timeout_is_seconds_or_a_duration(self, text, limit):
        fields = {b"x-request-timeout": [text.encode()]}
        assert priority.own_wait_limit(fields) == pytest.approx(limit)

    @pytest.mark.parametrize(
        "text",
        [
            *("", " ", "-1", "-5s", "+1", "nan", "inf", "1e3", "1e999", "0x10", "1,5", "5 s", "s"),
            *("soon", "٣٠s", "1.", ".5", "1s,2s", "30 seconds", "1\x00", "9" * 400 + "x", "\xff"),
        ],
    )
    def test_garbage_says_nothing(self, text):
        raw = text.encode("latin-1") if text.isascii() or text == "\xff" else text.encode()
        assert priority.own_wait_limit({b"x-request-timeout": [raw]}) is None

    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            *(("1H", 3600), ("2M", 120), ("3S", 3), ("4m", 0.004), ("5u", 5e-6), ("6n", 6e-9)),
            *(("99999999S", 99999999), ("0n", 0)),
        ],
    )
    def test_grpc_units(self, text, limit):
        assert priority.own_wait_limit({b"grpc-timeout": [text.encode()]}) == pytest.approx(limit)

    @pytest.mark.parametrize("text", ["", "1", "S", "1s", "1h", "123456789S", "-1S", "1.5S", "1SS"])
    def test_grpc_garbage_says_nothing(self, text):
        assert priority.own_wait_limit({b"grpc-timeout": [text.encode()]}) is None

    def test_the_smallest_of_all_counts(self):
        fields = {b"x-request-timeout": [b"5", b"junk", b"3s"], b"grpc-timeout": [b"4S"]}
        assert priority.own_wait_limit(fields) == 3
        assert priority.own_wait_limit({}) is None


def admitted_as(**request) -> str:
    """Send one request through the middleware and tell the class it was given."""

    async def main() -> str:
        scene = Scene(capacity=4)
        client, held = await scene.running(**request)
        name = next(name for name in CLASSES if scene.inflight(name))
        await held.answer()
        await client.done()
        scene.quiet()
        return name

    return run_virtual(main())


class TestThroughTheMiddleware:
    def test_the_explicit_header_wins_over_urgency_and_tier(self):
        headers = [(b"priority", b"u=0"), JSON]
        post = {"method": "POST", "path": "/v1/x", "body": TIER}
        assert admitted_as(headers=[*headers, (SMG, b"interactive")], **post) == "interactive"
        assert admitted_as(headers=[*headers, (SMG, b"garbage")], **post) == "default"
        assert admitted_as(headers=headers, **post) == "interactive"
        assert admitted_as(headers=[(b"priority", b"u=9"), JSON], **post) == "bulk"

    @pytest.mark.parametrize(
        ("media", "reads"),
        [
            (b"application/json", True),
            (b"Application/JSON; charset=utf-8", True),
            (b"application/vnd.api+json", True),
            (b" application/json ", True),
            (b"text/json", False),
            (b"application/jsonp", False),
            (b"text/plain", False),
            (b"", False),
        ],
    )
    def test_the_tier_is_read_from_json_bodies(self, media, reads):
        found = admitted_as(
            method="POST", path="/v1/chat", headers=[(b"content-type", media)], body=TIER
        )
        assert found == ("bulk" if reads else "default")

    def test_the_tier_is_read_on_v1_paths_of_posts_only(self):
        assert admitted_as(method="POST", path="/v2/x", headers=[JSON], body=TIER) == "default"
        assert admitted_as(method="GET", path="/v1/x", headers=[JSON], body=TIER) == "default"

    def test_a_body_in_parts_is_read_and_handed_on_whole(self):
        async def main() -> None:
            scene = Scene()
            client, held = await scene.running(
                method="POST", path="/v1/x", headers=[JSON], body=[TIER[:7], TIER[7:9], TIER[9:]]
            )
            assert scene.inflight("bulk") == 1
            assert await held.read() == {"type": "http.request", "body": TIER, "more_body": False}
            await held.answer()
            await client.done()
            scene.quiet()

        run_virtual(main())

    @pytest.mark.parametrize(
        "body",
        [
            *(
                b"",
                b"{",
                b"null",
                b"[]",
                b"1",
                b'"flex"',
                b"\xff\xfe",
                b'{"service_tier": }',
                b"\x00",
            ),
            *(b'{"service_tier": "\xff"}', b'{"model": "\xff"}', b'{"service_tier": "\\ud800"}'),
            pytest.param(b'{"x": ' + b"[" * 100_000, id="deep list"),
            pytest.param(b'{"x":' * 100_000, id="deep object"),
            *(b'{"model": 1e999}', b'{"service_tier": ["flex"]}', b'{"service_tier": {"a": 1}}'),
        ],
    )
    def test_a_body_that_cannot_be_read_is_not_ours_to_complain_of(self, body):
        request = {"method": "POST", "path": "/v1/x", "headers": [JSON], "body": body}
        assert admitted_as(**request) == "default"

    def test_a_client_that_leaves_while_its_body_is_read_takes_no_slot(self):
        async def main() -> None:
            scene = Scene()
            client = scene.client(method="POST", path="/v1/x", headers=[JSON], stay=False)
            client.give(TIER[:7], more=True)
            await ticks()
            assert not client.task.done()
            client.leave()
            await ticks()
            assert client.task.done(), "it was served to nobody"
            assert not client.sent
            assert scene.refused("client_cancelled") == 1
            assert sum(scene.metrics.admitted(rank) for rank in range(4)) == 0
            scene.quiet()

        run_virtual(main())

    def test_a_client_that_leaves_so_is_counted_in_the_class_it_may_have(self):
        async def main() -> None:
            scene = Scene(pool_by="model")
            scene.admission.follow(Backends(lambda model: model))
            client = scene.client("system", method="POST", headers=[JSON], stay=False)
            client.leave()
            await client.done()
            assert dict(scene.metrics.refused) == {(INTERACTIVE, "client_cancelled"): 1}

        run_virtual(main())

    @pytest.mark.parametrize("parts", [1, 4])
    def test_a_body_beyond_its_limit_is_refused_before_admission(self, parts):
        async def main() -> None:
            scene = Scene(limits={"body_bytes": 100})
            body = json.dumps({"service_tier": "flex", "x": "y" * 100}).encode()
            size = len(body) // parts + 1
            client = scene.client(
                method="POST",
                path="/v1/x",
                headers=[JSON],
                body=[body[i : i + size] for i in range(0, len(body), size)],
            )
            await client.done()
            assert (client.status, client.code) == (413, "body_too_large")
            assert scene.app.arrivals.empty()
            scene.quiet()

        run_virtual(main())

    def test_unknown_values_are_counted_by_tenant(self):
        async def main() -> None:
            scene = Scene(capacity=9)
            for value in (b"urgent", b"bulk,bulk"):
                _, held = await scene.running(headers=[(FAIRLEAD, value)], tenant="acme")
                await held.answer()
            _, held = await scene.running(headers=[(FAIRLEAD, b"\xff")], tenant="acme")
            await held.answer()
            assert scene.metrics.unknown == {"header:acme": 2}

        run_virtual(main())


class TestOwnLimitThroughTheMiddleware:
    @pytest.mark.parametrize(
        ("header", "after"),
        [
            ((b"x-request-timeout", b"0.4"), 0.4),
            ((b"x-request-timeout", b"400ms"), 0.4),
            ((b"grpc-timeout", b"2S"), 2.0),
            ((b"x-request-timeout", b"1h"), 7.0),
            ((b"x-request-timeout", b"junk"), 7.0),
            ((b"x-request-timeout", b"0"), 0.0),
            ((b"x-request-timeout", b"9" * 60), 7.0),
        ],
    )
    def test_the_smaller_of_its_own_and_its_class_counts(self, header, after):
        async def main() -> None:
            scene = Scene(classes={"default": {"queue_timeout": 7.0}})
            holder, held = await scene.running()
            client = await scene.client(headers=[header]).done()
            assert asyncio.get_running_loop().time() == pytest.approx(after)
            assert (client.status, client.code) == (408, "scheduler_queue_timeout")
            assert int(client.head["retry-after"]) >= 1
            await held.answer()
            assert (await holder.done()).status == 200
            scene.quiet()

        run_virtual(main())


NAMES = [FAIRLEAD, SMG, b"priority", b"x-request-timeout", b"grpc-timeout", b"x-tenant-id"]
NAMES += [b"authorization", b"x-forwarded-for", b"content-length", b"content-type"]
NAMES += [b"transfer-encoding", b"x-fairlead-retry-token", b"x-fairlead-decision"]
VALUES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            *(b"system", b"interactive", b"SYSTEM ", b"u=0", b"u=0;x", b"1S", b"0", b"5s", b"root"),
            *(b"boss", b"Bearer key", b"bearer  key ", b"127.0.0.1, 10.0.0.1", b"9" * 5000, b"-1"),
            *(b"application/json", b"::1", b"\xff" * 9000, b"fe80::1%x", b"system\r\nsystem"),
        ]
    ),
)


@given(
    headers=st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=6),
    address=st.sampled_from(["127.0.0.1", "10.0.0.7", "::1", "testclient", "", None]),
    ceiling=st.sampled_from(CLASSES),
    body=st.one_of(st.binary(max_size=30), st.just(b'{"service_tier":"priority"}')),
)
def test_no_header_ever_raises_or_lifts_a_class_above_its_ceiling(headers, address, ceiling, body):
    async def main() -> None:
        scene = Scene(
            capacity=1,
            policies={"header:boss": {"max_class": "bulk"}, "header:root": {"max_class": ceiling}},
            scheduler={"default_max_class": ceiling},
        )
        client = scene.client(
            headers=headers, address=address, method="POST", path="/v1/x", body=body
        )
        await ticks()
        if client.status == 413:
            assert any(name == b"content-length" for name, _ in headers)
        else:
            [rank] = [rank for rank, name in enumerate(CLASSES) if scene.inflight(name)]
            assert rank <= min(CLASSES.index(ceiling), SYSTEM)
            assert rank < SYSTEM or (ceiling == "system" and b"root" in dict(headers).values())
            await scene.app.inside[client.path].answer()
            assert (await client.done()).status == 200
        scene.quiet()

    run_virtual(main())
