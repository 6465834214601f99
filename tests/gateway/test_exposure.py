"""Paths by which operators steer engines do not answer on the data port, however a path is written.

Tried: each path of the table as it stands, 40 spellings by hand, and random spellings: percent-encoding up to three
times, other cases, slashes, dot segments, parameters, control characters, other hosts, paths that upstreams add.
"""

import json
import logging
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.gateway import PriorityMiddleware
from fairlead.gateway.front import exposure as module
from fairlead.gateway.front.engines import ADMINISTRATION
from fairlead.gateway.front.exposure import LONGEST_READ, Exposure, readings
from fairlead.gateway.loading import load
from fairlead.gateway.settings import Expose
from tests.gateway.rig import Backend, fetch, run, served
from tests.gateway.sockets import code, site

TABLE = sorted(entry for entries in ADMINISTRATION.values() for entry in entries)
CLOSED = Exposure(Expose())
OPEN = """
    / /v1/chat/completions /v1/completions /v1/embeddings /v1/responses /v1/responses/r_1/cancel /v1/messages /v1/models
    /v1/models/meta-llama/Llama-3.1-8B /v1/models/metrics /v1/audio/transcriptions /v1/rerank /v1/score /health
    /health_generate /healthz /livez /readyz /ping /version /info /tokenize /detokenize /tokenizer_info /generate
    /generate_stream /classify /pooling /invocations /get_model_info /model_info /open_session /close_session /load
    /api/tags /api/show /api/ps /api/version /api/chat /api/generate /api/embed /api/embeddings /api/blobsy /metric
    /v1/fine_tuning/jobs/j/pause /v1/fine_tuning/jobs/j/resume /pausex /sleeping /reports/metrics /v1/files/a%20b
    /v1/models/qwen%2Fqwen-7b /a/b/../c /caf%C3%A9 /api/experimental/web_search /docs /openapi.json
""".split()
SPELLINGS = """
    /metrics /metrics/ //metrics /metrics// /METRICS /Metrics /./metrics /metrics/. /x/../metrics /x/%2e%2e/metrics
    /../metrics /metricsfoo /metrics/foo /metrics;a=b /;a/metrics /..;/metrics /x/..;a/metrics /%6detrics /%6Detrics
    /%256detrics /%2525256detrics /%25%36detrics /metrics%20 /metrics%00 /metrics%00/x /%00/metrics /metrics%0a
    /metrics%3fx /metrics%23x /%2fmetrics /%2f%2fmetrics /\\metrics /%5cmetrics //host/metrics /x%3f/../metrics
    http://host/metrics /%EF%BD%8Detrics /metric%C5%BF /metri%E2%80%8Bcs /x//..//metrics
    /a/..;/../../metrics /metrics/..;/.. /metrics//.. /metrics/;/.. /metrics//..;/..;a/%2e%2e
""".split()
LOG = "fairlead.gateway"


def entry_of(exposure: Exposure, path: str) -> str | None:
    closed = exposure.closed(path)
    return closed and closed.entry


@pytest.mark.parametrize("entry", TABLE)
def test_every_path_of_the_table_is_closed(entry):
    plain = entry.removesuffix("*")
    for path in (plain, plain + "/", plain.upper(), plain + "/below", entry.replace("*", "_x")):
        assert entry_of(CLOSED, path) == entry


@pytest.mark.parametrize("path", OPEN)
def test_what_clients_of_inference_need_is_open(path):
    assert CLOSED.closed(path) is None


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_spelling_opens_a_closed_path(path):
    assert entry_of(CLOSED, path) == "/metrics*"


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """Write a closed path in some way that some server reads as that path."""
    path = draw(st.sampled_from(TABLE)).removesuffix("*")
    letters = [draw(st.sampled_from([c, c, c.upper()])) for c in path]
    encoded = draw(st.lists(st.integers(1, len(letters) - 1), max_size=4))
    for at in encoded:
        if len(letters[at]) == 1:
            percent = "%" + "25" * draw(st.integers(0, 2))
            letters[at] = f"{percent}{ord(letters[at]):02x}"
    text = "".join(letters)
    between = draw(
        st.sampled_from(
            ["/", "//", "/./", "/x/../", "/..;/../", "//../", "/;/../", "/%2e/", "/;a=b/"]
        )
    )
    slash = draw(st.sampled_from([at for at, c in enumerate(text) if c == "/"]))
    text = text[:slash] + between + text[slash + 1 :]
    return text + draw(st.sampled_from(["", "/", "//", ";a", "/.", "%20", "%00", "%3fa", "?a=/b"]))


@given(spellings(), st.sampled_from(["", "/engine", "/a/b"]))
@example("/api/..;/../blobs", "")
@example("/api//../blobs", "/engine")
@example("/api/;a/../blobs", "")
def test_random_spellings_are_closed(path, mount):
    exposure = Exposure(Expose())
    exposure.mount(frozenset({mount}))
    assert exposure.closed(path) is not None
    everything = Exposure(Expose(allow=["/"]))
    everything.mount(frozenset({mount}))
    assert everything.closed(path) is None


@given(st.text(alphabet="/.%;?#\\\0 25fFaZ~*\u00e9\u2028", max_size=40))
def test_no_path_raises_and_every_reading_is_in_the_one_form(path):
    found = readings(path)
    assert found
    for reading in found:
        assert reading.startswith("/")
        assert "//" not in reading


def test_the_path_that_an_upstream_adds_counts():
    exposure = Exposure(Expose())
    assert exposure.closed("/pull") is None
    exposure.mount(frozenset({"/api", ""}))
    assert entry_of(exposure, "/pull") == "/api/pull"
    assert exposure.closed("/../metrics") is not None
    assert exposure.closed("/tags") is None
    exposure.mount(frozenset())
    assert exposure.closed("/pull") is None


