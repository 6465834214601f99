"""The schema in PostgreSQL: migrations, what the store refuses to open, plans that stay right, the score."""

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from fairlead.errors import ConfigError, SchemaMismatch, StoreError, StoreUnavailable
from fairlead.jobs import Dag, Jobs
from fairlead.jobs.operating import Operations
from fairlead.jobs.records import Claim, Ending
from fairlead.jobs.sla import sla_priority
from fairlead.jobs.states import COMPLETED, TRANSITIONS
from fairlead.jobs.stores import migrations
from fairlead.jobs.stores.opening import open_store
from fairlead.jobs.stores.postgres import ALL_RUNNING, PostgresStore
from fairlead.jobs.stores.postgres_connections import read_url
from tests.engines_postgres import dropped, new_schema, plain, shared_url, with_schema
from tests.jobs.store_contract import new_run

NEEDED = len(migrations.steps("postgres"))
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A schema that is not there yet."""
    schema = new_schema()
    yield with_schema(shared_url(), schema)
    await dropped(shared_url(), schema)


@pytest.fixture
async def connection() -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(shared_url())
    yield connection
    await connection.close()


async def test_a_database_that_cannot_hold_every_character_is_refused_with_the_command_that_helps(
    connection,
):
    await connection.execute("DROP DATABASE IF EXISTS latin")
    await connection.execute(
        "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    address = shared_url().rpartition("/")[0] + "/latin"
    try:
        for verb in ("migrate", "versions", "open"):
            store = open_store(address)
            with pytest.raises(SchemaMismatch, match=r"LATIN1.*createdb --encoding UTF8"):
                await getattr(store, verb)()
            await store.close()
    finally:
        await connection.execute("DROP DATABASE latin WITH (FORCE)")


async def test_the_least_privilege_of_the_docs_serves_and_completes_runs_and_creates_nothing(
    connection,
):
    page = Path(__file__).parents[2] / "docs" / "running" / "postgresql.md"
    blocks = re.findall(r"^```sql\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    before, after = (block.replace("DATABASE jobs", "DATABASE least") for block in blocks)
    host = urlsplit(shared_url())

    def as_role(role: str) -> str:
        return f"postgresql://{role}@{host.hostname}:{host.port}/least"

    async def without() -> None:
        await connection.execute("DROP DATABASE IF EXISTS least WITH (FORCE)")
        await connection.execute("DROP ROLE IF EXISTS jobs_app")
        await connection.execute("DROP ROLE IF EXISTS jobs_owner")

    await without()
    await connection.execute("CREATE DATABASE least ENCODING 'UTF8' TEMPLATE template0")
    try:
        await connection.execute(before)
        owner = open_store(as_role("jobs_owner"))
        await owner.migrate()
        await owner.close()
        granting = await asyncpg.connect(as_role("jobs_owner"))
        await granting.execute(after)
        await granting.close()
        jobs = Jobs(as_role("jobs_app"), lease="2s", poll="100ms", sweep="200ms")

        @jobs.task
        async def double(number: int) -> int:
            return 2 * number

        async with jobs:
            dag = Dag("least", key="once")
            dag.add(double, dag.add(double, 1))
            outcome = await jobs.wait(await jobs.submit(dag), timeout="20s")
            assert outcome.state == "completed"
            assert len(await Operations(jobs).runs()) == 1
        app = await asyncpg.connect(as_role("jobs_app"))
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.execute("CREATE TABLE fairlead.more (n int)")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.execute("DROP TABLE fairlead.jobs")
        await app.close()
    finally:
        await without()


async def test_an_empty_database_is_refused_with_the_command_that_helps(url):
    store = open_store(url)
    assert await store.versions() == (0, NEEDED)
    with pytest.raises(
        SchemaMismatch, match=r"has no Fairlead schema yet.*fairlead db migrate --db"
    ):
        await store.open()
    assert await store.migrate() == [step.name for step in migrations.steps("postgres")]
    assert await store.versions() == (NEEDED, NEEDED)
    assert await store.migrate() == []
    await store.open()
    await store.close()


async def test_many_may_migrate_at_once(url):
    told = await asyncio.gather(*(PostgresStore(url).migrate() for _ in range(12)))
    assert sorted(len(steps) for steps in told) == [0] * 11 + [NEEDED]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM {0}.migrations WHERE number = {1}", "has schema .* fairlead db migrate"),
        ("INSERT INTO {0}.migrations VALUES ({1} + 1, 'x')", "newer Fairlead"),
    ],
)
async def test_an_older_and_a_newer_schema_are_refused(url, connection, change, message):
    store = PostgresStore(url)
    await store.migrate()
    await connection.execute(change.format(read_url(url).schema, NEEDED))
    with pytest.raises(SchemaMismatch, match=message):
        await store.open()


async def test_a_newer_schema_is_not_migrated(url, connection):
    store = PostgresStore(url)
    await store.migrate()
    await connection.execute(
        f"INSERT INTO {read_url(url).schema}.migrations VALUES ({NEEDED} + 1, 'x')"
    )
    with pytest.raises(SchemaMismatch, match="newer"):
        await store.migrate()


async def test_a_step_that_fails_leaves_nothing_behind(url, monkeypatch):
    steps = [*migrations.steps("postgres"), migrations.Step(NEEDED + 1, "x", "SELECT 1 / 0")]
    monkeypatch.setattr(migrations, "steps", lambda _: steps)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await PostgresStore(url).migrate()
    monkeypatch.undo()
    assert await PostgresStore(url).versions() == (0, NEEDED)


async def test_a_step_that_must_wait_gives_up_rather_than_make_others_wait(
    url, connection, monkeypatch
):
    await PostgresStore(url).migrate()
    steps = [
        *migrations.steps("postgres"),
        migrations.Step(NEEDED + 1, "x", "ALTER TABLE jobs ADD COLUMN extra integer"),
    ]
    monkeypatch.setattr(migrations, "steps", lambda _: steps)
    async with connection.transaction():
        await connection.execute(f"SELECT FROM {read_url(url).schema}.jobs")
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable, match="lock"):
            await PostgresStore(url).migrate()
        assert time.monotonic() - begun < 5
    assert await PostgresStore(url).migrate() == ["x"]


async def test_tables_that_vanish_are_told_as_such(url, connection):
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    await connection.execute(f"DROP SCHEMA {read_url(url).schema} CASCADE")
    with pytest.raises(SchemaMismatch, match="fairlead db migrate"):
        await store.states()
    await store.close()


async def test_who_cannot_come_in_is_told_why():
    bad = re.sub(r"//[^@/]*@?", "//nobody_here@", shared_url())
    with pytest.raises(StoreError, match="nobody_here"):
        await PostgresStore(bad).open()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await PostgresStore("postgresql://postgres@127.0.0.1:1/x").open()


@pytest.mark.parametrize(
    "query", ["schema=a-b", "schema=", "listen=maybe", "pgbouncer=2", "timeout=x", "timeout=0"]
)
def test_options_that_make_no_sense_are_refused(query):
    with pytest.raises(ConfigError, match=query.partition("=")[0]):
        PostgresStore(f"postgresql://localhost/x?{query}")


def test_a_password_is_never_shown():
    address = read_url("postgresql://me:se%40cret@db:5432/app?schema=jobs&sslmode=require")
    assert address.shown == "postgresql://me:***@db:5432/app?schema=jobs&sslmode=require"
    assert address.dsn == "postgresql://me:se%40cret@db:5432/app?sslmode=require"
    assert "cret" not in str(read_url("postgresql://db/app?user=me&password=secret").shown)


async def test_the_score_in_sql_is_the_score_in_python(url, connection):
    await PostgresStore(url).migrate()
    draw = random.Random(11)
    now = 1_800_000_000.0
    near = [0.0, 0.001, 1, 60, 899.999, 900, 900.001, 1800, 449_100, 898_200, 1e7]
    times = [None, *(now + sign * step for step in near for sign in (-1, 1))]
    cases = [(now, soft, hard) for soft in times for hard in times]
    cases += [
        (now, now + draw.uniform(-1e6, 1e6), draw.choice([None, now + draw.uniform(-1e6, 1e6)]))
        for _ in range(2000)
    ]
    rows = await connection.fetch(
        f"SELECT {read_url(url).schema}.sla_priority(c.now, c.soft, c.hard) AS score "
        "FROM unnest($1::float8[], $2::float8[], $3::float8[]) WITH ORDINALITY AS c(now, soft, hard, n) "
        "ORDER BY n",
        *map(list, zip(*cases, strict=True)),
    )
    assert [row["score"] for row in rows] == [sla_priority(*case) for case in cases]


async def test_claims_and_endings_change_no_column_that_an_index_knows(url, connection):
    """So they are written in place (HOT), and no index grows with them."""
    await PostgresStore(url).migrate()
    rows = await connection.fetch(
        "SELECT indexdef FROM pg_indexes WHERE schemaname = $1 AND tablename = 'jobs'",
        read_url(url).schema,
    )
    changed = (
        "state waits attempts crashes start_at claimed_at started_at completed_on worker fence"
    )
    for (definition,) in rows:
        known = set(re.findall(r"\w+", definition.partition("USING")[2]))
        assert not known & {*changed.split(), "acked", "result", "error", "ready_at"}, definition


async def test_plans_made_on_empty_tables_are_right_for_full_ones(url, connection):
    """Whole tables are never read: what is looked at grows with the batch, not with what is stored."""
    store = PostgresStore(url, most=1, listen=False)
    await store.migrate()
    await connection.execute(f"ANALYZE {read_url(url).schema}.jobs")
    await connection.execute(f"ANALYZE {read_url(url).schema}.dags")
    await store.open()
    try:
        epoch = await store.lead("me", 1000.0) or 0
        for _ in range(7):  # now every plan is made, for tables of a few rows
            (run,) = await store.submit([new_run()])
            await store.claim("me", epoch, [Claim(run.dag, 0, 1, 7)], acked=True)
            await store.finish("me", [Ending(run.dag, 0, 7, COMPLETED, "1")])
            await store.take_news("me")
        dags: list[int] = []
        for _ in range(4):
            dags += [run.dag for run in await store.submit([new_run()] * 1000)]
        many = dags[:50]
        looked = {
            "claim": await blocks(
                store, "claim('me', $1, 0, $2, $3, $2, $2)", epoch, many, [0] * 50
            ),
            "finish": await blocks(
                store,
                "finish('me', $1, $2, $1, $3, NULL, NULL, NULL, NULL, NULL, 1)",
                *(many, [0] * 50, [COMPLETED] * 50),
            ),
        }
        assert await store.states() == {
            **dict.fromkeys(TRANSITIONS, 0),
            "created": 3950,
            "completed": 57,
        }
        assert max(looked.values()) < 50 * 30, looked
        news = await blocks(store, "take_news('me', 5000)")
        assert news < 4000 * 15
    finally:
        await store.close()


async def test_what_is_active_is_found_without_looking_at_what_is_not(url, connection):
    store = PostgresStore(url, most=1, listen=False)
    await store.migrate()
    await store.open()
    looked = (
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables "
        "WHERE schemaname = $1 AND relname = 'jobs'"
    )
    try:
        epoch = await store.lead("me", 1000.0) or 0
        dags = [run.dag for run in await store.submit([new_run()] * 1000)]
        claims = [Claim(dag, 0, 1, 7) for dag in dags[:50]]
        await store.claim("me", epoch, claims, acked=True)
        async with store._connections.transaction() as session:
            assert len(await session.fetch(store._sql(ALL_RUNNING))) == 50
            # Each is there as it was before, too.
            assert await session.fetchval(looked, read_url(url).schema) <= 2 * 50
    finally:
        await store.close()


async def blocks(store: PostgresStore, call: str, *args: object) -> int:
    """Count the blocks that a function looks at, in the store's own session."""
    sql = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM fairlead.{call}"
    ((told,),) = await store._fetch(sql, *args)
    plan = json.loads(told)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_two_schedulers_never_have_one_job(url):
    """The one whose time is over claims nothing, whatever it believes; a claim is never given twice."""
    store, other = PostgresStore(url), PostgresStore(url)
    await store.migrate()
    await store.open()
    await other.open()
    try:
        dags = [run.dag for run in await store.submit([new_run()] * 60)]
        epochs: dict[str, int] = {}
        won: list[int] = []
        draw = random.Random(2)

        async def lead(name: str, place: PostgresStore) -> None:
            for _ in range(40):
                epoch = await place.lead(name, 0.0)  # over as soon as it has begun
                if epoch is not None:
                    epochs[name] = epoch
                if name not in epochs:
                    continue
                wanted = draw.sample(dags, 5)
                claims = [Claim(dag, 0, 1, draw.getrandbits(62)) for dag in wanted]
                highest = max(epochs.values())
                claimed = await place.claim(name, epochs[name], claims, acked=True)
                assert not claimed or epochs[name] >= highest
                won.extend(job.dag for job in claimed)

        await asyncio.gather(lead("one", store), lead("other", other))
        assert len(won) == len(set(won))
        assert won
        assert sorted(job.dag for job in await store.running()) == sorted(won)
    finally:
        await store.close()
        await other.close()


