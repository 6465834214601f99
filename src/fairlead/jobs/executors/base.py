"""What an executor is: where calls run, how many at once, and how one is begun, stopped and ended.

A `Runner` begins calls and ends each of them once, on the loop it was started on, with an outcome: the call returned,
raised, crashed (what ran it died), was lost (with a node or a cluster), or was stopped.  Nothing a call does reaches
further than its own outcome.  What follows from an outcome is not the runner's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fairlead.config import shown, whole
from fairlead.errors import ConfigError
from fairlead.jobs.records import AlikeRuns
from fairlead.jobs.registry import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlead.jobs.context import CurrentJob
    from fairlead.jobs.records import Claimed, NewRun
    from fairlead.jobs.registry import Task
    from fairlead.jobs.stores.base import Store

KINDS = ("local", "threads", "processes", "worker", "ray")
MOST_SLOTS = 10_000
RAY_OPTIONS = frozenset(
    {"address", "max_calls", "memory", "num_cpus", "num_gpus", "resources", "runtime_env"}
)
NOTHING: Mapping[str, Any] = MappingProxyType({})


class ExecutorSpec(NamedTuple):
    """How an executor is served by this process."""

    name: str
    kind: str
    slots: int | None  # None: served elsewhere, or as many as a Ray cluster has CPUs
    options: Mapping[str, Any] = NOTHING

    @property
    def here(self) -> bool:
        """Whether this process runs its jobs."""
        return self.kind != "worker"


def spec_of(name: Any, value: Any) -> ExecutorSpec:
    """Read one value of `executors=`.

    >>> spec_of("ocr", 4)
    ExecutorSpec(name='ocr', kind='local', slots=4, options=mappingproxy({}))
    """
    name = named(name, "the name of an executor")
    where = f"executor {name!r}"
    if isinstance(value, int) and not isinstance(value, bool):
        return ExecutorSpec(name, "local", whole(value, f"slots of {where}", 1, MOST_SLOTS))
    if isinstance(value, str) and value in ("worker", "ray"):
        return ExecutorSpec(name, value, None)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f'{where} must be a number of slots, "worker", "ray", or a mapping such as '
            f'{{"kind": "processes", "slots": 4}}; got {shown(value)}'
        )
    kind = value.get("kind", "ray")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"kind of {where} must be one of {', '.join(KINDS)}; got {shown(kind)}")
    known = {"kind", "slots"} | (RAY_OPTIONS if kind == "ray" else frozenset())
    if unknown := [key for key in value if key not in known]:
        raise ConfigError(
            f"{where} of kind {kind} has no option {shown(unknown[0])}; "
            f"there are {', '.join(sorted(known))}"
        )
    slots = value.get("slots")
    if kind == "worker" and slots is not None:
        raise ConfigError(
            f"{where} is served by workers, and each says itself how many slots it has; leave slots out"
        )
    if slots is None and kind not in ("worker", "ray"):
        raise ConfigError(f'{where} of kind {kind} needs "slots": how many jobs run at once')
    if slots is not None:
        slots = whole(slots, f"slots of {where}", 1, MOST_SLOTS)
    options = {key: value[key] for key in value if key in RAY_OPTIONS}
    _check_ray(options, where)
    return ExecutorSpec(name, kind, slots, MappingProxyType(options) if options else NOTHING)


def specs_of(executors: Any) -> dict[str, ExecutorSpec]:
    """Read all of `executors=`."""
    if executors is None:
        return {}
    if not isinstance(executors, Mapping):
        raise ConfigError(
            f'executors must map names to slots, such as {{"ocr": 4, "gpu": "worker"}}; got {shown(executors)}'
        )
    return {name: spec_of(name, value) for name, value in executors.items()}


async def check_declared(store: Store, here: Iterable[str], runs: Sequence[NewRun]) -> None:
    """Refuse runs with a job for an executor that is neither declared here nor was ever served elsewhere."""
    judged = runs[:1] if isinstance(runs, AlikeRuns) else runs
    asked = {job.executor: job for run in judged for job in run.jobs}
    if missing := set(asked).difference(here):
        missing -= await store.executors()
    for executor in sorted(missing):
        raise ConfigError(
            f"task {asked[executor].task!r} runs on executor {executor!r}, which nobody has declared: name it in "
            f"Jobs(executors={{{executor!r}: …}}), or start fairlead worker --executor {executor}"
        )


def _check_ray(options: dict[str, Any], where: str) -> None:
    address = options.get("address")
    if address is not None and not (isinstance(address, str) and address.strip()):
        raise ConfigError(f'address of {where} must be text such as "auto"; got {shown(address)}')
    if "max_calls" in options:
        whole(options["max_calls"], f"max_calls of {where}", 1)
    for name in ("num_cpus", "num_gpus", "memory"):
        if name in options:
            _amount(options[name], f"{name} of {where}")
    resources = options.get("resources", NOTHING)
    if not isinstance(resources, Mapping):
        raise ConfigError(
            f'resources of {where} must map names to amounts, such as {{"tpu": 1}}; got {shown(resources)}'
        )
    for name, amount in resources.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"resources of {where} must have names; got {shown(name)}")
        _amount(amount, f"resource {shown(name)} of {where}")
    if "runtime_env" in options:
        _check_runtime_env(options["runtime_env"], where)


def _check_runtime_env(value: Any, where: str) -> None:
    """Check what can be checked without Ray, which judges the rest when the executor starts."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f'runtime_env of {where} must be a mapping such as {{"working_dir": "."}}; got {shown(value)}'
        )
    for name in value:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"runtime_env of {where} must have names; got {shown(name)}")
    env_vars = value.get("env_vars", NOTHING)
    if not isinstance(env_vars, Mapping) or not all(
        isinstance(text, str) for pair in env_vars.items() for text in pair
    ):
        raise ConfigError(
            f'env_vars in the runtime_env of {where} must map names to text, such as {{"LEVEL": "1"}}; '
            f"got {shown(env_vars)}"
        )
    try:
        json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"runtime_env of {where} must be what JSON can hold, for it is sent to another process: {error}"
        ) from error


