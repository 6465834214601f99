"""The frontier: every job that is ready, and every one that runs, as tickets of one gate.

It decides which jobs start next and knows nothing of stores, workers and clocks.  What the gate starts is a proposal:
the caller claims it, and says `lost` if somebody else has it.  Times are those of the store.

A DAG is *active* from the first of its jobs that starts, or was started before, until `ended_run`; one of which nothing
is here after a `drop` (it is paused), or for `LINGER` seconds (its end went unheard), is active no longer.
"""

from __future__ import annotations

from operator import attrgetter
from sys import intern
from typing import TYPE_CHECKING, Protocol

from fairlead.core.gate import Change, Gate
from fairlead.core.ticket import RUNNING, WAITING, Outcome
from fairlead.jobs.held import Held
from fairlead.jobs.later import Later
from fairlead.jobs.orders import Orders
from fairlead.jobs.reasons import Why, why
from fairlead.jobs.records import ReadyJob
from fairlead.jobs.room import Room
from fairlead.jobs.ticket import JobTicket, flat, id_of, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fairlead.core.policy import Policy
    from fairlead.core.ticket import Ticket
    from fairlead.jobs.planners import FlatJob
    from fairlead.jobs.records import Id, RunningJob
    from fairlead.jobs.settings import Settings, TenantLimits

LINGER = 60.0  # seconds


class Workers(Protocol):
    """What a frontier asks about the workers."""

    def common(self) -> Mapping[str, frozenset[str]]: ...
    def free(self, executor: str, task: str) -> int: ...


