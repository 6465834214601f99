"""The streams page: its schedulers are the ones that ship, its metrics are all there are, its recipes work."""

import ast
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead import InFlight, Policy, Pools, TokenBucket
from fairlead.streams import Consumer, schedulers
from fairlead.streams.metrics import PREFIX, StreamMetrics
from fairlead.streams.settings import APP_OPTIONS, TOPIC_OPTIONS
from tests.streams.staging import Book, app_on, filled, running, until, wait_committed, writing

PAGE = (Path(__file__).parents[2] / "docs" / "streams.md").read_text(encoding="utf-8")


def bare(source: str, name: str) -> str:
    """Write a class out without what readers need and Python does not: docstrings, annotations, comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for inner in ast.walk(node):
                if isinstance(inner, ast.FunctionDef):
                    inner.returns = None
                    for argument in inner.args.args:
                        argument.annotation = None
                if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner):
                    del inner.body[0]
            lines = ast.unparse(node).splitlines()
            return "\n".join(re.sub(r"^(\s*self\.\w+): [^=]+ =", r"\1 =", line) for line in lines)
    raise AssertionError(f"there is no class {name}")


@pytest.mark.parametrize("name", ["OneAtATime", "FairByTopic"])
def test_the_schedulers_of_the_page_are_those_that_ship(name):
    shown = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    shipped = Path(schedulers.__file__).read_text(encoding="utf-8")
    assert bare(shown, name) == bare(shipped, name)


def test_every_metric_is_on_the_page_and_every_name_there_is_one():
    app = app_on(filled({"orders": 1}, 1))
    app.topic("orders", writing(Book()))
    with running(app):
        families = list(StreamMetrics(app).collect())
    names = {
        family.name.removeprefix(PREFIX) + ("_total" if family.type == "counter" else "")
        for family in families
    }
    table = PAGE[PAGE.index("### Metrics") : PAGE.index("### When something is wrong")]
    told = {
        name
        for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    } - {"fairlead_streams_"}
    assert names == told
    trouble = PAGE[PAGE.index("### When something is wrong") : PAGE.index("## What is promised")]
    rows = [row.split("|")[2] for row in trouble.splitlines()[4:] if row.startswith("|")]
    looked_at = {
        name
        for row in rows
        for name in re.findall(r"[a-z]+(?:_[a-z]+)*", " ".join(re.findall("`([^`]+)`", row)))
    }
    others = {"rate", "explain", "max", "poll", "interval", "ms"}
    assert looked_at - others <= names


def test_every_option_is_on_the_page():
    options = PAGE[PAGE.index("## Options") : PAGE.index("## Both example schedulers")]
    named = set(re.findall(r"`(\w+)`", options))
    assert set(APP_OPTIONS) | set(TOPIC_OPTIONS) <= named


# The recipes that nothing on the page runs.


def test_a_pool_keeps_long_work_from_taking_every_worker():
    now, most = 0, 0
    lock, go = threading.Lock(), threading.Event()

    class Videos(Consumer):
        def consume(self, messages: Any) -> None:
            nonlocal now, most
            with lock:
                now += 1
                most = max(most, now)
            go.wait(20)
            with lock:
                now -= 1

    broker = filled({"videos": 6, "orders": 2}, 2)
    app = app_on(broker, concurrency=8, capacity=Pools({"default": 8, "slow": 2}))
    book = Book()
    app.topic("orders", writing(book))
    app.topic("videos", Videos, long_running=True, batch_size=1, subscription_group="slow")
    with running(app):
        book.wait_for("record", 4)
        until(lambda: now == 2)
        until(lambda: app.snapshot()["withheld_count"] == 4)
        texts = [one["explain"] for one in app.snapshot()["withheld"]]
        assert any("all 2 slots of pool 'slow' are in use" in text for text in texts), texts
        assert not any("<" in text for text in texts), texts
        go.set()
        wait_committed(broker, 16)
    assert most == 2


def test_a_rate_holds_back_one_topic_alone():
    def by(ticket: Any) -> str | None:
        return "mails" if ticket.workload == "mails" else None

    broker = filled({"mails": 1, "orders": 1}, 100)
    app = app_on(broker, capacity=TokenBucket(rate=100, burst=50, by=by))
    book = Book()
    app.topic("mails", writing(book), batch_size=25)
    app.topic("orders", writing(book), batch_size=25)
    begun = time.monotonic()
    with running(app):
        wait_committed(broker, 200)
    assert time.monotonic() - begun > 0.4  # 50 at once, 50 more at 100 a second
    last = [line[0] for line in book.of("record")]
    assert last.index("mails") < 200
    assert "orders" not in last[-25:]


def test_costs_bound_what_runs_at_once():
    sizes: list[int] = []
    lock = threading.Lock()
    most = 0

    class Documents(Consumer):
        def cost(self, messages: Any) -> float:
            return float(sum(len(message.value) for message in messages))

        def consume(self, messages: Any) -> None:
            nonlocal most
            size = int(self.cost(messages))
            with lock:
                sizes.append(size)
                most = max(most, sum(sizes))
            time.sleep(0.005)
            with lock:
                sizes.remove(size)

    broker = filled({"documents": 8}, 6)
    app = app_on(broker, concurrency=8, capacity=InFlight(30))
    app.topic("documents", Documents, batch_size=1)
    with running(app):
        wait_committed(broker, 48)
    assert 15 < most <= 30  # of 13 bytes each


def test_the_earliest_deadline_starts_first():
    class EarliestDeadline(Policy):
        def key(self, ticket: Any) -> float:
            return float(ticket.deadline)

    go, order = threading.Event(), []

    class Ticks(Consumer):
        def deadline(self, messages: Any) -> float:
            return 1000.0 - self.partition

        def consume(self, messages: Any) -> None:
            go.wait(20)
            order.append(self.partition)

    broker = filled({"ticks": 4}, 1)
    app = app_on(broker, concurrency=1, policy=EarliestDeadline())
    app.topic("ticks", Ticks)
    with running(app):
        until(lambda: app.snapshot()["withheld_count"] == 3)
        go.set()
        wait_committed(broker, 4)
    assert order[1:] == sorted(order[1:], reverse=True)
