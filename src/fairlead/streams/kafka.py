"""The broker port over confluent-kafka: one consumer per listener, one producer for dead letters."""

from __future__ import annotations

from fairlead.errors import ConfigError
from fairlead.streams.broker import Client, Outbox, Settings
from fairlead.streams.kafka_client import KafkaClient
from fairlead.streams.kafka_outbox import KafkaOutbox
from fairlead.streams.kafka_settings import (
    check,
    consumer_settings,
    is_cooperative,
    producer_settings,
)


class KafkaBroker:
    """Clients and outboxes of one Kafka cluster.

    `kafka` holds settings of librdkafka for all of them; what would break the promise of at-least-once is refused.
    """

    def __init__(self, bootstrap_servers: str, *, kafka: Settings | None = None) -> None:
        if not str(bootstrap_servers or "").strip():
            raise ConfigError(
                f"bootstrap_servers is {bootstrap_servers!r}; give 'host:port', several with commas"
            )
        self.bootstrap_servers = bootstrap_servers
        self.kafka = check(kafka or {})

    def client(self, group: str, *, name: str = "", eof: bool = False) -> Client:
        settings = consumer_settings(self.bootstrap_servers, group, self.kafka, name=name, eof=eof)
        return KafkaClient(settings, cooperative=is_cooperative(self.kafka))

    def outbox(self) -> Outbox:
        return KafkaOutbox(producer_settings(self.bootstrap_servers, self.kafka))
