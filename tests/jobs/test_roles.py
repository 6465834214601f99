"""Who may do what over HTTP: each route × each role, by one table, which the page shows too."""

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from fairlead.jobs import Jobs, api
from fairlead.jobs.api import ROLES, JobsApi
from fairlead.jobs.serving import JobServer
from fairlead.jobs.tokens import load
from fairlead.serving.access import Role, Token
from tests.gateway.rig import fetch
from tests.jobs.operations_rig import HELLO, JSON, ask, go, small

KNOWN = (Role.VIEWER, Role.SUBMITTER, Role.OPERATOR)
TOKENS = [
    Token(f"the-{role.name}", role, sha256(f"{role.name}-secret".encode()).hexdigest())
    for role in KNOWN
]
OPEN = {("GET", "/livez")}
PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/runs"): HELLO,
    ("PUT", "/v1/planner"): {"planner": None},
    ("PUT", "/v1/schedules/{name}"): {"cron": "* * * * *", "task": "double", "args": [1]},
}


def bearer(token: str | None) -> list[tuple[bytes, bytes]]:
    return [] if token is None else [(b"authorization", f"Bearer {token}".encode())]


async def judge(app: JobsApi) -> None:
    """Ask for each route as each caller, and compare with the table."""
    for (method, path), needed in ROLES.items():
        filled = re.sub(r"\{(run|job)\}", lambda hole: "1" if hole[1] == "run" else "1.0", path)
        filled = filled.replace("{name}", "often")
        body = BODIES.get((method, path), {} if method == "POST" else None)
        for asked in ("GET", "HEAD") if method == "GET" else (method,):
            for role in (None, "nobody", *KNOWN):
                token = f"{role.name}-secret" if isinstance(role, Role) else role
                said = await ask(app, asked, filled, body, headers=[*JSON, *bearer(token)])
                what = (asked, path, role, said.status)
                if (method, path) in OPEN:
                    assert said.status == 200, what
                elif not isinstance(role, Role):
                    assert said.status == 401, what
                elif role < needed:
                    assert said.status == 403, what
                else:
                    assert said.status not in (401, 403), what
    for path in ("/v1/nothing", "/", "/v1/runs/1/delete"):
        assert (await ask(app, "POST", path, {})).status == 401
        assert (await ask(app, "POST", path, {}, headers=bearer("VIEWER-secret"))).status in (
            404,
            405,
        )


def judged(jobs: Jobs, **given: Any) -> None:
    async def test() -> None:
        app = JobsApi(jobs, **given)
        try:
            await judge(app)
        finally:
            await app.metrics.close()
            await jobs.close()

    go(test())


def test_each_route_asks_for_its_role(tmp_path: Path):
    judged(small(f"sqlite:///{tmp_path}/jobs.db"), tokens=TOKENS)


