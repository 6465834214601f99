"""Starts the processes of a storm by forking one that has imported everything, so that a birth costs milliseconds.

    python -m tests.jobs.chaos.nursery      reads commands, one JSON line each, and answers with one line each

The children are real processes, of which nothing is shared but the code; they are killed from outside, and buried (and
their numbers given free) only when the nursery is asked to.  All of them die with the nursery, and it with its parent.
"""

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PRELOADED = ("fairlead.cli", "fairlead.jobs", "asyncpg", "sqlite3", "tests.jobs.chaos.roles")


class Child:
    """A process of the storm."""

    def __init__(self, pid: int, role: str, log: Path) -> None:
        self.pid = pid
        self.role = role
        self.log = log
        self.born = time.monotonic()


class Nursery:
    """The parent of a storm's processes, seen from the storm."""

    def __init__(
        self, folder: Path, module: str = "tests.jobs.chaos.roles", **environment: str
    ) -> None:
        self.folder = folder
        self.children: dict[int, Child] = {}
        self._births = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.chaos.nursery", module],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ask()  # it says when it has imported everything

    def start(self, role: str, settings: dict[str, Any]) -> Child:
        """Start a process of that role."""
        self._births += 1
        log = self.folder / f"{self._births:03}-{role}.log"
        child = Child(self._ask(start=role, settings=settings, log=str(log)), role, log)
        self.children[child.pid] = child
        return child

    def signal(self, child: Child, number: int) -> None:
        """Signal a process that was started here."""
        assert child.pid in self.children, f"{child.pid} is not ours"
        os.kill(child.pid, number)

    def kill(self, child: Child) -> None:
        """Kill a process, and return when it is dead."""
        self.signal(child, signal.SIGKILL)
        self.bury(child)

    def bury(self, child: Child) -> int:
        """Wait for a process's end; gives its exit code, negative for a signal."""
        code = int(self._ask(bury=child.pid))
        del self.children[child.pid]
        return code

    def gone(self, child: Child) -> int | None:
        """Tell the exit code of a process if it has ended by itself."""
        code = self._ask(look=child.pid)
        if code is not None:
            del self.children[child.pid]
        return None if code is None else int(code)

    def close(self) -> None:
        """End all."""
        for child in list(self.children.values()):
            self.signal(child, signal.SIGCONT)
            self.kill(child)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _ask(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if command:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the nursery has died")
        return json.loads(answer)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def born(role: str, settings: dict[str, Any], log: str, play: Callable[..., int]) -> None:
    """Be the child; never returns."""
    code = 70
    try:
        die_with_parent()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = play(role, settings)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(module: str) -> None:
    die_with_parent()
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # whoever needs it will say so
    play = importlib.import_module(module).play
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer: Any = None
        if "start" in command:
            answer = os.fork()
            if not answer:
                born(command["start"], command["settings"], command["log"], play)
        elif "bury" in command:
            _, status = os.waitpid(command["bury"], 0)
            answer = os.waitstatus_to_exitcode(status)
        elif "look" in command:
            pid, status = os.waitpid(command["look"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
