"""What every store must do, told once: subclass `StoreContract` in a test file and give it a fixture `store`.

`store` is an open store on an empty database.  Nothing here sleeps or looks inside: what is to have expired gets a
lease of no length, what is to be late gets a time that has passed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fairlead.errors import Misuse
from fairlead.jobs.records import (
    AlikeRuns,
    Claim,
    Claimed,
    Death,
    Ending,
    Finished,
    Id,
    NewJob,
    NewRun,
    News,
    RunEnd,
    Schedule,
    Submitted,
)
from fairlead.jobs.states import (
    ACTIVE,
    CANCELLED,
    COMPLETED,
    CREATED,
    EXPIRED,
    FAILED,
    RETRY,
    SKIPPED,
    SUSPENDED,
)
from fairlead.jobs.stores.base import Store

LEADER = "leader"
WORKER = "worker"
LEASE = 1000.0

Shape = Mapping[str, Sequence[str]]  # name -> the names it needs
CHAIN: Shape = {"a": [], "b": ["a"], "c": ["b"]}
DIAMOND: Shape = {"top": [], "left": ["top"], "right": ["top"], "foot": ["left", "right"]}


def new_run(shape: Shape | Sequence[str] = ("a",), /, name: str = "run", **given: Any) -> NewRun:
    """Make a run of that shape; options of jobs are given by `of_jobs`."""
    wanted: Shape = shape if isinstance(shape, Mapping) else dict.fromkeys(shape, ())
    places = {node: place for place, node in enumerate(wanted)}
    options = given.pop("of_jobs", {})
    jobs = []
    for node, needs in wanted.items():
        numbers = tuple(places[need] for need in needs)
        told: dict[str, Any] = {
            "executor": "ocr",
            "payload": f'{{"args": ["{node}"], "kwargs": {{}}}}',
            "needs": numbers,
            "uses": numbers,
        }
        jobs.append(NewJob(node, f"task-{node}", **{**told, **options}))
    return NewRun(name, tuple(jobs), **given)


# Names of runs, names of their jobs, and payloads.
ODD_TEXTS = (["r1", "", "r\x1f3"], ["a", "b", "a"], ['{"args":[]}', '{"args":["\x1f"]}', "{}"])
EQUAL_TEXTS = (["r"] * 3, ["a"] * 3, ["{}"] * 3)


def alike(first: NewRun, names: list[str], job_names: list[str], payloads: list[str]) -> AlikeRuns:
    runs = AlikeRuns(first)
    runs.names, runs.job_names, runs.payloads = names, job_names, payloads
    return runs


class Hand:
    """A scheduler and a worker in one, by hand: claims what it is told and ends it as it is told."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.epoch = 0
        self.worker = 0
        self.fences: dict[Id, int] = {}
        self._drawn = 2**62

    async def begin(self) -> "Hand":
        self.epoch = await self.store.lead(LEADER, LEASE) or 0
        self.worker = (await self.store.register("w", WORKER, {"ocr": 4}, LEASE))["ocr"]
        await self.store.take_news(LEADER)
        return self

    async def submit(self, shape: Shape | Sequence[str] = ("a",), /, **given: Any) -> int:
        (submitted,) = await self.store.submit([new_run(shape, **given)])
        assert submitted.new
        return submitted.dag

    async def claim(self, dag: int, *nodes: int, acked: bool = True) -> list[Claimed]:
        claims = []
        for node in nodes:
            self._drawn += 1
            claims.append(Claim(dag, node, self.worker, self._drawn))
        claimed = await self.store.claim(LEADER, self.epoch, claims, acked=acked)
        self.fences.update(((job.dag, job.node), job.fence) for job in claimed)
        return claimed

    async def end(
        self, dag: int, node: int, state: str, process: str = WORKER, **given: Any
    ) -> Finished:
        ending = Ending(dag, node, self.fences[dag, node], state, **given)
        return await self.store.finish(process, [ending])

    async def do(self, dag: int, node: int, state: str = COMPLETED, **given: Any) -> Finished:
        assert len(await self.claim(dag, node)) == 1, f"{dag}.{node} is not to be had"
        if state == COMPLETED:
            given.setdefault("result", "null")
        return await self.end(dag, node, state, **given)

    async def states(self, dag: int) -> list[str]:
        return [job.state for job in await self.store.jobs(dag)]

    async def state(self, dag: int) -> str:
        run = await self.store.run(dag)
        assert run is not None
        return run.state

    async def ready(self) -> list[Id]:
        return [(job.dag, job.node) for job in await self.store.ready(None, 1000)]

    async def news(self) -> News:
        return await self.store.take_news(LEADER)


def ids(jobs: Sequence[Any]) -> list[Id]:
    return [(job.dag, job.node) for job in jobs]


def counted(**expected: int) -> dict[str, int]:
    every = (CREATED, RETRY, ACTIVE, COMPLETED, SKIPPED, EXPIRED, CANCELLED, FAILED, SUSPENDED)
    return {state: expected.get(state, 0) for state in every}