def _amount(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise ConfigError(f"{name} must be a number of 0 or more; got {shown(value)}")


class Returned(NamedTuple):
    """The call came to its end."""

    result: str  # JSON


class Raised(NamedTuple):
    """The call failed, and says how."""

    error: str  # JSON {"type", "message", "traceback"}


class Crashed(NamedTuple):
    """What ran the call died under it."""

    reason: str


class Lost(NamedTuple):
    """The host, node or cluster that ran the call is gone, by its own account and not by the job's doing."""

    reason: str


class Stopped(NamedTuple):
    """The call ended because it was told to, or goes on where nobody can stop it."""

    abandoned: str = ""  # what still runs, if anything


Outcome = Returned | Raised | Crashed | Lost | Stopped


class Call(Protocol):
    """One claim of a job, as a runner sees it; all of it is called on the loop."""

    claimed: Claimed
    task: Task
    job: CurrentJob  # `cancelled` is set before the runner is told
    ended: bool
    seat: Any  # the runner's own: what it keeps about this call

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""

    def arm(self) -> None:
        """Start the clock of its timeout, if it has one; after `hold`, with what was left."""

    def hold(self) -> None:
        """Stop the clock of its timeout."""

    def end(self, outcome: Outcome) -> None:
        """Say how it ended; of several the first counts."""


class Runner(Protocol):
    """Runs calls; `tests/jobs/executor_contract.py` holds every kind to this."""

    slots: int

    async def start(self) -> None:
        """Get ready; may be slow.  `slots` is known afterwards."""

    def run(self, call: Call) -> None:
        """Begin a call.  There are never more than `slots`, abandoned ones aside."""

    def cancel(self, call: Call) -> None:
        """Make a call stop, and end it; does nothing to one that has ended.  May be asked again."""

    def sever(self) -> None:
        """Stop everything at once, with force where there is any; called from any thread, the loop may stand still."""

    async def close(self) -> None:
        """Let go of threads, processes and connections; calls that still run are killed or left behind."""
