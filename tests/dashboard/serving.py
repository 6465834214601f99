"""A real `fairlead serve`, in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 60.0  # seconds until it must have ended


@contextmanager
def serving(place: Path, *options: str) -> Iterator[dict[str, str]]:
    """Serve from a folder, with the demonstration's upstream; tells the address of the dashboard and of each door."""
    command = [str(Path(sys.executable).with_name("fairlead")), "serve", *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    with subprocess.Popen(
        command,
        cwd=place,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**env, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stderr is not None
        said, found = [], {}
        for line in process.stderr:
            said.append(line)
            if told := re.search(r"(\w+)\s.*?(http://[^\s/,]+)", line):
                found[told[1] if told[1] != "fairlead" else "dashboard"] = told[2]
            if "upstream" in found:  # told last
                break
        assert "dashboard" in found, "".join(said)
        drained = threading.Thread(target=process.stderr.read)
        drained.start()
        try:
            yield found
            process.send_signal(signal.SIGTERM)
            process.wait(LONGEST)
        finally:
            process.kill()
            drained.join()
