"""What `StreamApp` and `app.topic` are told, read and checked once; every error names the option."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.config import seconds, shown, whole
from fairlead.core import Capacity, Policy
from fairlead.errors import ConfigError
from fairlead.streams.scheduler import StreamScheduler, lacking
from fairlead.streams.shapes import Shape, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from fairlead.streams.broker import Message

    Reader = Callable[[Any, str], Any]

MOST_MESSAGES = 1_000_000
DEFAULT_BATCH = 500
DEFAULT_GROUP = "default"
DEFAULT_FILE = "fairlead-dead-letters.jsonl"  # in the working directory
ENDS = ("file", "skip", "stop")  # of a letter that its topic does not take
# What Fairlead decides itself: another value would break its promises.
OURS = {
    "bootstrap.servers": "give bootstrap_servers",
    "enable.auto.commit": "offsets are committed when their records are done, never by themselves",
    "enable.auto.offset.store": "offsets are stored when their records are done, never by themselves",
    "enable.partition.eof": "define eofed() on the consumer",
    "group.id": "give group",
}


@dataclass(frozen=True)
class Topic:
    """One topic and how it is consumed."""

    name: str
    shape: Shape
    priority: int = 50
    weight: float = 1.0
    long_running: bool = False
    parallel_by: Callable[[Message], Hashable] | None = None
    batch_size: int = DEFAULT_BATCH
    max_retries: int = 3
    retry_backoff: float = 1.0
    dead_letter: str | None = None
    dead_letter_patience: float = 15.0
    dead_letter_file: str = DEFAULT_FILE
    on_dead_letter_failure: str = "file"
    subscription_group: str = DEFAULT_GROUP
    rank: int = 0


@dataclass(frozen=True)
class AppSettings:
    """What `StreamApp` was given."""

    bootstrap_servers: str | None
    group: str
    concurrency: int
    scheduler: type[StreamScheduler] | None
    policy: Policy | None
    capacity: Capacity | None
    tick_interval: float
    commit_interval: float
    grace: float
    withheld_limit: float
    scheduler_patience: float
    kafka: Mapping[str, Any]

    @property
    def max_poll_interval(self) -> float:
        """How long a member may go without polling, in seconds."""
        given = self.kafka.get("max.poll.interval.ms", 300_000)
        try:
            return max(0.001, float(given) / 1000)
        except (TypeError, ValueError):
            return 300.0  # the client library will say what is wrong with it


def read_app(*, broker: Any, unknown: Mapping[str, Any], **given: Any) -> AppSettings:
    """Check the options of `StreamApp`."""
    refuse_unknown(unknown, APP_OPTIONS, "StreamApp")
    if given["bootstrap_servers"] is None and broker is None:
        raise ConfigError(
            'bootstrap_servers is missing: give it, such as "localhost:9092", or a broker'
        )
    read = AppSettings(**{name: READ_APP[name](value, name) for name, value in given.items()})
    if read.scheduler is not None:
        for name in ("policy", "capacity"):
            if given[name] is not None:
                raise ConfigError(
                    f"{name} shapes the built-in scheduler; give {name} or scheduler, not both"
                )
    return read


def read_topic(name: Any, consumer: Any, options: Mapping[str, Any]) -> Topic:
    """Check the options of `app.topic`."""
    name = text(name, "topic", '"orders"')
    if name.startswith("^"):
        raise ConfigError(
            f"topic {name!r} is a pattern; name each topic, so that each has a consumer"
        )
    refuse_unknown(options, TOPIC_OPTIONS, f"topic {name!r}")
    shape = shape_of(consumer, f"topic {name!r}")
    read = {
        option: READ_TOPIC[option](value, f"topic {name!r}: {option}")
        for option, value in options.items()
    }
    if read.get("dead_letter") == name:
        raise ConfigError(f"topic {name!r}: dead_letter must be another topic")
    if read.get("dead_letter") is None:
        for option in ("dead_letter_patience", "dead_letter_file", "on_dead_letter_failure"):
            if option in options:
                raise ConfigError(
                    f"topic {name!r}: {option} needs dead_letter, the topic of dead letters"
                )
    return Topic(name, shape, **read)


def refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], of: str) -> None:
    """Refuse options that are not there, and say which was probably meant."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            raise ConfigError(f"{of} has no option {name!r}{meant}")


