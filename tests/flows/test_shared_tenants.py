"""Tenants across processes: whoever makes up workloads gains nothing, wherever its flows are asked for."""

import asyncio
import time
import uuid
from collections import Counter
from typing import Any

from fairlead.flows import FlowScheduler
from tests.engines import external, valkey

SECONDS = 3.0
CALLERS = 20


def test_ten_made_up_workloads_in_another_process_take_one_share():
    """One tenant asks at one scheduler for one workload, another at another for ten; each is to get half."""
    point = f"point-{uuid.uuid4().hex}"
    limits: dict[str, Any] = {
        "quota": {"bucket_capacity": 10, "fill_amount": 200, "interval": "1s"},
        "scheduler": {"tenant_label_key": "tenant", "workload_label_key": "workload"},
    }

    async def main(url: str) -> Counter[str]:
        served: Counter[str] = Counter()
        config = {"redis": url, "control_points": {point: limits}}
        honest, other = (FlowScheduler.from_config(config) for _ in range(2))
        until = time.monotonic() + SECONDS

        async def call(flows: FlowScheduler, tenant: str, workload: str) -> None:
            labels = {"tenant": tenant, "workload": workload}
            while time.monotonic() < until:
                async with flows.flow(point, labels, timeout=1.0) as flow:
                    served[tenant] += flow.should_run()

        await asyncio.gather(
            *(call(honest, "honest", "one") for _ in range(CALLERS)),
            *(call(other, "other", f"made up {number % 10}") for number in range(CALLERS)),
        )
        for flows in (honest, other):
            await flows.close()
        return served

    with valkey() as server:
        served = asyncio.run(asyncio.wait_for(main(external() or server.url), 30))
    assert 0.4 <= served["honest"] / served.total() <= 0.6, served