class Frontier:
    """All ready and running jobs, and who goes next."""

    def __init__(
        self,
        *,
        planners: Callable[[str], object],
        tenants: Mapping[str, TenantLimits] | None = None,
        max_concurrent_dags: int | None = None,
        max_running_per_dag: int | None = None,
        max_wait: float = 3600.0,
        max_withheld: float = 10.0,
        burst: float = 60.0,
        gate: Callable[[Policy, Room], Gate] = Gate,
    ) -> None:
        self.orders = Orders(
            planners,
            {} if tenants is None else tenants,
            capped=max_running_per_dag is not None,
            max_wait=max_wait,
            max_withheld=max_withheld,
            burst=burst,
        )
        self.room = Room(
            {} if tenants is None else tenants,
            max_concurrent_dags,
            max_running_per_dag,
            self.orders.tell,
        )
        self.gate = gate(self.orders.lines, self.room)
        self._tickets: dict[int, Ticket] = {}  # waiting and running, by number
        self._later = Later()
        self._held = Held()
        self._workers: Workers | None = None
        self._common: Mapping[str, frozenset[str]] = {}
        self._fed: dict[tuple[str, str], set[int]] = {}  # held before, and waiting in the gate now
        self._started: list[Ticket] = []
        self._idle: dict[int, float] = {}  # active DAGs of which nothing is here, since when
        self._dropped: set[int] = set()  # active DAGs that have not come back since

    @classmethod
    def of(
        cls,
        settings: Settings,
        planners: Callable[[str], object],
        gate: Callable[[Policy, Room], Gate] = Gate,
    ) -> Frontier:
        """Make one by the settings of a `Jobs`."""
        return cls(
            planners=planners,
            tenants=settings.tenants,
            max_concurrent_dags=settings.max_concurrent_dags,
            max_running_per_dag=settings.max_running_per_dag,
            max_wait=settings.max_wait,
            max_withheld=settings.max_withheld,
            burst=settings.burst,
            gate=gate,
        )

    # What comes and goes

    def add(self, ready: Iterable[ReadyJob], now: float) -> None:
        """Let jobs wait; a batch is planned as a whole.

        What waits here already is brought up to date, and what runs is left alone.
        """
        tickets, later, active = self._tickets, self._later, self.room.dags.active
        arriving: dict[int, ReadyJob] = {}
        outdated: list[Ticket] = []
        begun: dict[int, None] = {}
        delayed = bool(later)
        for job in ready:
            number = job[0] << 32 | job[1]
            known = tickets.get(number)
            if known is not None:
                if known.state is not WAITING or known.work == job:
                    continue
                outdated.append(known)
            arriving[number] = job
            if job.start_at > now:
                delayed = True
            if job.active and job.dag not in active:
                begun[job.dag] = None
        if not arriving:
            return
        if self._dropped:
            self._dropped.difference_update(job.dag for job in arriving.values())
        if outdated:
            self._withdraw(outdated, now)
        if begun:  # before anybody here knew: no burst for them
            self.begin(begun, now)
        if delayed:
            for number, job in list(arriving.items()):
                if job.start_at > now:
                    later.add(_lean(job))
                    self._idle.pop(job.dag, None)
                    del arriving[number]
                else:
                    later.remove(job.dag, job.node)
        # In order of arrival a line of the old costs little.
        self._offer(sorted(arriving.values(), key=attrgetter("ready_at")), now)

    # Workers that differ in what they know

    def follow(self, workers: Workers, now: float) -> None:
        """Note which workers there are and which tasks they know."""
        self._workers = workers
        common = workers.common()
        if common != self._common:
            self._common = common
            # Tasks come and go with a deploy: then, and only then, everything that waits is looked at.
            strange = [
                ticket
                for ticket in self._tickets.values()
                if ticket.state is WAITING and not self._is_common(ticket.work)
            ]
            self._withdraw(strange, now)
            for ticket in strange:
                self._held.add(ticket.work)
            known = [job for job in self._held if self._is_common(job)]
            for job in known:
                self._held.remove(job.dag, job.node)
            self._enlist(sorted(known, key=attrgetter("ready_at")), now)
        self._feed(now)

    def _offer(self, jobs: Sequence[ReadyJob], now: float) -> None:
        """Let jobs into the gate; jobs that not every worker of their executor knows are held first."""
        if self._common:
            for job in jobs:
                self._held.remove(job.dag, job.node)
            strange = [job for job in jobs if not self._is_common(job)]
            if strange:
                jobs = [job for job in jobs if self._is_common(job)]
            for job in strange:
                self._held.add(_lean(job))
                self._idle.pop(job.dag, None)
        self._enlist(jobs, now)
        self._feed(now)

    def _is_common(self, job: ReadyJob) -> bool:
        common = self._common.get(job.executor)
        return common is None or job.task in common

    def _feed(self, now: float) -> None:
        """Let held jobs into the gate, no more of a task than workers that know it have free slots."""
        if not self._held or self._workers is None:
            return
        for kind in self._held.kinds():
            waiting = {
                number
                for number in self._fed.pop(kind, ())
                if (ticket := self._tickets.get(number)) is not None and ticket.state is WAITING
            }
            jobs = self._held.take(kind, self._workers.free(*kind) - len(waiting))
            waiting.update(number_of((job.dag, job.node)) for job in jobs)
            if waiting:
                self._fed[kind] = waiting
            self._enlist(jobs, now)

    def _enlist(self, jobs: Iterable[ReadyJob], now: float) -> None:
        tickets, idle = self._tickets, self._idle
        fresh: list[Ticket] = []
        for job in jobs:
            # A clock that is ahead of ours makes nobody arrive in the future.
            ticket = JobTicket(_lean(job), min(job.ready_at, now))
            tickets[job[0] << 32 | job[1]] = ticket
            fresh.append(ticket)
            if idle:
                idle.pop(job[0], None)
        if fresh:
            self._note(self.gate.enlist(fresh, now))

    def hold(self, running: Iterable[RunningJob], now: float) -> None:
        """Take over jobs that run already; they hold their slots, above any cap if need be."""
        adopted: list[Ticket] = []
        waiting: list[Ticket] = []
        for job in running:
            number = number_of((job.dag, job.node))
            known = self._tickets.get(number)
            if known is not None:
                if known.state is not WAITING:
                    continue
                waiting.append(known)
            self._later.remove(job.dag, job.node)
            self._held.remove(job.dag, job.node)
            ticket = JobTicket(job, job.claimed_at)
            ticket.state = RUNNING
            ticket.started_at = job.claimed_at
            adopted.append(ticket)
        if waiting:
            self._withdraw(waiting, now)
        self.begin(dict.fromkeys(one.work.dag for one in adopted), now)
        for one in adopted:
            self._tickets[number_of(id_of(one))] = one
            self._idle.pop(one.work.dag, None)
        self.gate.adopt(adopted, now)

    def begin(self, dags: Iterable[int], now: float) -> None:
        """Take over runs that are active already, whether or not a job of theirs is here."""
        begun = [dag for dag in dags if dag not in self.room.dags.active]
        if begun:
            since = now - self.orders.register.burst
            self._adjust("dags", "begin", (begun, since), now=now)

    def drop(self, dag: int, now: float, nodes: Iterable[int] | None = None) -> None:
        """Let jobs of a run wait no longer: cancelled, paused, or changed.  What runs is left alone."""
        chosen = None if nodes is None else set(nodes)
        cohorts = self.orders.register.of(dag)
        waiting = [ticket for cohort in cohorts for ticket in cohort]
        waiting += [ticket for ticket in self._started if ticket.work.dag == dag]
        if chosen is not None:
            waiting = [ticket for ticket in waiting if ticket.work.node in chosen]
        unclaimed = [ticket for ticket in waiting if ticket.state is RUNNING]
        for apart in (self._later, self._held):
            for node in apart.nodes(dag):
                if chosen is None or node in chosen:
                    apart.remove(dag, node)
        self._leave([ticket for ticket in waiting if ticket.state is WAITING], now)
        for ticket in unclaimed:
            del self._tickets[number_of(id_of(ticket))]
        self._finish(unclaimed, now, Outcome.LOST)
        self._note_idle(dag, now)
        if chosen is None and dag in self.room.dags.active:
            self._dropped.add(dag)

    def waiting_of(self, dag: int) -> list[Id]:
        """List the jobs of a run that wait for room."""
        cohorts = self.orders.register.of(dag)
        return [id_of(ticket) for cohort in cohorts for ticket in cohort]

    def withdraw(self, ids: Iterable[Id], now: float) -> None:
        """Let these jobs wait no longer, as far as they wait for room."""
        known = (self._tickets.get(number_of(job)) for job in ids)
        self._leave([one for one in known if one is not None and one.state is WAITING], now)

    def _leave(self, tickets: Sequence[Ticket], now: float) -> None:
        self._withdraw(tickets, now)
        for dag in {ticket.work.dag: None for ticket in tickets}:
            self._note_idle(dag, now)

    def _withdraw(self, tickets: Sequence[Ticket], now: float) -> None:
        for ticket in tickets:
            del self._tickets[number_of(id_of(ticket))]
        if tickets:
            self._note(self.gate.withdraw(tickets, now))

    def ended(self, ids: Iterable[Id], now: float) -> None:
        """Take room back; what waits is not to be run any more; unknown ids are ignored."""
        tickets, later, held = self._tickets, self._later, self._held
        # Before room is given back: the slots that come free go to the best of all there are.
        self._feed(now)
        finished: list[Ticket] = []
        waiting: list[Ticket] = []
        for dag, node in ids:
            number = dag << 32 | node
            ticket = tickets.get(number)
            if ticket is None:
                if (later and later.remove(dag, node)) or (held and held.remove(dag, node)):
                    self._note_idle(dag, now)
            elif ticket.state is WAITING:
                waiting.append(ticket)
            else:
                del tickets[number]
                finished.append(ticket)
        self._leave(list(dict.fromkeys(waiting)), now)
        self._finish(finished, now, Outcome.OK)

    def lost(self, job: Id, now: float) -> None:
        """A proposal could not be claimed: it never started.  It is not offered again unless it is added."""
        ticket = self._tickets.get(number_of(job))
        if ticket is not None and ticket.state is RUNNING:
            del self._tickets[number_of(job)]
            self._finish([ticket], now, Outcome.LOST)

    def _finish(self, tickets: list[Ticket], now: float, outcome: Outcome) -> None:
        if tickets:
            self._note(self.gate.finish_all(tickets, now, outcome))
            for dag in {ticket.work[0]: None for ticket in tickets}:
                self._note_idle(dag, now)

    def ended_run(self, dag: int, now: float) -> None:
        """A run has ended: another may begin."""
        self.ended_runs((dag,), now)

    def ended_runs(self, dags: Iterable[int], now: float) -> None:
        """Runs have ended: others may begin."""
        ended = [dag for dag in dags if dag in self.room.dags.active]
        self._dropped.difference_update(ended)
        for dag in ended:
            self._idle.pop(dag, None)
        if ended:
            self._adjust("dags", "end", (ended,), now=now)

    def _note_idle(self, dag: int, now: float) -> None:
        dags = self.room.dags
        if (
            dag in dags.active
            and not dags.running(dag)
            and dag not in self.orders.register.cohorts
            and dag not in self._later
            and dag not in self._held
        ):
            self._idle.setdefault(dag, now)

    def _note(self, changed: Iterable[Ticket]) -> None:
        for ticket in changed:
            if ticket.state is RUNNING:
                self._started.append(ticket)

    def started(self) -> list[ReadyJob]:
        """Tell the proposals since this was last asked, in the order in which they were planned."""
        started, self._started = self._started, []
        return [ticket.work for ticket in started if ticket.state is RUNNING]

    # Time

    @property
    def due(self) -> float:
        """When to call `advance` next."""
        due = min(self.gate.next_wakeup(self.gate.now), self.orders.due(self.room))
        due = min(due, self._later.due())
        if any(dag in self._idle for dag in self._dropped):
            return self.gate.now
        if self._idle:
            due = min(due, next(iter(self._idle.values())) + LINGER)
        return due

    def advance(self, now: float) -> None:
        """Let time pass."""
        arrived = list(self._later.take(now))
        if arrived:
            self._offer(arrived, now)
        self._note(self.gate.advance(now))
        self.ended_runs([dag for dag in self._dropped if dag in self._idle], now)
        while self._idle:
            dag, since = next(iter(self._idle.items()))
            if since + LINGER > now:
                break
            self.ended_run(dag, now)
            self._idle.pop(dag, None)

    # Settings

    def resize(self, executor: str, slots: int, now: float) -> None:
        """Change the slots of an executor."""
        if self.room.executors.slots(executor) != slots:
            self._adjust("executor", "resize", (executor, slots), now=now)

    def set_planner(self, executor: str, planner: object, now: float) -> None:
        """Let another planner order what waits for an executor."""
        queue = self.orders.change(executor, planner)
        if queue is not None:
            self._adjust("lines", "replace", (executor, queue, now), now=now)

    def _adjust(self, part: str, verb: str, args: tuple[object, ...], *, now: float) -> None:
        self._note(self.gate.adjust(Change(part, verb, args), now))

    # A user's planner

    def needs_plan(self, now: float) -> list[str]:
        """Tell the executors whose planner should be asked now."""
        return self.orders.needs_plan(self.room, now)

    def candidates(self, executor: str, now: float, limit: int = 1000) -> list[FlatJob]:
        """Tell jobs that would have room, by SLA priority and age."""
        return [
            flat(ticket, now) for ticket in self.orders.candidates(executor, self.room, now, limit)
        ]

    def planned(self, executor: str, ids: Sequence[object] | None, now: float) -> None:
        """Follow a planner's answer, ids of candidates; None if it failed."""
        tickets: list[Ticket] | None = None
        if ids is not None:
            known = (self._tickets.get(number_of(job)) for job in ids)
            tickets = [ticket for ticket in known if ticket is not None and ticket.state is WAITING]
        if self.orders.follow(executor, tickets, now):
            self._note(self.gate.advance(now))
            self.orders.void(executor)  # who came meanwhile may belong before the rest

    def overdue_withheld(self, executor: str) -> int:
        """Tell how many have started since last asked though the planner left them out."""
        return self.orders.take_overdue(executor)

    # Looking

    def explain(self, job: Id, now: float, whole: bool = True) -> Why:
        """Find why a job does not run; `whole` if all ready jobs are here."""
        held = self._held.find(*job)
        if held is not None:
            return Why(
                f"the workers of executor {held.executor!r} that know task {held.task!r} have no free slot"
            )
        return why(self, self._tickets.get(number_of(job)), self._later.find(*job), now, whole)

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return self.gate.waiting + len(self._held)

    @property
    def running(self) -> int:
        """How many hold a slot, proposals among them."""
        return self.gate.active

    @property
    def delayed(self) -> int:
        """How many wait for their time."""
        return len(self._later)

    def executors(self) -> list[str]:
        """Tell every executor that has slots, or for which a job waits."""
        return sorted({*self.room.executors.known(), *map(str, self.orders.lines.names())})

    def waiting_on(self, executor: str) -> int:
        """Tell how many wait for an executor."""
        return self.orders.waiting_on(executor) + self._held.count(executor)

    def slots(self) -> dict[str, int]:
        """Tell the free slots of each executor."""
        return {str(pool): int(room) for pool, room in self.room.executors.room().items()}

    def active_dags_text(self) -> set[str]:
        """Tell the active DAGs, as planners know them."""
        return set(map(str, self.room.dags.active))

    def recent_dags_text(self, now: float) -> set[str]:
        """Tell the DAGs that became active a moment ago."""
        return {str(dag) for dag in self.orders.register.recent(now)}


def _lean(job: ReadyJob) -> ReadyJob:
    """Keep each name once: there are few tasks, executors and tenants, and very many jobs."""
    task, executor, tenant = job[3:6]
    own = intern(task), intern(executor), intern(tenant)
    if own[0] is task and own[1] is executor and own[2] is tenant:
        return job
    # What `_replace` does, in a third of the time.
    return tuple.__new__(ReadyJob, (*job[:3], *own, *job[6:]))