# Readers: each takes a value and what it is called in an error.


def text(value: Any, name: str, example: str) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} must be text, such as {example}; got {shown(value)}")
    return value


def _scheduler(scheduler: Any, _: str) -> type[StreamScheduler]:
    if isinstance(scheduler, StreamScheduler):
        name = type(scheduler).__name__
        raise ConfigError(
            f"scheduler must be a class, and the app makes the instance: write scheduler={name}, "
            f"not an instance of {name}"
        )
    if not (inspect.isclass(scheduler) and issubclass(scheduler, StreamScheduler)):
        raise ConfigError(
            f"scheduler must be a class derived from StreamScheduler, or None; got {shown(scheduler)}"
        )
    # With an __init__ of its own it may be complete, or raise, only when it is made.
    if scheduler.__init__ is StreamScheduler.__init__ and (lack := lacking(scheduler)):
        raise ConfigError(f"scheduler: {scheduler.__name__} {lack}")
    return scheduler


def _kafka(given: Any, _: str) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            'kafka must be a dict of names and values of librdkafka, such as {"client.id": "a"}; '
            f"got {shown(given)}"
        )
    for name, instead in OURS.items():
        if name in given:
            raise ConfigError(f"kafka: {name!r} cannot be set: {instead}")
    return dict(given)


def _policy(value: Any, name: str) -> Policy:
    if not isinstance(value, Policy):
        raise ConfigError(
            f"{name} must be a fairlead.Policy, such as FairQueue(); got {shown(value)}"
        )
    return value


def _capacity(value: Any, name: str) -> Capacity:
    if not isinstance(value, Capacity):
        raise ConfigError(
            f"{name} must be a fairlead.Capacity, such as Slots(4); got {shown(value)}"
        )
    if value.gated and value.thread_gate is None:
        raise ConfigError(
            f"{name} has a gate on an event loop, which threads cannot share; "
            "give one that is new, or shared with a ThreadScheduler or another StreamApp"
        )
    return value


def _weight(value: Any, name: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or value <= 0:
        raise ConfigError(f"{name} must be a finite number above 0; got {shown(value)}")
    return float(value)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False; got {shown(value)}")
    return value


def _file(value: Any, name: str) -> str:
    if isinstance(value, Path):
        value = str(value)
    path = text(value, name, '"/var/lib/billing/dead-letters.jsonl"')
    if Path(path).is_dir():
        raise ConfigError(f"{name} must be a file; {path} is a directory")
    return path


def _end(value: Any, name: str) -> str:
    if value not in ENDS:
        raise ConfigError(
            f"{name} must be {', '.join(ENDS[:-1])} or {ENDS[-1]}; got {shown(value)}"
        )
    return str(value)


def _function(value: Any, name: str) -> Any:
    if not callable(value):
        raise ConfigError(f"{name} must be a function of a message; got {shown(value)}")
    return value


def _optional(read: Reader) -> Reader:
    return lambda value, name: None if value is None else read(value, name)


READ_APP: dict[str, Reader] = {
    "bootstrap_servers": _optional(partial(text, example='"localhost:9092"')),
    "group": partial(text, example='"billing"'),
    "concurrency": partial(whole, least=1, most=10_000),
    "scheduler": _optional(_scheduler),
    "policy": _optional(_policy),
    "capacity": _optional(_capacity),
    "tick_interval": seconds,
    "commit_interval": seconds,
    "grace": partial(seconds, zero=True),
    "withheld_limit": seconds,
    "scheduler_patience": seconds,
    "kafka": _kafka,
}
READ_TOPIC: dict[str, Reader] = {
    "priority": partial(whole, least=0, most=100),
    "weight": _weight,
    "long_running": _flag,
    "parallel_by": _optional(_function),
    "batch_size": partial(whole, least=1, most=MOST_MESSAGES),
    "max_retries": partial(whole, least=0),
    "retry_backoff": partial(seconds, zero=True),
    "dead_letter": _optional(partial(text, example='"orders-dead"')),
    "dead_letter_patience": partial(seconds, zero=True),
    "dead_letter_file": _file,
    "on_dead_letter_failure": _end,
    "subscription_group": partial(text, example='"slow"'),
    "rank": partial(whole, least=0),
}
APP_OPTIONS = (*READ_APP, "broker")
TOPIC_OPTIONS = tuple(READ_TOPIC)
