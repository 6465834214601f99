"""Room for jobs: slots per executor, and caps per tenant, per DAG, and on the number of DAGs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.capacities import Both, Pools
from fairlead.capacities.groups import Groups
from fairlead.capacities.quotas import Quotas

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from fairlead.capacities.groups import Told
    from fairlead.core.ticket import Ticket
    from fairlead.jobs.settings import TenantLimits


MOST_SCOPES = 10_000


class Executors(Pools):
    """Slots per executor; one that no worker serves has none."""

    def known(self) -> list[str]:
        """Tell the executors that were ever given a number of slots."""
        return list(map(str, self._limits))

    def slots(self, executor: str) -> int | None:
        """Tell the slots of an executor; None if it was never given a number."""
        return self._limits.get(executor)

    def used(self, executor: str) -> int:
        """Tell the slots in use."""
        return self._used.get(executor, 0)

    def free(self, executor: str) -> int:
        """Tell the slots that are free."""
        return max(0, self._limits.get(executor, 0) - self.used(executor))

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        slots = self._limits.get(ticket.pool)
        if not slots:
            return f"no worker serves executor {ticket.pool!r}"
        if slots == 1:
            return f"the only slot of executor {ticket.pool!r} is in use"
        return f"all {slots} slots of executor {ticket.pool!r} are in use"


class PerTenant(Quotas):
    """`max_running` of each tenant."""

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        limit, used = self.limit(ticket.tenant), self.used(ticket.tenant)
        return f"tenant {ticket.tenant!r} has {_jobs(used)} running (max_running {limit})"


class PerDag(Quotas):
    """`max_running_per_dag`."""

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        dag = ticket.workload
        used, limit = _jobs(self.used(dag)), self.limit(dag)
        return f"run {dag} has {used} running (max_running_per_dag {limit})"


class Dags(Groups):
    """`max_concurrent_dags`."""

    def describe(self, ticket: Ticket, now: float, refusal: Hashable) -> str:
        return f"{len(self.active)} runs are active (max_concurrent_dags {self.limit})"


class Room(Both):
    """All of them; a job starts where every one has room."""

    def __init__(
        self,
        tenants: Mapping[str, TenantLimits],
        max_concurrent_dags: int | None,
        max_running_per_dag: int | None,
        told: Told,
    ) -> None:
        self.executors = Executors({}, name="executor")
        self.tenants = PerTenant("tenant", limits_of(tenants), name="tenant")
        self.dags = Dags(max_concurrent_dags, "workload", until_told=True, told=told, name="dags")
        self.per_dag: PerDag | None = None
        parts = [self.executors, self.tenants, self.dags]
        if max_running_per_dag is not None:
            self.per_dag = PerDag("workload", default=max_running_per_dag, name="dag")
            parts.append(self.per_dag)
        super().__init__(*parts, name="room")
        self._scopes: dict[tuple[Hashable, Hashable], tuple[Hashable, ...]] = {}

    def scopes(self, ticket: Ticket) -> tuple[Hashable, ...]:
        # Shared by all jobs of one executor and tenant; the orders here keep DAGs apart by themselves.
        names = (ticket.pool, ticket.tenant)
        shared = self._scopes.get(names)
        if shared is None:
            if len(self._scopes) >= MOST_SCOPES:
                self._scopes.clear()  # tenants come and go without end
            shared = (("executor", ticket.pool), ("tenant", ticket.tenant))
            self._scopes[names] = shared
        return shared


def _jobs(count: int) -> str:
    return f"{count} job{'s' * (count != 1)}"


def limits_of(tenants: Mapping[str, TenantLimits]) -> dict[Hashable, int]:
    """Tell who may have so many jobs running."""
    return {
        name: limits.max_running
        for name, limits in tenants.items()
        if limits.max_running is not None
    }
