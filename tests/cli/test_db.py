"""`fairlead db`: what it prints, its exit codes, and that it never shows a password."""

import json
from pathlib import Path

import pytest

from fairlead.cli import main
from tests.engines_postgres import new_schema, shared_url, with_schema


def test_sqlite_is_migrated_and_then_current(tmp_path: Path, capsys):
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert main(["db", "migrate", "--db", url]) == 0
    assert "is up to date" in capsys.readouterr().out
    assert main(["db", "status", "--db", url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["state"] == "current"
    assert told["schema"] == told["needed"] > 0


def test_postgres_is_migrated_once(capsys):
    url = with_schema(shared_url(), new_schema())
    assert main(["db", "status", "--db", url]) == 1
    assert "fairlead db migrate --db" in capsys.readouterr().out
    assert main(["db", "status", "--db", url, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "none"
    assert main(["db", "migrate", "--db", url, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["migrated"]) > 0
    assert main(["db", "migrate", "--db", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"migrated": []}
    assert main(["db", "status", "--db", url]) == 0


@pytest.mark.parametrize("command", ["migrate", "status"])
@pytest.mark.parametrize(
    ("url", "said", "code"),
    [
        ("mysql://x", "not the URL of a store", 2),
        ("postgresql://me:secret@127.0.0.1:1/x", "cannot be reached", 1),
        ("postgresql://me:secret@127.0.0.1:1/x?schema=a-b", "schema=", 2),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(
    command: str, url: str, said: str, code: int, capsys
):
    assert main(["db", command, "--db", url]) == code
    told = capsys.readouterr().err
    assert said in told
    assert "secret" not in told
    assert len(told.splitlines()) == 1


def test_the_database_may_be_named_by_the_environment(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("FAIRLEAD_DB", f"sqlite:///{tmp_path}/jobs.db")
    assert main(["db", "migrate"]) == 0
    assert main(["db"]) == 0
    assert "migrate" in capsys.readouterr().out
