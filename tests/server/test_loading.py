"""`fairlead.yaml`: what may stand there, what is wrong with it by line and column, and its secrets."""

from hashlib import sha256
from pathlib import Path

import pytest

from fairlead.server.loading import load, load_content, load_mapping
from fairlead.server.masking import MARK, Masks

HASH = "a" * 64
BAD = [
    ("sever: {}\n", "fairlead.yaml:1:1 sever: unknown key 'sever'; did you mean server?"),
    (
        "server:\n  listen: 8080\n",
        "fairlead.yaml:2:3 server.listen: must be text; got 8080; put it in quotes",
    ),
    (
        "server:\n  listen: 0.0.0.0:80\n",
        "fairlead.yaml:1:1 server: listen 0.0.0.0:80 can be reached",
    ),
    ("server:\n  tls:\n    key: k.pem\n", "fairlead.yaml:2:3 server.tls.certificate: is required"),
    ("server:\n  logs: xml\n", "fairlead.yaml:2:3 server.logs: must be text or json; got 'xml'"),
    (
        f"server:\n  tokens:\n    - name: a\n      role: boss\n      sha256: {HASH}\n",
        "fairlead.yaml:4:7 server.tokens[0].role: must be viewer, operator or admin",
    ),
    (
        "server:\n  tokens:\n    - {name: a, sha256: hunter2}\n",
        "fairlead.yaml:3:17 server.tokens[0].sha256: must match pattern",
    ),
    (
        f"server:\n  tokens:\n    - {{name: a, sha256: {sha256(b'').hexdigest().upper()}}}\n",
        "fairlead.yaml:3:17 server.tokens[0].sha256: may not be the hash of the empty text",
    ),
    (
        "server: {}\ngateway:\n  priority_scheduler:\n    classes:\n      bulk: {queue_sise: 3}\n",
        "fairlead.yaml:5:14 gateway.priority_scheduler.classes.bulk.queue_sise: unknown key",
    ),
    (
        "flows:\n  control_points:\n    a:\n      quota: {bucket_capacity: 1}\n",
        "fairlead.yaml:4:7 flows.control_points.a.quota.fill_amount: is required",
    ),
    ("flows:\n  http: nowhere\n", "fairlead.yaml:2:3 flows.http: must be host:port"),
    ("jobs: {}\n", "fairlead.yaml:1:1 jobs: needs a database"),
    (
        "jobs:\n  app: a:b\n  executors: {x: 1}\n",
        "fairlead.yaml:1:1 jobs: app has its own executors",
    ),
    (
        "jobs:\n  database: sqlite:///x.db\n  retention: soon\n",
        "fairlead.yaml:1:1 jobs: retention must be",
    ),
    ("jobs:\n  app: a:b\n  planner: X\n", "fairlead.yaml:1:1 jobs: app has its own planner"),
    ("streams: {}\n", "fairlead.yaml:1:1 streams.app: is required"),
    (
        "pools:\n  gpu: {slots: 0, doors: {gateway/default: 1}}\n",
        "fairlead.yaml:2:9 pools.gpu.slots: must be greater than or equal to 1",
    ),
    ("gateway: {file: 3}\n", "fairlead.yaml:1:11 gateway.file: is the path of a file"),
    ("- a\n", "fairlead.yaml:1:1: must be a mapping of sections; got a list"),
    ("a: [\n", "fairlead.yaml:2:1: cannot be read as YAML"),
    (
        "gateway: {}\n",
        "fairlead.yaml:1:1 gateway.listen: 127.0.0.1:8080 is server.listen too; give one of them another port",
    ),
]


@pytest.mark.parametrize(("text", "line"), BAD)
def test_what_is_wrong_is_told_with_its_place(text: str, line: str):
    lines = load_content(text.encode(), "fairlead.yaml").lines
    assert any(one.startswith(line) for one in lines), lines
    assert not any("hunter2" in one for one in lines)


def test_everything_is_told_at_once():
    text = "server: {logs: xml}\njobs: {}\nflows: {http: x}\nodd: 1\n"
    assert len(load_content(text.encode(), "f").problems) == 4


def test_a_document_of_a_door_may_be_a_file(tmp_path: Path):
    (tmp_path / "gateway.yaml").write_text("listen: 127.0.0.1:9000\ncapacity: 4\n")
    main = tmp_path / "fairlead.yaml"
    main.write_text("gateway: {file: gateway.yaml}\n")
    loaded = load(str(main))
    assert not loaded.problems
    assert loaded.gateway is not None
    assert loaded.gateway.settings.capacity == 4
    assert [file for file, _ in loaded.files] == [str(tmp_path / "gateway.yaml")]
    (tmp_path / "gateway.yaml").write_text("listen: 127.0.0.1:9000\ncapacty: 4\n")
    (line,) = load(str(main)).lines
    assert f"fairlead.yaml:1:11 gateway.file: {tmp_path}/gateway.yaml:2:1 capacty" in line
    main.write_text("gateway: {file: nowhere.yaml}\n")
    (line,) = load(str(main)).lines
    assert "cannot be read" in line


