"""A Kafka cluster on real sockets without Kafka: librdkafka's mock cluster, in a child process.

The client library's wheel carries it.  Started as a script, this file is the child: it makes the cluster through
ctypes, prints the brokers' addresses, then carries out one command per line of its input until that ends, so that
it cannot outlive the tests.  `MockCluster` is the tests' side of that pipe.

    with MockCluster() as cluster:
        cluster.topic("orders", 4)
        Consumer({"bootstrap.servers": cluster.bootstrap, ...})

What it cannot do: transactions, offsets by time, topics made by an admin client, more than about 5 MB per partition.
With the classic protocol a rebalance takes session.timeout.ms − 1 s, whatever the members do.
"""

import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

# Numbers of requests in Kafka's protocol, for `errors` and `requests`.
PRODUCE, FETCH, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 8, 9
FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 10, 11, 12, 13, 14


def freeze(pid: int) -> None:
    """Stop a process until it is sent SIGCONT; when this returns, none of its threads answers any more."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    # The signal is on its way for a while, and another core goes on meanwhile.
    while tasks.exists() and any(
        (task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()
    ):
        time.sleep(0.001)


class MockCluster:
    """The cluster as its tests see it.  Thread-safe; broker ids count from 1."""

    def __init__(self, brokers: int = 1, *, initial_rebalance: float = 0.0) -> None:
        self.brokers = brokers
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._child = subprocess.Popen(
            [sys.executable, __file__, str(brokers), str(int(initial_rebalance * 1000))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._child.pid
        self.bootstrap: str = self._answer()

    def topic(self, name: str, partitions: int) -> str:
        """Make a topic."""
        self._do("topic_create", name, partitions, self.brokers)
        return name

    def fresh(self, partitions: int, name: str = "topic") -> str:
        """Make a topic whose name nobody has had."""
        return self.topic(f"{name}-{os.getpid()}-{next(self._numbers)}", partitions)

    def errors(self, request: int, codes: list[int]) -> None:
        """Answer the next requests of a kind, at any broker, with these errors; 0 is none."""
        self._do("push_request_errors_array", request, len(codes), codes)

    def no_errors(self, request: int) -> None:
        self._do("clear_request_errors", request)

    def down(self, broker: int = 1) -> None:
        """Close a broker's connections and its port."""
        self._do("broker_set_down", broker)

    def up(self, broker: int = 1) -> None:
        self._do("broker_set_up", broker)

    def round_trip(self, seconds: float, broker: int = 1) -> None:
        """Delay every answer of a broker."""
        self._do("broker_set_rtt", broker, int(seconds * 1000))

    def coordinate(self, group: str, broker: int) -> None:
        """Say which broker keeps a group."""
        self._do("coordinator_set", "group", group, broker)

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """Say which broker serves a partition."""
        self._do("partition_set_leader", topic, partition, broker)

    def track(self) -> None:
        """Begin to count requests."""
        self._do("start_request_tracking")

    def requests(self) -> dict[int, int]:
        """Count the requests since `track` by kind, and begin again."""
        counts = self._do("requests")
        return {int(request): number for request, number in counts.items()}

    def close(self) -> None:
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _do(self, verb: str, *args: Any) -> Any:
        with self._lock:
            assert self._child.stdin
            self._child.stdin.write(json.dumps([verb, *args]) + "\n")
            return self._answer()

    def _answer(self) -> Any:
        assert self._child.stdout
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the mock cluster ended with status {self._child.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]


# The child.

