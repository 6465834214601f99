"""The same arrivals through the real doors on a virtual loop and through the simulator: same order, same verdicts."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import QueueFull, Scheduler, WaitedTooLong
from fairlead.flows import FlowScheduler
from fairlead.gateway.middleware import PriorityMiddleware
from fairlead.gateway.settings import CLASSES
from fairlead.sim import Arrival
from fairlead.sim.run import Run
from fairlead.testing import run_virtual
from tests.sim.model import run

# What became of each: its state, and when it started, or would not wait any longer.
Fates = list[tuple[str, float | None]]
Order = list[int]
Visit = Callable[[int, Arrival], Coroutine[Any, Any, None]]


class Journal:
    """What happened to whom, in order."""

    def __init__(self, size: int) -> None:
        self.fates: Fates = [("waiting", None)] * size
        self.order: Order = []

    async def work(self, number: int, seconds: float) -> None:
        """Work for so long, and note the start and the end."""
        self.order.append(number)
        began = asyncio.get_running_loop().time()
        self.fates[number] = ("running", began)
        await asyncio.sleep(seconds)
        self.fates[number] = ("done", began)

    def ended(self, number: int, state: str) -> None:
        began = self.fates[number][1] if state == "evicted" else None
        self.fates[number] = (state, began)


async def play(given: Sequence[Arrival], visit: Visit) -> None:
    """Let each come at its instant, in a task of its own."""
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []

    def come(number: int, arrival: Arrival) -> None:
        tasks.append(loop.create_task(visit(number, arrival)))

    for number, arrival in enumerate(given):
        loop.call_at(arrival.at, come, number, arrival)
    await asyncio.sleep(given[-1].at + 0.001 if given else 0)
    await asyncio.gather(*tasks)


def crowd(seed: int, count: int = 60, **choices: Sequence[Any]) -> list[Arrival]:
    """Arrivals in a rush, no two of them at one instant."""
    random = Random(seed)
    at, made = 0.0, []
    for _ in range(count):
        at += random.expovariate(random.choice([2.0, 20.0]))
        fields = {name: random.choice(values) for name, values in choices.items()}
        made.append(Arrival(at, random.expovariate(2.0), **fields))
    return made


def same(journal: Journal, given: list[Arrival], policy: dict[str, Any]) -> None:
    """See that the simulator tells what was seen, and starts in that order, also within one instant."""
    order: Order = []
    start = Run.start

    def noted(self: Run, ticket: Any) -> None:
        order.append(ticket.work)
        start(self, ticket)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "start", noted)
        rows = run(given, policy).tickets
    seen = [state for state, _ in journal.fates]
    assert seen == [row.state for row in rows]
    for (_, began), row in zip(journal.fates, rows, strict=True):
        if row.started is None:
            assert began is None
        else:
            assert began == pytest.approx(row.started, abs=1e-6)
    assert journal.order == order


SEEDS = st.integers(0, 1 << 30)
# Callers of tasks and of the gateway state no cost: whatever a scenario says, their doors charge 1.
COSTS = [1.0, 4.0, 1000.0]


def through_tasks(given: list[Arrival], **options: Any) -> Journal:
    journal = Journal(len(given))

    async def main() -> None:
        async with Scheduler.bounded(**options) as scheduler:

            async def visit(number: int, arrival: Arrival) -> None:
                patience = arrival.patience
                door: Any = scheduler if patience is None else scheduler.bind(timeout=patience)
                try:
                    await door.submit(arrival.priority, journal.work, number, arrival.service)
                except QueueFull:
                    journal.ended(number, "refused")
                except WaitedTooLong:
                    journal.ended(number, "expired")

            await play(given, visit)

    run_virtual(main())
    return journal


def tasks_agree(seed: int, slots: int, queue: int, timeout: float) -> None:
    given = crowd(
        seed, priority=[0, 10, 50, 51, 90, 100], patience=[None, None, 0.5, 2.0], cost=COSTS
    )
    options = {"max_concurrency": slots, "max_queue_size": queue, "starvation_timeout": timeout}
    same(through_tasks(given, **options), given, {"preset": "tasks", **options})


@given(SEEDS, st.integers(1, 5), st.sampled_from([0, 0, 5]), st.sampled_from([1.0, 30.0]))
@settings(max_examples=40)
def test_the_tasks_door_gives_the_same_order(seed, slots, queue, timeout):
    tasks_agree(seed, slots, queue, timeout)


def through_flows(given: list[Arrival], point: dict[str, Any]) -> Journal:
    journal = Journal(len(given))

    async def main() -> None:
        flows = FlowScheduler.from_config({"control_points": {"p": point}})

        async def visit(number: int, arrival: Arrival) -> None:
            labels = {"tenant": arrival.tenant, "tokens": repr(arrival.cost), "class": arrival.cls}
            async with flows.flow("p", labels, timeout=arrival.patience) as flow:
                if flow.should_run():
                    await journal.work(number, arrival.service)
                else:
                    refused = flow.reject_reason in ("queue_full", "never_fits")
                    journal.ended(number, "refused" if refused else "expired")

        await play(given, visit)
        await flows.close()

    run_virtual(main())
    return journal


POINTS: dict[str, dict[str, Any]] = {
    "concurrency": {"concurrency": {"max_concurrency": 4}},
    "quota": {"quota": {"bucket_capacity": 6, "fill_amount": 5, "interval": "1s"}},
    "both": {
        "concurrency": {"max_concurrency": 3, "limit_by_label_key": "tenant"},
        "quota": {"bucket_capacity": 9, "fill_amount": 8, "interval": "1s"},
    },
    "short holds": {"concurrency": {"max_concurrency": 4, "max_inflight_duration": "300ms"}},
    "vegas": {"concurrency": {"max_concurrency": "vegas"}},
    "gradient": {"concurrency": {"max_concurrency": "gradient2"}},
    "load": {"load": {"signal": "latency_p95", "setpoint": "300ms", "period": "1s"}},
}


# How many come, and how much faster, where it takes that many for a limit to learn.
CROWDS = {"vegas": (200, 8.0), "gradient": (200, 8.0), "load": (300, 1.0)}


def flows_agree(seed: int, point: str) -> None:
    count, hurry = CROWDS.get(point, (60, 1.0))
    given = [
        one._replace(at=one.at / hurry)
        for one in crowd(
            seed,
            count,
            tenant="abc",
            cls=["x", "y"],
            cost=[1.0, 2.0, 3.5],
            patience=[None, None, 1.0],
        )
    ]
    workloads = [{"name": "x", "priority": 5, "match_labels": {"class": "x"}}]
    scheduler = {
        "tokens_label_key": "tokens",
        "fairness_label_key": "tenant",
        "workloads": workloads,
        "max_queue": 12,
    }
    said = POINTS[point] | {"scheduler": scheduler}
    same(through_flows(given, said), given, {"preset": "flows", **said})


@pytest.mark.parametrize("point", POINTS)
@given(seed=SEEDS)
@settings(max_examples=8)
def test_the_flows_door_gives_the_same_order(point, seed):
    flows_agree(seed, point)


def through_gateway(given: list[Arrival], config: dict[str, Any]) -> Journal:
    journal = Journal(len(given))
    states = {200: "done", 408: "expired", 429: "refused", 503: "evicted"}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        number = int(scope["path"][1:])
        await journal.work(number, given[number].service)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def main() -> None:
        guarded = PriorityMiddleware(app, config)
        assert not guarded.admission.problems

        async def visit(number: int, arrival: Arrival) -> None:
            headers = [
                (b"x-fairlead-priority", arrival.cls.encode()),
                (b"x-tenant-id", arrival.tenant.removeprefix("header:").encode()),
            ]
            incoming: asyncio.Queue[Any] = asyncio.Queue()
            incoming.put_nowait({"type": "http.request", "body": b"", "more_body": False})
            answers: list[int] = []

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    answers.append(message["status"])

            scope = {
                "type": "http",
                "path": f"/{number}",
                "method": "GET",
                "headers": headers,
                "client": ("127.0.0.1", 1),
                "http_version": "1.1",
            }
            await guarded(scope, incoming.get, send)
            state = states[answers[0]]
            if state != "done":
                journal.ended(number, state)

        await play(given, visit)

    run_virtual(main())
    return journal


def gateway_agrees(seed: int, capacity: int, floor: int) -> None:
    given = crowd(
        seed, count=80, cls=CLASSES[:3], tenant=["header:a", "header:b", "header:c"], cost=COSTS
    )
    classes: dict[str, Any] = {
        "system": {"reserved_floor": 0},
        "interactive": {"reserved_floor": floor, "reserved_per_slot": 0.0},
        "default": {"queue_timeout": "3s", "starvation_threshold": "1s", "reserved_per_slot": 0.0},
        "bulk": {"queue_size": 6, "starvation_threshold": "2s", "queue_timeout": "20s"},
    }
    weights = {"header:a": {"weight": 3.0, "max_class": "interactive"}}
    scheduler = {"classes": classes, "tenant_policies": weights, "default_max_class": "interactive"}
    config = {
        "capacity": capacity,
        "access_log": False,
        "tenants": {"trusted_header": "x-tenant-id"},
        "priority_scheduler": {"enabled": True} | scheduler,
    }
    same_gateway(given, config)


def same_gateway(given: list[Arrival], config: dict[str, Any]) -> None:
    """Compare the gateway with the preset, written as a whole configuration and as its scheduler alone."""
    journal = through_gateway(given, config)
    short = {key: value for key, value in config["priority_scheduler"].items() if key != "enabled"}
    same(journal, given, {"preset": "gateway", "capacity": config["capacity"], **short})
    same(journal, given, {"preset": "gateway", **config})


@given(SEEDS, st.integers(1, 4), st.integers(0, 1))
@settings(max_examples=20)
def test_the_gateway_gives_the_same_order(seed, capacity, floor):
    gateway_agrees(seed, capacity, floor)


def any_gateway(random: Random) -> dict[str, Any]:
    """Draw a configuration: classes that reserve, preempt and starve, tenants of different weights and bounds."""
    capacity = random.randrange(2, 9)
    classes = {}
    for name in reversed(CLASSES):
        floor = random.randrange(0, 4)  # together often more than there is
        classes[name] = {
            "reserved_floor": floor,
            "reserved_per_slot": 0.0,
            "queue_size": random.choice([2, 8, 100]),
            "queue_timeout": random.choice(["1s", "5s", "60s"]),
            "starvation_threshold": random.choice(["500ms", "2s", "20s"]),
            "can_preempt": name != "bulk" and random.random() < 0.5,
        }
    tenants: dict[str, Any] = {
        f"header:{name}": {"weight": random.choice([0.5, 1.0, 3.0, 20.0])} for name in "abc"
    }
    tenants["header:a"]["max_class"] = random.choice(CLASSES[:3])
    tenants["header:b"]["max_slots"] = random.choice([None, 1, 2, "30%"])
    return {
        "capacity": capacity,
        "access_log": False,
        "tenants": {"trusted_header": "x-tenant-id"},
        "priority_scheduler": {
            "enabled": True,
            "classes": classes,
            "tenant_policies": dict(random.sample(sorted(tenants.items()), 2)),
            "default_max_class": random.choice(CLASSES[:3]),
            "lend_reservations": random.random() < 0.7,
            "promotion_budget": random.choice([1, 4, 10]),
            "default_max_slots": random.choice([None, None, 1, "50%"]),
        },
    }


def any_gateway_agrees(seed: int) -> None:
    tenants = ["header:a", "header:b", "header:c", "header:d"]
    given = crowd(seed, count=80, cls=CLASSES[:3], tenant=tenants, cost=COSTS)
    same_gateway(given, any_gateway(Random(seed)))


@given(SEEDS)
@settings(max_examples=60)
def test_any_gateway_gives_the_same_order_whatever_a_scenario_says_of_costs(seed):
    any_gateway_agrees(seed)
