"""A dead letter that its topic does not take stops no partition for ever: file, skip or stop, told and counted."""

import json
import random
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import BrokerFault, ConfigError
from fairlead.streams import Consumer, StreamApp, burials
from fairlead.streams.broker import Message
from fairlead.streams.kafka import KafkaBroker
from fairlead.streams.letters import append, line_of, read
from fairlead.streams.metrics import StreamMetrics
from fairlead.testing.streams import MemoryBroker
from tests.sizes import times
from tests.streams.mock_cluster import MockCluster
from tests.streams.staging import app_on, running, until, wait_committed
from tests.streams.test_kafka_port import KafkaRig

REFUSED = BrokerFault("MSG_SIZE_TOO_LARGE")
AWAY = BrokerFault("the broker cannot be reached", retriable=True)


class Picky(Consumer):
    def consume(self, messages):
        for message in messages:
            if (message.value or b"").startswith(b"bad"):
                raise ValueError("no such customer")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(burials, "AGAIN", 0.01)


def broker_of(*values: bytes, dead: bool = False) -> MemoryBroker:
    """Make a broker whose dead-letter topic is missing, unless `dead`."""
    broker = MemoryBroker({"orders": 1} | ({"dead": 1} if dead else {}), partitions=0)
    for number, value in enumerate(values):
        broker.write("orders", value, key=b"\xff\x00", headers=[("a", b"%d" % number)])
    return broker


