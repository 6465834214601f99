"""Scenario 43: tenant ceilings, and what a tenant gains by making things up: nothing."""

from collections import Counter
from typing import Any

import pytest

from tests.flows.door import backlog, balanced, concurrency, run, scheduler

ALONE = concurrency(1)
SAID = {
    "workload_label_key": "workload",
    "priority_label_key": "priority",
    "fairness_label_key": "user",
}
TENANTS = {
    "tenant_label_key": "tenant",
    "tenants": {"honest": {"max_priority": 2}, "evil": {"max_priority": 2}},
}

EVIL = {
    "labels": [{"workload": f"w{number}"} for number in range(10)],
    "priorities": [{"priority": str(1 + number)} for number in range(10)],
    "a huge priority": [{"priority": "1e15"}],
    "users": [{"user": f"u{number}"} for number in range(10)],
    "all of it": [
        {"workload": f"w{n}", "priority": str(10**n), "user": f"u{n}"} for n in range(10)
    ],
}


class TestSybil:
    """Made-up workloads, priorities and users gain nothing where tenants are known (W4)."""

    def shares(self, said: dict[str, Any], evil: list[dict[str, str]]) -> Counter[Any]:
        async def main():
            flows = scheduler(concurrency=ALONE, scheduler=said)
            asked = []
            for number in range(300):
                asked.append(("honest", {"tenant": "honest", "priority": "1"}))
                labels = {"tenant": "evil"} | evil[number % len(evil)]
                asked += [("evil", labels)] * 2
            order = await backlog(flows, asked)
            balanced(flows)
            return Counter(who for who, _ in order[:300])

        served: Counter[Any] = run(main())
        return served

    @pytest.mark.parametrize("how", EVIL)
    def test_a_tenant_gets_its_share_and_no_more(self, how):
        served = self.shares(SAID | TENANTS, EVIL[how])
        assert served["honest"] == pytest.approx(150, abs=2)

    def test_without_tenants_ten_labels_take_ten_shares(self):
        """The control: this is what the ceilings are for."""
        served = self.shares(SAID, EVIL["labels"])
        assert served["honest"] == pytest.approx(300 / 11, abs=2)

    def test_a_tenant_nobody_named_has_the_default_ceiling(self):
        tenants = {"tenant_label_key": "tenant", "default_max_priority": 3}
        said = SAID | tenants | {"tenants": {"honest": {"max_priority": 9}}}
        served = self.shares(said, EVIL["all of it"])
        assert served["honest"] == pytest.approx(225, abs=2)

    def test_the_ceiling_is_seen_in_the_flow(self):
        async def main():
            flows = scheduler(scheduler=SAID | TENANTS)
            flow = await flows.start_flow("p", {"tenant": "evil", "priority": "1e9"})
            return flow.workload

        assert run(main()) == ("default", 2.0)

    def test_inside_a_tenant_priorities_count_up_to_the_ceiling(self):
        async def main():
            flows = scheduler(concurrency=ALONE, scheduler=SAID | TENANTS)
            asked = [
                (value, {"tenant": "evil", "workload": value, "priority": value})
                for value in ["0.5", "1", "100"] * 100
            ]
            return Counter(who for who, _ in (await backlog(flows, asked))[:140])

        served = run(main())
        assert [served[value] for value in ("0.5", "1", "100")] == pytest.approx(
            [20, 40, 80], abs=1
        )
