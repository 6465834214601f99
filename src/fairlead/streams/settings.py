"""What `StreamApp` and `app.topic` are told, read and checked once; every error names the option."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any

from fairlead.config import seconds, shown, whole
from fairlead.core import Capacity, Policy
from fairlead.errors import ConfigError
from fairlead.streams.consumer import Consumer, Shape
from fairlead.streams.scheduler import StreamScheduler, lacking

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from fairlead.streams.broker import Message

MOST_MESSAGES = 1_000_000
DEFAULT_BATCH = 500
DEFAULT_GROUP = "default"
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


def read_app(
    *,
    bootstrap_servers: Any,
    group: Any,
    concurrency: Any,
    scheduler: Any,
    policy: Any,
    capacity: Any,
    tick_interval: Any,
    commit_interval: Any,
    grace: Any,
    withheld_limit: Any,
    scheduler_patience: Any,
    kafka: Any,
    broker: Any,
    unknown: Mapping[str, Any],
) -> AppSettings:
    """Check the options of `StreamApp`."""
    refuse_unknown(unknown, APP_OPTIONS, "StreamApp")
    if bootstrap_servers is None and broker is None:
        raise ConfigError(
            'bootstrap_servers is missing: give it, such as "localhost:9092", or a broker'
        )
    if bootstrap_servers is not None:
        bootstrap_servers = text(bootstrap_servers, "bootstrap_servers", '"localhost:9092"')
    if scheduler is not None:
        _check_scheduler(scheduler)
        for name, given in (("policy", policy), ("capacity", capacity)):
            if given is not None:
                raise ConfigError(
                    f"{name} shapes the built-in scheduler; give {name} or scheduler, not both"
                )
    if policy is not None and not isinstance(policy, Policy):
        raise ConfigError(
            f"policy must be a fairlead.Policy, such as FairQueue(); got {shown(policy)}"
        )
    if capacity is not None and not isinstance(capacity, Capacity):
        raise ConfigError(
            f"capacity must be a fairlead.Capacity, such as Slots(4); got {shown(capacity)}"
        )
    if capacity is not None and capacity.gated and capacity.thread_gate is None:
        raise ConfigError(
            "capacity has a gate on an event loop, which threads cannot share; "
            "give one that is new, or shared with a ThreadScheduler or another StreamApp"
        )
    return AppSettings(
        bootstrap_servers,
        text(group, "group", '"billing"'),
        whole(concurrency, "concurrency", 1, 10_000),
        scheduler,
        policy,
        capacity,
        seconds(tick_interval, "tick_interval"),
        seconds(commit_interval, "commit_interval"),
        seconds(grace, "grace", zero=True),
        seconds(withheld_limit, "withheld_limit"),
        seconds(scheduler_patience, "scheduler_patience"),
        _kafka(kafka),
    )


def _check_scheduler(scheduler: Any) -> None:
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


def _kafka(given: Any) -> dict[str, Any]:
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


APP_OPTIONS = (
    "bootstrap_servers",
    "group",
    "concurrency",
    "scheduler",
    "policy",
    "capacity",
    "tick_interval",
    "commit_interval",
    "grace",
    "withheld_limit",
    "scheduler_patience",
    "kafka",
    "broker",
)
TOPIC_OPTIONS = (
    "priority",
    "weight",
    "long_running",
    "parallel_by",
    "batch_size",
    "max_retries",
    "retry_backoff",
    "dead_letter",
    "subscription_group",
    "rank",
)


def read_topic(name: Any, consumer: Any, options: Mapping[str, Any]) -> Topic:
    """Check the options of `app.topic`."""
    name = text(name, "topic", '"orders"')
    if name.startswith("^"):
        raise ConfigError(
            f"topic {name!r} is a pattern; name each topic, so that each has a consumer"
        )
    refuse_unknown(options, TOPIC_OPTIONS, f"topic {name!r}")
    if not (inspect.isclass(consumer) and issubclass(consumer, Consumer)):
        raise ConfigError(
            f"topic {name!r}: the consumer must be a class derived from Consumer; got {shown(consumer)}"
        )
    if consumer.consume is Consumer.consume:
        raise ConfigError(
            f"topic {name!r}: {consumer.__name__} has to define consume(self, messages)"
        )
    given = {"max_retries": 3, "retry_backoff": "1s", "subscription_group": DEFAULT_GROUP} | dict(
        options
    )
    parallel_by = given.get("parallel_by")
    if parallel_by is not None and not callable(parallel_by):
        raise ConfigError(
            f"topic {name!r}: parallel_by must be a function of a message; got {shown(parallel_by)}"
        )
    long_running = given.get("long_running", False)
    if not isinstance(long_running, bool):
        raise ConfigError(
            f"topic {name!r}: long_running must be True or False; got {shown(long_running)}"
        )
    dead_letter = given.get("dead_letter")
    if dead_letter is not None:
        dead_letter = text(dead_letter, f"topic {name!r}: dead_letter", '"orders-dead"')
        if dead_letter == name:
            raise ConfigError(f"topic {name!r}: dead_letter must be another topic")
    return Topic(
        name,
        Shape(consumer),
        whole(given.get("priority", 50), f"topic {name!r}: priority", 0, 100),
        _weight(given.get("weight", 1.0), name),
        long_running,
        parallel_by,
        whole(
            given.get("batch_size", DEFAULT_BATCH), f"topic {name!r}: batch_size", 1, MOST_MESSAGES
        ),
        whole(given["max_retries"], f"topic {name!r}: max_retries", 0),
        seconds(given["retry_backoff"], f"topic {name!r}: retry_backoff", zero=True),
        dead_letter,
        text(given["subscription_group"], f"topic {name!r}: subscription_group", '"slow"'),
        whole(given.get("rank", 0), f"topic {name!r}: rank", 0),
    )


def _weight(value: Any, name: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or value <= 0:
        raise ConfigError(
            f"topic {name!r}: weight must be a finite number above 0; got {shown(value)}"
        )
    return float(value)


def text(value: Any, name: str, example: str) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} must be text, such as {example}; got {shown(value)}")
    return value


def refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], of: str) -> None:
    """Refuse options that are not there, and say which was probably meant."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            raise ConfigError(f"{of} has no option {name!r}{meant}")