@pytest.mark.anyio
class StoreContract:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def hand(self, store: Store) -> Hand:
        return await Hand(store).begin()

    # Life

    async def test_a_store_knows_its_versions_and_needs_no_migration(self, store: Store):
        found, needed = await store.versions()
        assert found == needed > 0
        assert await store.migrate() == []

    async def test_a_store_may_be_closed_twice_and_then_says_so(self, store: Store):
        await store.close()
        await store.close()
        with pytest.raises(Misuse):
            await store.states()

    async def test_a_twin_sees_what_its_twin_wrote(self, store: Store):
        twin = store.twin()
        await twin.open()
        try:
            (submitted,) = await twin.submit([new_run()])
            assert (await store.run(submitted.dag)) is not None
        finally:
            await twin.close()

    async def test_an_empty_store_is_empty(self, store: Store):
        assert await store.ready(None, 10) == []
        assert await store.running() == []
        assert await store.runs() == []
        assert await store.workers() == []
        assert await store.executors() == set()
        assert await store.schedules() == []
        assert await store.settings() == {}
        assert await store.estimates() == {}
        assert await store.missed() == []
        assert await store.unannounced(10) == []
        assert await store.orphans(0) == []
        assert await store.oldest_ready() is None
        assert await store.run(1) is None
        assert await store.jobs(1) == []
        assert await store.find("", "key") is None
        told = await store.states()
        assert {state: told.get(state, 0) for state in counted()} == counted()

    async def test_nothing_happens_to_a_run_that_is_not_there(self, store: Store):
        for verb in (store.cancel, store.pause, store.resume, store.retry):
            assert await verb(17) is False
        assert await store.set_sla(17, 1.0, 2.0) is False
        assert await store.set_sla(17, 1.0, 2.0, node=0) is False
        assert await store.reread(17) == ([], [])

    # Submitting

    async def test_a_run_is_stored_as_it_was_given(self, store: Store):
        now = store.now()
        options = {"level": 2, "height": 7.5, "estimate": 2.5, "soft": now + 60, "hard": now + 90}
        options |= {"retries": 3, "retry_delay": 0.5, "timeout": 30.0}
        run = new_run(
            ["a"], "invoice", tenant="acme", key="k", soft=now + 60, hard=now + 90, of_jobs=options
        )
        (submitted,) = await store.submit([run])
        assert submitted.new
        row = await store.run(submitted.dag)
        assert row is not None
        assert (row.dag, row.name, row.tenant, row.key) == (submitted.dag, "invoice", "acme", "k")
        assert (row.state, row.left, row.jobs, row.cancelling) == (CREATED, 1, 1, False)
        assert (row.soft, row.hard) == pytest.approx((now + 60, now + 90), abs=1e-4)
        assert (row.start_at, row.started_at, row.completed_on) == (None, None, None)
        assert row.created_at == pytest.approx(now, abs=5)
        (job,) = await store.jobs(submitted.dag)
        assert (job.dag, job.node, job.name, job.task, job.executor) == (
            submitted.dag,
            0,
            "a",
            "task-a",
            "ocr",
        )
        assert (job.state, job.needs, job.waits, job.level, job.estimate) == (
            CREATED,
            (),
            0,
            2,
            2.5,
        )
        assert (job.attempts, job.crashes, job.retries, job.start_at) == (0, 0, 3, 0)
        assert (job.worker, job.cancelling, job.result, job.error) == (None, False, None, None)
        (ready,) = await store.ready(None, 10)
        assert ready[:8] == (submitted.dag, 0, "a", "task-a", "ocr", "acme", 2, 7.5)
        assert ready[8:11] == pytest.approx((2.5, now + 60, now + 90), abs=1e-4)
        assert (ready.start_at, ready.active) == (0, False)
        assert ready.ready_at == pytest.approx(now, abs=5)

    async def test_only_what_waits_for_nothing_is_ready(self, hand: Hand):
        dag = await hand.submit(DIAMOND)
        assert await hand.ready() == [(dag, 0)]
        assert [job.waits for job in await hand.store.jobs(dag)] == [0, 1, 1, 2]
        assert [job.needs for job in await hand.store.jobs(dag)] == [(), (0,), (0,), (1, 2)]

    async def test_many_runs_go_in_together_and_are_numbered_in_order(self, store: Store):
        submitted = await store.submit([new_run(name=f"r{n}") for n in range(600)])
        numbers = [one.dag for one in submitted]
        assert numbers == sorted(set(numbers))
        assert [row.name for row in await store.runs(limit=3)] == ["r599", "r598", "r597"]
        assert (await store.states())[CREATED] == 600

    @pytest.mark.parametrize("start_at", [None, 1.0, 9e9])
    @pytest.mark.parametrize("texts", [ODD_TEXTS, EQUAL_TEXTS])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"estimate": 2.5, "height": 7.5, "timeout": 3.0, "retries": 4, "retry_delay": 0.5},
        ],
    )
    async def test_runs_that_are_alike_are_stored_as_one_by_one(
        self,
        hand: Hand,
        start_at: float | None,
        texts: Sequence[list[str]],
        options: dict[str, Any],
    ):
        runs = alike(new_run(tenant="acme", start_at=start_at, of_jobs=options), *texts)
        together = await hand.store.submit(runs)
        apart = await hand.store.submit(list(runs))
        assert [one.dag for one in together] == sorted(one.dag for one in together)
        assert [one.new for one in together] == [True] * 3
        assert await self.told(hand, together) == await self.told(hand, apart)
        assert await hand.ready() == [(one.dag, 0) for one in together + apart]
        assert sorted((await hand.news()).refreshed) == [one.dag for one in together + apart]
        if start_at != 9e9:
            claims = [[await hand.claim(one.dag, 0) for one in each] for each in (together, apart)]
            ours, theirs = ([job._replace(dag=0, fence=0) for (job,) in each] for each in claims)
            assert ours == theirs
            assert [job.payload for job in ours] == texts[2]

    async def told(self, hand: Hand, submitted: Sequence[Submitted]) -> list[Any]:
        """What is shown of runs and their jobs, without numbers, and with times from when they were stored."""
        shown: list[Any] = []
        for one in submitted:
            run = await hand.store.run(one.dag)
            (job,) = await hand.store.jobs(one.dag)
            assert run is not None
            assert job.ready_at is not None
            waits = job.ready_at == run.start_at
            assert waits or job.ready_at == run.created_at
            assert waits == (run.start_at == 9e9)
            shown.append(run._replace(dag=0, created_at=0.0))
            shown.append((waits, job._replace(dag=0, ready_at=None)))
        return shown

    async def test_endings_of_what_is_not_there_keep_no_others_from_ending(self, hand: Hand):
        first, second = [await hand.submit() for _ in range(2)]
        for dag in (first, second):
            await hand.claim(dag, 0)
        told = [
            Ending(dag, 0, hand.fences.get((dag, 0), 7), COMPLETED, "1")
            for dag in (second, 0, first, 10**9, second)
        ]
        finished = await hand.store.finish(WORKER, told)
        assert sorted(finished.ended) == [RunEnd(dag, COMPLETED) for dag in (first, second)]
        assert sorted(set(finished.refused)) == [(0, 0), (second, 0), (10**9, 0)]
        assert sorted(finished.applied) == [(first, 0), (second, 0)]
        assert [await hand.state(dag) for dag in (first, second)] == [COMPLETED] * 2

    async def test_a_refused_ending_among_others_ends_no_run(self, hand: Hand):
        dags = [await hand.submit() for _ in range(4)]
        for dag in dags:
            await hand.claim(dag, 0)
        refused = dags[1]
        told = [
            Ending(dag, 0, hand.fences[dag, 0] + (dag == refused), COMPLETED, "1") for dag in dags
        ]
        finished = await hand.store.finish(WORKER, told)
        assert sorted(finished.ended) == [RunEnd(dag, COMPLETED) for dag in dags if dag != refused]
        assert finished.refused == [(refused, 0)]
        run = await hand.store.run(refused)
        assert run is not None
        assert (run.state, run.left, run.completed_on) == (ACTIVE, 1, None)
        assert await hand.states(refused) == [ACTIVE]

    async def test_the_same_key_gives_the_same_run(self, store: Store):
        first, second = await store.submit([new_run(key="k"), new_run(["x", "y"], key="k")])
        assert (first.new, second) == (True, Submitted(first.dag, False))
        (third,) = await store.submit([new_run(key="k", name="other")])
        assert third == Submitted(first.dag, False)
        assert len(await store.runs()) == 1
        assert (await store.states())[CREATED] == 1

    async def test_keys_are_each_tenants_own(self, store: Store):
        answers = await store.submit([new_run(key="k", tenant=tenant) for tenant in ("", "a", "b")])
        assert len({one.dag for one in answers}) == 3
        assert await store.find("a", "k") == answers[1].dag
        assert await store.find("c", "k") is None

    async def test_a_key_submitted_from_everywhere_at_once_is_one_run(self, store: Store):
        twin = store.twin()
        await twin.open()
        try:
            answers = await asyncio.gather(
                *(place.submit([new_run(key="k")]) for place in (store, twin) * 10)
            )
        finally:
            await twin.close()
        told = [answer for (answer,) in answers]
        assert len({one.dag for one in told}) == 1
        assert sum(one.new for one in told) == 1
        assert len(await store.runs()) == 1

    async def test_a_key_stays_taken_after_the_end_and_in_the_archive(self, hand: Hand):
        dag = await hand.submit(key="k")
        await hand.do(dag, 0)
        assert await hand.store.submit([new_run(key="k")]) == [Submitted(dag, False)]
        assert await hand.store.archive(hand.store.now() + 60, 10) == 1
        assert await hand.store.submit([new_run(key="k")]) == [Submitted(dag, False)]
        assert await hand.store.find("", "k") == dag

    async def test_a_number_is_never_used_again(self, hand: Hand):
        dag = await hand.submit()
        await hand.do(dag, 0)
        await hand.store.archive(hand.store.now() + 60, 10)
        assert await hand.submit() > dag

    async def test_a_delayed_run_is_ready_but_not_to_be_had_before_its_time(self, hand: Hand):
        start_at = hand.store.now() + 500
        dag = await hand.submit(CHAIN, start_at=start_at)
        row = await hand.store.run(dag)
        assert row is not None
        assert row.start_at == pytest.approx(start_at, abs=1e-3)
        (ready,) = await hand.store.ready(None, 10)
        assert ready.start_at == pytest.approx(start_at, abs=1e-3)
        assert ready.ready_at == pytest.approx(start_at, abs=1e-3), (
            "it does not wait before it may run"
        )
        assert await hand.claim(dag, 0) == []

    async def test_a_time_to_start_that_has_passed_is_no_delay(self, hand: Hand):
        dag = await hand.submit(start_at=hand.store.now() - 500)
        (ready,) = await hand.store.ready(None, 10)
        assert ready.ready_at == pytest.approx(hand.store.now(), abs=5)
        await hand.do(dag, 0)

    async def test_payloads_and_results_survive_as_they_are(self, hand: Hand):
        payload = '{"args": ["' + "ü→\\u0041 " * 20_000 + '"], "kwargs": {"a\'b": "\\"x\\""}}'
        run = new_run({"a": [], "b": ["a"]}, of_jobs={"payload": payload})
        (submitted,) = await hand.store.submit([run])
        (first,) = await hand.claim(submitted.dag, 0)
        assert first.payload == payload
        result = '"' + "é'\\n" * 50_000 + '"'
        await hand.end(submitted.dag, 0, COMPLETED, result=result)
        (second,) = await hand.claim(submitted.dag, 1)
        assert second.payload == payload
        assert second.inputs == {0: result}
        assert (await hand.store.jobs(submitted.dag))[0].result == result

    async def test_no_character_in_a_text_takes_it_for_two(self, hand: Hand):
        texts = ["a\x1fb", "\x1f", "c\x1f\x1f", "d"]
        runs = [
            new_run([text], name=text, of_jobs={"payload": f'["{text}"]'}, tenant=text)
            for text in texts
        ]
        submitted = await hand.store.submit(runs)
        rows = [(await hand.store.jobs(one.dag))[0] for one in submitted]
        assert [row.name for row in rows] == texts
        assert [row.task for row in rows] == [f"task-{text}" for text in texts]
        for one, text in zip(submitted, texts, strict=True):
            (claimed,) = await hand.claim(one.dag, 0)
            assert claimed.payload == f'["{text}"]'
            found = await hand.store.run(one.dag)
            assert found is not None
            assert (found.name, found.tenant) == (text, text)

    # Leading

    async def test_one_leads_until_it_resigns(self, store: Store):
        epoch = await store.lead("one", LEASE)
        assert epoch is not None
        assert await store.lead("one", LEASE) == epoch
        assert await store.lead("two", LEASE) is None
        await store.resign("two")
        assert await store.lead("two", LEASE) is None
        await store.resign("one")
        later = await store.lead("two", LEASE)
        assert later is not None
        assert later > epoch
        assert await store.lead("one", LEASE) is None

    async def test_a_lease_that_ran_out_is_anybodys(self, store: Store):
        epoch = await store.lead("one", 0.0)
        later = await store.lead("two", LEASE)
        assert epoch is not None
        assert later is not None
        assert later > epoch
        assert await store.lead("one", LEASE) is None

    async def test_of_many_who_want_to_lead_one_does(self, store: Store):
        twin = store.twin()
        await twin.open()
        try:
            told = await asyncio.gather(
                *(place.lead(f"p{n}", LEASE) for n in range(8) for place in (store, twin))
            )
        finally:
            await twin.close()
        # Each name asks twice; only the two calls of the winner's name may have been answered.
        assert 1 <= sum(epoch is not None for epoch in told) <= 2
        assert len({epoch for epoch in told if epoch is not None}) == 1

    async def test_only_the_leader_claims_and_only_in_its_time(self, hand: Hand):
        dag = await hand.submit()
        claims = [Claim(dag, 0, hand.worker, 5)]
        assert await hand.store.claim(LEADER, hand.epoch - 1, claims, acked=True) == []
        assert await hand.store.claim("other", hand.epoch, claims, acked=True) == []
        await hand.store.resign(LEADER)
        assert await hand.store.claim(LEADER, hand.epoch, claims, acked=True) == []
        assert await hand.states(dag) == [CREATED]
        assert await hand.store.lead("other", LEASE) is not None
        assert await hand.store.claim(LEADER, hand.epoch, claims, acked=True) == []
        assert await hand.states(dag) == [CREATED]

    # Claiming

    async def test_a_claim_brings_all_that_is_needed(self, hand: Hand):
        given = {"retries": 2, "retry_delay": 0.25, "timeout": 9.0}
        dag = await hand.submit(DIAMOND, of_jobs=given)
        (top,) = await hand.claim(dag, 0)
        assert top == Claimed(
            dag, 0, hand.worker, hand.fences[dag, 0], "top", "task-top",
            '{"args": ["top"], "kwargs": {}}', {}, 0, 0, 2, 0.25, 9.0,
        )  # fmt: skip
        await hand.end(dag, 0, COMPLETED, result="1")
        await hand.do(dag, 1, result="[2]")
        await hand.do(dag, 2, result='"3"')
        (foot,) = await hand.claim(dag, 3)
        assert foot.inputs == {1: "[2]", 2: '"3"'}

    async def test_results_come_in_the_order_of_the_claims(self, hand: Hand):
        dag = await hand.submit([f"n{place}" for place in range(40)])
        order = [(7 * place) % 40 for place in range(40)]
        assert [job.node for job in await hand.claim(dag, *order)] == order

    async def test_a_job_is_claimed_once(self, hand: Hand):
        dag = await hand.submit(["a", "b"])
        assert ids(await hand.claim(dag, 0)) == [(dag, 0)]
        held = hand.fences[dag, 0]
        assert ids(await hand.claim(dag, 0, 1)) == [(dag, 1)]
        (first, _) = await hand.store.running()
        assert first.fence == held

    async def test_what_is_blocked_or_unknown_is_not_claimed(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        assert await hand.claim(dag, 1, 2, 99) == []
        assert await hand.claim(dag + 1, 0) == []
        assert await hand.states(dag) == [CREATED, CREATED, CREATED]
        assert await hand.state(dag) == CREATED

    async def test_no_claims_are_no_claims(self, hand: Hand):
        assert await hand.store.claim(LEADER, hand.epoch, [], acked=True) == []

    async def test_the_first_claim_makes_its_run_active(self, hand: Hand):
        dag = await hand.submit(["a", "b"])
        await hand.claim(dag, 0)
        row = await hand.store.run(dag)
        assert row is not None
        assert row.state == ACTIVE
        assert row.started_at == pytest.approx(hand.store.now(), abs=5)
        (other,) = await hand.store.ready(None, 10)
        assert other.active

    async def test_what_runs_is_told_with_its_holder(self, hand: Hand):
        dag = await hand.submit(
            ["a", "b"], tenant="acme", of_jobs={"retries": 1, "retry_delay": 2.0}
        )
        await hand.claim(dag, 0)
        await hand.claim(dag, 1, acked=False)
        first, second = await hand.store.running()
        assert first[:8] == (
            dag,
            0,
            "task-a",
            "ocr",
            "acme",
            hand.worker,
            hand.fences[dag, 0],
            True,
        )
        assert (second.acked, second.fence) == (False, hand.fences[dag, 1])
        assert first.claimed_at == pytest.approx(hand.store.now(), abs=5)
        assert first[9:] == (0, 0, 1, 2.0, False, "a", None)
        ready, running = await hand.store.reread(dag)
        assert (ready, running) == ([], [first, second])

    async def test_reread_tells_both_kinds(self, hand: Hand):
        dag = await hand.submit({"a": [], "b": [], "c": ["a"]})
        other = await hand.submit(["x"])
        await hand.claim(dag, 1)
        ready, running = await hand.store.reread(dag)
        assert (ids(ready), ids(running)) == ([(dag, 0)], [(dag, 1)])
        assert ids((await hand.store.reread(other))[0]) == [(other, 0)]

    async def test_ready_is_paged_in_order(self, hand: Hand):
        dags = [await hand.submit(["a", "b", "c"]) for _ in range(4)]
        await hand.claim(dags[1], 1)
        seen: list[Id] = []
        after: Id | None = None
        while page := await hand.store.ready(after, 2):
            assert len(page) <= 2
            seen += ids(page)
            after = seen[-1]
        assert seen == [
            (dag, node) for dag in dags for node in range(3) if (dag, node) != (dags[1], 1)
        ]

    async def test_of_two_schedulers_one_gets_each_job(self, hand: Hand):
        dag = await hand.submit([f"n{place}" for place in range(30)])
        twin = hand.store.twin()
        await twin.open()
        try:
            told = await asyncio.gather(
                *(
                    place.claim(
                        LEADER,
                        hand.epoch,
                        [
                            Claim(dag, node, hand.worker, 1000 * place_number + node)
                            for node in range(30)
                        ],
                        acked=True,
                    )
                    for place_number, place in enumerate((hand.store, twin, hand.store, twin))
                )
            )
        finally:
            await twin.close()
        won = [job for claimed in told for job in claimed]
        assert sorted(ids(won)) == [(dag, node) for node in range(30)]
        holders = {(job.dag, job.node): job.fence for job in await hand.store.running()}
        assert holders == {(job.dag, job.node): job.fence for job in won}

    # Finishing

    async def test_the_end_of_the_last_job_is_the_end_of_the_run(self, hand: Hand):
        dag = await hand.submit(["a", "b"])
        first = await hand.do(dag, 0, result="7")
        assert first == Finished([(dag, 0)], [], [], [])
        assert await hand.state(dag) == ACTIVE
        last = await hand.do(dag, 1, result="8")
        assert last.ended == [RunEnd(dag, COMPLETED)]
        row = await hand.store.run(dag)
        assert row is not None
        assert (row.state, row.left) == (COMPLETED, 0)
        assert row.completed_on == pytest.approx(hand.store.now(), abs=5)
        jobs = await hand.store.jobs(dag)
        assert [job.result for job in jobs] == ["7", "8"]
        for job in jobs:
            assert job.completed_on is not None
            assert job.worker == hand.worker
            assert job.started_at is not None

    async def test_dependents_become_ready_when_all_is_done(self, hand: Hand):
        dag = await hand.submit(DIAMOND, tenant="t")
        done = await hand.do(dag, 0)
        assert ids(done.ready) == [(dag, 1), (dag, 2)]
        assert done.ready == await hand.store.ready(None, 10)
        assert done.ready[0].active
        assert done.ready[0].tenant == "t"
        assert (await hand.do(dag, 1)).ready == []
        assert ids((await hand.do(dag, 2)).ready) == [(dag, 3)]
        assert (await hand.do(dag, 3)).ended == [RunEnd(dag, COMPLETED)]

    async def test_a_batch_counts_each_dependency_once(self, hand: Hand):
        parts = [f"n{place}" for place in range(10)]
        shape: Shape = {**dict.fromkeys(parts, ()), "all": parts}
        dag = await hand.submit(shape)
        await hand.claim(dag, *range(10))
        endings = [
            Ending(dag, node, hand.fences[dag, node], COMPLETED, result=str(node))
            for node in range(9)
        ]
        # The same ending twice, in one batch and in the next.
        told = await hand.store.finish(WORKER, [*endings, endings[0]])
        assert told.applied == [(dag, node) for node in range(9)]
        assert told.refused == [(dag, 0)]
        assert told.ready == []
        assert (await hand.store.finish(WORKER, endings)).applied == []
        assert (await hand.store.jobs(dag))[10].waits == 1
        assert ids((await hand.end(dag, 9, COMPLETED, result="9")).ready) == [(dag, 10)]
        (last,) = await hand.claim(dag, 10)
        assert last.inputs == {node: str(node) for node in range(10)}

    async def test_a_batch_may_hold_every_kind_of_ending(self, hand: Hand):
        states = (COMPLETED, RETRY, FAILED, COMPLETED, CANCELLED)
        dag = await hand.submit({f"n{place}": () for place in range(len(states))})
        await hand.claim(dag, *range(len(states)))
        told = await hand.store.finish(
            WORKER,
            [
                Ending(dag, node, hand.fences[dag, node], state, **how)
                for node, state in enumerate(states)
                for how in (
                    {"result": "1"} if state is COMPLETED else {"attempts": 1, "crashes": 0},
                )
            ],
        )
        assert told.applied == [(dag, node) for node in range(len(states))]
        assert told.refused == []

    async def test_a_wrong_fence_changes_nothing(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        await hand.claim(dag, 0)
        before = await hand.store.jobs(dag)
        for state in (COMPLETED, RETRY, FAILED, EXPIRED, CANCELLED):
            told = await hand.store.finish(WORKER, [Ending(dag, 0, 12345, state, result="1")])
            assert told == Finished([], [(dag, 0)], [], [])
        assert await hand.store.jobs(dag) == before
        unknown = await hand.store.finish(
            WORKER, [Ending(dag, 77, 1, COMPLETED), Ending(9, 0, 1, FAILED)]
        )
        assert unknown.refused == [(dag, 77), (9, 0)]

    async def test_an_old_fence_is_refused_after_another_claim(self, hand: Hand):
        dag = await hand.submit()
        await hand.claim(dag, 0)
        stale = hand.fences[dag, 0]
        await hand.end(dag, 0, RETRY)
        await hand.claim(dag, 0)
        assert hand.fences[dag, 0] != stale
        told = await hand.store.finish(
            WORKER, [Ending(dag, 0, stale, COMPLETED, result='"zombie"')]
        )
        assert told.refused == [(dag, 0)]
        assert await hand.states(dag) == [ACTIVE]
        await hand.end(dag, 0, COMPLETED, result='"live"')
        assert (await hand.store.jobs(dag))[0].result == '"live"'

    async def test_what_has_ended_stays_ended(self, hand: Hand):
        dag = await hand.submit(["a", "b"])
        await hand.do(dag, 0)
        for state in (COMPLETED, RETRY, FAILED):
            assert (await hand.end(dag, 0, state)).refused == [(dag, 0)]
        assert await hand.states(dag) == [COMPLETED, CREATED]

    async def test_a_retry_waits_its_delay_and_keeps_its_age(self, hand: Hand):
        dag = await hand.submit()
        (first,) = await hand.store.ready(None, 1)
        told = await hand.do(
            dag, 0, RETRY, delay=500.0, attempts=1, crashes=0, error='{"type": "E"}'
        )
        assert ids(told.ready) == [(dag, 0)]
        (again,) = told.ready
        assert again.start_at == pytest.approx(hand.store.now() + 500, abs=5)
        assert again.ready_at == first.ready_at
        assert await hand.claim(dag, 0) == []
        (job,) = await hand.store.jobs(dag)
        assert (job.state, job.attempts, job.crashes, job.worker) == (RETRY, 1, 0, None)
        assert job.error == '{"type": "E"}'

    async def test_a_retry_without_delay_is_to_be_had_at_once(self, hand: Hand):
        dag = await hand.submit()
        told = await hand.do(dag, 0, RETRY, attempts=1)
        assert told.ready[0].start_at == 0
        (claimed,) = await hand.claim(dag, 0)
        assert (claimed.attempts, claimed.crashes) == (1, 0)
        await hand.end(dag, 0, RETRY, crashes=1)
        (claimed,) = await hand.claim(dag, 0)
        assert (claimed.attempts, claimed.crashes) == (1, 1), "what is not said stays"
        await hand.end(dag, 0, COMPLETED, result="1")
        (job,) = await hand.store.jobs(dag)
        assert (job.attempts, job.crashes, job.error) == (1, 1, None)

    async def test_a_job_handed_back_has_lost_nothing(self, hand: Hand):
        dag = await hand.submit()
        told = await hand.do(dag, 0, RETRY)
        assert (ids(told.ready), told.ended) == ([(dag, 0)], [])
        (job,) = await hand.store.jobs(dag)
        assert (job.state, job.attempts, job.crashes, job.error) == (RETRY, 0, 0, None)

    @pytest.mark.parametrize("state", [FAILED, EXPIRED, CANCELLED])
    async def test_what_depends_on_a_fruitless_end_is_skipped_to_the_last(
        self, hand: Hand, state: str
    ):
        shape: Shape = {**CHAIN, "d": ["c"], "apart": [], "both": ["apart", "d"]}
        dag = await hand.submit(shape)
        told = await hand.do(dag, 0, state, error='{"type": "E"}')
        assert (told.ready, told.ended) == ([], [])
        assert await hand.states(dag) == [state, SKIPPED, SKIPPED, SKIPPED, CREATED, SKIPPED]
        assert await hand.ready() == [(dag, 4)]
        jobs = await hand.store.jobs(dag)
        assert jobs[0].error == '{"type": "E"}'
        assert all(job.completed_on is not None for job in jobs if job.node != 4)
        last = await hand.do(dag, 4)
        ended = CANCELLED if state == CANCELLED else FAILED
        assert (last.ready, last.ended) == ([], [RunEnd(dag, ended)])
        assert await hand.state(dag) == ended

    async def test_one_batch_may_complete_and_fail_what_one_job_needs(self, hand: Hand):
        dag = await hand.submit({"a": [], "b": [], "c": ["a", "b"]})
        await hand.claim(dag, 0, 1)
        told = await hand.store.finish(
            WORKER,
            [
                Ending(dag, 0, hand.fences[dag, 0], COMPLETED, result="1"),
                Ending(dag, 1, hand.fences[dag, 1], FAILED),
            ],
        )
        assert (told.ready, told.ended) == ([], [RunEnd(dag, FAILED)])
        jobs = await hand.store.jobs(dag)
        assert [job.state for job in jobs] == [COMPLETED, FAILED, SKIPPED]
        assert jobs[2].waits == 1

    async def test_failed_outweighs_cancelled(self, hand: Hand):
        dag = await hand.submit(["a", "b"])
        await hand.do(dag, 0, CANCELLED)
        assert (await hand.do(dag, 1, FAILED)).ended == [RunEnd(dag, FAILED)]

    async def test_text_that_no_database_takes_does_not_stand_in_the_way_of_an_end(
        self, hand: Hand
    ):
        dag = await hand.submit(["a", "b"])
        await hand.do(dag, 0, result='"\udcff"')
        await hand.do(dag, 1, FAILED, error='{"message": "\ud800"}')
        assert await hand.states(dag) == [COMPLETED, FAILED]
        assert all(job.result or job.error for job in await hand.store.jobs(dag))

    async def test_a_deep_chain_and_a_wide_fan_are_skipped_whole(self, hand: Hand):
        deep: Shape = {str(n): [str(n - 1)] if n else [] for n in range(300)}
        wide: Shape = {"root": [], **{f"n{place}": ["root"] for place in range(2000)}}
        for shape in (deep, wide):
            dag = await hand.submit(shape)
            assert (await hand.do(dag, 0, FAILED)).ended == [RunEnd(dag, FAILED)]
            states = await hand.states(dag)
            assert states == [FAILED] + [SKIPPED] * (len(shape) - 1)

    async def test_a_wide_fan_is_unblocked_whole(self, hand: Hand):
        dag = await hand.submit({"root": [], **{f"n{place}": ["root"] for place in range(2000)}})
        assert len((await hand.do(dag, 0)).ready) == 2000

    async def test_an_ending_in_no_state_that_ends_is_a_mistake(self, hand: Hand):
        dag = await hand.submit()
        await hand.claim(dag, 0)
        with pytest.raises(ValueError, match="active"):
            await hand.end(dag, 0, SKIPPED)
        assert await hand.states(dag) == [ACTIVE]

    async def test_jobs_are_counted_by_state(self, hand: Hand):
        dag = await hand.submit(DIAMOND)
        await hand.submit(["x", "y", "z"])
        await hand.claim(dag, 0)
        assert await hand.store.states() == counted(active=1, created=6)
        await hand.end(dag, 0, COMPLETED, result="1")
        await hand.do(dag, 1, RETRY)
        await hand.do(dag, 2, FAILED)
        assert await hand.store.states() == counted(
            completed=1, retry=1, failed=1, skipped=1, created=3
        )

    async def test_the_oldest_ready_is_known(self, hand: Hand):
        await hand.submit(start_at=hand.store.now() + 500)
        dag = await hand.submit(CHAIN)
        oldest = await hand.store.oldest_ready()
        assert oldest == pytest.approx(hand.store.now(), abs=5)
        await hand.claim(dag, 0)
        assert await hand.store.oldest_ready() == pytest.approx(hand.store.now() + 500, abs=5)

    # News

    async def test_a_submission_is_news(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        news = await hand.news()
        assert (news.refreshed, ids(news.ready), news.ended) == ([dag], [(dag, 0)], [])
        assert news.ready == await hand.store.ready(None, 10)
        assert await hand.news() == News([], [], [], False, False, [])

    async def test_endings_elsewhere_are_news_and_ones_own_are_not(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        await hand.news()
        await hand.do(dag, 0, process=LEADER)
        news = await hand.news()
        assert (news.ready, news.ended, news.refreshed) == ([], [], [])
        await hand.do(dag, 1, process=WORKER)
        news = await hand.news()
        assert (ids(news.ready), news.ended, news.refreshed) == ([(dag, 2)], [(dag, 1)], [])
        assert news.runs_ended == []
        await hand.do(dag, 2, process=WORKER)
        news = await hand.news()
        assert (news.ready, news.ended, news.runs_ended) == ([], [(dag, 2)], [dag])

    async def test_a_retry_elsewhere_is_ended_and_ready(self, hand: Hand):
        dag = await hand.submit()
        await hand.news()
        await hand.do(dag, 0, RETRY)
        news = await hand.news()
        assert (ids(news.ready), news.ended) == ([(dag, 0)], [(dag, 0)])

    async def test_news_tells_how_things_stand_now(self, hand: Hand):
        dag = await hand.submit(["a", "b"])
        await hand.do(dag, 0, RETRY)
        await hand.claim(dag, 0)  # it is active again before anybody heard of its end
        await hand.do(dag, 1)
        news = await hand.news()
        assert (news.ready, news.ended, news.refreshed) == ([], [(dag, 1)], [dag])

    async def test_a_refused_ending_is_no_news(self, hand: Hand):
        dag = await hand.submit()
        await hand.claim(dag, 0)
        await hand.news()
        await hand.store.finish(WORKER, [Ending(dag, 0, 1, COMPLETED)])
        assert await hand.news() == News([], [], [], False, False, [])

    async def test_what_people_change_is_news(self, hand: Hand):
        dag = await hand.submit(["a", "b"])
        await hand.news()
        await hand.store.pause(dag)
        news = await hand.news()
        assert (news.refreshed, news.ready) == ([dag], [])
        await hand.store.resume(dag)
        news = await hand.news()
        assert (news.refreshed, ids(news.ready)) == ([dag], [(dag, 0), (dag, 1)])
        await hand.store.set_sla(dag, 5.0, 6.0)
        news = await hand.news()
        assert news.refreshed == [dag]
        assert [(job.soft, job.hard) for job in news.ready] == [(5.0, 6.0)] * 2
        await hand.store.cancel(dag)
        news = await hand.news()
        assert (news.refreshed, news.ready, news.runs_ended) == ([dag], [], [dag])
        await hand.store.retry(dag)
        news = await hand.news()
        assert (news.refreshed, ids(news.ready), news.runs_ended) == (
            [dag],
            [(dag, 0), (dag, 1)],
            [],
        )

    async def test_a_run_that_was_begun_again_is_not_told_as_ended(self, hand: Hand):
        dag = await hand.submit()
        await hand.store.cancel(dag)
        await hand.store.retry(dag)
        assert (await hand.news()).runs_ended == []

    async def test_settings_schedules_and_workers_are_news(self, hand: Hand):
        await hand.store.set_setting("planner", "x:Y")
        assert (await hand.news()).settings
        await hand.store.put_schedule(Schedule("s", "* * * * *", "UTC", {}))
        assert (await hand.news()).settings
        await hand.store.drop_schedule("s")
        assert (await hand.news()).settings
        (number,) = (await hand.store.register("v", "q", {"gpu": 1}, 0.0)).values()
        news = await hand.news()
        assert (news.workers, news.settings) == (True, False)
        await hand.store.drain([number])
        assert (await hand.news()).workers
        await hand.store.bury([number])
        assert (await hand.news()).workers
        await hand.store.retire([hand.worker])
        assert (await hand.news()).workers

    async def test_a_hint_comes_when_something_is_written_elsewhere(self, store: Store):
        twin = store.twin()
        await twin.open()
        try:
            assert await store.wait_for_news(0.0) in (True, False)
            while await store.wait_for_news(0.1):  # opening may have written something
                pass
            waiting = asyncio.create_task(store.wait_for_news(30.0))
            await asyncio.sleep(0)
            await twin.submit([new_run()])
            assert await waiting
        finally:
            await twin.close()

    async def test_nobody_waits_longer_than_asked(self, store: Store):
        loop = asyncio.get_running_loop()
        while await store.wait_for_news(0.1):
            pass
        before = loop.time()
        assert not await store.wait_for_news(0.05)
        assert 0.04 < loop.time() - before < 5

    # Workers

    async def test_workers_are_registered_one_per_executor(self, store: Store):
        numbers = await store.register("host-1", "p1", {"ocr": 4, "gpu": 1}, LEASE)
        assert sorted(numbers) == ["gpu", "ocr"]
        told = {row.executor: row for row in await store.workers()}
        assert {executor: row.id for executor, row in told.items()} == numbers
        assert told["ocr"] == (
            numbers["ocr"],
            "host-1",
            "ocr",
            4,
            "p1",
            told["ocr"].beats,
            False,
            False,
            None,
        )
        again = await store.register("host-1", "p2", {"ocr": 4}, LEASE)
        assert again["ocr"] not in numbers.values(), "a new start is a new worker"
        assert await store.executors() == {"gpu", "ocr"}

    async def test_workers_know_the_tasks_they_were_registered_with_until_they_know_others(
        self, store: Store
    ):
        await store.register("v", "p1", {"ocr": 1}, LEASE)
        ours = await store.register("w", "p2", {"ocr": 1, "gpu": 1}, LEASE, ["b", "a"])
        none = await store.register("x", "p3", {"ocr": 1}, LEASE, [])

        async def known() -> list[frozenset[str] | None]:
            return [row.tasks for row in await store.workers()]

        both = frozenset({"a", "b"})
        assert await known() == [None, both, both, frozenset()]
        await store.know([*ours.values()], ["c"])
        assert await known() == [None, frozenset("c"), frozenset("c"), frozenset()]
        await store.know([*none.values()], ["it's", 'a "name"'])
        assert (await known())[-1] == frozenset({"it's", 'a "name"'})

    async def test_an_executor_stays_known_when_its_workers_are_gone(self, store: Store):
        numbers = await store.register("w", "p", {"ocr": 1}, LEASE)
        await store.retire(list(numbers.values()))
        assert await store.workers() == []
        assert await store.executors() == {"ocr"}

    async def test_a_beat_renews_and_counts(self, store: Store):
        (number,) = (await store.register("w", "p", {"ocr": 1}, 0.0)).values()
        (row,) = await store.workers()
        assert row.expired
        assert await store.beat([number], LEASE) == ([number], [])
        (after,) = await store.workers()
        assert (after.expired, after.beats) == (False, row.beats + 1)

    async def test_a_beat_tells_who_is_not_known_any_more(self, store: Store):
        one, two = (await store.register("w", "p", {"a": 1, "b": 1}, LEASE)).values()
        await store.retire([one])
        assert (await store.beat([one, two, 999], LEASE)).alive == [two]
        assert (await store.beat([], LEASE)).alive == []

    async def test_only_the_silent_are_buried(self, store: Store):
        (live,) = (await store.register("w", "p", {"a": 1}, LEASE)).values()
        (dead,) = (await store.register("w", "q", {"a": 1}, 0.0)).values()
        (other,) = (await store.register("w", "r", {"a": 1}, 0.0)).values()
        assert await store.bury([live, dead, 999]) == [dead]
        assert [row.id for row in await store.workers()] == [live, other]
        assert await store.bury([live, dead]) == []

    async def test_draining_is_told(self, store: Store):
        one, _ = (await store.register("w", "p", {"a": 1, "b": 1}, LEASE)).values()
        await store.drain([one])
        assert [(row.id == one) == row.draining for row in await store.workers()] == [True, True]

    async def test_a_worker_fetches_what_was_claimed_for_it_once(self, hand: Hand):
        (other,) = (await hand.store.register("v", "q", {"ocr": 1}, LEASE)).values()
        dag = await hand.submit(["a", "b", "c"])
        claimed = await hand.claim(dag, 0, 1, acked=False)
        await hand.claim(dag, 2, acked=True)
        assert await hand.store.fetch([other]) == []
        assert sorted(await hand.store.fetch([hand.worker, other])) == sorted(claimed)
        assert await hand.store.fetch([hand.worker, other]) == []
        assert all(job.acked for job in await hand.store.running())
        assert all(job.started_at is not None for job in await hand.store.jobs(dag))

    async def test_a_fetched_job_brings_its_inputs(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        await hand.do(dag, 0, result="[1]")
        await hand.claim(dag, 1, acked=False)
        (job,) = await hand.store.fetch([hand.worker])
        assert (job.inputs, job.fence) == ({0: "[1]"}, hand.fences[dag, 1])

    async def test_a_buried_worker_fetches_nothing(self, hand: Hand):
        dag = await hand.submit()
        await hand.claim(dag, 0, acked=False)
        await hand.store.retire([hand.worker])
        assert await hand.store.fetch([hand.worker]) == []

    async def test_fetches_of_one_worker_at_once_take_each_job_once(self, hand: Hand):
        dag = await hand.submit([f"n{place}" for place in range(20)])
        await hand.claim(dag, *range(20), acked=False)
        twin = hand.store.twin()
        await twin.open()
        try:
            told = await asyncio.gather(
                *(place.fetch([hand.worker]) for place in (hand.store, twin) * 3)
            )
        finally:
            await twin.close()
        assert sorted(job.node for jobs in told for job in jobs) == list(range(20))

    async def test_a_late_acknowledgement_and_the_taking_back_have_one_winner(self, hand: Hand):
        dag = await hand.submit([f"n{place}" for place in range(40)])
        twin = hand.store.twin()
        await twin.open()
        try:
            for node in range(40):
                await hand.claim(dag, node, acked=False)
                taken, fetched = await asyncio.gather(
                    hand.store.orphans(0.0), twin.fetch([hand.worker])
                )
                mine = [job.node for job in taken if not job.acked]
                assert [job.node for job in fetched] + mine == [node]
                ending = Ending(dag, node, (taken if mine else fetched)[0].fence, COMPLETED, "1")
                assert (await hand.store.finish(LEADER, [ending])).refused == []
        finally:
            await twin.close()

    async def test_orphans_are_what_the_dead_ran_and_what_nobody_took(self, hand: Hand):
        dag = await hand.submit(["a", "b", "c"])
        (dead,) = (await hand.store.register("v", "q", {"ocr": 1}, 0.0)).values()
        await hand.claim(dag, 0)
        await hand.claim(dag, 1, acked=False)
        await hand.store.claim(LEADER, hand.epoch, [Claim(dag, 2, dead, 77)], acked=True)
        assert await hand.store.orphans(LEASE) == []
        (late,) = await hand.store.orphans(0.0)
        assert (late.dag, late.node, late.acked) == (dag, 1, False)
        assert await hand.store.fetch([hand.worker]) == [], "what is taken back is not handed out"
        assert ids(await hand.store.orphans(LEASE)) == [(dag, 1)], "nobody's until it has ended"
        told = await hand.store.finish(LEADER, [Ending(dag, 1, late.fence, RETRY)])
        assert ids(told.ready) == [(dag, 1)]
        assert await hand.store.bury([dead]) == [dead]
        assert ids(await hand.store.orphans(LEASE)) == [(dag, 2)]
        (orphan,) = await hand.store.orphans(LEASE)
        assert (orphan.worker, orphan.fence, orphan.acked) == (dead, 77, True)
        told = await hand.store.finish(LEADER, [Ending(dag, 2, orphan.fence, RETRY, crashes=1)])
        assert ids(told.ready) == [(dag, 2)]
        assert await hand.store.orphans(LEASE) == []
        zombie = await hand.store.finish("q", [Ending(dag, 2, 77, COMPLETED, result="1")])
        assert zombie.refused == [(dag, 2)]

    async def test_deaths_are_remembered_with_their_endings_and_counted(self, hand: Hand):
        dag = await hand.submit(["a", "b"])
        assert not (await hand.claim(dag, 0))[0].suspect
        assert await hand.store.deaths([(dag, 0), (dag, 1)], LEASE) == {}
        await hand.end(dag, 0, RETRY, death=Death(False, f"{dag}.1 b"))
        (again,) = await hand.claim(dag, 0, acked=False)
        assert again.suspect, "it runs in a process of its own"
        (fetched,) = await hand.store.fetch([hand.worker])
        assert fetched.suspect
        told = await hand.end(dag, 0, RETRY, death=Death(True, "killed \x00 \ud800"))
        assert told.applied == [(dag, 0)]
        refused = await hand.end(dag, 0, RETRY, death=Death(True, "once more"))
        assert refused.refused == [(dag, 0)]
        assert await hand.store.deaths([(dag, 0), (dag, 1)], LEASE) == {(dag, 0): (1, 1)}
        assert await hand.store.deaths([(dag, 0)], 0.0) == {}, "older than the window"
        assert not (await hand.claim(dag, 1))[0].suspect

    async def test_old_deaths_are_forgotten(self, hand: Hand):
        dag = await hand.submit(["a"])
        await hand.do(dag, 0, RETRY, death=Death(True, "killed"))
        assert not (await hand.claim(dag, 0))[0].suspect, "nothing was beside it"
        await hand.end(dag, 0, RETRY, death=Death(False, "17.0 b"))
        await hand.store.forget_deaths(LEASE)
        assert await hand.store.deaths([(dag, 0)], LEASE) == {(dag, 0): (1, 1)}
        await hand.store.forget_deaths(-1.0)
        assert await hand.store.deaths([(dag, 0)], LEASE) == {}
        assert not (await hand.claim(dag, 0))[0].suspect

    async def test_a_retry_of_the_run_forgets_the_deaths_of_its_jobs(self, hand: Hand):
        dag, other = await hand.submit(["a"]), await hand.submit(["a"])
        await hand.do(other, 0, RETRY, death=Death(True, "killed"))
        await hand.do(dag, 0, RETRY, death=Death(True, "killed"))
        assert not await hand.store.retry(dag), "it has not ended"
        assert set(await hand.store.deaths([(dag, 0), (other, 0)], LEASE)) == {(dag, 0), (other, 0)}
        await hand.do(dag, 0, FAILED, death=Death(True, "killed"))
        assert await hand.store.retry(dag)
        assert set(await hand.store.deaths([(dag, 0), (other, 0)], LEASE)) == {(other, 0)}

    async def test_a_worker_that_was_buried_has_a_grave_and_one_that_left_has_none(
        self, hand: Hand
    ):
        register = hand.store.register
        (dead,) = (await register("w", "process d", {"a": 1}, 0.0)).values()
        (left,) = (await register("w", "process l", {"a": 1}, 0.0)).values()
        await hand.store.retire([left])
        assert await hand.store.bury([dead, left]) == [dead]
        assert await hand.store.graves([dead, left, hand.worker]) == {dead: "process d"}
        await hand.store.forget_deaths(-1.0)
        assert await hand.store.graves([dead]) == {}

    # Cancelling

    async def test_a_cancel_ends_what_has_not_started(self, hand: Hand):
        dag = await hand.submit(DIAMOND)
        assert await hand.store.cancel(dag)
        assert await hand.states(dag) == [CANCELLED, SKIPPED, SKIPPED, SKIPPED]
        row = await hand.store.run(dag)
        assert row is not None
        assert (row.state, row.left, row.cancelling) == (CANCELLED, 0, True)
        assert row.completed_on is not None
        assert await hand.ready() == []
        assert not await hand.store.cancel(dag), "it has ended"

    async def test_a_cancel_asks_what_runs_to_stop(self, hand: Hand):
        dag = await hand.submit({**CHAIN, "apart": []})
        await hand.claim(dag, 0)
        assert (await hand.store.beat([hand.worker], LEASE)).cancel == []
        assert await hand.store.cancel(dag)
        assert await hand.states(dag) == [ACTIVE, SKIPPED, SKIPPED, CANCELLED]
        assert await hand.state(dag) == ACTIVE
        beat = await hand.store.beat([hand.worker], LEASE)
        assert beat.cancel == [(dag, 0, hand.fences[dag, 0])]
        (running,) = await hand.store.running()
        assert running.cancelling
        assert not await hand.store.cancel(dag), "once more changes nothing"
        assert not await hand.store.pause(dag)
        assert not await hand.store.resume(dag)
        assert await hand.state(dag) == ACTIVE
        told = await hand.end(dag, 0, CANCELLED)
        assert (told.ready, told.ended) == ([], [RunEnd(dag, CANCELLED)])
        assert (await hand.store.beat([hand.worker], LEASE)).cancel == []

    @pytest.mark.parametrize("state", [RETRY, FAILED])
    async def test_after_a_cancel_a_retry_or_a_failure_is_a_cancel(self, hand: Hand, state: str):
        dag = await hand.submit()
        await hand.claim(dag, 0)
        await hand.store.cancel(dag)
        told = await hand.end(dag, 0, state, error="{}")
        assert (told.ready, told.ended) == ([], [RunEnd(dag, CANCELLED)])
        assert await hand.states(dag) == [CANCELLED]

    async def test_a_cancelled_job_is_never_tried_again(self, hand: Hand):
        dag = await hand.submit(["a", "b"])
        await hand.claim(dag, 0, 1)
        await hand.store.cancel(dag)
        await hand.end(dag, 0, RETRY)
        await hand.end(dag, 1, FAILED)
        assert await hand.states(dag) == [CANCELLED, CANCELLED]
        assert await hand.ready() == []

    async def test_a_job_that_completes_in_spite_of_a_cancel_has_completed(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        await hand.claim(dag, 0)
        await hand.store.cancel(dag)
        told = await hand.end(dag, 0, COMPLETED, result="1")
        assert (told.ready, told.ended) == ([], [RunEnd(dag, CANCELLED)])
        jobs = await hand.store.jobs(dag)
        # The second had all it needs: nothing but the cancel kept it from running.
        assert [job.state for job in jobs] == [COMPLETED, CANCELLED, SKIPPED]
        assert [job.waits for job in jobs] == [0, 0, 1]
        assert await hand.store.states() == counted(completed=1, cancelled=1, skipped=1)

    async def test_what_needs_a_job_that_a_cancel_stopped_stays_skipped(self, hand: Hand):
        dag = await hand.submit({"a": [], "b": [], "both": ["a", "b"], "one": ["a"]})
        await hand.claim(dag, 0, 1)
        await hand.store.cancel(dag)
        await hand.end(dag, 1, CANCELLED)
        assert (await hand.end(dag, 0, COMPLETED, result="1")).ended == [RunEnd(dag, CANCELLED)]
        assert await hand.states(dag) == [COMPLETED, CANCELLED, SKIPPED, CANCELLED]
        assert await hand.store.states() == counted(completed=1, cancelled=2, skipped=1)

    async def test_a_run_that_was_cancelled_but_completed_has_completed(self, hand: Hand):
        dag = await hand.submit()
        await hand.claim(dag, 0)
        await hand.store.cancel(dag)
        assert (await hand.end(dag, 0, COMPLETED, result="1")).ended == [RunEnd(dag, COMPLETED)]

    # Pausing

    async def test_a_paused_run_starts_nothing_and_goes_on_when_resumed(self, hand: Hand):
        dag = await hand.submit(DIAMOND)
        assert not await hand.store.resume(dag), "it was not paused"
        assert await hand.store.pause(dag)
        assert not await hand.store.pause(dag), "once more changes nothing"
        assert (await hand.state(dag), await hand.states(dag)) == (SUSPENDED, [SUSPENDED] * 4)
        assert await hand.ready() == []
        assert await hand.claim(dag, 0) == []
        assert await hand.store.states() == counted(suspended=4)
        assert await hand.store.resume(dag)
        assert (await hand.state(dag), await hand.states(dag)) == (CREATED, [CREATED] * 4)
        assert await hand.ready() == [(dag, 0)]
        for node in range(4):
            await hand.do(dag, node)
        assert await hand.state(dag) == COMPLETED

    async def test_what_runs_may_end_while_its_run_is_paused(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        await hand.claim(dag, 0)
        await hand.store.pause(dag)
        assert await hand.states(dag) == [ACTIVE, SUSPENDED, SUSPENDED]
        told = await hand.end(dag, 0, COMPLETED, result="1")
        assert (told.ready, told.ended) == ([], [])
        assert await hand.states(dag) == [COMPLETED, SUSPENDED, SUSPENDED]
        assert await hand.store.resume(dag)
        assert await hand.state(dag) == ACTIVE
        (ready,) = await hand.store.ready(None, 10)
        assert (ready.dag, ready.node) == (dag, 1)
        assert ready.ready_at is not None

    async def test_a_retry_in_a_paused_run_waits_for_the_resume(self, hand: Hand):
        dag = await hand.submit()
        await hand.claim(dag, 0)
        await hand.store.pause(dag)
        told = await hand.end(dag, 0, RETRY, attempts=1)
        assert (told.ready, told.ended) == ([], [])
        assert await hand.states(dag) == [SUSPENDED]
        assert await hand.store.states() == counted(suspended=1)
        assert await hand.store.resume(dag)
        assert await hand.states(dag) == [RETRY]
        (claimed,) = await hand.claim(dag, 0)
        assert claimed.attempts == 1

    async def test_a_failure_in_a_paused_run_skips_what_is_suspended(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        await hand.claim(dag, 0)
        await hand.store.pause(dag)
        assert (await hand.end(dag, 0, FAILED)).ended == [RunEnd(dag, FAILED)]
        assert await hand.states(dag) == [FAILED, SKIPPED, SKIPPED]
        assert not await hand.store.pause(dag)
        assert not await hand.store.resume(dag)

    async def test_a_paused_run_can_be_cancelled(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        await hand.store.pause(dag)
        assert await hand.store.cancel(dag)
        assert await hand.state(dag) == CANCELLED
        assert await hand.states(dag) == [CANCELLED, SKIPPED, SKIPPED]

    async def test_a_paused_run_that_is_being_cancelled_is_not_paused(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        await hand.claim(dag, 0)
        await hand.store.pause(dag)
        assert await hand.store.cancel(dag)
        assert await hand.state(dag) == ACTIVE
        assert not await hand.store.resume(dag)
        assert not await hand.store.pause(dag)
        assert (await hand.end(dag, 0, RETRY)).ended == [RunEnd(dag, CANCELLED)]

    # Retrying

    async def test_a_retry_gives_fresh_attempts_to_what_did_not_complete(self, hand: Hand):
        dag = await hand.submit({"a": [], "b": ["a"], "c": ["b"], "d": ["a", "c"]})
        assert not await hand.store.retry(dag), "it has not ended"
        await hand.do(dag, 0)
        assert not await hand.store.retry(dag), "it runs"
        await hand.do(dag, 1, RETRY, attempts=2, crashes=1)
        await hand.do(dag, 1, FAILED, attempts=3, error="{}")
        assert await hand.states(dag) == [COMPLETED, FAILED, SKIPPED, SKIPPED]
        await hand.store.announced(await hand.store.unannounced(10))
        assert await hand.store.retry(dag)
        jobs = await hand.store.jobs(dag)
        assert [job.state for job in jobs] == [COMPLETED, CREATED, CREATED, CREATED]
        assert [job.waits for job in jobs] == [0, 0, 1, 1]
        assert (jobs[1].attempts, jobs[1].crashes, jobs[1].error, jobs[1].start_at) == (
            0,
            0,
            None,
            0,
        )
        assert (jobs[1].completed_on, jobs[1].worker) == (None, None)
        row = await hand.store.run(dag)
        assert row is not None
        assert (row.state, row.left, row.completed_on) == (ACTIVE, 3, None)
        assert await hand.ready() == [(dag, 1)]
        for node in (1, 2, 3):
            await hand.do(dag, node)
        assert await hand.state(dag) == COMPLETED
        assert [row.dag for row in await hand.store.unannounced(10)] == [dag]
        assert await hand.store.states() == counted(completed=4)

    async def test_a_cancelled_run_can_be_retried(self, hand: Hand):
        dag = await hand.submit(CHAIN)
        await hand.store.cancel(dag)
        assert await hand.store.retry(dag)
        row = await hand.store.run(dag)
        assert row is not None
        assert (row.state, row.cancelling, row.left) == (CREATED, False, 3)
        for node in range(3):
            await hand.do(dag, node)
        assert await hand.state(dag) == COMPLETED

    async def test_a_retry_waits_for_a_start_that_is_still_ahead(self, hand: Hand):
        now = hand.store.now()
        ahead = await hand.submit(CHAIN, start_at=now + 500)
        past = await hand.submit(start_at=now - 500)
        for dag in (ahead, past):
            await hand.store.cancel(dag)
            assert await hand.store.retry(dag)
        jobs = await hand.store.jobs(ahead)
        assert [job.start_at for job in jobs] == pytest.approx([now + 500] * 3, abs=1e-3)
        first, second = await hand.store.ready(None, 10)
        assert first.ready_at == pytest.approx(now + 500, abs=1e-3)
        assert await hand.claim(ahead, 0) == []
        assert (second.dag, second.start_at) == (past, 0)
        await hand.do(past, 0)

    async def test_there_is_nothing_to_retry_in_a_run_that_completed(self, hand: Hand):
        dag = await hand.submit()
        await hand.do(dag, 0)
        assert not await hand.store.retry(dag)
        assert await hand.states(dag) == [COMPLETED]

    # SLAs

    async def test_the_sla_of_a_run_is_that_of_its_jobs_unless_they_have_one(self, hand: Hand):
        run = new_run(["a", "b"])
        own = run.jobs[1]._replace(soft=100.0, hard=200.0, own_sla=True)
        (submitted,) = await hand.store.submit([run._replace(jobs=(run.jobs[0], own))])
        assert await hand.store.set_sla(submitted.dag, 1000.0, 2000.0)
        row = await hand.store.run(submitted.dag)
        assert row is not None
        assert (row.soft, row.hard) == (1000.0, 2000.0)
        jobs = await hand.store.jobs(submitted.dag)
        assert [(job.soft, job.hard) for job in jobs] == [(1000.0, 2000.0), (100.0, 200.0)]
        assert await hand.store.set_sla(submitted.dag, None, 7.0, node=0)
        assert await hand.store.set_sla(submitted.dag, 1.0, None)
        jobs = await hand.store.jobs(submitted.dag)
        assert [(job.soft, job.hard) for job in jobs] == [(None, 7.0), (100.0, 200.0)]
        assert not await hand.store.set_sla(submitted.dag, 1.0, None, node=2)

    async def test_of_two_slas_of_a_job_one_may_be_its_runs(self, hand: Hand):
        now = hand.store.now()
        run = new_run(["a", "b"], soft=now - 20, hard=now + 500)
        jobs = (
            run.jobs[0]._replace(soft=now - 20, hard=now + 90, own_sla=True),
            run.jobs[1]._replace(soft=now - 10, hard=now + 500, own_sla=True),
        )
        (submitted,) = await hand.store.submit([run._replace(jobs=jobs)])
        dag = submitted.dag

        async def told():
            return sorted(
                (one.node is None, one.node, one.kind) for one in await hand.store.missed()
            )

        async def slas():
            jobs = await hand.store.jobs(dag)
            return [
                tuple(None if at is None else round(at - now) for at in (job.soft, job.hard))
                for job in jobs
            ]

        assert await told() == [(False, 1, "soft"), (True, None, "soft")]
        assert await hand.store.set_sla(dag, now + 50, now + 70)
        assert await slas() == [(50, 90), (-10, 70)]
        assert await told() == []
        assert await hand.store.set_sla(dag, now - 9, now - 5)
        assert await slas() == [(-9, 90), (-10, -5)]
        assert await told() == [(True, None, "hard"), (True, None, "soft")]
        assert await hand.store.set_sla(dag, now + 400, None)
        assert await slas() == [(90, 90), (-10, None)]
        assert await told() == []

    async def test_the_own_soft_sla_of_a_job_is_never_after_the_hard_one_of_its_run(
        self, hand: Hand
    ):
        now = hand.store.now()
        run = new_run(["a", "b", "c"], hard=now + 900)
        jobs = (
            run.jobs[0]._replace(soft=now + 200, hard=now + 900, own_sla=True),
            run.jobs[1]._replace(soft=now + 50, hard=now + 900, own_sla=True),
            run.jobs[2]._replace(soft=now + 200, hard=now + 300, own_sla=True),
        )
        (submitted,) = await hand.store.submit([run._replace(jobs=jobs)])

        async def slas():
            found = await hand.store.jobs(submitted.dag)
            return [
                (round((job.soft or 0) - now), None if job.hard is None else round(job.hard - now))
                for job in found
            ]

        assert await hand.store.set_sla(submitted.dag, None, now + 100)
        assert await slas() == [(100, 100), (50, 100), (200, 300)]
        assert await hand.store.set_sla(submitted.dag, None, now - 5)
        assert await slas() == [(-5, -5), (-5, -5), (200, 300)]
        told = {(one.node, one.kind) for one in await hand.store.missed()}
        assert told == {(0, "soft"), (1, "soft"), (None, "hard")}
        assert await hand.store.set_sla(submitted.dag, None, None)
        assert await slas() == [(-5, None), (-5, None), (200, 300)]
        assert await hand.store.missed() == []

    async def test_a_missed_sla_is_told_once(self, hand: Hand):
        now = hand.store.now()
        dag = await hand.submit(soft=now - 20, hard=now + 500)
        (missed,) = await hand.store.missed()
        assert (missed.dag, missed.node, missed.kind) == (dag, None, "soft")
        assert missed.at == pytest.approx(now - 20, abs=1e-3)
        assert await hand.store.missed() == []
        assert await hand.store.set_sla(dag, now - 20, now - 10)
        told = {(one.dag, one.node, one.kind) for one in await hand.store.missed()}
        assert (dag, None, "hard") in told
        assert await hand.store.missed() == []

    async def test_the_own_sla_of_a_job_is_told_of_the_job(self, hand: Hand):
        now = hand.store.now()
        run = new_run(["a", "b", "c"])
        jobs = (
            run.jobs[0]._replace(soft=now - 9, hard=now - 5, own_sla=True),
            run.jobs[1]._replace(soft=now - 9, hard=now - 5),
            run.jobs[2]._replace(soft=now + 900, own_sla=True),
        )
        (submitted,) = await hand.store.submit([run._replace(jobs=jobs)])
        told = [(one.dag, one.node, one.kind) for one in await hand.store.missed()]
        assert sorted(told) == [(submitted.dag, 0, "hard"), (submitted.dag, 0, "soft")]
        assert await hand.store.missed() == []

    async def test_an_sla_missed_between_two_looks_is_told_after_the_end(self, hand: Hand):
        now = hand.store.now()
        run = new_run(["a"], soft=now - 1)
        job = run.jobs[0]._replace(soft=now - 2, own_sla=True)
        (submitted,) = await hand.store.submit([run._replace(jobs=(job,))])
        await hand.do(submitted.dag, 0)
        told = {(one.dag, one.node) for one in await hand.store.missed()}
        assert told == {(submitted.dag, None), (submitted.dag, 0)}

    async def test_an_sla_that_was_kept_is_never_told(self, hand: Hand):
        for shape in (["a"], ["a", "b"]):
            dag = await hand.submit(shape, soft=hand.store.now() + 900)
            for node in range(len(shape)):
                await hand.do(dag, node)
        await hand.store.cancel(await hand.submit(soft=hand.store.now() + 900))
        assert await hand.store.missed() == []

    # Upkeep

    async def test_ends_are_told_until_they_are_announced(self, hand: Hand):
        dags = [await hand.submit() for _ in range(3)]
        assert await hand.store.unannounced(10) == []
        await hand.do(dags[0], 0)
        await hand.store.cancel(dags[2])
        told = await hand.store.unannounced(10)
        assert [(row.dag, row.state) for row in told] == [
            (dags[0], COMPLETED),
            (dags[2], CANCELLED),
        ]
        assert len(await hand.store.unannounced(1)) == 1
        await hand.store.announced(told[:1])
        assert await hand.store.unannounced(10) == told[1:]

    async def test_an_end_after_one_that_was_told_is_another(self, hand: Hand):
        dag = await hand.submit()
        await hand.do(dag, 0, FAILED, error="{}")
        first = await hand.store.unannounced(10)
        await hand.store.retry(dag)
        await hand.store.announced(first)
        await hand.do(dag, 0)
        await hand.store.announced(first)
        (second,) = await hand.store.unannounced(10)
        assert (second.dag, second.state) == (dag, COMPLETED)
        await hand.store.announced([second])
        assert await hand.store.unannounced(10) == []

    async def test_the_archive_takes_what_has_ended_long_enough(self, hand: Hand):
        ended = [await hand.submit(CHAIN, key=f"k{n}") for n in range(3)]
        live = await hand.submit(CHAIN)
        for dag in ended:
            await hand.do(dag, 0, result='{"a": [1]}')
            await hand.do(dag, 1, FAILED, error='{"type": "E"}')
        assert await hand.store.archive(hand.store.now() - 60, 10) == 0
        before = [(await hand.store.run(dag), await hand.store.jobs(dag)) for dag in ended]
        after = hand.store.now() + 60
        assert await hand.store.archive(after, 2) == 2
        assert await hand.store.archive(after, 2) == 1
        assert await hand.store.archive(after, 2) == 0
        assert [(await hand.store.run(dag), await hand.store.jobs(dag)) for dag in ended] == before
        assert [row.dag for row in await hand.store.runs()] == [live]
        assert await hand.store.states() == counted(created=3)
        for verb in (hand.store.cancel, hand.store.pause, hand.store.resume, hand.store.retry):
            assert await verb(ended[0]) is False
        assert await hand.store.set_sla(ended[0], 1.0, None) is False

    async def test_runs_are_listed_newest_first_and_filtered(self, hand: Hand):
        dags = [await hand.submit(tenant=tenant) for tenant in ("a", "b", "a", "b", "a")]
        await hand.do(dags[0], 0)
        await hand.do(dags[3], 0)
        listed = [row.dag for row in await hand.store.runs()]
        assert listed == dags[::-1]
        assert [row.dag for row in await hand.store.runs(limit=2)] == dags[:2:-1]
        assert [row.dag for row in await hand.store.runs(before=dags[2])] == dags[1::-1]
        assert [row.dag for row in await hand.store.runs(tenant="b")] == [dags[3], dags[1]]
        assert [row.dag for row in await hand.store.runs(state=COMPLETED)] == [dags[3], dags[0]]
        assert [row.dag for row in await hand.store.runs(state=COMPLETED, tenant="a")] == [dags[0]]
        assert await hand.store.runs(state=FAILED) == []

    async def test_runs_of_every_state_are_found_by_it(self, hand: Hand):
        created, active, begun, paused, failed, cancelled = [
            await hand.submit(nodes, tenant="a")
            for nodes in (["x"], ["x"], CHAIN, ["x"], ["x", "y"], ["x"])
        ]
        await hand.claim(active, 0)
        await hand.do(begun, 0)
        await hand.store.pause(paused)
        await hand.do(failed, 0, FAILED, error='{"type": "E"}')
        await hand.do(failed, 1)
        await hand.store.cancel(cancelled)
        for state, dags in (
            (CREATED, [created]),
            (ACTIVE, [begun, active]),
            (SUSPENDED, [paused]),
            (FAILED, [failed]),
            (CANCELLED, [cancelled]),
        ):
            for tenant in (None, "a"):
                rows = await hand.store.runs(state=state, tenant=tenant)
                assert [row.dag for row in rows] == dags, state
                assert {row.state for row in rows} == {state}
            assert await hand.store.runs(state=state, tenant="b") == []
        (row,) = await hand.store.runs(state=FAILED)
        assert (row.failed, row.jobs, row.left) == (1, 2, 0)
        assert [job.node for job in await hand.store.jobs(failed, 1)] == [0]
        assert len(await hand.store.jobs(failed)) == 2

    async def test_a_page_of_runs_leaves_out_none(self, hand: Hand):
        """However it is filtered and cut into pages, a list holds the runs that the whole one shows so."""
        for number in range(3):
            tenant = "ab"[number % 2]
            await hand.submit(["x"], tenant=tenant)
            taken, tried, handed, held, ended, failed, cancelled, again = [
                await hand.submit(["x"], tenant=tenant) for _ in range(8)
            ]
            begun, stopped, fresh = [await hand.submit(CHAIN, tenant=tenant) for _ in range(3)]
            await hand.claim(taken, 0)
            await hand.do(tried, 0, RETRY, delay=1000.0, attempts=1)
            await hand.do(handed, 0, RETRY)
            await hand.claim(held, 0)
            await hand.store.pause(held)
            await hand.do(ended, 0)
            await hand.do(failed, 0, FAILED)
            await hand.store.cancel(cancelled)
            await hand.do(again, 0, FAILED)
            await hand.store.retry(again)
            await hand.claim(begun, 0)
            await hand.do(stopped, 0)
            await hand.store.pause(stopped)
            await hand.store.pause(fresh)
            await hand.store.orphans(LEASE)  # a sweep forgets what is not held any more
        every = await hand.store.runs()
        assert len(every) == 36
        for state in (CREATED, ACTIVE, SUSPENDED, COMPLETED, FAILED, CANCELLED):
            for whose in (None, "a", "b"):
                expected = [
                    row for row in every if row.state == state and whose in (None, row.tenant)
                ]
                assert expected, (state, whose)
                for limit in (1, 2, 50):
                    found, before = [], None
                    while page := await hand.store.runs(
                        state=state, tenant=whose, before=before, limit=limit
                    ):
                        assert len(page) <= limit
                        found += page
                        before = page[-1].dag
                    assert found == expected, (state, whose, limit)

    async def test_an_active_run_is_found_behind_any_number_of_newer_ones(self, hand: Hand):
        tried, handed, taken, *paused = [await hand.submit() for _ in range(6)]
        await hand.do(tried, 0, RETRY, delay=1000.0, attempts=1)
        await hand.do(handed, 0, RETRY)
        await hand.claim(taken, 0)
        for dag in paused:
            await hand.do(dag, 0, RETRY)
            await hand.store.pause(dag)
        await hand.store.submit([new_run()] * 2_100)
        await hand.store.orphans(LEASE)  # a sweep forgets what is not held any more
        for limit in (1, 3, 50):
            rows = await hand.store.runs(state=ACTIVE, limit=limit)
            assert [row.dag for row in rows] == [taken, handed, tried][:limit]
            rows = await hand.store.runs(state=SUSPENDED, limit=limit)
            assert [row.dag for row in rows] == paused[::-1][:limit]

    async def test_what_was_learned_is_kept(self, store: Store):
        await store.learn({"extract": (1.5, 10), "merge": (0.25, 1)})
        await store.learn({"extract": (2.5, 11)})
        await store.learn({})
        assert await store.estimates() == {"extract": (2.5, 11), "merge": (0.25, 1)}

    async def test_settings_are_set_and_unset(self, store: Store):
        await store.set_setting("planner", "a:B")
        await store.set_setting("planner.ocr", "c:D")
        await store.set_setting("planner", "e:F")
        assert await store.settings() == {"planner": "e:F", "planner.ocr": "c:D"}
        await store.set_setting("planner", None)
        await store.set_setting("never", None)
        assert await store.settings() == {"planner.ocr": "c:D"}

    # Schedules

    async def test_a_schedule_is_kept_as_it_is_and_replaced(self, store: Store):
        run = {"name": "nightly", "jobs": [{"name": "ü", "args": [1.5, None, {"a": []}]}]}
        schedule = Schedule("b", "0 3 * * *", "Europe/Berlin", run, "all", 1000.0, False)
        await store.put_schedule(schedule)
        await store.put_schedule(Schedule("a", "* * * * *", "UTC", {}))
        assert await store.schedules() == [Schedule("a", "* * * * *", "UTC", {}), schedule]
        changed = schedule._replace(cron="0 4 * * *", misfire="skip", cursor=5.0, paused=True)
        await store.put_schedule(changed)
        assert (await store.schedules())[1] == changed._replace(cursor=1000.0), "it never goes back"
        assert await store.drop_schedule("b")
        assert not await store.drop_schedule("b")
        assert [one.name for one in await store.schedules()] == ["a"]

    async def test_only_other_ticks_move_the_cursor_of_a_schedule(self, store: Store):
        schedule = Schedule("s", "0 3 * * *", "UTC", {}, cursor=1000.0)
        await store.put_schedule(schedule)
        for change, cursor in (
            ({"run": {"name": "other"}, "misfire": "all"}, 1000.0),
            ({"cron": "0 4 * * *"}, 3000.0),
            ({"timezone": "Europe/Berlin"}, 4000.0),
        ):
            schedule = schedule._replace(cursor=schedule.cursor + 1000.0, **change)
            await store.put_schedule(schedule)
            assert await store.schedules() == [schedule._replace(cursor=cursor)]

    async def test_a_tick_fires_once_though_all_fire_it(self, store: Store):
        await store.put_schedule(Schedule("s", "* * * * *", "UTC", {}, cursor=60.0))
        twin = store.twin()
        await twin.open()
        try:
            told = await asyncio.gather(
                *(place.fire("s", 120.0, new_run(name="tick")) for place in (store, twin) * 8)
            )
        finally:
            await twin.close()
        (fired,) = [one for one in told if one is not None]
        assert fired.new
        assert [row.dag for row in await store.runs()] == [fired.dag]
        assert (await store.schedules())[0].cursor == 120.0
        assert await store.fire("s", 119.0, new_run()) is None, "an earlier tick was passed over"
        assert await store.fire("s", 180.0, new_run()) is not None

    async def test_a_tick_may_be_passed_over(self, store: Store):
        await store.put_schedule(Schedule("s", "* * * * *", "UTC", {}))
        await store.fire("s", 60.0, None)
        assert await store.runs() == []
        assert (await store.schedules())[0].cursor == 60.0
        assert await store.fire("s", 60.0, new_run()) is None
        assert await store.fire("none", 60.0, new_run()) is None
        assert await store.runs() == []

    # Many at once

    async def test_calls_at_once_are_each_whole(self, hand: Hand):
        dags = await asyncio.gather(*(hand.submit(DIAMOND) for _ in range(20)))
        assert len(set(dags)) == 20
        await asyncio.gather(*(hand.do(dag, 0) for dag in dags))
        answers = await asyncio.gather(
            *(hand.store.cancel(dag) for dag in dags[:5]),
            *(hand.do(dag, node) for dag in dags[5:] for node in (1, 2)),
            *(hand.store.pause(dag) for dag in dags[:5]),
        )
        assert len(answers) == 40
        for dag in dags[:5]:
            assert await hand.states(dag) == [COMPLETED, CANCELLED, CANCELLED, SKIPPED]
        for dag in dags[5:]:
            assert await hand.states(dag) == [COMPLETED] * 3 + [CREATED]
        assert (await hand.store.states()) == counted(
            completed=50, cancelled=10, skipped=5, created=15
        )

    async def test_a_call_that_fails_leaves_no_trace_in_others_made_with_it(self, hand: Hand):
        dag = await hand.submit(["a", "b"])
        await hand.claim(dag, 0, 1)
        bad = Ending(dag, 0, hand.fences[dag, 0], "nonsense")
        told = await asyncio.gather(
            hand.store.finish(
                WORKER, [Ending(dag, 1, hand.fences[dag, 1], COMPLETED, result="1"), bad]
            ),
            hand.submit(name="good"),
            return_exceptions=True,
        )
        assert isinstance(told[0], ValueError)
        assert isinstance(told[1], int)
        assert await hand.states(dag) == [ACTIVE, ACTIVE]
        assert await hand.state(told[1]) == CREATED