@pytest.mark.parametrize(
    "route", [("POST", "/v1/runs"), ("PUT", "/v1/planner"), ("GET", "/v1/runs")]
)
def test_a_route_with_another_role_is_caught(
    route: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = {**ROLES, route: Role.ADMIN if ROLES[route] is Role.VIEWER else Role.VIEWER}
    monkeypatch.setattr(api, "ROLES", other)
    with pytest.raises(AssertionError):
        test_each_route_asks_for_its_role(tmp_path)


def test_a_route_without_a_role_is_no_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(api, "ROLES", {key: one for key, one in ROLES.items() if key[0] != "PUT"})
    with pytest.raises(KeyError):
        JobsApi(small(f"sqlite:///{tmp_path}/jobs.db"))


def test_every_route_is_in_the_table(tmp_path: Path):
    """What the description lists is what the table guards."""
    app = JobsApi(small(f"sqlite:///{tmp_path}/jobs.db"), tokens=TOKENS)
    assert {(m, p) for p, methods in app._table().items() for m in methods if m != "HEAD"} == set(
        ROLES
    )


def test_the_page_has_the_same_table():
    said: dict[tuple[str, str], str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"\| (none|viewer|submitter|operator) \| (`.*`) \|", line):
            for method, path in re.findall(r"`(GET|POST|PUT|DELETE) ([^`]+)`", found[2]):
                assert said.setdefault((method, path), found[1]) == found[1]
    told = {key: "none" if key in OPEN else role.name.lower() for key, role in ROLES.items()}
    assert said == told


def test_one_token_may_do_everything(tmp_path: Path):
    async def test() -> None:
        app = JobsApi(small(f"sqlite:///{tmp_path}/jobs.db"), token="secret")
        for route in BODIES:
            path = route[1].replace("{name}", "often")
            said = await ask(app, route[0], path, BODIES[route], headers=[*JSON, *bearer("secret")])
            assert said.status in (200, 201), (route, said.body)
        await app.metrics.close()
        await app.jobs.close()

    go(test())


FILE = """\
tokens:
  - {name: a, role: viewer, sha256: VIEWER}
  - {name: b, role: submitter, sha256: SUBMITTER}
  - {name: c, role: operator, sha256: OPERATOR}
"""


def written(path: Path, text: str) -> Path:
    for role in KNOWN:
        text = text.replace(role.name, sha256(f"{role.name}-secret".encode()).hexdigest())
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [FILE, FILE.removeprefix("tokens:\n").replace("  -", "-")])
def test_a_file_of_tokens_is_a_mapping_or_a_list(text: str, tmp_path: Path):
    loaded = load(str(written(tmp_path / "tokens.yaml", text)))
    assert not loaded.problems, loaded.lines
    assert [(one.name, one.role) for one in loaded.settings.given] == list(
        zip("abc", KNOWN, strict=True)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty, which no configuration may be"),
        ("tokens: []\n", "tokens.yaml:1:1 tokens: "),
        ("[]", "tokens: "),
        ("tokens:\n", "tokens: "),
        ("just text", "must be a list of tokens"),
        (
            FILE.replace("operator", "admin"),
            "tokens.yaml:4:15 tokens[2].role: must be viewer, submitter or",
        ),
        (
            FILE.replace("name: c", "name: a"),
            "tokens.yaml:4:6 tokens[2].name: is given twice, first in entry 1",
        ),
        (
            FILE.replace("SUBMITTER", "VIEWER"),
            "tokens.yaml:3:32 tokens[1].sha256: is given twice, first in entry 1",
        ),
        (FILE.replace("VIEWER", "secret"), "tokens.yaml:2:29 tokens[0].sha256: "),
        (FILE.replace("VIEWER", sha256(b"").hexdigest()), "may not be the hash of a blank text"),
        (FILE + "more: 1\n", "unknown key 'more'"),
    ],
)
def test_a_file_that_guards_nothing_is_refused_with_the_place(
    text: str, said: str, tmp_path: Path, capsys: Any
):
    file = written(tmp_path / "tokens.yaml", text)
    loaded = load(str(file))
    assert any(said in line for line in loaded.lines), loaded.lines
    assert not loaded.settings.tokens
    assert "secret" not in str(loaded.lines)


def test_a_start_with_a_bad_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles_app.py").write_text(
        "from fairlead.jobs import Jobs\njobs = Jobs('sqlite:///a.db')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tokens.yaml").write_text("tokens: []\n")
    serve = ["jobs", "serve", "--app", "roles_app:jobs", "--http", "127.0.0.1:0", "--tokens"]
    for file in ("tokens.yaml", "nowhere.yaml"):
        assert main([*serve, file]) == 2
        assert file in capsys.readouterr().err
    assert main([*serve, "tokens.yaml", "--token", "t"]) == 2
    assert "either --token or --tokens" in capsys.readouterr().err
    assert not (tmp_path / "a.db").exists()


def test_a_token_that_is_taken_out_of_the_file_counts_no_more(tmp_path: Path):
    async def test() -> None:
        first = load(str(written(tmp_path / "tokens.yaml", FILE)))
        jobs = small(f"sqlite:///{tmp_path}/jobs.db")
        async with JobServer(jobs, http="127.0.0.1:0", tokens=first.settings.given) as server:
            assert server.http is not None
            url = server.http.url

            async def status(token: str) -> int:
                headers = [("authorization", f"Bearer {token}")]
                head, _ = await fetch(url, "GET", "/v1/runs", headers)
                return head.status

            assert [await status(f"{role.name}-secret") for role in KNOWN] == [200, 200, 200]
            left = FILE.replace("  - {name: a, role: viewer, sha256: VIEWER}\n", "")
            server.follow(load(str(written(tmp_path / "tokens.yaml", left))))
            assert [await status(f"{role.name}-secret") for role in KNOWN] == [401, 200, 200]
            assert "without a token" not in server.describe()

    go(test())
