"""A Ray cluster as its driver sees it: connected to, watched, given calls.  Ray is imported here, and nowhere else."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.jobs.executors.calls import perform
from fairlead.jobs.payload import error_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

CONNECT = 3.0  # seconds that a head may take to accept a connection
STORE_MEMORY = 100 * 1024 * 1024  # bytes: results are small, and texts

# How a call ended
RETURNED, RAISED, FAILED, CRASHED, LOST = "returned", "raised", "failed", "crashed", "lost"


class Unusable(Exception):
    """The cluster cannot be used, now or later, as it is described."""


class Cluster(Protocol):
    """A cluster, as the driver sees it."""

    def prepare(self) -> None:
        """Check what can be checked without the cluster; raises Unusable."""

    def unreachable(self) -> str | None:
        """Return why the head does not answer, or None."""

    def connect(self) -> tuple[int, str]:
        """Connect; return the number of CPUs and the address.  Raises Unusable, and other errors for an absence."""

    def gone(self) -> str | None:
        """Return why this process can never use its connection again, or None."""

    def submit(self, message: str, done: Callable[[str, str], None]) -> Any:
        """Start a call and return a reference; `done` gets how the call ended, and a text."""

    def kill(self, reference: Any) -> None:
        """Kill a call."""

    def close(self) -> None:
        """Disconnect; end a cluster that this process started."""


def call_on_ray(message: str) -> str:
    """Make a call; in a worker process of the cluster."""
    returned, text = perform(message)
    return ("+" if returned else "-") + text


class RayCluster:
    """A cluster that runs already, or (address "local") a small one of this process."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._slots: int = spec["slots"]
        self._address: str = spec["address"]
        self._options: dict[str, Any] = dict(spec["options"])
        self._runtime_env: dict[str, Any] | None = self._options.pop("runtime_env", None)
        self._head = Head.of(self._address)
        self._identity: Any = None
        self._seen = 0  # the head's connections when its identity was compared last

    def prepare(self) -> None:
        """Import Ray, and have it judge the runtime environment."""
        try:
            import ray
            from ray.runtime_env import RuntimeEnv
        except ImportError as error:
            raise Unusable(f"needs Ray: pip install 'fairlead[ray]' ({error})") from error
        self._ray: Any = ray
        env = self._runtime_env or {}
        known = getattr(RuntimeEnv, "known_fields", None)
        if known and not os.environ.get("RAY_RUNTIME_ENV_PLUGINS"):
            names = sorted(one for one in known if not one.startswith("_"))
            for name in env:
                if name not in names:
                    raise Unusable(
                        f"has a runtime_env with {name!r}, which Ray does not know; it knows {', '.join(names)}"
                    )
        try:
            RuntimeEnv(**env)
        except (TypeError, ValueError) as error:
            raise Unusable(f"has a runtime_env that Ray refuses: {error}") from error

    def unreachable(self) -> str | None:
        """Look at the head, as far as its address is known."""
        return None if self._head is None else self._head.look()

    def connect(self) -> tuple[int, str]:
        """Connect to the cluster, or start one; that takes seconds."""
        ray, local = self._ray, self._address == "local"
        quiet: dict[str, Any] = {
            "address": self._address,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "configure_logging": False,
        }
        if local:
            quiet |= {
                "include_dashboard": False,
                "num_cpus": max(self._slots, os.cpu_count() or 1),
                "object_store_memory": STORE_MEMORY,
            }
        if self._runtime_env:
            quiet["runtime_env"] = self._runtime_env
        try:
            ray.init(**quiet)
        except (OSError, TimeoutError, ray.exceptions.RaySystemError):
            raise
        except Exception as error:
            raise Unusable(str(error)) from error
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        address = self._address
        if not address.startswith("ray://"):
            address = ray.get_runtime_context().gcs_address
            self._identity = _identity(address)
            self._head = Head.of(address)
            self.unreachable()
            self._seen = 0 if self._head is None else self._head.connections
        self._function = ray.remote(max_retries=0, **self._options)(call_on_ray)
        return cpus, address

    def gone(self) -> str | None:
        """Compare the cluster with the one that was connected to; look at the node of this process."""
        if not self._ray.is_initialized():
            return "Ray has disconnected"
        if not _lives(
            getattr(
                getattr(self._ray._private.worker, "_global_node", None), "raylet_socket_name", None
            )
        ):
            return "the Ray node that this process was connected to is dead"
        head = self._head
        if head is not None and self._identity is not None and head.connections != self._seen:
            if head.connected and _identity(head.address) != self._identity:
                return "the head was started anew"
            self._seen = head.connections
        return None

    def submit(self, message: str, done: Callable[[str, str], None]) -> Any:
        """Start a Ray task."""
        reference = self._function.remote(message)
        future: Future[str] = reference.future()

        def ended(future: Future[str]) -> None:
            error = future.exception()
            if error is not None:
                done(*ending_of(error))
                return
            text = future.result()
            done(RETURNED if text[0] == "+" else RAISED, text[1:])

        future.add_done_callback(ended)
        return reference

    def kill(self, reference: Any) -> None:
        """Kill the worker process that runs a task."""
        self._ray.cancel(reference, force=True, recursive=True)

    def close(self) -> None:
        """Disconnect; a cluster of our own ends."""
        if hasattr(self, "_ray"):
            self._ray.shutdown()


