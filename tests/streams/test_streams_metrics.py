"""Metrics of an app, what it shows over HTTP, and the lag."""

import http.client
import json
import socket
import threading
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from fairlead.errors import BrokerFault, CommitRefused, ConfigError
from fairlead.streams import Consumer, StreamApp, StreamScheduler, metrics, status
from fairlead.streams.broker import Tp
from fairlead.streams.holdings import Holding
from fairlead.streams.lag import LagWatch, PartitionLag, ask_lag
from fairlead.streams.metrics import StreamMetrics
from fairlead.streams.status import StatusServer, split_address
from fairlead.testing.streams import MemoryBroker
from tests.streams.staging import (
    Book,
    app_on,
    client_of,
    filled,
    holding,
    running,
    until,
    wait_committed,
    writing,
)


def read(app: StreamApp) -> dict[str, dict[tuple[str, ...], float]]:
    """Scrape: values by name and by the values of their labels, in the order of the labels' names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(StreamMetrics(app).render()[0].decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name.removeprefix("fairlead_streams_"), {})[labels] = (
                sample.value
            )
    return found


class Keeps(StreamScheduler):
    def schedule_consumption(self, jobs: Any) -> None:
        for job in jobs:
            self.queue.lock(job)


class Fails(Consumer):
    def consume(self, messages: Any) -> None:
        raise ValueError("no paper")


def test_what_was_consumed_is_counted_by_topic_and_group():
    broker = filled({"orders": 2, "bulk": 1}, 10)
    app = app_on(broker)
    book = Book()
    app.topic("orders", writing(book))
    app.topic("bulk", writing(book), subscription_group="slow")
    with running(app):
        wait_committed(broker, 30)
        until(lambda: sum(read(app)["lag"].values()) == 0 and len(read(app)["lag"]) == 3)
        found = read(app)
    assert found["up"][()] == 1
    assert found["workers"][()] == 4
    assert found["read_total"] == found["consumed_total"] == {("orders",): 20, ("bulk",): 10}
    assert found["partitions"] == {("orders",): 2, ("bulk",): 1}
    assert found["lag"] == {("0", "orders"): 0, ("1", "orders"): 0, ("0", "bulk"): 0}
    assert found["in_flight"] == found["buffered"] == {("orders",): 0, ("bulk",): 0}
    assert found["busy"][()] == found["enqueued"][()] == 0
    assert found["calls_total"][("bulk",)] >= 1
    assert found["consume_seconds_total"][("bulk",)] > 0
    assert found["commits_total"][("default",)] >= 1
    assert found["commits_total"][("slow",)] >= 1
    assert found["rebalances_total"][("slow",)] >= 1
    assert found["scheduler_seconds_count"][("schedule_consumption",)] >= 2
    assert found["scheduler_seconds_sum"][("schedule_consumption",)] > 0
    assert read(app)["up"][()] == 0


def test_failures_retries_and_dead_letters():
    broker = filled({"orders": 1}, 2)
    app = app_on(broker)
    app.topic("orders", Fails, max_retries=1, retry_backoff="1ms", dead_letter="dead", batch_size=1)
    with running(app):
        wait_committed(broker, 2)
        found = read(app)
    assert found["failures_total"][("orders",)] == 4
    assert found["retries_total"][("orders",)] == 2
    assert found["dead_letters_total"][("orders",)] == 2
    assert found["consumed_total"][("orders",)] == 0


def test_refused_commits_and_resets():
    broker = filled({"orders": 1}, 5)
    broker.fail("commit", CommitRefused("not now", refused=[Tp("orders", 0)], retriable=True))
    app = app_on(broker)
    app.topic("orders", writing(Book()))
    with running(app):
        wait_committed(broker, 5)
        assert read(app)["commits_refused_total"][("default",)] == 1
        app.runtime.reset("default", "a test asks for it")
        until(lambda: read(app)["resets_total"][("default",)] == 1)


def test_what_is_withheld_has_an_age_and_what_runs_is_busy():
    go, begun = threading.Event(), threading.Event()

    class Waits(Consumer):
        def consume(self, messages: Any) -> None:
            begun.set()
            go.wait(20)

    app = app_on(filled({"orders": 2}, 5), concurrency=1)
    app.topic("orders", Waits)
    with running(app):
        assert begun.wait(20)
        until(lambda: read(app)["withheld"][("orders",)] == 1)
        first = read(app)
        assert first["busy"][()] == 1
        assert first["in_flight"][("orders",)] == 10
        until(
            lambda: (
                read(app)["withheld_oldest_seconds"][("orders",)]
                > first["withheld_oldest_seconds"][("orders",)] + 0.05
            )
        )
        go.set()


def test_a_scheduler_that_hangs_or_raises_shows():
    go = threading.Event()

    class Hangs(StreamScheduler):
        def schedule_consumption(self, jobs: Any) -> None:
            go.wait(20)
            raise RuntimeError("no")

    app = app_on(filled({"orders": 1}, 1), scheduler=Hangs)
    app.topic("orders", writing(Book()))
    with running(app):
        until(lambda: read(app)["scheduler_hanging_seconds"][()] > 0.2)
        go.set()
        until(lambda: read(app)["scheduler_raised_total"][()] >= 1)
        found = read(app)
        assert found["scheduler_slow_total"][()] >= 1
        slow = found["scheduler_seconds_bucket"]
        assert slow["0.1", "schedule_consumption"] < slow["+Inf", "schedule_consumption"]


def test_a_lag_is_one_series_per_topic_where_partitions_are_too_many(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_SERIES", 3)
    app = app_on(filled({"orders": 4}, 2), scheduler=Keeps)
    app.topic("orders", writing(Book()))
    with running(app):
        until(lambda: read(app)["lag"] == {("all", "orders"): 8})


def test_metrics_can_be_registered_with_others():
    registry = CollectorRegistry()
    app = app_on(MemoryBroker({"orders": 1}))
    app.topic("orders", writing(Book()))
    registry.register(StreamMetrics(app))
    assert registry.get_sample_value("fairlead_streams_up") == 0
    with running(app):
        assert registry.get_sample_value("fairlead_streams_up") == 1


# Lag


def test_the_lag_of_a_group_is_asked_from_outside():
    broker = filled({"orders": 2}, 5)
    broker.trim(Tp("orders", 1), 2)
    app = app_on(broker)
    app.topic("orders", writing(Book()))
    assert ask_lag(app) == (
        [PartitionLag("orders", 0, None, 5, 5), PartitionLag("orders", 1, None, 5, 3)],
        [],
    )
    with running(app):
        wait_committed(broker, 10)
        broker.write("orders", b"x", partition=0)
        wait_committed(broker, 11)
    broker.write("orders", b"x", partition=0)
    (first, second), _ = ask_lag(app)
    assert (first.committed, first.end, first.lag) == (6, 7, 1)
    assert (second.committed, second.lag) == (5, 0)


def test_the_lag_of_a_topic_that_is_not_there():
    app = app_on(MemoryBroker({"orders": 1}, partitions=0))
    app.topic("orders", writing(Book()))
    app.topic("nowhere", writing(Book()))
    found, missing = ask_lag(app)
    assert [one.topic for one in found] == ["orders"]
    assert missing == ["nowhere"]


def test_a_group_that_begins_at_the_end_is_not_behind():
    app = app_on(filled({"orders": 1}, 5), kafka={"auto.offset.reset": "latest"})
    app.topic("orders", writing(Book()))
    assert ask_lag(app)[0] == [PartitionLag("orders", 0, None, 5, 0)]


def test_the_watch_asks_for_what_nobody_reads():
    broker = filled({"orders": 2}, 3)
    app = app_on(broker, scheduler=Keeps)
    app.topic("orders", writing(Book()))
    watch = LagWatch(app)
    watch.look(time.monotonic())  # nothing runs yet
    with running(app):
        until(lambda: app.snapshot()["withheld_count"] == 2)
        broker.write("orders", b"x", partition=0)
        watch.look(time.monotonic() + 100)
        lags = {one["partition"]: one["lag"] for one in app.snapshot()["partitions"]}
        assert lags == {0: 4, 1: 3}


def test_an_idle_partition_has_no_lag_once_somebody_has_asked():
    broker = MemoryBroker({"orders": 1})
    app = app_on(broker)
    app.topic("orders", writing(Book()))
    with running(app):
        until(lambda: app.snapshot()["partitions"])
        assert app.snapshot()["partitions"][0]["lag"] is None
        LagWatch(app).look(time.monotonic())
        assert app.snapshot()["partitions"][0]["lag"] == 0


def test_a_broker_that_does_not_answer_keeps_the_watch_from_nothing():
    broker = MemoryBroker({"orders": 1})
    app = app_on(broker)
    app.topic("orders", writing(Book()))
    with running(app):
        until(lambda: app.snapshot()["partitions"])
        broker.down()
        with pytest.raises(BrokerFault):
            LagWatch(app).look(time.monotonic())
        watch = LagWatch(app)
        watch.start()
        watch.stop()
        broker.up()


def test_lag_follows_the_end_while_records_flow():
    broker = filled({"orders": 1}, 3)
    app = app_on(broker)
    app.topic("orders", writing(Book()))
    with running(app):
        wait_committed(broker, 3)
        broker.write("orders", b"x", partition=0)
        wait_committed(broker, 4)
        until(
            lambda: [(one["end"], one["lag"]) for one in app.snapshot()["partitions"]] == [(4, 0)]
        )


def test_an_end_that_is_old_news_is_never_below_what_was_read_or_done():
    held = holding()
    held.note_end(966, at=1.0)
    held.start, held.partition.position = 900, 971
    assert (held.end, held.lag) == (971, 0)
    held.read = 980  # of which nine are not done
    assert (held.end, held.lag) == (980, 9)
    held.note_end(1000, at=2.0)
    assert (held.end, held.lag) == (1000, 29)


def test_what_was_read_since_the_broker_spoke_of_the_end_counts_as_lag(monkeypatch):
    broker = MemoryBroker({"orders": 1})
    app = app_on(broker, scheduler=Keeps)
    app.topic("orders", writing(Book()))
    with running(app):
        until(lambda: app.snapshot()["partitions"])
        LagWatch(app).look(time.monotonic())  # it ends at 0
        monkeypatch.setattr(Holding, "note_end", lambda *_: None)  # the broker says no more
        for _ in range(3):
            broker.write("orders", b"x", partition=0)
        until(lambda: app.snapshot()["withheld_count"])
        told = app.snapshot()["partitions"][0]
        assert told["lag"] == told["end"] > 0
        assert read(app)["lag"] == {("0", "orders"): told["lag"]}


def test_a_commit_beyond_the_end_is_of_a_topic_that_was_made_anew():
    broker = filled({"orders": 1}, 2)
    app = app_on(broker)
    app.topic("orders", writing(Book()))
    broker.group(app.settings.group).offsets[Tp("orders", 0)] = 5
    assert ask_lag(app)[0] == [PartitionLag("orders", 0, 5, 2, 2)]


# Over HTTP


def ask(
    server: StatusServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, bytes]:
    host, port = split_address(server.address)
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.getheader("Content-Type") or "", answer.read()
    connection.close()
    return found


@pytest.fixture
def app():
    made = app_on(filled({"orders": 1}, 3), scheduler=Keeps)
    made.topic("orders", writing(Book()))
    return made


def test_a_process_shows_itself(app):
    with StatusServer(app, "127.0.0.1:0", name="billing:app") as server:
        assert ask(server, "/livez")[0] == 200
        assert ask(server, "/readyz")[0] == 503
        assert ask(server, "/explain?topic=orders&partition=0")[0] == 503
        with running(app):
            until(lambda: ask(server, "/readyz")[0] == 200)
            until(lambda: json.loads(ask(server, "/status")[2])["withheld_count"] == 1)
            code, kind, body = ask(server, "/metrics")
            assert (code, kind.split(";")[0]) == (200, "text/plain")
            assert b'fairlead_streams_withheld{topic="orders"} 1.0' in body
            assert json.loads(ask(server, "/status")[2])["app"] == "billing:app"
            told = json.loads(ask(server, "/explain?topic=orders&partition=0")[2])
            assert "locked by Keeps" in told["explain"]
            assert ask(server, "/status", "HEAD")[2] == b""
        code, _, body = ask(server, "/readyz")
        assert code == 503
        assert json.loads(body)["reasons"] == ["the app is stopped"]


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("/", 404, "/metrics"),
        ("/explain", 400, "/explain?topic=orders&partition=3"),
        ("/explain?topic=orders&partition=x", 400, "say which"),
        ("/explain?topic=nope&partition=0", 404, "none of this app's"),
    ],
)
def test_questions_that_cannot_be_answered_are_problems(app, path, code, says):
    with StatusServer(app, "127.0.0.1:0") as server, running(app):
        found, kind, body = ask(server, path)
        assert (found, kind) == (code, "application/problem+json")
        assert says in json.loads(body)["detail"]
        assert ask(server, "/status", "POST")[0] == 501


def test_a_token_guards_all_but_the_probes(app):
    with StatusServer(app, "127.0.0.1:0", token="secret") as server:
        assert ask(server, "/livez")[0] == 200
        for path in ("/metrics", "/status", "/explain"):
            assert ask(server, path)[0] == 401
            assert ask(server, path, Authorization="Bearer wrong")[0] == 401
        assert ask(server, "/status", Authorization="Bearer secret")[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8090", "127.0.0.1.evil.example", "[x"]
)
def test_without_a_token_a_name_made_to_mean_this_machine_is_refused(app, host):
    with StatusServer(app, "127.0.0.1:0") as server:
        for path in ("/metrics", "/status", "/explain"):
            assert ask(server, path, Host=host)[0] == 403
        assert ask(server, "/livez", Host=host)[0] == 200
        for here in ("localhost:8090", "LOCALHOST", "[::1]:8090", "127.0.0.1"):
            assert ask(server, "/status", Host=here)[0] == 200
    with StatusServer(app, "127.0.0.1:0", token="secret") as server:
        assert ask(server, "/status", Host=host, Authorization="Bearer secret")[0] == 200


def test_beyond_this_machine_a_token_is_needed(app):
    with pytest.raises(ConfigError, match="--token"):
        StatusServer(app, "0.0.0.0:0")
    for blank in ("", "  ", "\n"):
        for address in ("0.0.0.0:0", "127.0.0.1:0"):
            with pytest.raises(ConfigError, match="token is blank"):
                StatusServer(app, address, token=blank)
    server = StatusServer(app, "0.0.0.0:0", token="secret")
    server.close()  # also before it was started
    for wrong in ("x", "127.0.0.1:x", "127.0.0.1:70000", "", "a b:1"):
        with pytest.raises(ConfigError, match="host:port"):
            StatusServer(app, wrong)


def test_too_many_who_look_are_hung_up_on(app, monkeypatch):
    monkeypatch.setattr(status, "MOST_REQUESTS", 2)
    with StatusServer(app, "127.0.0.1:0") as server:
        where = split_address(server.address)
        silent = [socket.create_connection(where) for _ in range(2)]

        def refused() -> bool:
            with socket.create_connection(where, timeout=10) as one:
                one.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
                try:
                    return one.recv(100) == b""
                except ConnectionError:
                    return True

        until(refused)
        for one in silent:
            one.close()
        until(lambda: not refused())


def test_who_sends_a_byte_now_and_then_is_hung_up_on(app, monkeypatch):
    monkeypatch.setattr(status, "HEAD", 0.3, raising=False)
    with (
        StatusServer(app, "127.0.0.1:0") as server,
        socket.create_connection(split_address(server.address), timeout=0.02) as slow,
    ):

        def hung_up() -> bool:
            try:
                slow.sendall(b"G")
                return slow.recv(100) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(hung_up)
        assert ask(server, "/livez")[0] == 200


def test_a_listener_that_stands_still_is_not_alive(app, monkeypatch):
    monkeypatch.setattr(status, "STILL", 0.2)
    app.settings.kafka["max.poll.interval.ms"] = 100
    go = threading.Event()
    with StatusServer(app, "127.0.0.1:0") as server, running(app):
        until(lambda: ask(server, "/readyz")[0] == 200)
        monkeypatch.setattr(client_of(app), "poll", lambda *args: go.wait(20) and [])
        app.runtime.queue.clear("default")  # so that it is polled
        until(lambda: ask(server, "/livez")[0] == 503)
        assert b"has not moved for" in ask(server, "/livez")[2]
        go.set()
        until(lambda: ask(server, "/livez")[0] == 200)