def app_of(broker: Any, path: Path, **options: Any) -> StreamApp:
    app = app_on(broker)
    usual: dict[str, Any] = {
        "max_retries": 0,
        "dead_letter": "dead",
        "dead_letter_patience": "50ms",
        "dead_letter_file": path,
    }
    app.topic("orders", Picky, **(usual | options))
    return app


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_letter_whose_topic_is_missing_goes_to_a_file_and_the_partition_goes_on(tmp_path, caplog):
    path = tmp_path / "sub" / "letters.jsonl"
    broker = broker_of(b"good", b"bad \xfe", b"good")
    app = app_of(broker, path)
    with running(app):
        wait_committed(broker, 3)
        (line,) = lines_of(path)  # on the disk before its offset is committed
        text = StreamMetrics(app).render()[0].decode()
        snapshot = app.snapshot()["topics"]["orders"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (line["topic"], line["partition"], line["offset"], line["group"]) == (
        "orders",
        0,
        1,
        "g",
    )
    assert line["error"] == "ValueError: no such customer"
    assert line["dead_letter"] == "dead"
    assert "does not exist" in line["refusal"]
    assert line["time"].endswith("+00:00")
    assert read(line["value"]) == b"bad \xfe"
    assert read(line["key"]) == b"\xff\x00"
    assert line["headers"] == [["a", "1"]]
    assert 'fairlead_streams_dead_letters_filed_total{topic="orders"} 1.0' in text
    assert 'fairlead_streams_dead_letters_total{topic="orders"} 0.0' in text
    assert 'fairlead_streams_dead_letters_waiting{topic="orders"} 0.0' in text
    assert snapshot["dead_letters_filed"] == 1
    assert sum("is in the file" in one and str(path) in one for one in caplog.messages) == 1


def test_skip_counts_and_tells(tmp_path, caplog):
    broker = broker_of(b"bad", b"good")
    app = app_of(broker, tmp_path / "letters", on_dead_letter_failure="skip")
    with running(app):
        wait_committed(broker, 2)
        assert app.snapshot()["topics"]["orders"]["dead_letters_skipped"] == 1
    assert sum("orders[0] offset 0> is skipped" in one for one in caplog.messages) == 1
    assert not lines_of(tmp_path / "letters")


def test_stop_stands_still_tells_and_goes_on_when_the_topic_is_there(tmp_path, caplog):
    broker = broker_of(b"bad", b"good")
    app = app_of(
        broker, tmp_path / "letters", on_dead_letter_failure="stop", dead_letter_patience=0
    )
    with running(app):
        until(lambda: "'dead' did not take it" in app.explain("orders", 0))
        assert 'dead_letters_waiting{topic="orders"} 1.0' in StreamMetrics(app).render()[0].decode()
        until(lambda: "orders[0] stands still meanwhile" in caplog.text)
        assert sum(broker.offsets("g").values()) == 0
        broker.topic("dead", 1)
        wait_committed(broker, 2)
    (letter,) = broker.records("dead")
    assert dict(letter.headers)["fairlead-error"] == b"ValueError: no such customer"
    assert sum("stands still" in one for one in caplog.messages) == 1


def test_a_file_that_cannot_be_written_is_told_and_the_letter_waits(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    broker = broker_of(b"bad", b"good")
    path = tmp_path / "file" / "letters.jsonl"  # beneath what is no directory
    app = app_of(broker, path)
    with running(app):
        until(lambda: f"could not be written to the file {path}" in caplog.text)
        assert sum(broker.offsets("g").values()) == 0
        (tmp_path / "file").unlink()
        wait_committed(broker, 2)
    assert len(lines_of(path)) == 1
    assert sum("could not be written" in one for one in caplog.messages) == 1


def test_while_the_cluster_is_away_letters_wait_and_no_patience_is_used(tmp_path):
    broker = broker_of(b"bad", b"good", dead=True)
    broker.fail("send", AWAY, times=30)
    app = app_of(broker, tmp_path / "letters", dead_letter_patience=0)
    with running(app):
        wait_committed(broker, 2)
    assert len(broker.records("dead")) == 1
    assert not lines_of(tmp_path / "letters")


def test_a_flood_of_letters_costs_the_patience_with_their_topic_once(tmp_path, caplog):
    broker = broker_of(*[b"bad"] * 20)
    app = app_of(broker, tmp_path / "letters", dead_letter_patience="300ms")
    with running(app):
        wait_committed(broker, 20)
    assert [line["offset"] for line in lines_of(tmp_path / "letters")] == list(range(20))
    assert sum("is tried for" in one for one in caplog.messages) == 1


@pytest.mark.parametrize("seed", range(times(20, 4)))
def test_over_random_faults_every_bad_record_is_stored_once_and_nothing_stands_still(
    seed, tmp_path
):
    rng = random.Random(seed)
    values = [rng.choice((b"bad", b"good")) for _ in range(30)]
    broker = broker_of(*values, dead=True)
    for _ in range(60):
        broker.fail("send", rng.choice((REFUSED, REFUSED, AWAY)), times=rng.choice((1, 2, 5)))
    keyed = {"parallel_by": lambda message: message.offset % 3} if rng.random() < 0.5 else {}
    app = app_of(
        broker, tmp_path / "letters", dead_letter_patience=rng.choice((0, "20ms")), **keyed
    )
    with running(app):
        wait_committed(broker, 30)
        counts = app.snapshot()["topics"]["orders"]
    lines = lines_of(tmp_path / "letters")
    letters = broker.records("dead")
    headers = [dict(letter.headers) for letter in letters]
    stored = [line["headers"][0][1] for line in lines] + [one["a"].decode() for one in headers]
    assert sorted(map(int, stored)) == [at for at, value in enumerate(values) if value == b"bad"]
    assert (counts["dead_letters"], counts["dead_letters_filed"]) == (len(letters), len(lines))


def test_a_letter_that_our_headers_make_too_large_is_sent_without_them(tmp_path, caplog):
    with MockCluster() as cluster:
        rig = KafkaRig(cluster)
        orders, dead = rig.topic(1), rig.topic(1)
        rig.write(orders, 0, [b"1", b"bad" * 300, b"bad" * 340, b"2"])
        broker = KafkaBroker(cluster.bootstrap, kafka={"message.max.bytes": 1000})
        app = StreamApp(broker=broker, group="g", commit_interval="50ms")
        app.topic(
            orders,
            Picky,
            max_retries=0,
            dead_letter=dead,
            dead_letter_patience=0,
            dead_letter_file=tmp_path / "letters",
        )
        with running(app):
            until(lambda: (app.statistics().groups["default"].partitions or [None])[0] is not None)
            held = lambda: app.statistics().groups["default"].partitions[0]  # noqa: E731
            until(lambda: held().committed == 4)
            counts = app.snapshot()["topics"][orders]
    assert (counts["dead_letters"], counts["dead_letters_filed"]) == (1, 1)
    (line,) = lines_of(tmp_path / "letters")
    assert (line["offset"], line["value"]) == (2, "bad" * 340)
    assert "MSG_SIZE_TOO_LARGE" in line["refusal"]
    assert sum("without the headers that say why" in one for one in caplog.messages) == 1


def test_a_line_that_does_not_fit_on_the_disk_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "letters"
    path.write_bytes(b'{"torn":')
    append(str(path), b'{"a": 1}\n')
    assert path.read_bytes() == b'{"torn":\n{"a": 1}\n'
    script = """
        import resource, signal, sys
        from fairlead.streams.letters import append
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            append(sys.argv[1], b"x" * 200)
        except OSError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)], capture_output=True, text=True
    )
    assert "File too large" in done.stdout, done.stderr
    assert path.read_bytes() == b'{"torn":\n{"a": 1}\n'


def test_what_is_no_file_is_refused(tmp_path):
    import os

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file"):
        append(str(pipe), b"{}\n")


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_come_back_from_a_line(seed):
    rng = random.Random(seed)
    values = [
        rng.choice((None, rng.randbytes(rng.randrange(9)), "grün".encode())) for _ in range(50)
    ]
    for value in values:
        message = Message("t", 0, 1, value, value, [("h", value)] if value is not None else [])
        line = json.loads(line_of(message, time=0.0, error="e"))
        assert read(line["key"]) == read(line["value"]) == value
        assert [read(one) for _, one in line["headers"]] == ([] if value is None else [value])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dead_letter_file": "x"}, "dead_letter_file needs dead_letter"),
        ({"dead_letter_patience": "1s"}, "dead_letter_patience needs dead_letter"),
        (
            {"dead_letter": "d", "on_dead_letter_failure": "drop"},
            "must be file, skip or stop; got 'drop'",
        ),
        ({"dead_letter": "d", "dead_letter_file": "/"}, "/ is a directory"),
        ({"dead_letter": "d", "dead_letter_patience": "-1s"}, "dead_letter_patience"),
    ],
)
def test_options_that_cannot_be_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        StreamApp(broker=MemoryBroker(), group="g").topic("orders", Picky, **options)
