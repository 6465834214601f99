"""The command line itself: laziness, version, help, mistakes, and what happens without the extra."""

import subprocess
import sys

import pytest

import fairlead
from fairlead.cli import main


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["fairlead", "fairlead.cli", "fairlead.observe"])
def test_importing_loads_nothing_heavy(module):
    heavy = {"rich", "typer", "click", "prometheus_client"}
    done = python(f"import sys, {module}; print(sorted({heavy!r} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_help_needs_no_rich():
    done = python(
        "import sys; from fairlead.cli import main; main(['--help']); assert 'rich' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"fairlead {fairlead.__version__}\n", "")


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_help_names_the_commands(args, capsys):
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert "demo" in out
    assert not err


def test_a_command_explains_itself(capsys):
    assert main(["demo", "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("--seconds", "--json", "--seed"):
        assert option in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nope"], "nope"),
        (["--nope"], "--nope"),
        (["demo", "--nope"], "--nope"),
        (["demo", "extra"], "extra"),
        (["demo", "--seconds"], "--seconds"),
        (["demo", "--seconds", "soon"], "--seconds"),
        (["demo", "--seconds", "0"], "--seconds"),
        (["demo", "--seconds", "-1"], "--seconds"),
        (["demo", "--seconds", "nan"], "--seconds"),
        (["demo", "--seconds", "inf"], "--seconds"),
        (["demo", "--seconds", "1e9"], "--seconds"),
        (["demo", "--seed", "x"], "--seed"),
        (["demo", "--seed", "-1"], "--seed"),
    ],
)
def test_a_mistake_is_told_in_one_line(args, says, capsys):
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert err.startswith("fairlead: ")
    assert says in err
    assert "fairlead --help" in err


@pytest.mark.parametrize("missing", ["rich", "typer"])
def test_without_the_extra_one_sentence_says_how_to_get_it(missing):
    done = python(
        f"import sys; sys.modules[{missing!r}] = None; from fairlead.cli import main; sys.exit(main(['demo']))"
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"fairlead: the commands need {missing}; install them with: pip install 'fairlead[cli]'\n"
    )


def test_a_closed_pipe_gives_no_traceback():
    command = f"{sys.executable} -c 'import sys; from fairlead.cli import main; sys.exit(main())' --help | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
