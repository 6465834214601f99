"""What goes to librdkafka: our defaults, what a user may change with `kafka={…}`, and what nobody may."""

from __future__ import annotations

import logging
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from fairlead.errors import ConfigError
from fairlead.streams.broker import Settings
from fairlead.streams.kafka_faults import error_of

LOG = logging.getLogger("fairlead.streams.kafka")

QUIET = 30.0  # seconds between two warnings of one kind


class ClientLog:
    """What librdkafka logs: that a broker is away is news once, not four times a second."""

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}

    def log(self, level: int, text: str, *args: Any) -> None:
        """Log a line, as `logging.Logger.log`; `args` begins with the line's kind."""
        kind = str(args[0]) if args else text
        now = time.monotonic()
        if level >= logging.WARNING and now < self._said_at.get(kind, -QUIET) + QUIET:
            level = logging.DEBUG
        elif level >= logging.WARNING:
            self._said_at[kind] = now
            level = logging.WARNING
        LOG.log(level, text, *args)


DEFAULTS: dict[str, Any] = {
    "auto.offset.reset": "earliest",
    # Pausing throws away what was fetched ahead, so little is.  With little ahead the fetcher must look again
    # soon after it found enough: its own default is a second.
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.queue.backoff.ms": 10,
    # A fetch that waits at the broker holds up a seek, or a resume, until it comes back.
    "fetch.wait.max.ms": 100,
    # A broker that hangs holds up a commit, and so the listener, no longer than this.
    "socket.timeout.ms": 10_000,
    # Brokers close idle connections; that is no news.
    "log.connection.close": False,
}
COOPERATIVE = "cooperative-sticky"
CLASSIC: dict[str, Any] = {"partition.assignment.strategy": COOPERATIVE}

_COMMITS = "Fairlead commits what has finished, and only that"
REFUSED: dict[str, str] = {
    "auto.commit.enable": _COMMITS,
    "auto.commit.interval.ms": f"{_COMMITS}; use commit_interval=",
    "bootstrap.servers": "use bootstrap_servers=",
    "delivery.report.only.error": "a record counts as done when the broker says that it has its dead letter",
    "enable.auto.commit": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "enable.partition.eof": "it is on where a Consumer has eofed()",
    "group.id": "use group=",
    "metadata.broker.list": "use bootstrap_servers=",
    "on_commit": _COMMITS,
}
# Less, and a record would count as done though its dead letter is not written.
ACKS = ("acks", "request.required.acks")
# The client library warns of what it does not use; these go to the side they are for.
CONSUMER_ONLY = frozenset(
    "allow.auto.create.topics auto.offset.reset check.crcs coordinator.query.interval.ms "
    "fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes "
    "fetch.queue.backoff.ms fetch.wait.max.ms group.instance.id group.protocol group.protocol.type "
    "group.remote.assignor heartbeat.interval.ms isolation.level max.partition.fetch.bytes "
    "max.poll.interval.ms partition.assignment.strategy queued.max.messages.kbytes "
    "queued.min.messages session.timeout.ms".split()
)
PRODUCER_ONLY = frozenset(
    "acks batch.num.messages batch.size compression.codec compression.level compression.type "
    "delivery.report.only.error delivery.timeout.ms dr_cb enable.gapless.guarantee "
    "enable.idempotence linger.ms message.send.max.retries message.timeout.ms partitioner "
    "queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages "
    "queue.buffering.max.ms request.required.acks request.timeout.ms retries "
    "sticky.partitioning.linger.ms topic.metadata.propagation.max.ms".split()
)


def check(kafka: Settings) -> dict[str, Any]:
    """Refuse what cannot work, naming it: also what librdkafka does not know, or does not take."""
    for name in kafka:
        if not isinstance(name, str):
            raise ConfigError(
                f"kafka={{…}} has the key {name!r}; give names of librdkafka's settings"
            )
        if name in REFUSED:
            raise ConfigError(f"kafka={{{name!r}: …}} cannot be set here: {REFUSED[name]}")
    for name in ACKS:
        if str(kafka.get(name, "all")) not in ("all", "-1"):
            raise ConfigError(
                f"kafka={{{name!r}: {kafka[name]!r}}} would lose dead letters: give 'all', or leave it out"
            )
    strategy = str(kafka.get("partition.assignment.strategy", COOPERATIVE))
    names = [part.strip() for part in strategy.split(",")]
    if COOPERATIVE in names and len(names) > 1:
        raise ConfigError(
            f"kafka={{'partition.assignment.strategy': {strategy!r}}} mixes cooperative and eager "
            "assignors; give one kind"
        )
    try:
        # Without servers they connect to nothing.
        Consumer(
            consumer_settings("", "check", kafka, name="", eof=False), logger=ClientLog()
        ).close()
        Producer(producer_settings("", kafka), logger=ClientLog()).close()
    except (KafkaException, TypeError, ValueError) as error:
        reason = error_of(error).str() if isinstance(error, KafkaException) else str(error)
        raise ConfigError(f"kafka={{…}} is refused by librdkafka: {reason}") from error
    return dict(kafka)


def is_cooperative(kafka: Settings) -> bool:
    """Say whether partitions come and go one by one, or all at once."""
    if kafka.get("group.protocol") == "consumer":
        return True
    return bool(kafka.get("partition.assignment.strategy", COOPERATIVE) == COOPERATIVE)


def consumer_settings(
    servers: str, group: str, kafka: Settings, *, name: str, eof: bool
) -> dict[str, Any]:
    classic = kafka.get("group.protocol", "classic") == "classic"
    settings = {
        "client.id": f"fairlead-{name}" if name else "fairlead",
        **DEFAULTS,
        **(CLASSIC if classic else {}),
        **{key: value for key, value in kafka.items() if key not in PRODUCER_ONLY},
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": eof,
    }
    if servers:
        settings["bootstrap.servers"] = servers
    # A session that ends before the first heartbeat is due would end every time.
    session = str(kafka.get("session.timeout.ms", ""))
    if session.isdecimal() and classic:
        settings.setdefault("heartbeat.interval.ms", max(1, min(3000, int(session) // 3)))
    if name and "group.instance.id" in kafka:
        # Each listener is a member of its own.
        settings["group.instance.id"] = f"{kafka['group.instance.id']}-{name}"
    return settings


def producer_settings(servers: str, kafka: Settings) -> dict[str, Any]:
    ours = {key: value for key, value in kafka.items() if key not in CONSUMER_ONLY}
    settings = {
        "client.id": "fairlead-outbox",
        "acks": "all",
        # How long a topic that the brokers do not know may still be about to come; its own default is 30 s.
        "topic.metadata.propagation.max.ms": 5000,
        **ours,
    }
    return settings | {"bootstrap.servers": servers} if servers else settings