async def test_a_claim_in_progress_keeps_others_from_taking_over(url, connection):
    store = PostgresStore(url + "&timeout=0.3")
    await store.migrate()
    await store.open()
    schema = read_url(url).schema
    try:
        epoch = await store.lead("old", 0.0)
        (run,) = await store.submit([new_run()])
        async with connection.transaction():
            rows = await connection.fetch(
                f"SELECT * FROM {schema}.claim('old', $1, 0, $2, $3, $4, $5)",
                *(epoch, [run.dag], [0], [1], [5]),
            )
            assert len(rows) == 1
            with pytest.raises(StoreUnavailable):
                await store.lead("new", 10.0)
        assert await store.lead("new", 10.0) is not None
        assert [job.fence for job in await store.running()] == [5]
    finally:
        await store.close()


async def test_a_call_made_twice_because_its_answer_was_lost_tells_the_same(url):
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    try:
        epoch = await store.lead("me", 1000.0) or 0
        (run,) = await store.submit([new_run({"a": [], "b": ["a"]})])
        claims = [Claim(run.dag, 0, 1, 77)]
        first = await store.claim("me", epoch, claims, acked=True)
        assert await store.claim("me", epoch, claims, acked=True) == first
        assert await store.claim("me", epoch, [Claim(run.dag, 0, 1, 78)], acked=True) == []
        finish = "SELECT kind, dag, node FROM fairlead.finish('me', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        given = [[run.dag], [0], [77], [COMPLETED], ["1"], None, None, None, None]
        told = await store._fetch(finish, *given, 1234)
        assert [tuple(row) for row in told] == [("ready", run.dag, 1)]
        assert await store._fetch(finish, *given, 1234) == told
        other = await store._fetch(finish, *given, 1235)
        assert [tuple(row) for row in other] == [("refused", run.dag, 0)]
        assert (await store.jobs(run.dag))[1].waits == 0
    finally:
        await store.close()


