"""A cluster for Ray's driver whose head is a port of 127.0.0.1, and whose workers are threads of the driver."""

import os
import threading
from pathlib import Path
from typing import Any

from fairlead.jobs.executors.calls import perform
from fairlead.jobs.executors.cluster import CRASHED, LOST, RETURNED, Head, Unusable
from fairlead.jobs.executors.driver import main

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tests.jobs.ray_fake import serve; serve(int(sys.argv[2]))"
)


def serve(fd: int) -> None:
    main(fd, Fake)


class Fake:
    """Connects to a head that lets it; `runtime_env` says how the cluster behaves."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.env: dict[str, str] = spec["options"].get("runtime_env", {}).get("env_vars", {})
        self.address = spec["address"]
        head = Head.of(self.address)
        assert head is not None
        self.head = head
        self.seen = 0

    def prepare(self) -> None:
        if "refuse" in self.env:
            raise Unusable(self.env["refuse"])

    def unreachable(self) -> str | None:
        return self.head.look()

    def connect(self) -> tuple[int, str]:
        with (Path(self.env["folder"]) / "drivers").open("a") as file:
            file.write(f"{os.getpid()}\n")
        self.seen = self.head.connections
        return 2, self.address

    def gone(self) -> str | None:
        """With "same" the head that comes back leads the same cluster."""
        if "same" in self.env or not self.head.connected or self.head.connections == self.seen:
            return None
        return "the head was started anew"

    def submit(self, message: str, done: Any) -> Any:
        def work() -> None:
            returned, text = perform(message)
            if "LOST" in text:
                done(LOST, "NodeDiedError: the node is dead")
            else:
                done(RETURNED if returned else CRASHED, text)

        threading.Thread(target=work, daemon=True).start()
        return done

    def kill(self, reference: Any) -> None:
        reference(CRASHED, "killed")

    def close(self) -> None:
        pass
