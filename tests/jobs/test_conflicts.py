"""A key that is used again: the same DAG gives the same run, another one is an error that names the difference."""

import asyncio
import json
import random
from typing import Any

import asyncpg
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.errors import ConfigError, KeyConflict
from fairlead.jobs import Dag
from fairlead.jobs.api import JobsApi
from fairlead.jobs.conflicts import difference, kept
from fairlead.jobs.files import run_of_file
from fairlead.jobs.records import Claim, Ending, Schedule, Submitted
from fairlead.jobs.registry import task_of
from fairlead.jobs.states import COMPLETED
from fairlead.jobs.stores.opening import open_store
from tests.engines_postgres import plain
from tests.jobs.operations_rig import HELLO, ask, database, go, small
from tests.jobs.store_contract import new_run


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    return database(request.param, tmp_path)


@pytest.fixture
def postgres(tmp_path):
    return database("postgres", tmp_path)


TASKS = {name: task_of(lambda *_, **__: None, name=name) for name in ("read", "merge", "send")}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab$", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab$", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def dags(draw):
    """A DAG file: some jobs with arguments, results of others among them."""
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5, unique=True))
    jobs = []
    for place, name in enumerate(names):
        args = draw(st.lists(VALUES, max_size=2))
        if place and draw(st.booleans()):
            args.append([{"$result": draw(st.sampled_from(names[:place]))}])
        after = (
            draw(st.lists(st.sampled_from(names[:place]), max_size=2, unique=True)) if place else []
        )
        task = draw(st.sampled_from(sorted(TASKS)))
        jobs.append(
            {
                "name": name,
                "task": task,
                "args": args,
                "kwargs": {"k": draw(VALUES)},
                "after": after,
            }
        )
    return {"name": "invoice", "key": "k", "jobs": jobs}


def planned(file):
    return run_of_file(file, TASKS, now=0.0)


def turned(value):
    """The same value, with the keys of its mappings the other way round."""
    if isinstance(value, dict):
        return {key: turned(inner) for key, inner in reversed(value.items())}
    return [turned(inner) for inner in value] if isinstance(value, list) else value


@given(dags(), st.randoms(use_true_random=False))
def test_order_and_what_a_deploy_may_change_make_no_other_dag(file, rng):
    same = json.loads(json.dumps(file))
    rng.shuffle(same["jobs"])
    for job in same["jobs"]:
        job["args"] = turned(job["args"])
        job["kwargs"] = turned(job["kwargs"])
        rng.shuffle(job["after"])
        job["soft_sla"] = rng.choice([None, "5m"])
    same |= {"soft_sla": rng.choice([None, "1h"])}
    again = run_of_file(same, TASKS, now=99.0, start_at=rng.choice([None, 500.0]))
    slower = [
        one._replace(retries=7, timeout=3.0, estimate=9.0, executor="ocr") for one in again.jobs
    ]
    assert difference(kept(planned(file)), again._replace(jobs=tuple(slower))) is None


@given(dags(), st.data())
def test_any_other_name_job_task_need_or_argument_is_named(file, data):
    other = json.loads(json.dumps(file))
    job = data.draw(st.sampled_from(other["jobs"]))
    change = data.draw(st.sampled_from(["name", "job", "more", "task", "after", "args", "kwargs"]))
    word = repr(job["name"])
    if change == "name":
        other["name"], word = "bill", "'bill'"
    elif change == "job":
        for each in other["jobs"]:
            each["after"] = ["g" if name == job["name"] else name for name in each["after"]]
            each["args"] = json.loads(
                json.dumps(each["args"]).replace(f'"$result": "{job["name"]}"', '"$result": "g"')
            )
        job["name"] = "g"
    elif change == "more":
        other["jobs"].append({"name": "g", "task": "read"})
        word = "'g'"
    elif change == "task":
        job["task"] = data.draw(st.sampled_from(sorted(set(TASKS) - {job["task"]})))
    elif change == "after":
        other["jobs"].insert(0, {"name": "z", "task": "read"})
        file = json.loads(json.dumps(other))
        job["after"] = [*job["after"], "z"]
    else:
        job[change] = [*job["args"], 77] if change == "args" else {**job["kwargs"], "new": 77}
    found = difference(kept(planned(file)), planned(other))
    assert found is not None
    assert word in found


def test_a_difference_deep_in_long_arguments_is_shown():
    def run(last):
        return planned(
            {
                "name": "x",
                "jobs": [{"name": "a", "task": "read", "args": [["page"] * 500 + [last]]}],
            }
        )

    found = difference(kept(run("left")), run("right"))
    assert found is not None
    assert '"left"]' in found
    assert '"right"]' in found
    assert len(found) < 250


