"""Every metric that a page names is one that a scrape finds.

Each door is brought up with what it needs to tell everything it can, and scraped once.  Names are then looked for in
all pages: `fairlead_gateway_capacity`, with or without labels.
"""

import asyncio
import re
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead import Scheduler
from fairlead.flows import FlowScheduler
from fairlead.gateway import PriorityMiddleware
from fairlead.gateway.loading import load
from fairlead.gateway.serving import Gateway
from fairlead.jobs import Dag, Jobs
from fairlead.jobs.metrics import Metrics
from fairlead.observe.prometheus import render
from fairlead.streams import Consumer, StreamApp
from fairlead.streams.metrics import StreamMetrics
from fairlead.testing.streams import MemoryBroker
from tests.docs.test_code_blocks import PAGES, ROOT, page_id
from tests.engines import valkey

NAME = re.compile(r"\bfairlead_(?:scheduler|gateway|flows|jobs|streams)_[a-z_]+(?<!_)")
DOORS = ("flows", "gateway", "jobs", "streams", "tasks")


def scrape_tasks() -> bytes:
    async def main() -> bytes:
        scheduler = Scheduler.bounded(max_concurrency=1, max_queue_size=1)
        await scheduler.submit(50, asyncio.sleep, 0)
        return render(scheduler.stats(), "text/plain")[0]

    return asyncio.run(main())


async def hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def scrape_gateway() -> bytes:
    scheduler = {"enabled": True, "default_max_slots": "50%"}
    config = {"capacity": 256, "priority_scheduler": scheduler}
    guarded = PriorityMiddleware(hello, config).admission.metrics.render()[0]
    return guarded + Gateway(load(config)).admission.metrics.render()[0]


def scrape_flows() -> bytes:
    quota = {"bucket_capacity": 1, "fill_amount": 1, "interval": "1s"}

    async def main(url: str) -> bytes:
        flows = FlowScheduler.from_config(
            {
                "redis": url,
                "control_points": {"a": {"quota": quota, "concurrency": {"max_concurrency": 1}}},
            }
        )
        await flows.start()
        async with flows.flow("a", timeout=1.0):
            pass
        text: bytes = flows.metrics()[0]
        await flows.close()
        return text

    with valkey() as server:
        return asyncio.run(main(server.url))


def scrape_jobs(folder: str) -> bytes:
    jobs = Jobs(f"sqlite:///{folder}/jobs.db")

    @jobs.task
    async def nothing() -> None: ...

    async def main() -> bytes:
        metrics = Metrics(jobs)
        async with jobs:
            dag = Dag("x")
            dag.add(nothing)
            await jobs.wait(await jobs.submit(dag))
            text, _ = await metrics.render()
        await metrics.close()
        return text

    return asyncio.run(main())


class Nothing(Consumer):
    def consume(self, messages):
        pass


def scrape_streams() -> bytes:
    broker = MemoryBroker({"a": 1})
    broker.write("a", b"1", partition=0)
    app = StreamApp(broker=broker, group="g", commit_interval="10ms")
    app.topic("a", Nothing)
    with app:
        assert broker.wait_for(lambda: sum(broker.offsets("g").values()) == 1, 30.0)
        return StreamMetrics(app).render()[0]


def names_in(text: bytes) -> set[str]:
    """Give what may be asked for: samples, and histograms by their own name."""
    found = set()
    for family in text_string_to_metric_families(text.decode()):
        found.add(family.name if family.type != "counter" else f"{family.name}_total")
        found.update(sample.name for sample in family.samples)
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> set[str]:
    scrapes: list[Callable[[], bytes]] = [
        scrape_tasks,
        scrape_gateway,
        scrape_flows,
        lambda: scrape_jobs(str(tmp_path_factory.mktemp("jobs"))),
        scrape_streams,
    ]
    return set().union(*(names_in(scrape()) for scrape in scrapes))


def named(text: str) -> set[str]:
    return set(NAME.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_what_a_page_names_is_told(page, told):
    assert named(page.read_text(encoding="utf-8")) <= told


@pytest.mark.parametrize("door", DOORS)
def test_every_symptom_has_a_metric_and_a_remedy(door, told):
    text = (ROOT / "docs" / "operating" / f"{door}.md").read_text(encoding="utf-8")
    assert "## When to" in text
    assert "## Best practices" in text
    table = text.split("## Troubleshooting")[1].split("| symptom | metric | remedy |")[1]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) >= 9
    for row in rows:
        assert len(row) == 3, row
        assert named(row[1]), f"no metric for {row[0]}"


def test_a_name_that_nobody_tells_is_noticed(told):
    assert named("`fairlead_gateway_capacity{pool=...}` and fairlead_jobs_*") <= told
    assert not named("look at fairlead_gateway_capacitty_total") <= told
