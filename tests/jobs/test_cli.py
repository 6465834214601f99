"""`fairlead jobs`: what each command prints and exits with, and that no mistake is answered with a traceback."""

import json
import os
import pty
import signal
import subprocess
import sys
import uuid

import pytest

from fairlead.cli import main
from fairlead.errors import StoreUnavailable
from fairlead.jobs import Jobs
from fairlead.jobs.records import NewJob, NewRun
from fairlead.jobs.stores.sqlite import SqliteStore
from fairlead.jobs.stores.sqlite_file import prepare
from tests.jobs.operations_rig import go

APP = """\
import asyncio
from fairlead.jobs import Jobs

class Mine:
    def plan(self, jobs, slots, active_dags, recently_activated_dags=frozenset()):
        return jobs


jobs = Jobs(
    "sqlite:///shop.db",
    executors={"default": 2, "ocr": 1, "gpu": "worker"},
    planners={"mine": Mine},
    **SETTINGS,
)


@jobs.task
async def double(number):
    return 2 * number


@jobs.task(executor="ocr")
async def read(doc):
    raise ValueError("\\x1b[31mno\\u202e paper")


@jobs.task(executor="gpu")
async def train(): ...

"""
SETTINGS = 'SETTINGS = dict(lease="2s", sweep="200ms", poll="100ms")\n'
DAG = """\
name: pair
soft_sla: 15m
jobs:
  - {name: first, task: double, args: [1]}
  - {name: second, task: double, args: [{$result: first}]}
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """An app in the current directory, under a name that no other test has loaded."""
    name = f"shop_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(SETTINGS + APP)
    (tmp_path / "dag.yaml").write_text(DAG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("FAIRLEAD_APP", raising=False)
    monkeypatch.delenv("FAIRLEAD_DB", raising=False)
    prepare(tmp_path / "shop.db")
    yield f"{name}:jobs"
    sys.modules.pop(name, None)


@pytest.fixture
def run(app, capsys):
    """Run a command on the app."""

    def command(*args, where=("--app", app)):
        code = main(["jobs", *args, *where])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return command


def serve(app: str, *runs: str) -> None:
    """Serve until these runs have ended."""
    found: Jobs = sys.modules[app.split(":")[0]].jobs

    async def work():
        async with found:
            for one in runs:
                await found.wait(one)

    go(work())


class TestRuns:
    def test_submit_prints_the_id_and_nothing_else(self, run):
        assert run("submit", "dag.yaml") == (0, "1\n", "")
        code, out, _ = run("submit", "dag.yaml", "--json")
        assert (code, json.loads(out)) == (0, {"id": "2", "new": True})

    def test_a_run_comes_to_its_end_and_is_shown(self, run, app):
        run("submit", "dag.yaml")
        serve(app, "1")
        code, out, _ = run("show", "1", "--json")
        shown = json.loads(out)
        assert (code, shown["id"], shown["state"]) == (0, "1", "completed")
        assert [(job["id"], job["name"], job["state"], job["result"]) for job in shown["jobs"]] == [
            ("1.0", "first", "completed", 2),
            ("1.1", "second", "completed", 4),
        ]
        assert {job["priority"] for job in shown["jobs"]} == {499}
        code, out, _ = run("show", "1")
        assert "run 1 pair: completed, 2 of 2 jobs ended" in out
        assert "1.1  second" in out

    def test_runs_are_listed(self, run, app):
        assert run("list") == (0, "no runs\n", "")
        assert run("list", "--json") == (0, "[]\n", "")
        for _ in range(3):
            run("submit", "dag.yaml")
        run("cancel", "2")
        _, out, _ = run("list", "--limit", "2", "--json")
        assert [(one["id"], one["name"], one["state"]) for one in json.loads(out)] == [
            ("3", "pair", "created"),
            ("2", "pair", "cancelled"),
        ]
        _, out, _ = run("list", "--state", "cancelled", where=("--db", "sqlite:///shop.db"))
        assert out.splitlines()[0].split()[:3] == ["RUN", "NAME", "STATE"]
        assert [line.split()[0] for line in out.splitlines()[1:]] == ["2"]

    def test_a_key_that_was_used_is_said(self, run, tmp_path):
        (tmp_path / "dag.yaml").write_text(DAG + "key: one\n")
        run("submit", "dag.yaml")
        code, out, err = run("submit", "dag.yaml")
        assert (code, out) == (0, "1\n")
        assert "submitted before" in err

    def test_waiting_tells_of_progress_and_how_it_ended(self, run, app):
        run("submit", "dag.yaml")
        serve(app, "1")
        code, out, err = run("show", "1", "--watch", "--json")
        assert (code, json.loads(out)["state"]) == (0, "completed")
        assert err == "fairlead: run 1 is completed, 2 of 2 jobs ended\n"
        code, out, err = run("submit", "dag.yaml", "--wait", "--timeout", "50ms")
        assert code == 1
        assert "run 2 has not ended within 50ms" in err
        run("cancel", "2")
        assert run("show", "2", "--watch")[0] == 1

    @pytest.mark.parametrize("lost", ["run", "wait_for_news"])
    def test_waiting_goes_on_while_the_database_is_away(self, run, monkeypatch, lost):
        """What was submitted is stored; of the end of an outage nobody need be told."""
        run("submit", "dag.yaml")
        real, look = getattr(SqliteStore, lost), SqliteStore.run
        looks, failures = 0, 2

        async def count(self, dag):
            nonlocal looks
            found = await look(self, dag)
            looks += 1
            if not failures:
                await self.cancel(dag)
            return found

        async def away(self, *args):
            nonlocal failures
            if looks and failures:
                failures -= 1
                raise StoreUnavailable("the database is away")
            return await (count if lost == "run" else real)(self, *args)

        monkeypatch.setattr(SqliteStore, "run", count)
        monkeypatch.setattr(SqliteStore, lost, away)
        code, _, err = run("show", "1", "--watch")
        assert (code, failures) == (1, 0)
        assert "fairlead: the database is away; waiting for it\n" in err
        assert err.endswith("fairlead: run 1 is cancelled, 2 of 2 jobs ended\n")

    def test_the_timeout_counts_while_the_database_is_away(self, run, monkeypatch):
        run("submit", "dag.yaml")

        async def away(*_):
            raise StoreUnavailable("the database is away")

        monkeypatch.setattr(SqliteStore, "wait_for_news", away)
        code, _, err = run("show", "1", "--watch", "--timeout", "50ms")
        assert code == 1
        assert "run 1 has not ended within 50ms" in err

    def test_from_standard_input(self, run, monkeypatch):
        read, write = os.pipe()
        os.write(write, DAG.encode())
        os.close(write)
        with os.fdopen(read) as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert run("submit", "-") == (0, "1\n", "")

    def test_start_at_delays_and_explain_says_so(self, run):
        run("submit", "dag.yaml", "--start-at", "2h")
        _, out, _ = run("explain", "1.0")
        assert "was asked to start at" in out
        assert run("submit", "dag.yaml", "--start-at", "soon")[0] == 2

    def test_runs_are_changed(self, run):
        run("submit", "dag.yaml")
        assert run("pause", "1") == (0, "run 1 is paused\n", "")
        assert "is paused" in run("explain", "1.0")[1]
        assert run("resume", "1") == (0, "run 1 goes on\n", "")
        code, out, _ = run("cancel", "1", "--json")
        assert (code, json.loads(out)["state"]) == (0, "cancelled")
        assert run("cancel", "1") == (1, "", "fairlead: run 1 has ended already (cancelled)\n")
        assert run("retry", "1") == (0, "run 1 is tried again\n", "")

    def test_an_sla_is_changed(self, run):
        run("submit", "dag.yaml")
        _, out, _ = run("sla", "1", "--soft", "2020-01-01T00:00:00Z", "--json")
        assert {job["priority"] for job in json.loads(out)["jobs"]} == {999}
        _, out, _ = run("sla", "1", "--soft", "none", "--hard", "1h", "--json")
        assert json.loads(out)["soft_sla"] is None
        assert run("sla", "1", "--soft", "5m", "--job", "1.1")[0] == 0
        for wrong in (["--soft", "5"], ["--soft", "-5m"], [], ["--soft", "2h", "--hard", "1h"]):
            code, _, err = run("sla", "1", *wrong)
            assert (code, len(err.splitlines())) == (2, 1), wrong


class TestSettings:
    def test_planners(self, run, app):
        module = app.split(":")[0]
        _, out, _ = run("planner", "show")
        assert "GlobalPriorityExecutionPlanner" in out
        _, out, _ = run("planner", "set", "HRRNExecutionPlanner", "--json")
        assert json.loads(out) == {"planner": "HRRNExecutionPlanner", "executors": {}}
        where = ("--db", "sqlite:///shop.db")
        assert run("planner", "set", "mine", "--executor", "ocr")[0] == 0
        _, out, _ = run("planner", "show", "--json", where=where)
        assert json.loads(out)["executors"] == {"ocr": "mine"}
        code, _, err = run("planner", "set", "mine", where=where)
        assert (code, "planner 'mine' is not known here" in err) == (2, True)
        assert run("planner", "reset", "--executor", "ocr")[0] == 0
        for wrong in ("Nonsense", "no.such:Planner", "os:system", f"{module}:Mine"):
            code, _, err = run("planner", "set", wrong)
            assert (code, len(err.splitlines())) == (2, 1), wrong
        assert run("planner", "set", "HRRNExecutionPlanner", "--executor", "nowhere")[0] == 2

    def test_a_schedule_shows_its_next_five_ticks(self, run):
        weekly = ("--cron", "0 9 * * 1", "--timezone", "Europe/Berlin", "--task", "double")
        code, out, err = run("schedule", "add", "weekly", *weekly, "--args", "[21]")
        assert (code, err, len(out.splitlines())) == (0, "", 6)
        assert out.startswith("schedule weekly added")
        _, out, _ = run("schedule", "list", "--json")
        (one,) = json.loads(out)
        assert (one["cron"], one["timezone"], len(one["next"])) == (
            "0 9 * * 1",
            "Europe/Berlin",
            5,
        )
        assert "weekly" in run("schedule", "list")[1]
        assert run("schedule", "pause", "weekly")[0] == 0
        assert "paused" in run("schedule", "list")[1]
        changed = run("schedule", "add", "weekly", *weekly, "--args", "[22]")[1]
        assert changed == "schedule weekly changed; it is paused\n"
        assert run("schedule", "resume", "weekly")[0] == 0
        assert run("schedule", "remove", "weekly")[0] == 0
        assert run("schedule", "remove", "weekly")[0] == 1
        assert run("schedule", "list")[1] == "no schedules\n"

    def test_a_whole_dag_is_scheduled_also_without_its_tasks(self, run):
        assert run("schedule", "add", "one", "--cron", "* * * * *", "--file", "dag.yaml")[0] == 0
        where = ("--db", "sqlite:///shop.db")
        task = ("--cron", "* * * * *", "--task", "double")
        code, _, err = run("schedule", "add", "two", *task, where=where)
        assert code == 0
        assert "not checked" in err

    @pytest.mark.parametrize(
        "wrong",
        [
            ("--cron", "0 0 31 2 *"),
            ("--cron", "60 * * * *"),
            ("--cron", "*/0 * * * *"),
            ("--cron", "@reboot"),
            ("--cron", "* * * * * *"),
            ("--cron", "L#W * * * *"),
            ("--cron", "*" * 10_000),
            ("--timezone", "Mars/Olympus"),
            ("--timezone", "../etc/passwd"),
            ("--misfire", "perhaps"),
            ("--task", "nonsense"),
            ("--args", "{}"),
            ("--args", "["),
            ("--args", "[NaN]"),
            ("--kwargs", "[]"),
            ("--file", "none.yaml"),
        ],
    )
    def test_a_schedule_that_cannot_be_is_refused(self, run, wrong):
        given = {"--cron": "* * * * *", "--task": "double", **dict([wrong])}
        code, out, err = run(
            "schedule", "add", "x", *(word for pair in given.items() for word in pair)
        )
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert len(err) < 500
        assert run("schedule", "list")[1] == "no schedules\n"


class TestMistakes:
    @pytest.mark.parametrize("verb", ["show", "cancel", "pause", "resume", "retry"])
    @pytest.mark.parametrize("one", ["17", "x", "1.0", "", "9" * 30, "\x1b[31m"])
    def test_a_run_that_is_not_there(self, run, verb, one):
        code, out, err = run(verb, one)
        assert (code, out) == (1, "")
        assert len(err.splitlines()) == 1
        assert "\x1b" not in err

    @pytest.mark.parametrize("one", ["17.3", "17", "x", "1..2"])
    def test_a_job_that_is_not_there(self, run, one):
        assert run("explain", one)[0] == 1
        run("submit", "dag.yaml")
        assert "it has 1.0 to 1.1" in run("explain", "1.7")[2]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "name: x",
            "\t",
            "{",
            DAG + "nonsense: 1",
            DAG.replace("double", "duoble", 1),
            "\x00",
        ],
    )
    def test_a_file_that_is_no_dag_exits_2_and_says_where(self, run, tmp_path, text):
        (tmp_path / "bad.yaml").write_text(text)
        code, out, err = run("submit", "bad.yaml")
        assert (code, out) == (2, "")
        assert err.startswith("bad.yaml")
        assert run("list")[1] == "no runs\n"

    def test_a_file_that_is_not_there(self, run):
        code, _, err = run("submit", "none.yaml")
        assert (code, len(err.splitlines())) == (2, 1)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("nonsense", "module:name"),
            ("", "module:name"),
            ("no_such_module:jobs", "there is no module 'no_such_module'"),
            ("no.such:jobs", "there is no module 'no'"),
            ("json:jobs", "has no 'jobs'"),
            ("json:dumps", "is no Jobs"),
            ("../x:jobs", "module:name"),
            ("raising:jobs", "cannot be imported: ValueError: at once (raising.py:2)"),
            ("leaving:jobs", "cannot be imported: SystemExit: 3"),
            ("wrong:jobs", "cannot be imported: SyntaxError"),
            ("needing:jobs", "needs 'no_such_module'"),
        ],
    )
    def test_an_app_that_cannot_be_used(self, run, tmp_path, given, said):
        (tmp_path / "raising.py").write_text("\nraise ValueError('at once')")
        (tmp_path / "leaving.py").write_text("raise SystemExit(3)")
        (tmp_path / "wrong.py").write_text("def def")
        (tmp_path / "needing.py").write_text("import no_such_module")
        for verb in (["list"], ["submit", "dag.yaml"], ["serve"]):
            code, out, err = run(*verb, where=("--app", given))
            assert (code, out) == (2, "")
            assert said in err
            assert len(err.splitlines()) == 1

    @pytest.mark.parametrize(
        ("where", "said"),
        [
            ((), "--app module:jobs or --db URL"),
            (("--db", "nonsense"), "not the URL of a store"),
            (("--db", "mysql://x"), "not the URL of a store"),
            (("--db", "sqlite:///a.db", "--app", "a:b"), "either --app or --db"),
        ],
    )
    def test_no_jobs_or_too_many(self, run, where, said):
        code, _, err = run("list", where=where)
        assert (code, len(err.splitlines())) == (2, 1)
        assert said in err

    def test_what_needs_tasks_needs_an_app(self, run, monkeypatch):
        monkeypatch.setenv("FAIRLEAD_DB", "sqlite:///shop.db")
        code, _, err = run("submit", "dag.yaml", where=())
        assert code == 2
        assert "say where the tasks are" in err

    def test_the_environment_says_which_jobs(self, run, app, monkeypatch):
        monkeypatch.setenv("FAIRLEAD_APP", app)
        assert run("submit", "dag.yaml", where=()) == (0, "1\n", "")
        monkeypatch.delenv("FAIRLEAD_APP")
        monkeypatch.setenv("FAIRLEAD_DB", "sqlite:///shop.db")
        assert len(run("list", where=())[1].splitlines()) == 2
        code, _, err = run("list", where=("--db", "sqlite:///other.db"))
        assert (code, "there is no database other.db; did you mean shop.db?" in err) == (1, True)

    def test_a_database_that_cannot_be_opened(self, run, tmp_path):
        (tmp_path / "text.db").write_text(
            "this is no database, but a text that is long enough" * 99
        )
        code, _, err = run("list", where=("--db", "sqlite:///text.db"))
        assert (code, len(err.splitlines())) == (1, 1)
        code, _, err = run("list", where=("--db", "sqlite:////no/such/place/x.db"))
        assert code in (1, 2)
        assert len(err.splitlines()) == 1

    @pytest.mark.parametrize(
        "args",
        [
            ["list", "--limit", "0"],
            ["list", "--limit", "many"],
            ["list", "--state", "nonsense"],
            ["list", "--nonsense"],
            ["nonsense"],
            ["show"],
            ["serve", "--grace", "soon"],
            ["serve", "--http", "nowhere"],
            ["serve", "--http", "0.0.0.0:0"],
            ["serve", "--http", "192.0.2.1:0", "--token", "t"],
        ],
    )
    def test_a_command_line_that_cannot_be_read(self, run, args, monkeypatch):
        monkeypatch.delenv("FAIRLEAD_JOBS_TOKEN", raising=False)
        code, out, err = run(*args)
        assert (code, out, len(err.splitlines())) == (2, "", 1)


class TestNames:
    """What names may hold that a terminal would obey."""

    def test_nothing_in_a_name_reaches_the_terminal_as_more_than_text(self, run, app):
        found: Jobs = _loaded(run, app)
        evil = "\x1b[31mred\x1b]0;title\x07 \u202eback\u200b [bold]x[/bold]"

        async def submit():  # past the door, which would refuse most of it
            store = await found.store()
            payload = '{"args": [1], "kwargs": {}}'
            first = NewJob(evil, "double", "default", payload)
            second = NewJob("second", "double", "default", payload, needs=(0,), level=1)
            await store.submit([NewRun(evil, (first, second), tenant=evil, key=evil)])
            await found.close()

        go(submit())
        for args in (["list"], ["show", "1"], ["explain", "1.1"], ["list", "--json"]):
            code, out, _ = run(*args)
            assert code == 0
            for one in "\x1b\x07\u202e\u200b":
                assert one not in out
            assert "[bold]x[/bold]" in out or args[0] == "explain"  # which cuts names
        assert "\\x1b[31mred" in run("show", "1")[1]

    def test_nor_in_an_error(self, run, app, tmp_path):
        (tmp_path / "bad.json").write_text(
            json.dumps({"name": "x", "jobs": [{"name": "a", "task": "read", "args": [1]}]})
        )
        assert run("submit", "bad.json")[0] == 0
        serve(app, "1")
        for args in (["show", "1"], ["explain", "1.0"]):
            out = run(*args)[1]
            assert "ValueError" in out
            assert "\x1b" not in out
            assert "\u202e" not in out


def _loaded(run, app: str) -> Jobs:
    run("list")
    found: Jobs = sys.modules[app.split(":")[0]].jobs
    return found


COMMAND = [sys.executable, "-c", "import sys; from fairlead.cli import main; sys.exit(main())"]


def environment(**changed: str) -> dict[str, str]:
    silent = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
    kept = {name: value for name, value in os.environ.items() if name not in silent}
    return {**kept, "TERM": "xterm-256color", "PYTHONUTF8": "1", **changed}


class TestTerminals:
    @pytest.mark.parametrize("width", ["20", "80", "300"])
    def test_any_width_shows_every_id(self, run, monkeypatch, width):
        monkeypatch.setenv("COLUMNS", width)
        for _ in range(3):
            run("submit", "dag.yaml")
        _, out, _ = run("list")
        for one in "123":
            assert any(line.split()[:2] == [one, "pair"] for line in out.splitlines())
        assert "second" in run("show", "1")[1]

    @pytest.mark.parametrize("plain", [False, True])
    def test_colors_only_where_they_are_wanted(self, run, app, plain):
        run("submit", "dag.yaml")
        run("cancel", "1")
        master, slave = pty.openpty()
        changed = {"NO_COLOR": "1"} if plain else {}
        done = subprocess.run(
            [*COMMAND, "jobs", "list", "--db", "sqlite:///shop.db"],
            stdout=slave,
            env=environment(COLUMNS="100", **changed),
            check=False,
            timeout=60,
        )
        os.close(slave)
        out = os.read(master, 10_000).decode()
        os.close(master)
        assert done.returncode == 0
        assert "cancelled" in out
        assert ("\x1b[33m" in out) is not plain

    def test_a_reader_that_has_gone(self, run):
        run("submit", "dag.yaml")
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [*COMMAND, "jobs", "list", "--db", "sqlite:///shop.db"],
            stdout=write,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
            timeout=60,
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (0, b"")

    def test_ctrl_c_while_it_waits(self, app):
        started = subprocess.Popen(
            [*COMMAND, "jobs", "submit", "dag.yaml", "--app", app, "--wait"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert started.stderr is not None
        assert started.stderr.readline() == b"fairlead: run 1 is created, 0 of 2 jobs ended\n"
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
        assert (started.returncode, out, err) == (130, b"", b"")