@pytest.fixture
def go_on(url):
    """Run a test over an open store."""

    def run(test):
        async def main():
            store = open_store(url)
            await store.open()
            try:
                await test(store)
            finally:
                await store.close()

        go(main())

    return run


OTHER: Any = new_run(
    ["a"], key="k", name="run", of_jobs={"payload": '{"args":["b.pdf"],"kwargs":{}}'}
)


class TestStores:
    def test_a_conflict_stores_nothing_of_the_whole_call(self, go_on):
        async def test(store):
            (first,) = await store.submit([new_run(key="k")], compare=True)
            for call in ([OTHER], [new_run(), OTHER], [new_run(key="free"), OTHER, new_run(["x"])]):
                with pytest.raises(
                    KeyConflict, match=rf"key 'k' belongs to run {first.dag}, .*job 'a' has args"
                ) as found:
                    await store.submit(call, compare=True)
                assert (found.value.key, found.value.run) == ("k", str(first.dag))
            assert [run.dag for run in await store.runs()] == [first.dag]
            assert await store.find("", "free") is None
            again = [new_run(key="k"), new_run(key="free")]
            answers = await store.submit(again, compare=True)
            assert [one.new for one in answers] == [False, True]
            assert await store.submit([OTHER]) == [Submitted(first.dag, False)]

        go_on(test)

    def test_two_dags_of_one_call_with_one_key(self, go_on):
        async def test(store):
            with pytest.raises(
                KeyConflict, match=r"two DAGs of this call.*in the first and .* in the second"
            ):
                await store.submit([new_run(key="k"), OTHER], compare=True)
            assert await store.runs() == []
            one, two = await store.submit([new_run(key="k"), new_run(key="k")], compare=True)
            assert (two.dag, one.new, two.new) == (one.dag, True, False)

        go_on(test)

    def test_a_run_that_ended_and_was_archived_is_compared(self, go_on):
        async def test(store):
            payload = json.dumps({"args": ["x" * 5000], "kwargs": {}})
            run = new_run({"a": [], "b": ["a"]}, key="k", of_jobs={"payload": payload})
            (first,) = await store.submit([run], compare=True)
            epoch = await store.lead("leader", 1000.0)
            worker = (await store.register("w", "leader", {"ocr": 1}, 1000.0))["ocr"]
            for node in (0, 1):
                await store.claim(
                    "leader", epoch, [Claim(first.dag, node, worker, 7 + node)], acked=True
                )
                await store.finish("leader", [Ending(first.dag, node, 7 + node, COMPLETED, "1")])
            for _ in range(2):
                assert await store.submit([run], compare=True) == [Submitted(first.dag, False)]
                for other in (
                    new_run({"a": [], "b": []}, key="k", of_jobs={"payload": payload}),
                    new_run(
                        {"a": [], "b": ["a"]},
                        key="k",
                        of_jobs={"payload": payload.replace("x", "y", 1)},
                    ),
                ):
                    with pytest.raises(KeyConflict):
                        await store.submit([other], compare=True)
                await store.archive(store.now() + 10, 10)
            assert await store.runs() == []
            assert len(await store.jobs(first.dag)) == 2

        go_on(test)

    def test_of_two_processes_that_race_one_wins_and_the_other_hears_why(self, go_on):
        async def test(store):
            twin = store.twin()
            await twin.open()
            rng = random.Random(5)
            for place in range(10):
                key = f"k{place}"
                calls = [
                    [new_run(key=key), new_run()],
                    [OTHER._replace(key=key)],
                ]
                rng.shuffle(calls)
                answers = await asyncio.gather(
                    store.submit(calls[0], compare=True),
                    twin.submit(calls[1], compare=True),
                    return_exceptions=True,
                )
                assert sorted(type(one).__name__ for one in answers) == ["KeyConflict", "list"]
            await twin.close()
            stored = [run for run in await store.runs() if run.key is None]
            pairs = [
                run
                for run in await store.runs()
                if run.key and (await store.jobs(run.dag))[0].name == "a"
            ]
            assert len(pairs) == 10
            assert len(stored) <= 10

        go_on(test)

    def test_an_unkeyed_or_fresh_call_is_one_statement(self, postgres, monkeypatch):
        async def main():
            store: Any = open_store(postgres)
            await store.open()
            asked = []
            fetch = store._connections.fetch

            async def counted(sql, *args, again=False):
                if "pg_notify" not in sql:
                    asked.append(sql)
                return await fetch(sql, *args, again=again)

            monkeypatch.setattr(store._connections, "fetch", counted)
            await store.submit([new_run(), new_run()], compare=True)
            await store.submit([new_run(key="k")], compare=True)
            assert len(asked) == 2
            await store.submit([new_run(key="k")], compare=True)
            assert len(asked) == 4
            await store.close()

        go(main())