async def test_claims_are_forgotten_when_nothing_of_them_is_active(url, connection):
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    claims = f"SELECT cardinality(dags) FROM {read_url(url).schema}.claims ORDER BY number"
    try:
        epoch = await store.lead("me", 1000.0) or 0
        worker = (await store.register("w", "me", {"ocr": 9}, 1000.0))["ocr"]
        (run,) = await store.submit([new_run([f"n{place}" for place in range(10)])])
        await store.claim("me", epoch, [Claim(run.dag, n, worker, n) for n in range(6)], acked=True)
        await store.claim(
            "me", epoch, [Claim(run.dag, n, worker, n) for n in range(6, 10)], acked=False
        )
        assert [row[0] for row in await connection.fetch(claims)] == [6, 4]
        await store.finish("me", [Ending(run.dag, n, n, COMPLETED, "1") for n in range(5)])
        assert await store.orphans(1000.0) == []
        assert [row[0] for row in await connection.fetch(claims)] == [1, 4]
        assert [job.node for job in await store.running()] == [5, 6, 7, 8, 9]
        assert len(await store.fetch([worker])) == 4
        await store.orphans(1000.0)
        await store.finish("me", [Ending(run.dag, n, n, COMPLETED, "1") for n in range(5, 10)])
        await store.orphans(1000.0)
        assert await connection.fetch(claims) == []
    finally:
        await store.close()