def test_allow_opens_and_deny_closes():
    some = Exposure(Expose(allow=["/metrics", "/Api/Pull/"], deny=["/v1/audio", "/internal*"]))
    assert some.closed("/%6detrics") is None
    assert some.closed("/api/pull") is None
    assert entry_of(some, "/api/push") == "/api/push"
    assert some.closed("/v1/audio/speech") == ("/v1/audio", True)
    assert some.closed("/v1/audios") is None
    assert some.closed("/INTERNALS") == ("/internal*", True)
    assert Exposure(Expose(deny=["/api/*"])).closed("/api/tags") == ("/api/*", True)
    assert Exposure(Expose(deny=["/api/*"])).closed("/apis") is None
    # What is denied stays closed, whatever is allowed.
    both = Exposure(Expose(allow=["/"], deny=["/metrics"]))
    assert both.closed("//metrics") == ("/metrics", True)
    assert both.closed("/sleep") is None


@pytest.mark.parametrize("wrong", ["metrics", "/a*b", "", "*"])
def test_a_wrong_entry_is_refused(wrong):
    (line,) = load({"expose": {"allow": [wrong]}}).lines
    assert "must be a path" in line


def test_an_entry_in_both_lists_is_refused():
    (line,) = load({"expose": {"allow": ["/a"], "deny": ["/a"]}}).lines
    assert "in both: /a" in line


def test_hostile_paths_take_no_time_to_judge():
    hostile = [
        "/A" * 2048,
        "/\xef\xb7\xba" * 1024,
        "/%" + "25" * 2000 + "41",
        "/../A;" * 680,
        "?#" * 2048,
    ]
    for path in hostile:
        before = process_time()
        CLOSED.closed(path[:LONGEST_READ])
        assert process_time() - before < 0.5  # a few ms; beyond that length it is refused


def test_a_closed_path_is_404_and_names_the_setting(caplog):
    async def main() -> None:
        async with site(4, backend=Backend(auto=True), exempt=["/metrics"]) as here:
            with caplog.at_level(logging.WARNING, LOG):
                for path in ("/metrics", "//Metrics?a=b", "/flush_cache", "/v1/load_lora_adapter"):
                    head, body = await fetch(here.url, "POST", path, [], b"{}")
                    assert (head.status, code(head, body)) == (404, "path_not_exposed")
                    assert b"expose: {allow: [" in body
                    assert ("error" in json.loads(body)) == path.startswith("/v1")
            told = [line.getMessage() for line in caplog.records if "expose" in line.getMessage()]
            assert len(told) == 3
            assert "expose: {allow: ['/metrics*']}" in told[0]
            assert here.backend.seen == 0
            assert here.gauge("refused_requests_total", code="path_not_exposed") == 4
            assert here.gauge("admissions_total", outcome="admitted") == 0
            head, _ = await fetch(here.url, "GET", "/api/tags")
            assert head.status == 200
            await here.quiet()

    run(main())


def test_each_refusal_has_one_line_in_the_access_log(caplog):
    async def main() -> None:
        async with site(4, backend=Backend(auto=True), access_log=True) as here:
            with caplog.at_level(logging.INFO, "fairlead.access"):
                await fetch(here.url, "GET", "/%73leep?level=2")
            lines = [one.getMessage() for one in caplog.records if one.name == "fairlead.access"]
            (line,) = map(json.loads, lines)
            assert (line["path"], line["status"]) == ("/%73leep", 404)
            assert line["outcome"] == "rejected_path_not_exposed"
            await here.quiet()

    run(main())


def test_warnings_are_bounded_whatever_is_asked(caplog):
    async def main() -> None:
        async with site(4, backend=Backend(auto=True)) as here:
            with caplog.at_level(logging.WARNING, LOG):
                for number in range(50):
                    await fetch(here.url, "GET", f"/metrics/{number}")
            assert len([line for line in caplog.records if "expose" in line.getMessage()]) == 1

    run(main())


def test_a_reload_opens_and_closes_paths():
    async def main() -> None:
        async with site(4, backend=Backend(auto=True)) as here:
            loaded = here.running.admission.loaded
            for expose, wanted in (
                (Expose(allow=["/metrics"]), (200, 200)),
                (Expose(deny=["/x"]), (404, 404)),
                (Expose(), (404, 200)),
            ):
                settings = loaded.settings.model_copy(update={"expose": expose})
                here.running.retune(loaded._replace(settings=settings))
                found = [
                    (await fetch(here.url, "GET", path))[0].status for path in ("/metrics", "/x")
                ]
                assert tuple(found) == wanted
            await here.quiet()

    run(main())


def test_a_path_too_long_to_judge_is_414():
    async def main() -> None:
        async with site(4, backend=Backend(auto=True)) as here:
            head, body = await fetch(here.url, "GET", "/x/../" * 1000 + "metrics")
            assert (head.status, code(head, body)) == (414, "path_too_long")
            head, _ = await fetch(here.url, "GET", "/" + "a" * 20_000)  # it has one reading
            assert head.status == 200

    run(main())


def test_an_application_of_one_s_own_keeps_its_paths():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"mine"})

    async def main() -> None:
        async with served(PriorityMiddleware(app, {"capacity": 4})) as url:
            head, body = await fetch(url, "GET", "/metrics")
            assert (head.status, body) == (200, b"mine")

    run(main())


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_decoded", lambda path: path),
        ("_cleaned", lambda path: path),
        ("_segments", lambda path, rule: path.split("/")[1:]),
    ],
)
def test_a_reading_that_is_forgotten_is_caught(monkeypatch, name, broken):
    monkeypatch.setattr(module, name, broken)
    with pytest.raises((AssertionError, AttributeError)):
        test_random_spellings_are_closed()
