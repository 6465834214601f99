"""Dead letters over confluent-kafka: a producer, and a thread that hears what became of each record."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Raw

from fairlead.errors import BrokerFault
from fairlead.streams.broker import Settings, Tp
from fairlead.streams.kafka_faults import write_fault_of
from fairlead.streams.kafka_settings import LOG, ClientLog

CLOSING = 10.0  # seconds for the last records to get through
LISTENING = 0.1  # seconds of one look at what has got through


class KafkaOutbox:
    """An `Outbox` over one `Producer`."""

    def __init__(self, settings: Settings) -> None:
        self._producer = Producer({"error_cb": _heard, **settings}, logger=ClientLog())
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def send(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> Future[Tp]:
        written: Future[Tp] = Future()
        doing = f"writing to {topic!r}"

        def heard(error: KafkaError | None, raw: Raw[Any, Any]) -> None:
            if error is None:
                written.set_result(Tp(topic, int(raw.partition() or 0)))
            else:
                written.set_exception(write_fault_of(doing, error))

        try:
            self._listen()
            self._producer.produce(
                topic, key=key, value=value, headers=list(headers), on_delivery=heard
            )
        except BufferError:
            written.set_exception(
                BrokerFault(f"{doing} failed: too much waits already", retriable=True)
            )
        except KafkaException as error:
            written.set_exception(write_fault_of(doing, error))
        except BrokerFault as fault:
            written.set_exception(fault)
        return written

    def flush(self, timeout: float) -> bool:
        return self._producer.flush(timeout) == 0

    def close(self) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            thread = self._thread
        self.flush(CLOSING)
        self._producer.purge()
        self.flush(1.0)
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._producer.close()

    def _listen(self) -> None:
        with self._lock:
            if self._closed.is_set():
                raise BrokerFault("a record was not sent: the outbox is closed; make another one")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._hear, name="fairlead-outbox", daemon=True
                )
                self._thread.start()

    def _hear(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(LISTENING)


def _heard(error: KafkaError) -> None:
    LOG.debug("librdkafka: %s", error)
