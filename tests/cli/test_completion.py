"""Completion as bash, zsh and fish ask for it, by the protocol of each; in the shell itself where there is one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CODE = "import sys; from fairlead.cli import main; sys.exit(main())"
COMMANDS = {"serve", "simulate", "streams"}  # those that begin with s


def asked(instruction: str, **more: str) -> str:
    """Run the command as a shell that completes does."""
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"_FAIRLEAD_COMPLETE": instruction, "PYTHONUTF8": "1"} | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def bash(line: str) -> dict[str, str]:
    words = line.split(" ")
    said = asked("complete_bash", COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))
    return dict.fromkeys(said.split(), "")


def zsh(line: str) -> dict[str, str]:
    said = asked("complete_zsh", _TYPER_COMPLETE_ARGS=line)
    if said.strip() == "_files":
        return {}
    start, end = "_arguments '*: :((", "))'"
    assert said.startswith(start)
    assert said.rstrip().endswith(end)
    pairs = said.strip().removeprefix(start).removesuffix(end).splitlines()
    return {name: about for name, _, about in (one.strip('"').partition('":"') for one in pairs)}


def fish(line: str) -> dict[str, str]:
    said = asked("complete_fish", _TYPER_COMPLETE_ARGS=line, _TYPER_COMPLETE_FISH_ACTION="get-args")
    return {name: about for name, _, about in (one.partition("\t") for one in said.splitlines())}


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
each_shell = pytest.mark.parametrize("shell", SHELLS)


@each_shell
def test_commands_are_completed(shell):
    assert set(SHELLS[shell]("fairlead s")) == COMMANDS
    every = set(SHELLS[shell]("fairlead "))
    assert every > COMMANDS | {"demo", "worker", "gateway", "flows", "jobs", "top", "tune"}


@each_shell
def test_commands_of_a_door_and_options_are_completed(shell):
    complete = SHELLS[shell]
    assert set(complete("fairlead flows c")) == {"check"}
    assert set(complete("fairlead simulate --se")) == {"--seed", "--seeds"}
    assert set(complete("fairlead top --t")) == {"--token"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_shells_that_show_help_beside_a_command_have_it(shell):
    found = SHELLS[shell]("fairlead s")
    assert found["serve"].startswith("Run all doors in one process")
    assert all(found.values())


@pytest.mark.parametrize(
    ("shell", "parts"),
    [
        ("bash", ("complete -o default -F _fairlead_completion fairlead", "complete_bash")),
        ("zsh", ("#compdef fairlead", "compdef _fairlead_completion fairlead", "complete_zsh")),
        ("fish", ("complete --command fairlead", "complete_fish", "get-args", "is-args")),
    ],
)
def test_the_script_of_each_shell_asks_as_that_shell_does(shell, parts):
    script = asked(f"source_{shell}")
    for part in parts:
        assert part in script


# With the script read, ask the shell itself what may follow; `fairlead` is this Python.
INSIDE = {
    "bash": """
COMP_WORDS=(fairlead s)
COMP_CWORD=1
_fairlead_completion fairlead
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "fish": "complete --do-complete 'fairlead s' | string split -f1 \\t\n",
    # zsh completes only where somebody types: what can be run without is what the script evaluates.
    "zsh": """
_arguments() { print -l -- "$@" | grep -o '"[a-z]*":' | tr -d '":' }
words=(fairlead s)
CURRENT=2
_fairlead_completion
""",
}


@each_shell
def test_the_shell_itself_completes(shell, tmp_path: Path):
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    command = tmp_path / "fairlead"
    command.write_text(f"#!{sys.executable}\n{CODE}\n")
    command.chmod(0o755)
    script = asked(f"source_{shell}")
    if shell == "zsh":
        script = f"compdef() {{ }}\n{script}"
    done = subprocess.run(
        [found, "-c", script + INSIDE[shell]],
        # A home of its own: what somebody has set up for his shell is not meant.
        env=os.environ
        | {"HOME": str(tmp_path), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(done.stdout.split()) == COMMANDS, done.stderr
