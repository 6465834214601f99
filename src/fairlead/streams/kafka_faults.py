"""What an error of the Kafka client means for whoever called: try again, begin anew, or mend something."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException

from fairlead.errors import BrokerFault, CommitRefused
from fairlead.streams.broker import Tp

# The way to the broker, a broker that changes hands, a group that rebalances.  A generation that has passed is
# among them: if the partition is lost too, `lost` says so, and if it is not, the next commit has the right one.
TRANSIENT = frozenset(
    getattr(KafkaError, name)
    for name in (
        "_ALL_BROKERS_DOWN _IN_PROGRESS _MSG_TIMED_OUT _PREV_IN_PROGRESS _QUEUE_FULL _RESOLVE _TIMED_OUT "
        "_TIMED_OUT_QUEUE _TRANSPORT _UNKNOWN_PARTITION _UNKNOWN_TOPIC _WAIT_CACHE _WAIT_COORD "
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE ILLEGAL_GENERATION KAFKA_STORAGE_ERROR "
        "LEADER_NOT_AVAILABLE NETWORK_EXCEPTION NOT_COORDINATOR NOT_ENOUGH_REPLICAS "
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_LEADER_FOR_PARTITION OFFSET_NOT_AVAILABLE "
        "REBALANCE_IN_PROGRESS REQUEST_TIMED_OUT STALE_MEMBER_EPOCH THROTTLING_QUOTA_EXCEEDED "
        "UNKNOWN_TOPIC_OR_PART UNSTABLE_OFFSET_COMMIT"
    ).split()
    if hasattr(KafkaError, name)
)
MISSING = frozenset(
    (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
)
HOPELESS = frozenset({KafkaError._FATAL, KafkaError._FENCED, KafkaError.FENCED_INSTANCE_ID})


def error_of(raised: KafkaException | KafkaError) -> KafkaError:
    """Find the client's error in what it raised."""
    if isinstance(raised, KafkaError):
        return raised
    inner = raised.args[0] if raised.args else None
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(raised))


def is_transient(error: KafkaError) -> bool:
    return error.code() in TRANSIENT or error.retriable()


def is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() in HOPELESS


def fault_of(doing: str, raised: KafkaException | KafkaError) -> BrokerFault:
    """Say what failed, and why, in the door's words."""
    error = error_of(raised)
    fatal = is_fatal(error)
    return BrokerFault(
        f"{doing} failed: {error.str()} ({error.name()})",
        retriable=is_transient(error) and not fatal,
        fatal=fatal,
    )


def write_fault_of(doing: str, raised: KafkaException | KafkaError) -> BrokerFault:
    """Say what failed, and why; a topic that is missing concerns the record, which no other try will help."""
    fault = fault_of(doing, raised)
    fault.retriable = fault.retriable and error_of(raised).code() not in MISSING
    return fault


def refusal_of(tps: Iterable[Tp], errors: Iterable[KafkaError]) -> CommitRefused:
    """Join what was said of several partitions: it may be tried again if that may help each of them."""
    errors = list(errors)
    refused = sorted(tps)
    fatal = any(map(is_fatal, errors))
    reasons = sorted({f"{error.str()} ({error.name()})" for error in errors})
    return CommitRefused(
        f"offsets of {some(refused)} were not stored: {'; '.join(reasons)}",
        refused=refused,
        retriable=not fatal and all(map(is_transient, errors)),
        fatal=fatal,
    )


def some(tps: list[Tp], most: int = 5) -> str:
    """Name partitions, as many as a line can bear."""
    named = ", ".join(map(str, tps[:most]))
    return named if len(tps) <= most else f"{named} and {len(tps) - most} more"