P, TEXT, I16, I32, INT = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int16,
    ctypes.c_int32,
    ctypes.c_int,
)
# Every function that is called, because ctypes would pass a pointer as an int and cut it in half.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (P, []),
    "rd_kafka_conf_set": (INT, [P, TEXT, TEXT, TEXT, ctypes.c_size_t]),
    "rd_kafka_new": (P, [INT, P, TEXT, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [P]),
    "rd_kafka_err2str": (TEXT, [INT]),
    "rd_kafka_mock_cluster_new": (P, [P, INT]),
    "rd_kafka_mock_cluster_destroy": (None, [P]),
    "rd_kafka_mock_cluster_bootstraps": (TEXT, [P]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [P, I32]),
    "rd_kafka_mock_topic_create": (INT, [P, TEXT, INT, INT]),
    "rd_kafka_mock_push_request_errors_array": (
        None,
        [P, I16, ctypes.c_size_t, ctypes.POINTER(INT)],
    ),
    "rd_kafka_mock_clear_request_errors": (None, [P, I16]),
    "rd_kafka_mock_broker_set_down": (INT, [P, I32]),
    "rd_kafka_mock_broker_set_up": (INT, [P, I32]),
    "rd_kafka_mock_broker_set_rtt": (INT, [P, I32, INT]),
    "rd_kafka_mock_coordinator_set": (INT, [P, TEXT, TEXT, I32]),
    "rd_kafka_mock_partition_set_leader": (INT, [P, TEXT, I32, I32]),
    "rd_kafka_mock_start_request_tracking": (None, [P]),
    "rd_kafka_mock_clear_requests": (None, [P]),
    "rd_kafka_mock_get_requests": (ctypes.POINTER(P), [P, ctypes.POINTER(ctypes.c_size_t)]),
    "rd_kafka_mock_request_api_key": (I16, [P]),
    "rd_kafka_mock_request_destroy_array": (None, [ctypes.POINTER(P), ctypes.c_size_t]),
}


def library() -> Any:
    """Load the librdkafka that the wheel of confluent-kafka carries."""
    import confluent_kafka

    package = Path(confluent_kafka.__file__).parent
    places = [package.parent / "confluent_kafka.libs", package / ".dylibs"]
    found = [file for place in places for file in sorted(place.glob("librdkafka*"))]
    if not found:
        raise RuntimeError(f"no librdkafka beside {package}: a wheel of confluent-kafka is needed")
    loaded = ctypes.CDLL(str(found[0]))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def native(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return (INT * len(value))(*value) if isinstance(value, list) else value


def count_requests(kafka: Any, cluster: Any) -> dict[int, int]:
    size = ctypes.c_size_t()
    requests = kafka.rd_kafka_mock_get_requests(cluster, ctypes.byref(size))
    counts: dict[int, int] = {}
    for index in range(size.value):
        request = kafka.rd_kafka_mock_request_api_key(requests[index])
        counts[request] = counts.get(request, 0) + 1
    if size.value:
        kafka.rd_kafka_mock_request_destroy_array(requests, size)
    kafka.rd_kafka_mock_clear_requests(cluster)
    return counts


def carry_out(kafka: Any, cluster: Any, verb: str, args: list[Any]) -> Any:
    if verb == "requests":
        return count_requests(kafka, cluster)
    code = getattr(kafka, f"rd_kafka_mock_{verb}")(cluster, *map(native, args))
    if code:
        raise RuntimeError(f"{verb}{tuple(args)}: {kafka.rd_kafka_err2str(code).decode()}")
    return None


def serve(brokers: int, initial_rebalance_ms: int) -> None:
    kafka = library()
    text = ctypes.create_string_buffer(512)
    conf = kafka.rd_kafka_conf_new()
    kafka.rd_kafka_conf_set(conf, b"log_level", b"2", text, 512)
    handle = kafka.rd_kafka_new(0, conf, text, 512)
    if not handle:
        raise RuntimeError(text.value.decode())
    cluster = kafka.rd_kafka_mock_cluster_new(handle, brokers)
    kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, initial_rebalance_ms)
    print(json.dumps({"ok": kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode()}), flush=True)
    for line in sys.stdin:
        verb, *args = json.loads(line)
        try:
            answer = {"ok": carry_out(kafka, cluster, verb, args)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    kafka.rd_kafka_mock_cluster_destroy(cluster)
    kafka.rd_kafka_destroy(handle)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
