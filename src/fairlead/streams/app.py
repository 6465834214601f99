"""`StreamApp`: the door of streams.  It holds settings; what runs is a `Runtime`."""

from __future__ import annotations

import signal
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from fairlead.core import Gate
from fairlead.errors import ConfigError, Misuse
from fairlead.policies import Classes
from fairlead.streams.explaining import explain_job, explain_partition
from fairlead.streams.jobs import Job
from fairlead.streams.runtime import Runtime
from fairlead.streams.settings import AppSettings, Topic, read_app, read_topic
from fairlead.streams.snapshots import snapshot_of
from fairlead.streams.statistics import Statistics, statistics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from fairlead.core import Capacity, Policy
    from fairlead.runtime import MakeGate
    from fairlead.streams.broker import Broker
    from fairlead.streams.consumer import Consumer
    from fairlead.streams.scheduler import StreamScheduler

SLICE = 0.2  # seconds


class StreamApp:
    """Consume topics of Kafka, under a scheduler.

    >>> from fairlead.streams import Consumer
    >>> class Orders(Consumer):
    ...     async def consume(self, messages): ...
    >>> app = StreamApp(bootstrap_servers="localhost:9092", group="billing", concurrency=8)
    >>> app.topic("orders", Orders, priority=80, weight=3)
    >>> sorted(app.topics)
    ['orders']

    `app.run()` consumes until SIGTERM or SIGINT; `app.start()` and `app.stop()` do the same in steps.
    """

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        group: str | None = None,
        concurrency: int = 8,
        scheduler: type[StreamScheduler] | None = None,
        tick_interval: Any = "5s",
        commit_interval: Any = "5s",
        grace: Any = "30s",
        kafka: Mapping[str, Any] | None = None,
        *,
        policy: Policy | None = None,
        capacity: Capacity | None = None,
        withheld_limit: Any = "30s",
        scheduler_patience: Any = "500ms",
        broker: Broker | None = None,
        **unknown: Any,
    ) -> None:
        self.settings: AppSettings = read_app(
            bootstrap_servers=bootstrap_servers,
            group=group,
            concurrency=concurrency,
            scheduler=scheduler,
            policy=policy,
            capacity=capacity,
            tick_interval=tick_interval,
            commit_interval=commit_interval,
            grace=grace,
            withheld_limit=withheld_limit,
            scheduler_patience=scheduler_patience,
            kafka=kafka,
            broker=broker,
            unknown=unknown,
        )
        self.topics: dict[str, Topic] = {}
        self.broker: Broker = self._kafka() if broker is None else broker
        self.make_gate: MakeGate = Gate  # of the built-in scheduler; another one watches it
        self._runtime: Runtime | None = None
        # Not an Event: a signal handler runs in the midst of whatever the main thread does, also of waiting for one.
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()

    def topic(
        self,
        name: str,
        consumer: type[Consumer] | Consumer | Callable[[], Consumer],
        **options: Any,
    ) -> None:
        """Consume a topic, by a class, a partial of one, a function that makes consumers, or one instance for all.

        Options: priority (0–100, default 50), weight, long_running, parallel_by, batch_size, max_retries,
        retry_backoff, dead_letter, dead_letter_patience, dead_letter_file, on_dead_letter_failure, subscription_group,
        rank.
        """
        if self._runtime is not None:
            raise Misuse(f"topic {name!r} comes too late: the app runs; add topics before")
        topic = read_topic(name, consumer, options)
        if topic.name in self.topics:
            raise ConfigError(f"topic {topic.name!r} is given twice; a topic has one consumer")
        policy = self.settings.policy
        if isinstance(policy, Classes) and topic.rank >= len(policy.levels):
            raise ConfigError(
                f"topic {topic.name!r}: rank must be 0 to {len(policy.levels) - 1}, a class of the policy; "
                f"got {topic.rank}"
            )
        self._refuse_ring(topic)
        self.topics[topic.name] = topic

    def _refuse_ring(self, topic: Topic) -> None:
        """Follow its dead letters: among the topics before it there is no ring."""
        passed, after = [topic.name], topic.dead_letter
        while after in self.topics:
            passed.append(after)
            after = self.topics[after].dead_letter
        if after == topic.name:
            names = ", ".join(map(repr, passed))
            raise ConfigError(f"dead_letter: the dead letters of {names} go round in a ring")

    def _kafka(self) -> Broker:
        try:
            from fairlead.streams.kafka import KafkaBroker
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"bootstrap_servers needs {error.name}; install fairlead[streams], or give a broker"
            ) from error
        return KafkaBroker(self.settings.bootstrap_servers or "", kafka=self.settings.kafka)

    @property
    def started(self) -> Runtime | None:
        """What runs, or ran; None before `start`."""
        return self._runtime

    @property
    def runtime(self) -> Runtime:
        """What runs; there is none before `start`."""
        if self._runtime is None:
            raise Misuse("the app does not run; call start() or run() first")
        return self._runtime

    def start(self) -> Self:
        """Begin to consume, in threads of its own."""
        with self._lock:
            if self._runtime is not None:
                raise Misuse("the app runs already; make another app")
            if not self.topics:
                raise ConfigError(
                    "the app has no topic; add one with app.topic(name, ConsumerClass)"
                )
            self._runtime = Runtime(
                self.settings, list(self.topics.values()), self.broker, self.make_gate
            )
            self._runtime.start()
        return self

    def stop(self, grace: float | None = None) -> None:
        """Finish what runs, hand back what waits, commit and leave; once or often."""
        self._asked.put(None)
        with self._lock:
            runtime = self._runtime
            if runtime is not None and not runtime.stopped:
                runtime.stop(self.settings.grace if grace is None else grace)

    def run(self) -> None:
        """Consume until SIGTERM, SIGINT or `shut_down`; then stop within the grace and return."""
        with _Signals(self.shut_down):
            self.start()
            try:
                self._wait()
            finally:
                self.stop()

    def _wait(self) -> None:
        # In slices: a signal that comes right before the wait interrupts nothing, and is handled only after it.
        while True:
            try:
                return self._asked.get(timeout=SLICE)
            except Empty:
                continue

    def shut_down(self) -> None:
        """Have `run` return, from any thread and from signal handlers; asked again, without waiting for what runs."""
        runtime = self._runtime
        if runtime is not None and runtime.stopped:
            runtime.hurry()
        self._asked.put(None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def statistics(self) -> Statistics:
        """Tell the figures of this moment: what metrics and `fairlead streams top` show."""
        return statistics_of(self.runtime)

    def snapshot(self) -> dict[str, Any]:
        """Tell everything of this moment as JSON would have it, also when the app does not run: assignment, lag, what
        is withheld and why.
        """
        return snapshot_of(self)

    def explain(self, job: Job | str, partition: int | None = None) -> str:
        """Say in sentences why a job waits, or the partition of a topic: `explain(job)`, `explain("orders", 3)`."""
        if isinstance(job, Job):
            return explain_job(self.runtime, job)
        if not isinstance(partition, int):
            raise ConfigError("explain needs a job, or a topic and the number of a partition")
        return explain_partition(self.runtime, job, partition)

    @property
    def state(self) -> str:
        """Say in one word: new, running, stopping or stopped."""
        runtime = self._runtime
        if runtime is None:
            return "new"
        if not runtime.stopped:
            return "running"
        return "stopped" if runtime.ended else "stopping"


class _Signals:
    """SIGTERM and SIGINT ask for the end; only in the main thread, where Python has signals."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._caught)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self._ask()

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
