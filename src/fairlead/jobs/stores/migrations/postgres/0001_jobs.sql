-- Runs, jobs and what is around them.  Times are seconds since the epoch on this server's clock (double precision).
--
-- Work is done in functions: one round trip and one transaction per verb, locks held for no longer than the server needs,
-- and plans that do not depend on when a table was last analyzed (each function switches the planner's guesses off: it
-- only ever walks along keys it is given).  A function is never changed in place once released: versions run side by side.
--
-- Locks: rows of `dags` before rows of `jobs`, in order of their numbers; rows of `jobs` under their run's lock, or
-- with SKIP LOCKED.  So nothing deadlocks.

CREATE TABLE dags (
    dag bigint PRIMARY KEY,
    name text NOT NULL,
    tenant text NOT NULL,
    key text,
    state text NOT NULL DEFAULT 'created',   -- how it ended, once completed_on is set
    soft double precision,
    hard double precision,
    created_at double precision NOT NULL,
    start_at double precision,
    started_at double precision,             -- when its first job was claimed; of one job, known when that has ended
    completed_on double precision,
    jobs integer NOT NULL,
    remaining integer NOT NULL,              -- jobs that have not ended
    failed integer NOT NULL DEFAULT 0,       -- jobs that failed or expired
    cancelled integer NOT NULL DEFAULT 0,
    cancelling boolean NOT NULL DEFAULT false,
    paused boolean NOT NULL DEFAULT false,
    announced boolean NOT NULL DEFAULT false,
    missed smallint NOT NULL DEFAULT 0       -- SLAs there is nothing more to tell of: 1 soft, 2 hard
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2);

CREATE SEQUENCE dag_numbers OWNED BY dags.dag;
CREATE INDEX dags_open ON dags (dag) WHERE completed_on IS NULL;
CREATE INDEX dags_cancelling ON dags (dag) WHERE cancelling AND completed_on IS NULL;
CREATE INDEX dags_ended ON dags (announced, completed_on) WHERE completed_on IS NOT NULL;
CREATE INDEX dags_due ON dags
    (least(CASE WHEN missed & 1 = 0 THEN soft END, CASE WHEN missed & 2 = 0 THEN hard END))
    WHERE (soft IS NOT NULL OR hard IS NOT NULL) AND missed < 3;

-- Keys outlive their runs: the same key gives the same run for ever.
CREATE TABLE keys (
    tenant text NOT NULL,
    key text NOT NULL,
    dag bigint NOT NULL,
    PRIMARY KEY (tenant, key)
);

CREATE TABLE jobs (
    dag bigint NOT NULL,
    node integer NOT NULL,
    state text NOT NULL,
    waits integer NOT NULL,                  -- dependencies that have not completed
    level integer NOT NULL,
    height double precision NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    retries integer NOT NULL,
    missed smallint NOT NULL DEFAULT 0,
    own_sla boolean NOT NULL,
    alone boolean NOT NULL,                  -- its run has no other job
    retry_delay double precision NOT NULL,
    start_at double precision NOT NULL,
    estimate double precision,
    soft double precision,
    hard double precision,
    timeout double precision,
    ready_at double precision,
    claimed_at double precision,
    started_at double precision,
    completed_on double precision,
    worker bigint,
    fence bigint,                            -- of the last claim
    acked bigint,                            -- the call that acknowledged it, or the mark of its ending; null: none yet
    name text NOT NULL,
    task text NOT NULL,
    executor text NOT NULL,
    payload text NOT NULL,
    needs integer[],
    uses integer[],
    feeds integer[],                         -- who needs this one
    result text,
    error text,
    PRIMARY KEY (dag, node)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2);

CREATE INDEX jobs_due ON jobs
    (least(CASE WHEN missed & 1 = 0 THEN soft END, CASE WHEN missed & 2 = 0 THEN hard END))
    WHERE own_sla AND missed < 3;

-- What is active, a row per claim and worker.  No index of `jobs` knows a column that claims and endings change, so
-- both rewrite a job in place (HOT) and touch no index at all; the few that are active are found from here.  A row stays
-- until a sweep finds that nothing in it is active, so it may also name jobs that are not.
CREATE TABLE claims (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker bigint NOT NULL,
    fetched boolean NOT NULL,                -- nothing in it waits to be fetched
    dags bigint[] NOT NULL,
    nodes integer[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE claims ALTER dags SET STORAGE EXTERNAL, ALTER nodes SET STORAGE EXTERNAL;
CREATE INDEX claims_waiting ON claims (worker) WHERE NOT fetched;

-- What the one scheduler should hear of.
CREATE TABLE news (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    process text,                            -- who wrote it; null: somebody
    dags bigint[],                           -- jobs that changed: their runs
    nodes integer[],                         -- and their places in them
    refreshed bigint[],                      -- runs that changed
    ended bigint[],                          -- runs that ended
    settings boolean NOT NULL DEFAULT false,
    workers boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE news ALTER dags SET STORAGE EXTERNAL, ALTER nodes SET STORAGE EXTERNAL,
    ALTER refreshed SET STORAGE EXTERNAL, ALTER ended SET STORAGE EXTERNAL;

CREATE TABLE leader (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    process text NOT NULL,
    epoch bigint NOT NULL,
    until double precision NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE workers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    executor text NOT NULL,
    slots integer NOT NULL,
    process text NOT NULL,
    beats bigint NOT NULL DEFAULT 1,
    until double precision NOT NULL,
    draining boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

CREATE TABLE executors (name text PRIMARY KEY);

CREATE TABLE estimates (task text PRIMARY KEY, mean double precision NOT NULL, runs bigint NOT NULL)
    WITH (fillfactor = 70);

CREATE TABLE settings (name text PRIMARY KEY, value text NOT NULL);

CREATE TABLE schedules (
    name text PRIMARY KEY,
    cron text NOT NULL,
    timezone text NOT NULL,
    run text NOT NULL,
    misfire text NOT NULL,
    cursor double precision NOT NULL,
    paused boolean NOT NULL
);

-- The archive: the same rows, with no index but the one to find a run by.
CREATE TABLE archived_dags (LIKE dags, PRIMARY KEY (dag));
CREATE TABLE archived_jobs (LIKE jobs, PRIMARY KEY (dag, node));

-- What verbs of the scheduler tell: of ready jobs everything, of others what `kind` needs.
CREATE TYPE told AS (
    kind text,
    dag bigint,
    node integer,
    name text,
    task text,
    executor text,
    tenant text,
    level integer,
    height double precision,
    estimate double precision,
    soft double precision,
    hard double precision,
    ready_at double precision,
    start_at double precision,
    active boolean
);

CREATE FUNCTION clock() RETURNS double precision LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT extract(epoch FROM clock_timestamp())::double precision $$;

-- How urgent an SLA makes a job; fairlead.jobs.sla says the same.
CREATE FUNCTION sla_priority(now double precision, soft double precision, hard double precision)
RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN now > hard THEN 1000 + least(999, floor((now - hard) / 900.0))
        WHEN now > soft THEN 500 + least(499, floor((now - soft) / 900.0))
        WHEN soft IS NOT NULL THEN greatest(1, 500 - ceil((soft - now) / 900.0))
        WHEN hard IS NOT NULL THEN greatest(1, 500 - ceil((hard - now) / 900.0))
        ELSE 0
    END::integer
$$;