def test_nothing_is_a_configuration_too():
    for text in (b"", b"server:\n", b"{}"):
        loaded = load_content(text, "f")
        assert not loaded.problems
        assert loaded.settings.server.listen == "127.0.0.1:8080"
        assert loaded.demo.traffic is False


def test_flows_keep_their_listeners_beside_their_limits():
    loaded = load_mapping(
        {
            "flows": {
                "http": "127.0.0.1:1",
                "control_points": {"a": {"concurrency": {"max_concurrency": 2}}},
            }
        }
    )
    assert not loaded.problems
    assert loaded.flows_listening.http == "127.0.0.1:1"
    assert loaded.flows is not None
    assert list(loaded.flows.settings.control_points) == ["a"]


SECRETS = f"""\
server:
  tokens:
    - {{name: ann, role: admin, sha256: {HASH}}}
    - name: bob
      sha256: "{"b" * 64}"   # of bob
gateway:
  admin:
    token: hunter2
  tenants:
    api_keys: [{{sha256: {"c" * 64}, tenant: acme}}]
flows:
  redis: redis://:hunter3@db:6379/0
jobs:
  database: postgresql://me:hunter4@db/app
  token: |
    hunter5
"""


def test_secrets_are_hidden_and_come_back():
    masks = Masks()
    hidden = masks.hide(SECRETS)
    for secret in (HASH, "b" * 64, "c" * 64, *(f"hunter{number}" for number in range(2, 6))):
        assert secret not in hidden
    assert "name: ann" in hidden
    assert "# of bob" in hidden
    assert "postgresql://me:masked-" in hidden
    assert len(set(MARK.findall(hidden))) == 7
    assert masks.restore(hidden) == (SECRETS, [])
    assert (
        load_content(masks.restore(hidden)[0].encode(), "f").problems
        == load_content(SECRETS.encode(), "f").problems
    )


def test_a_moved_secret_stays_whose_it_was():
    """Without the first token, the second must not get the first one's hash."""
    masks = Masks()
    lines = masks.hide(SECRETS).splitlines(keepends=True)
    restored, problems = masks.restore("".join(lines[:2] + lines[3:]))
    assert not problems
    assert "b" * 64 in restored
    assert HASH not in restored


def test_a_mark_of_another_process_is_refused_with_its_place():
    hidden = Masks().hide(SECRETS)
    _, problems = Masks().restore(hidden)
    assert len(problems) == 7
    assert (problems[0].line, problems[0].column) == (3, 40)
    assert "write the secret itself" in problems[0].message


def test_what_cannot_be_read_is_hidden_all_the_same():
    hidden = Masks().hide(
        "server: [\n  token: hunter2\n  'sha256' : hunter2 # x\nurl: redis://a:hunter2@b\n"
    )
    assert "hunter2" not in hidden


def test_a_mark_where_no_secret_stands_is_refused():
    """Else a sentence about that place, or the next look at the text, would tell the secret."""
    masks = Masks()
    (mark,) = MARK.findall(masks.hide("jobs: {token: hunter2}"))
    for text in (
        f"server: {{listen: {mark}}}",
        f"server: {{{mark}: 1}}",
        f"jobs: {{token: {mark}}}\nserver: {{listen: {mark}}}",
        f"jobs: {{token: {{a: {mark}}}}}",
        f"# {mark}",
    ):
        _, problems = masks.restore(text)
        assert problems, text
        assert "no place for one" in problems[0].message
    assert masks.restore(f"gateway: {{admin: {{token: {mark}}}}}") == (
        "gateway: {admin: {token: hunter2}}",
        [],
    )


@pytest.mark.parametrize(
    "text",
    [
        "jobs: {database: postgresql://me:hun@ter2@db/app}",
        "jobs: {database: 'postgresql://db/app?user=me&password=hunter2&x=1'}",
        "jobs: {webhook: https://hooks/hunter2}",
        '{"flows": {"redis": "redis://:hunter2@db:6379","name":"x@y"}}',
    ],
)
def test_a_secret_in_an_address_is_hidden_whole(text: str):
    masks = Masks()
    hidden = masks.hide(text)
    assert "ter2" not in hidden
    assert masks.restore(hidden) == (text, [])
    assert masks.hide(text) == hidden