async def test_what_a_lost_fetch_acknowledged_is_told_by_the_next(url, monkeypatch):
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    try:
        epoch = await store.lead("me", 1000.0) or 0
        worker = (await store.register("w", "me", {"ocr": 9}, 1000.0))["ocr"]
        (run,) = await store.submit([new_run(["a"])])
        await store.claim("me", epoch, [Claim(run.dag, 0, worker, 5)], acked=False)
        real = store._connections.fetch

        async def lost(*args, **kwargs):
            await real(*args, **kwargs)
            raise StoreUnavailable("lost on the way")

        monkeypatch.setattr(store._connections, "fetch", lost)
        with pytest.raises(StoreUnavailable):
            await store.fetch([worker])
        monkeypatch.undo()
        assert [job.fence for job in await store.fetch([worker])] == [5]
        assert await store.fetch([worker]) == []
    finally:
        await store.close()


async def test_a_server_that_is_reached_directly_is_known_as_such(url):
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    assert not store._connections.pooled
    assert await asyncio.wait_for(store._hints.listening.wait(), 10)
    await store.close()
    forced = PostgresStore(url + "&pgbouncer=on")
    await forced.open()
    assert forced._connections.pooled
    assert (await forced.submit([new_run()]))[0].new
    await forced.close()
    assert plain(url) == shared_url()


