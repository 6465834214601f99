"""`fairlead init` and `fairlead doctor`: before a server is started."""

import json
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.server import doctor
from fairlead.server.shipping import read
from tests.engines_postgres import new_schema, shared_url, with_schema

SMALL = """
server: {{listen: 127.0.0.1:{free}}}
jobs: {{database: "sqlite:///{folder}/jobs.db"}}
{more}
"""


@pytest.fixture
def free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRLEAD_CONFIG", raising=False)
    return tmp_path


def findings(capsys, *args):
    code = main(["doctor", "--json", *args])
    said = json.loads(capsys.readouterr().out)
    assert said["fit"] is (code == 0)
    return code, {one["what"]: one for one in said["findings"]}


def test_init_writes_what_is_shipped_and_never_over_a_file(here, capsys):
    assert main(["init"]) == 0
    path = here / "fairlead.yaml"
    assert path.read_text() == read("config")
    path.write_text("mine")
    assert main(["init"]) == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["init", "--force"]) == 0
    assert path.read_text() == read("config")
    assert main(["init", "no/such/folder/x.yaml"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_doctor_without_a_configuration_says_how_to_get_one(here, capsys):
    code, found = findings(capsys)
    assert code == 0
    assert "fairlead init" in found["configuration"]["said"]
    assert found["python"]["grade"] == "ok"


def test_doctor_finds_a_small_configuration_fit_and_changes_nothing(here, free, capsys):
    (here / "fairlead.yaml").write_text(SMALL.format(free=free, folder=here, more=""))
    code, found = findings(capsys)
    assert code == 0
    assert found["server.listen"]["grade"] == "ok"
    assert found["jobs.database"]["grade"] == "note"  # there is none yet
    assert "there is no database" in found["jobs.database"]["said"]
    assert "it is made at the start" in found["jobs.database"]["said"]
    assert [one.name for one in here.iterdir()] == ["fairlead.yaml"]


def test_doctor_names_the_line_of_a_mistake(here, capsys):
    (here / "other.yaml").write_text("server:\n  listen: 127.0.0.1:99999\n")
    code, found = findings(capsys, "--config", "other.yaml")
    assert code == 1
    assert "other.yaml:2:" in found["configuration"]["said"]
    assert "server.listen" not in found


def test_doctor_finds_what_is_taken_and_what_is_away(here, free, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        more = f"""
flows: {{http: "127.0.0.1:{taken.getsockname()[1]}", redis: "redis://127.0.0.1:{free}", control_points: {{}}}}
gateway: {{listen: "127.0.0.1:0", admin: {{listen: "127.0.0.1:0"}}, upstreams: [{{url: "http://127.0.0.1:{free}"}}]}}
"""
        (here / "fairlead.yaml").write_text(SMALL.format(free=free, folder=here, more=more))
        code, found = findings(capsys)
    assert code == 1
    assert found["flows.http"]["grade"] == "wrong"
    assert found["flows.redis"]["grade"] == "wrong"
    assert found[f"upstream http://127.0.0.1:{free}"]["grade"] == "wrong"
    assert found["server.listen"]["grade"] == "ok"


def test_doctor_finds_a_database_that_is_away(here, free, capsys):
    (here / "fairlead.yaml").write_text(
        f"server: {{listen: 127.0.0.1:{free}}}\njobs: {{database: 'postgresql://me:secret@127.0.0.1:{free}/x'}}\n"
    )
    code, found = findings(capsys)
    assert code == 1
    assert found["jobs.database"]["grade"] == "wrong"
    assert "secret" not in json.dumps(found)


@pytest.mark.parametrize(
    "section",
    [
        "jobs: {database: 'postgresql://me:secret/x@127.0.0.1/x'}",
        "flows: {redis: 'redis://:secret/x@127.0.0.1/0'}",
        "gateway: {upstreams: [{url: 'http://127.0.0.1:9', capacity: 1}], "
        "shared_capacity: {redis: 'redis://:secret#x@127.0.0.1/0'}}",
    ],
)
def test_doctor_shows_no_password_of_a_url_that_cannot_be_read(section, here, free, capsys):
    (here / "fairlead.yaml").write_text(f"server: {{listen: 127.0.0.1:{free}}}\n{section}\n")
    code, found = findings(capsys)
    assert code == 1
    assert "secret" not in json.dumps(found)


def test_doctor_finds_a_host_that_cannot_be_looked_up(here, free, capsys):
    (here / "fairlead.yaml").write_text(
        f"server: {{listen: 127.0.0.1:{free}}}\nflows: {{redis: 'redis://a..b/0'}}\n"
    )
    code, found = findings(capsys)
    assert code == 1
    assert "is no address" in found["flows.redis"]["said"]


def test_doctor_finds_a_postgres_that_a_server_would_refuse(here, free, capsys):
    url = with_schema(shared_url(), new_schema())
    (here / "fairlead.yaml").write_text(
        f"server: {{listen: 127.0.0.1:{free}}}\njobs: {{database: '{url}'}}\n"
    )
    code, found = findings(capsys)
    assert code == 1
    assert found["jobs.database"]["grade"] == "wrong"
    assert "fairlead db migrate --db 'postgresql://" in found["jobs.database"]["said"]
    assert main(["db", "migrate", "--db", url]) == 0
    capsys.readouterr()
    code, found = findings(capsys)
    assert (code, found["jobs.database"]["grade"]) == (0, "ok")


APPLICATION = """
from fairlead.streams import Consumer, StreamApp, StreamScheduler
from fairlead.testing import MemoryBroker
print("it is imported")
class Own(StreamScheduler):
    def schedule_consumption(self, jobs): pass
class Orders(Consumer):
    def consume(self, messages): pass
def app_of(**given):
    made = StreamApp(group="g", **given)
    made.topic("a", Orders)
    return made
fit = app_of(broker=MemoryBroker({"a": 2}))
own = app_of(broker=MemoryBroker({"a": 2}), scheduler=Own)
away = app_of(bootstrap_servers="127.0.0.1:FREE,PLAINTEXT://localhost:FREE")
"""
POOLED = "pools: {gpu: {slots: 2, doors: {streams/workers: 1}}}"


@pytest.mark.parametrize(
    ("said", "what", "told"),
    [
        ("streams: {app: 'nomod:app'}", "doors", "streams.app: there is no module 'nomod'"),
        ("jobs: {app: 'nomod:jobs'}", "doors", "jobs.app: there is no module 'nomod'"),
        ("streams: {app: 'theirs:own'}\n" + POOLED, "doors", "cannot be in a pool: Own"),
        ("streams: {app: 'theirs:away'}", "streams.app", "cannot be reached"),
    ],
)
def test_doctor_finds_an_application_with_which_a_server_would_not_start(
    here, free, capsys, monkeypatch, said, what, told
):
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    (here / "theirs.py").write_text(APPLICATION.replace("FREE", str(free)))
    listen = f"server: {{listen: 127.0.0.1:{free}}}\n"
    (here / "fairlead.yaml").write_text(listen + said)
    code, found = findings(capsys)
    assert (code, found[what]["grade"]) == (1, "wrong")
    assert told in found[what]["said"]
    (here / "fairlead.yaml").write_text(listen + "streams: {app: 'theirs:fit'}\n" + POOLED)
    code, found = findings(capsys)
    assert (code, found["doors"]["grade"]) == (0, "ok")


def test_doctor_reads_the_certificate(here, free, capsys):
    known = Path(__file__).parents[1] / "server" / "tls"
    for folder, code, grade in ((here, 1, "wrong"), (known, 0, "ok")):
        tls = f"{{certificate: '{folder}/certificate.pem', key: '{folder}/key.pem'}}"
        (here / "fairlead.yaml").write_text(
            f"server: {{listen: 127.0.0.1:{free}, tls: {tls}}}\n"
            "flows: {http: '127.0.0.1:0', control_points: {}}\n"
        )
        got, found = findings(capsys)
        assert (got, found["server.tls"]["grade"]) == (code, grade)


def test_doctor_looks_at_the_database_of_an_application(here, free, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    (here / "theirs.py").write_text(
        f"from fairlead.jobs import Jobs\njobs = Jobs('postgresql://me@127.0.0.1:{free}/x')\n"
    )
    (here / "fairlead.yaml").write_text(
        f"server: {{listen: 127.0.0.1:{free}}}\njobs: {{app: 'theirs:jobs'}}\n"
    )
    code, found = findings(capsys)
    assert (code, found["jobs.database"]["grade"]) == (1, "wrong")


def test_an_extra_that_a_section_needs_is_wrong_to_miss(here, free, capsys, monkeypatch):
    missing = {"opentelemetry.sdk", "grpc", "confluent_kafka"}
    monkeypatch.setattr(
        doctor, "find_spec", lambda name: None if name in missing else find_spec(name)
    )
    (here / "fairlead.yaml").write_text(
        f"server: {{listen: 127.0.0.1:{free}, otel: {{sample: 1}}}}\n"
        "flows: {http: '127.0.0.1:0', grpc: '127.0.0.1:0', control_points: {}}\n"
    )
    code, found = findings(capsys)
    assert code == 1
    for extra in ("otel", "grpc"):
        assert found[f"extra {extra}"]["grade"] == "wrong"
        assert f"pip install 'fairlead[{extra}]'" in found[f"extra {extra}"]["said"]
    assert found["extra streams"]["grade"] == "note"


def test_an_extra_that_is_missing_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    found = {one.what: one for one in doctor.machine()}
    assert found["extra streams"].grade == "note"
    assert "pip install 'fairlead[streams]'" in found["extra streams"].said


def test_doctor_is_read_by_people_too(here, capsys):
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "fit to serve"


@pytest.mark.parametrize(
    ("words", "number", "offered"),
    [("fairlead str", 1, {"streams"}), ("fairlead streams ", 2, {"run", "top", "lag"})],
)
def test_a_shell_is_told_what_may_come_next(words, number, offered):
    code = "import sys; from fairlead.cli import main; sys.exit(main())"
    env = {"COMP_WORDS": words, "COMP_CWORD": str(number), "_FAIRLEAD_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=30
    )
    assert set(done.stdout.split()) == offered
