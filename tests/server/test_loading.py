"""`fairlead.yaml`: what may stand there, what is wrong with it by line and column, and its secrets."""

from hashlib import sha256
from pathlib import Path

import pytest

from fairlead.documents.loading import EMPTY
from fairlead.documents.reading import tree_of_yaml
from fairlead.server.loading import MOST_PROBLEMS, load, load_content, load_mapping
from fairlead.server.masking import MARK, NOT_SHOWN, Masks
from fairlead.server.running import check

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
        "fairlead.yaml:3:17 server.tokens[0].sha256: may not be the hash of a blank text",
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
    for text in (b"server:\n", b"{}"):
        loaded = load_content(text, "f")
        assert not loaded.problems
        assert loaded.settings.server.listen == "127.0.0.1:8080"
        assert loaded.demo.traffic is False


@pytest.mark.parametrize("text", [b"", b"# server: {}\n", b"---\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_no_configuration(tmp_path: Path, text: bytes):
    path = tmp_path / "fairlead.yaml"
    path.write_bytes(text)
    assert load(str(path)).lines == (f"{path}: {EMPTY}",)
    assert check(str(path)) == 2
    (tmp_path / "inner.yaml").write_bytes(text)
    for door in ("gateway", "flows"):
        path.write_text(f"{door}: {{file: inner.yaml}}\n")
        (line,) = load(str(path)).lines
        assert line == f"{path}:1:{len(door) + 4} {door}.file: {tmp_path}/inner.yaml: {EMPTY}"


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
    assert len(set(MARK.findall(hidden))) == 7
    # A block may not stand wherever a word may, so it comes back as a word.
    assert masks.restore(hidden) == (SECRETS.replace("|\n    hunter5", '"hunter5\\n"'), [])
    assert (
        load_content(masks.restore(hidden)[0].encode(), "f").problems
        == load_content(SECRETS.encode(), "f").problems
    )


def test_a_secret_of_many_lines_comes_back_as_one_word():
    masks = Masks()
    for text in (
        "jobs:\n  token: |\n    hunter2\n\n# x\n  app: a\n",
        "jobs:\n  token: |\n    hunter2\t \n   \n  app: a\n",
        "jobs:\n  token: hunter2\n    ter2, ter2\n  app: a\n",
        'jobs:\n  token: "hunter2\\ud800\n    ter2"\n  app: a\n',
    ):
        hidden = masks.hide(text)
        assert "ter2" not in hidden
        restored, problems = masks.restore(hidden)
        before, after = (tree_of_yaml(one.encode())[0] for one in (text, restored))
        assert not problems
        assert before is not None
        assert after is not None
        assert before.plain() == after.plain()


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


def test_only_so_many_wrong_marks_are_told():
    """Each costs a look at the whole text."""
    _, problems = Masks().restore("# masked-0123456789abcdef\n" * 1000)
    assert len(problems) == MOST_PROBLEMS


@pytest.mark.parametrize(
    "text",
    [
        "server: [\n  token: hunter2\n  'sha256' : hunter2 # x\nurl: redis://a:hunter2@b\n",
        "flows:\n  token: >-\n    hunter2\n  bad: [\n",
        'flows: {x: "a#b", token: hunter2}\n  bad: [\n',
        "a: 1\n---\nflows: {token: hunter2}\n",
        "flows: {token: hunter2, token: hunter2}\n",
        "flows: {token: !hunter2 x}\n",
        "flows: {? [a] : b, token: hunter2}\n",
        '- "\\UFFFFFFFF"\n- hunter2\n',
    ],
)
def test_what_cannot_be_read_is_not_shown(text: str):
    hidden = Masks().hide(text)
    assert "hunter2" not in hidden
    assert load_content(hidden.encode(), "f").problems  # nor can it be written by mistake


def test_what_nobody_should_trust_is_read_within_the_reader_s_limits():
    """Each of these took ruamel seconds, or was more than it can read."""
    for text in ("[" * 4000, "token: !" + "a" * 20_000 + " x", '- "\\UFFFFFFFF"'):
        assert Masks().hide(text) == NOT_SHOWN
        _, problems = Masks().restore(text + " # masked-0123456789abcdef")
        assert problems == tree_of_yaml(f"{text} # masked-0123456789abcdef".encode())[1]


def test_a_mark_in_another_place_than_its_own_is_refused():
    """Else a sentence about that place, or the next look at the text, would tell the secret."""
    masks = Masks()
    (mark,) = MARK.findall(masks.hide("jobs: {token: hunter2}"))
    for text in (
        f"server: {{listen: {mark}}}",
        f"server: {{{mark}: 1}}",
        f"jobs: {{token: {mark}}}\nserver: {{listen: {mark}}}",
        f"jobs: {{token: {{a: {mark}}}}}",
        f"jobs: {{token: [{mark}]}}",
        f"jobs: {{webhook: {mark}}}",
        f"jobs: {{token: 'x{mark}'}}",
        f"gateway: {{admin: {{token: {mark}}}}}",
        f"# {mark}",
        f"# token: {mark}",
    ):
        restored, problems = masks.restore(text)
        assert problems, text
        assert "of another place" in problems[0].message
    for text in (f"jobs: {{token: '{mark}'}}", f"jobs:\n  http: null\n  token: {mark}\n"):
        restored, problems = masks.restore(text)
        assert not problems
        assert restored == text.replace(f"'{mark}'", mark).replace(mark, "hunter2")


@pytest.mark.parametrize(
    "text",
    [
        "jobs: {database: postgresql://me:hun@ter2@db/app}",
        "jobs: {database: 'postgresql://db/app?user=me&password=hunter2&x=1'}",
        "jobs: {database: 'postgresql://db/app?passw%6Frd=hunter2'}",
        "jobs: {database: 'postgresql://u:a\"hunter2@db/app'}",
        "jobs: {database: 'postgresql://u:hunter2/x@db/app'}",
        "jobs: {webhook: https://hooks/hunter2}",
        "server: {otel: {endpoint: 'http://h/v1?api_key=hunter2'}}",
        '{"flows": {"redis": "redis://:hunter2@db:6379","name":"x@y"}}',
        r'{"jobs": {"database": "postgresql:\/\/u:hunter2@h\/db"}}',
        r'jobs: {database: "postgresql:\x2f/u:hunter2@h/db"}',
        "jobs: {app: &a hunter2} # x\nflows: {token: *a}",
        "x: &a {y: &b hunter2}\njobs: {token: *a}",
        "server: {listen: &k token}\nflows: {*k : hunter2}",
        "flows: {TOKEN: hunter2}",
        "flows: {token: {a: [hunter2]}}",
        "flows:\n  # token: hunter2\n  http: null # 'password' = hunter2\n",
        "# redis://a:hunter2@b\n",
        "flows: {name: 'a #b', token: hunter2} # c",
    ],
)
def test_a_secret_is_hidden_wherever_it_stands(text: str):
    masks = Masks()
    hidden = masks.hide(text)
    assert "ter2" not in hidden
    assert masks.restore(hidden) == (text, [])
    assert masks.hide(text) == hidden


SPOKEN = [
    "jobs: {database: 'sqlite:///x', webhook: hunter2}",
    "jobs: {database: 'sqlite:///x', retention: {secret: hunter2}}",
    "jobs: {database: 'sqlite:///x', tenants: [hunter2]}",
    "jobs: {database: 'sqlite:///x', tenants: {a: [hunter2]}}",
    "jobs: {database: 'sqlite:///x', tenants: {a: {weight: {secret: hunter2}}}}",
    "jobs: {database: 'sqlite:///x', tenants: {a: {max_running: [hunter2]}}}",
]


@pytest.mark.parametrize("text", SPOKEN)
def test_no_sentence_about_jobs_tells_what_may_be_a_secret(text: str):
    (line,) = load_content(text.encode(), "f").lines
    assert "hunter2" not in line


def test_a_stand_in_is_as_good_or_bad_as_its_secret():
    """What is told of a text with stand-ins is what would be told of the text itself."""
    texts = [
        f"server: {{tokens: [{{name: a, sha256: {HASH}}}, {{name: b, sha256: {HASH}}}]}}",
        "server: {tokens: [{name: a, sha256: abc}]}",
        "server: {listen: 0.0.0.0:80, tokens: []}",
        "jobs: {http: 0.0.0.0:1, token: null, database: x}",
        "jobs: {token: 12, database: x}",
        "jobs: {token: '', database: x}",
        "jobs: {webhook: https://a/b, database: x}",
        "gateway: {upstreams: [{url: 'http://127.0.0.1:9/?token=a', capacity: 300}]}",
        "flows: {redis: 'redis://:pw@h/0'}",
        "flows: {redis: 'valkeys://:pw@h/0'}",
        *SPOKEN,
    ]
    for text in texts:
        plain = load_content(text.encode(), "f")
        covered = load_content(text.encode(), "f", cover=Masks().cover)
        assert covered.lines == plain.lines or not covered.lines, text