class TestCallersTransaction:
    @pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "async psycopg"])
    def test_a_conflict_leaves_it_usable_and_stores_nothing_of_the_call(self, postgres, driver):
        async def main():
            store = open_store(postgres)
            await store.open()
            (first,) = await store.submit([new_run(key="k")])

            async def use(connection):
                kept = await store.submit([new_run(name="kept")], connection, compare=True)
                for call in ([OTHER], [new_run(name="gone"), OTHER]):
                    with pytest.raises(KeyConflict, match=f"run {first.dag}"):
                        await store.submit(call, connection, compare=True)
                pair = [new_run(name="pair", key="p"), new_run(key="k")]
                answers = await store.submit(pair, connection, compare=True)
                assert [one.new for one in answers] == [True, False]
                return kept

            if driver == "asyncpg":
                connection = await asyncpg.connect(plain(postgres))
                async with connection.transaction():
                    await use(connection)
                await connection.close()
            elif driver == "psycopg":
                with psycopg.connect(plain(postgres)) as blocking:
                    await use(blocking)
            else:
                async with await psycopg.AsyncConnection.connect(plain(postgres)) as one:
                    await use(one)
            assert sorted(run.name for run in await store.runs()) == ["kept", "pair", "run"]
            await store.close()

        go(main())


class TestDoors:
    def test_submit_refuses_another_dag_and_existing_gives_the_run(self, url):
        async def main():
            jobs = small(url)

            def dag(number):
                one = Dag("invoice", key="invoice-17")
                one.add("double", number).options(name="ocr")
                return one

            first = await jobs.submit(dag(1))
            assert await jobs.submit(dag(1), start_at="1h") == (first.id, False)
            said = (
                r"key 'invoice-17' belongs to run 1, whose DAG differs: "
                r"job 'ocr' has args \[1\] there and \[2\] here"
            )
            with pytest.raises(KeyConflict, match=said):
                await jobs.submit(dag(2))
            assert await jobs.submit(dag(2), on_conflict="existing") == (first.id, False)
            given = await jobs.submit_all([dag(2), dag(3)], on_conflict="existing")
            assert given == [(first.id, False)] * 2
            with pytest.raises(ConfigError, match="on_conflict must be"):
                await jobs.submit(dag(2), on_conflict="ignore")
            await jobs.close()

        go(main())

    def test_over_http(self, url):
        async def main():
            jobs = small(url)
            app = JobsApi(jobs)
            first = {**HELLO, "key": "k"}
            other = {**first, "jobs": [{"name": "a", "task": "double", "args": [22]}]}
            assert (await ask(app, "POST", "/v1/runs", first)).status == 201
            assert (await ask(app, "POST", "/v1/runs", first)).status == 200
            refused = await ask(app, "POST", "/v1/runs", other)
            assert refused.status == 409
            assert "job 'a' has args [21] there and [22] here" in refused.json["detail"]
            taken = await ask(app, "POST", "/v1/runs", other, query=b"on_conflict=existing")
            assert (taken.status, taken.json) == (200, {"id": "1", "new": False})
            assert (
                await ask(app, "POST", "/v1/runs", other, query=b"on_conflict=no")
            ).status == 422
            await jobs.close()

        go(main())

    def test_on_the_command_line(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "keyed_app.py").write_text(
            "from fairlead.jobs import Jobs\njobs = Jobs()\n@jobs.task\ndef double(n): ...\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        for number in (1, 2):
            file = {
                "name": "x",
                "key": "k",
                "jobs": [{"name": "a", "task": "double", "args": [number]}],
            }
            (tmp_path / f"{number}.json").write_text(json.dumps(file))

        def submit(*words):
            monkeypatch.setattr(
                "sys.argv", ["fairlead", "jobs", "submit", *words, "--app", "keyed_app:jobs"]
            )
            code = main()
            return code, capsys.readouterr()

        assert submit("1.json")[0] == 0
        code, told = submit("2.json")
        assert code == 1
        assert "has args [1] there and [2] here" in told.err
        code, told = submit("2.json", "--on-conflict", "existing")
        assert (code, told.out.strip()) == (0, "1")


def test_a_tick_of_a_schedule_fires_though_its_dag_was_changed(url):
    async def main():
        store = open_store(url)
        await store.open()
        await store.put_schedule(Schedule("s", "0 0 * * *", "UTC", {}))
        assert (await store.fire("s", 10.0, new_run(key="s-10"))) is not None
        await store.put_schedule(Schedule("s", "0 0 * * *", "UTC", {}, cursor=0.0))
        assert (await store.fire("s", 20.0, OTHER._replace(key="s-10"))) == Submitted(1, False)
        await store.close()

    go(main())