# Ray's own account of what took a task with it, other than the task: by name, for versions differ in what they have.
ATTESTED = frozenset({"NodeDiedError", "LocalRayletDiedError", "OwnerDiedError"})
# The task was never begun, or could not be brought to its end: the cluster cannot import Fairlead, or some such thing.
NOT_RUN = frozenset({"RuntimeEnvSetupError", "TaskUnschedulableError"})


def ending_of(error: BaseException) -> tuple[str, str]:
    """Return how a call ended that Ray gives an error for, and the text that goes with it."""
    names = {one.__name__ for one in type(error).__mro__}
    said = f"{type(error).__name__}: {error}".partition("\n")[0]
    if names & ATTESTED or isinstance(error, ConnectionError):
        return LOST, said
    if "RayTaskError" in names or names & NOT_RUN or not names & {"RayError"}:
        return FAILED, error_of(error)
    return CRASHED, f"its Ray worker died: {said}"


def _identity(address: str) -> Any:
    """Ask the head which cluster it leads; None if it does not say."""
    try:
        from ray import _raylet

        client: Any = _raylet.GcsClient  # type: ignore[attr-defined]
        return client(address=address).cluster_id.hex()
    except Exception:
        return None


def _lives(path: str | None) -> bool:
    """Whether a process listens at a Unix socket; also where there is no path, or no word of it."""
    if not path or os.name != "posix":
        return True
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CONNECT)
        try:
            connection.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            pass
    return True


class Head:
    """The head's port.  A connection is held: however soon a head is there again, its end is noticed."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        self.connections = 0  # how many were made
        self._at = (host, port)
        self._connection: socket.socket | None = None

    @classmethod
    def of(cls, address: str) -> Head | None:
        """Return the head of a concrete address; None of "auto" and the like."""
        host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
        return cls(host.strip("[]"), int(port)) if host and port.isdigit() else None

    @property
    def connected(self) -> bool:
        """Whether the last look found the head."""
        return self._connection is not None

    def look(self) -> str | None:
        """Return why the head does not answer, or None."""
        if self._connection is not None:
            try:
                while self._connection.recv(65536):
                    pass
            except BlockingIOError:
                return None
            except OSError:
                pass
            self._connection.close()
            self._connection = None
        try:
            self._connection = socket.create_connection(self._at, CONNECT)
        except OSError as error:
            return f"its head does not answer: {error.strerror or error}"
        self._connection.setblocking(False)
        self.connections += 1
        return None