async def test_a_heap_of_news_is_taken_piece_by_piece(url, monkeypatch):
    monkeypatch.setattr("fairlead.jobs.stores.postgres.NEWS_AT_ONCE", 3)
    store = PostgresStore(url, listen=False)
    await store.migrate()
    await store.open()
    try:
        await store.submit([new_run()])
        await store.lead("me", 1000.0)
        assert (await store.take_news("me")).ready == [], "older than its lead: it reads everything"
        dags = [(await store.submit([new_run()]))[0].dag for _ in range(7)]
        while await store.wait_for_news(0.0):
            pass
        found: list[int] = []
        for more in (True, True, False):
            found += (await store.take_news("me")).refreshed
            assert await store.wait_for_news(0.0) is more
        assert found == dags
        assert await store.lead("me", 1000.0)
        (run,) = await store.submit([new_run()])
        assert await store.lead("me", 1000.0)
        assert (await store.take_news("me")).refreshed == [run.dag], "it led all the time"
    finally:
        await store.close()


async def test_who_led_before_takes_no_news_from_who_leads_now(url):
    old, new = PostgresStore(url, listen=False), PostgresStore(url, listen=False)
    await old.migrate()
    await old.open()
    await new.open()
    try:
        assert await old.lead("old", 0.0) is not None
        assert await new.lead("new", 1000.0) is not None
        (run,) = await new.submit([new_run()])
        assert (await old.take_news("old")).refreshed == []
        assert (await new.take_news("new")).refreshed == [run.dag]
    finally:
        await old.close()
        await new.close()


async def test_a_statement_goes_to_the_connection_that_has_its_plan(url):
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    connections = store._connections
    first, second = "SELECT pg_backend_pid(), 1", "SELECT pg_backend_pid(), 2"
    async with connections.hold(first) as one, connections.hold(second) as other:
        pids = one.get_server_pid(), other.get_server_pid()
    for _ in range(3):
        for sql, pid in zip((first, second), pids, strict=True):
            ((found, _),) = await connections.fetch(sql)
            assert found == pid
    await store.close()
