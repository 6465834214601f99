-- The verbs that runs and jobs go through.  See 0001 for the rules of locks.
--
-- Plans are kept for as long as a connection, and the first is made when tables may be empty.  So that it is right for
-- ever, the only way it can go is along the keys it is given: scans of whole tables are switched off, `dag = ANY (ARRAY[…])`
-- and `ORDER BY dag + 0` offer no order for whose sake an index would be read from end to end, and no condition says
-- just `state = 'active'`, for which all that is active would be read.

-- Store `many` runs with their jobs; what comes back is, in order, the number of each run and, if there are keys, whether
-- it is new.  A column that is null all through is given as null, and one that is never null and always the same as its
-- first value.  Without `in_run` each run has one job.
CREATE FUNCTION submit(
    many integer, of_names text[], of_tenants text[], of_keys text[], of_softs double precision[],
    of_hards double precision[], of_starts double precision[], of_sizes integer[], keyed boolean,
    in_run integer[], in_node integer[], in_name text[], in_task text[], in_executor text[], in_payload text[],
    in_needs text[], in_uses text[], in_feeds text[], in_waits integer[], in_level integer[],
    in_height double precision[], in_estimate double precision[], in_soft double precision[],
    in_hard double precision[], in_own boolean[], in_retries integer[], in_delay double precision[],
    in_timeout double precision[], in_start double precision[], OUT owners bigint[], OUT fresh boolean[]
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    numbers bigint[] := ARRAY(SELECT nextval('dag_numbers') FROM generate_series(1, many));
    now double precision := clock();
BEGIN
    owners := numbers;
    IF keyed THEN
        -- In order of keys, so that two such calls wait for each other only one way round.  A taken key is waited for
        -- until its owner commits (then it is the owner's) or rolls back (then it is ours).
        INSERT INTO keys (tenant, key, dag)
        SELECT coalesce(tenant, of_tenants[1]) AS tenant, key, min(dag)
        FROM unnest(of_tenants, of_keys, numbers) AS r(tenant, key, dag)
        WHERE key IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT DO NOTHING;
        SELECT array_agg(coalesce(k.dag, r.dag) ORDER BY r.place) INTO owners
        FROM unnest(of_tenants, of_keys, numbers) WITH ORDINALITY AS r(tenant, key, dag, place)
        LEFT JOIN keys k ON k.tenant = ANY (ARRAY[coalesce(r.tenant, of_tenants[1])]) AND k.key = r.key;
        fresh := ARRAY(SELECT r.dag = r.owner FROM unnest(numbers, owners) AS r(dag, owner));
    END IF;
    INSERT INTO dags (dag, name, tenant, key, soft, hard, created_at, start_at, jobs, remaining)
    SELECT r.dag, coalesce(r.name, of_names[1]), coalesce(r.tenant, of_tenants[1]), r.key, r.soft, r.hard, now,
        r.start_at, coalesce(r.size, 1), coalesce(r.size, 1)
    FROM unnest(numbers, of_names, of_tenants, of_keys, of_softs, of_hards, of_starts, of_sizes, fresh)
        AS r(dag, name, tenant, key, soft, hard, start_at, size, fresh)
    WHERE r.fresh IS NOT FALSE;
    INSERT INTO jobs (dag, node, state, waits, level, height, retries, own_sla, alone, retry_delay, start_at, estimate,
        soft, hard, timeout, ready_at, name, task, executor, payload, needs, uses, feeds)
    SELECT coalesce(j.dag, numbers[j.run]), coalesce(j.node, 0), 'created', coalesce(j.waits, 0),
        coalesce(j.level, 0), coalesce(j.height, in_height[1], 0), coalesce(j.retries, in_retries[1], 0),
        coalesce(j.own, false), in_run IS NULL OR of_sizes[j.run] = 1, coalesce(j.delay, in_delay[1]),
        coalesce(j.start_at, 0), j.estimate, j.soft, j.hard, j.timeout,
        CASE WHEN coalesce(j.waits, 0) = 0 THEN greatest(now, j.start_at) END, coalesce(j.name, in_name[1]),
        coalesce(j.task, in_task[1]), coalesce(j.executor, in_executor[1]), coalesce(j.payload, in_payload[1]),
        j.needs::integer[], j.uses::integer[], j.feeds::integer[]
    FROM unnest(CASE WHEN in_run IS NULL THEN numbers END, in_run, in_node, in_name, in_task, in_executor, in_payload,
        in_needs, in_uses, in_feeds, in_waits, in_level, in_height, in_estimate, in_soft, in_hard, in_own, in_retries,
        in_delay, in_timeout, in_start)
        WITH ORDINALITY AS j(dag, run, node, name, task, executor, payload, needs, uses, feeds, waits, level, height,
            estimate, soft, hard, own, retries, delay, timeout, start_at, place)
    WHERE fresh IS NULL OR fresh[coalesce(j.run, j.place)];
    IF NOT keyed THEN
        INSERT INTO news (refreshed) VALUES (numbers);
    ELSIF true = ANY (fresh) THEN
        INSERT INTO news (refreshed)
        SELECT array_agg(r.dag) FROM unnest(numbers, owners) AS r(dag, owner) WHERE r.dag = r.owner;
    END IF;
END $$;

-- Make ready jobs active.  The scheduler's row is held until the end: nobody takes over in the middle of a claim.  A job
-- that this very claim (its fence) has already made active is told again: an answer may have been lost on its way.  What
-- the scheduler's idea of our clock brings a little too early is not worth a second try.
CREATE FUNCTION claim(
    by_process text, by_epoch bigint, by_call bigint, of_dags bigint[], of_nodes integer[], of_workers bigint[],
    of_fences bigint[]
) RETURNS TABLE (
    dag bigint, node integer, worker bigint, fence bigint, name text, task text, payload text, uses integer[],
    results text[], attempts integer, crashes integer, retries integer, retry_delay double precision,
    timeout double precision
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET lock_timeout = '5s'
AS $$
#variable_conflict use_column
DECLARE
    now double precision;
BEGIN
    PERFORM 1 FROM leader WHERE process = by_process AND epoch = by_epoch FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    now := clock();
    RETURN QUERY
    WITH free AS (
        SELECT j.ctid, a.worker, a.fence, a.place
        FROM unnest(of_dags, of_nodes, of_workers, of_fences) WITH ORDINALITY AS a(dag, node, worker, fence, place)
        JOIN jobs j ON j.dag = ANY (ARRAY[a.dag]) AND j.node = a.node
        WHERE (j.waits = 0 AND j.state IN ('created', 'retry') AND j.start_at < now + 0.05)
            OR CASE j.state WHEN 'active' THEN j.fence = a.fence END
        FOR UPDATE OF j SKIP LOCKED
    ), taken AS (
        UPDATE jobs j SET state = 'active', worker = f.worker, fence = f.fence, claimed_at = now,
            acked = by_call, started_at = CASE WHEN by_call IS NULL THEN NULL ELSE now END
        FROM free f WHERE j.ctid = f.ctid
        RETURNING f.place, j.dag, j.node, j.worker, j.fence, j.name, j.task, j.payload, j.uses, j.attempts, j.crashes,
            j.retries, j.retry_delay, j.timeout, j.alone
    ), noted AS (
        INSERT INTO claims (worker, fetched, dags, nodes)
        SELECT t.worker, by_call IS NOT NULL, array_agg(t.dag), array_agg(t.node) FROM taken t GROUP BY t.worker
    ), fresh AS (
        -- Without waiting, for jobs are locked already: a run that is missed here learns it with its first ending.
        SELECT d.ctid FROM (SELECT DISTINCT t.dag FROM taken t WHERE NOT t.alone) t
        JOIN dags d ON d.dag = ANY (ARRAY[t.dag]) WHERE d.started_at IS NULL FOR NO KEY UPDATE OF d SKIP LOCKED
    ), begun AS (
        UPDATE dags d SET started_at = now FROM fresh f WHERE d.ctid = f.ctid
    )
    SELECT t.dag, t.node, t.worker, t.fence, t.name, t.task, t.payload, t.uses,
        CASE WHEN t.uses IS NOT NULL THEN ARRAY(
            SELECT (SELECT j.result FROM jobs j WHERE j.dag = t.dag AND j.node = u.node) FROM unnest(t.uses) AS u(node)
        ) END,
        t.attempts, t.crashes, t.retries, t.retry_delay, t.timeout
    FROM taken t ORDER BY t.place;
END $$;

-- Apply endings: the jobs, those that wait for them, the runs, and the news, or nothing.  States that are all the same
-- are given as the first; a column that is null all through, or delays that are all 0, as null.
CREATE FUNCTION finish(
    by_process text, of_dags bigint[], of_nodes integer[], of_fences bigint[], of_states text[], of_results text[],
    of_errors text[], of_delays double precision[], of_attempts integer[], of_crashes integer[], by_call bigint
) RETURNS SETOF told LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET lock_timeout = '5s'
AS $$
#variable_conflict use_column
DECLARE
    now double precision;
    marked boolean;          -- is one of the runs paused or being cancelled?
    a_dags bigint[];         -- applied
    a_nodes integer[];
    a_states text[];
    first_claimed double precision[];
    made_ready told[];
    retried boolean;         -- is one of them to be tried again?
    s_dags bigint[] := '{}'; -- skipped
    e_dags bigint[];         -- runs that ended
    e_states text[];
BEGIN
    SELECT bool_or(l.marked) INTO marked FROM (
        SELECT d.cancelling OR d.paused AS marked FROM dags d WHERE d.dag = ANY (of_dags)
        ORDER BY d.dag + 0 FOR NO KEY UPDATE
    ) l;
    now := clock();
    WITH ended AS (
        UPDATE jobs j SET
            state = CASE WHEN marked THEN state_for(e.dag, e.state) ELSE e.state END,
            result = e.result, error = e.error, acked = by_call,
            worker = CASE WHEN e.state <> 'retry' THEN j.worker END,
            attempts = coalesce(e.attempts, j.attempts), crashes = coalesce(e.crashes, j.crashes),
            start_at = CASE WHEN e.state = 'retry' AND e.delay > 0 THEN now + e.delay ELSE j.start_at END,
            completed_on = CASE WHEN e.state <> 'retry' OR marked AND state_for(e.dag, e.state) = 'cancelled' THEN now END,
            missed = CASE WHEN j.own_sla AND e.state <> 'retry' THEN settled(j.missed, j.soft, j.hard, now) ELSE j.missed END
        FROM (
            SELECT g.dag, g.node, g.fence, coalesce(g.state, of_states[1]) AS state, g.result, g.error, g.delay, g.attempts,
                g.crashes
            FROM unnest(of_dags, of_nodes, of_fences, of_states, of_results, of_errors, of_delays, of_attempts,
                of_crashes) AS g(dag, node, fence, state, result, error, delay, attempts, crashes)
        ) e
        WHERE j.dag = ANY (ARRAY[e.dag]) AND j.node = e.node AND CASE j.state WHEN 'active' THEN j.fence = e.fence END
        RETURNING j.dag, j.node, j.state, j.claimed_at, j.feeds
    ), freed AS (
        UPDATE jobs j SET waits = j.waits - f.completed,
            ready_at = CASE WHEN j.waits = f.completed THEN coalesce(j.ready_at, now) ELSE j.ready_at END
        FROM (
            SELECT n.dag, fed AS node, count(*)::integer AS completed FROM ended n, unnest(n.feeds) AS fed
            WHERE n.state = 'completed' AND n.feeds IS NOT NULL GROUP BY n.dag, fed
        ) f
        WHERE j.dag = ANY (ARRAY[f.dag]) AND j.node = f.node
        RETURNING j.*
    )
    SELECT array_agg(dag), array_agg(node), array_agg(state), array_agg(claimed_at), bool_or(state = 'retry'), ARRAY(
        -- Their run is active: it has just had an ending.
        SELECT ROW('ready', f.dag, f.node, f.name, f.task, f.executor, d.tenant, f.level, f.height, f.estimate, f.soft,
            f.hard, f.ready_at, f.start_at, true)::told
        FROM freed f JOIN dags d ON d.dag = ANY (ARRAY[f.dag]) WHERE f.waits = 0 AND f.state IN ('created', 'retry')
    )
    INTO a_dags, a_nodes, a_states, first_claimed, retried, made_ready
    FROM ended;

    IF a_states && ARRAY['failed', 'expired', 'cancelled'] THEN
        s_dags := skip_after(a_dags, a_nodes, now);
    END IF;
    WITH changed AS (
        UPDATE dags d SET
            remaining = d.remaining - c.done,
            failed = d.failed + c.failed,
            cancelled = d.cancelled + c.cancelled,
            started_at = coalesce(d.started_at, c.claimed_at),
            state = CASE
                WHEN d.remaining > c.done THEN 'active'
                WHEN d.failed + c.failed > 0 THEN 'failed'
                WHEN d.cancelled + c.cancelled > 0 THEN 'cancelled'
                ELSE 'completed' END,
            completed_on = CASE WHEN d.remaining = c.done THEN now END,
            missed = CASE WHEN d.remaining = c.done AND (d.soft IS NOT NULL OR d.hard IS NOT NULL)
                THEN settled(d.missed, d.soft, d.hard, now) ELSE d.missed END
        FROM (
            SELECT dag, count(*) FILTER (WHERE state <> 'retry' AND state <> 'suspended')::integer AS done,
                count(*) FILTER (WHERE state IN ('failed', 'expired'))::integer AS failed,
                count(*) FILTER (WHERE state = 'cancelled')::integer AS cancelled,
                min(claimed_at) AS claimed_at
            FROM (
                SELECT * FROM unnest(a_dags, a_states, first_claimed) AS a(dag, state, claimed_at)
                UNION ALL
                SELECT s, 'skipped', NULL FROM unnest(s_dags) AS s
            ) AS every GROUP BY dag
        ) c
        WHERE d.dag = ANY (ARRAY[c.dag])
        RETURNING d.dag, d.state, d.completed_on
    )
    SELECT array_agg(dag), array_agg(state) INTO e_dags, e_states FROM changed WHERE completed_on IS NOT NULL;

    -- The scheduler's own process needs no news; its row is held, so that nobody takes over and misses this.
    IF a_dags IS NOT NULL THEN
        PERFORM 1 FROM leader WHERE process = by_process FOR SHARE;
        IF NOT FOUND THEN
            INSERT INTO news (process, dags, nodes, ended)
            SELECT by_process, a_dags || array_agg(r.dag), a_nodes || array_agg(r.node), e_dags
            FROM unnest(made_ready) AS r;
        END IF;
    END IF;
    IF e_dags IS NOT NULL THEN
        RETURN NEXT ended_runs(e_dags, e_states);
    END IF;
    IF cardinality(made_ready) > 0 THEN
        RETURN QUERY SELECT * FROM unnest(made_ready);
    END IF;
    IF retried THEN
        RETURN QUERY SELECT * FROM ready_of(a_dags, a_nodes);
    END IF;
    IF coalesce(cardinality(a_dags), 0) < cardinality(of_dags) THEN
        RETURN QUERY SELECT * FROM finished_before(of_dags, of_nodes, of_fences, by_call, a_dags, a_nodes);
    END IF;
END $$;

-- Runs that have ended, all in one row: their numbers as its name, their states as its task.
CREATE FUNCTION ended_runs(of_dags bigint[], of_states text[]) RETURNS told LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW('runs', 0, 0, array_to_string(of_dags, ' '), array_to_string(of_states, ' '), null, null, 0, 0, 0, 0, 0, 0,
        0, false)::told
$$;

-- What becomes of an ending in a run that is being cancelled or is paused.
CREATE FUNCTION state_for(of_dag bigint, wanted text) RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
    SELECT CASE
        WHEN d.cancelling AND wanted IN ('retry', 'failed') THEN 'cancelled'
        WHEN d.paused AND wanted = 'retry' THEN 'suspended'
        ELSE wanted END
    FROM dags d WHERE d.dag = of_dag
$$;

-- Note which SLAs were kept, now that something has ended; those that were missed are still to be told.
CREATE FUNCTION settled(missed smallint, soft double precision, hard double precision, now double precision)
RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT (missed | CASE WHEN soft IS NULL OR now <= soft THEN 1 ELSE 0 END
        | CASE WHEN hard IS NULL OR now <= hard THEN 2 ELSE 0 END)::smallint
$$;

-- Skip everything that waits, directly or not, for jobs that ended without completing; tell the run of each.
CREATE FUNCTION skip_after(of_dags bigint[], of_nodes integer[], now double precision) RETURNS bigint[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    skipped bigint[];
BEGIN
    WITH RECURSIVE doomed AS (
        SELECT j.dag, fed AS node FROM unnest(of_dags, of_nodes) AS a(dag, node)
        JOIN jobs j ON j.dag = ANY (ARRAY[a.dag]) AND j.node = a.node, unnest(j.feeds) AS fed
        WHERE j.state IN ('failed', 'expired', 'cancelled', 'skipped')
        UNION
        SELECT j.dag, fed FROM doomed d JOIN jobs j ON j.dag = ANY (ARRAY[d.dag]) AND j.node = d.node, unnest(j.feeds) AS fed
    ), skipped AS (
        UPDATE jobs j SET state = 'skipped', completed_on = now,
            missed = CASE WHEN j.own_sla THEN settled(j.missed, j.soft, j.hard, now) ELSE j.missed END
        FROM doomed d WHERE j.dag = ANY (ARRAY[d.dag]) AND j.node = d.node AND j.state IN ('created', 'retry', 'suspended')
        RETURNING j.dag
    )
    SELECT coalesce(array_agg(dag), '{}') INTO skipped FROM skipped;
    RETURN skipped;
END $$;

-- Those of these jobs that are ready, with all that is to be known of them.
CREATE FUNCTION ready_of(of_dags bigint[], of_nodes integer[]) RETURNS SETOF told LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT 'ready', j.dag, j.node, j.name, j.task, j.executor, d.tenant, j.level, j.height, j.estimate, j.soft, j.hard,
        j.ready_at, j.start_at,
        d.started_at IS NOT NULL OR j.claimed_at IS NOT NULL
    FROM unnest(of_dags, of_nodes) AS r(dag, node)
    JOIN jobs j ON j.dag = ANY (ARRAY[r.dag]) AND j.node = r.node JOIN dags d ON d.dag = ANY (ARRAY[r.dag])
    WHERE j.waits = 0 AND j.state IN ('created', 'retry');
END $$;

-- Of endings that were not applied: some may have been applied by this very call, whose answer was lost; what followed
-- from them is told again.  The others are refused.
CREATE FUNCTION finished_before(
    of_dags bigint[], of_nodes integer[], of_fences bigint[], by_call bigint, a_dags bigint[], a_nodes integer[]
) RETURNS SETOF told LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    o_dags bigint[];
    o_nodes integer[];
BEGIN
    SELECT array_agg(j.dag), array_agg(j.node) INTO o_dags, o_nodes
    FROM unnest(of_dags, of_nodes, of_fences) AS e(dag, node, fence)
    JOIN jobs j ON j.dag = ANY (ARRAY[e.dag]) AND j.node = e.node AND j.fence = e.fence AND j.acked = by_call
    WHERE j.state <> 'active'
        AND NOT EXISTS (SELECT FROM unnest(a_dags, a_nodes) AS a(dag, node) WHERE a.dag = j.dag AND a.node = j.node);
    RETURN QUERY SELECT 'refused', e.dag, e.node, null::text, null::text, null::text, null::text, 0, 0::float8,
        0::float8, 0::float8, 0::float8, 0::float8, 0::float8, false
    FROM (
        SELECT e.dag, e.node FROM unnest(of_dags, of_nodes) AS e(dag, node)
        EXCEPT SELECT a.dag, a.node FROM unnest(a_dags, a_nodes) AS a(dag, node)
        EXCEPT SELECT o.dag, o.node FROM unnest(o_dags, o_nodes) AS o(dag, node)
    ) e;
    RETURN QUERY SELECT e.* FROM (
        SELECT array_agg(d.dag) AS dags, array_agg(d.state) AS states FROM dags d
        WHERE d.dag = ANY (o_dags) AND d.completed_on IS NOT NULL
    ) d, ended_runs(d.dags, d.states) e WHERE d.dags IS NOT NULL;
    SELECT array_agg(r.dag), array_agg(r.node) INTO o_dags, o_nodes FROM (
        SELECT o.dag, o.node FROM unnest(o_dags, o_nodes) AS o(dag, node)
        UNION
        SELECT j.dag, fed FROM unnest(o_dags, o_nodes) AS o(dag, node)
        JOIN jobs j ON j.dag = ANY (ARRAY[o.dag]) AND j.node = o.node, unnest(j.feeds) AS fed WHERE j.state = 'completed'
    ) r;
    RETURN QUERY SELECT * FROM ready_of(o_dags, o_nodes);
END $$;

-- All that is ready, page by page along the open runs: one row of columns.  A column that is null all through comes as
-- null, and a task, executor or tenant that is always the same comes once.
CREATE FUNCTION ready_page(after_dag bigint, after_node integer, most integer) RETURNS TABLE (
    dags bigint[], nodes integer[], names text[], tasks text[], executors text[], tenants text[], levels integer[],
    heights double precision[], estimates double precision[], softs double precision[], hards double precision[],
    ready_ats double precision[], start_ats double precision[], actives boolean[]
) LANGUAGE sql STABLE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
    SELECT array_agg(dag), array_agg(node), array_agg(name),
        CASE WHEN min(task) = max(task) THEN ARRAY[min(task)] ELSE array_agg(task) END,
        CASE WHEN min(executor) = max(executor) THEN ARRAY[min(executor)] ELSE array_agg(executor) END,
        CASE WHEN min(tenant) = max(tenant) THEN ARRAY[min(tenant)] ELSE array_agg(tenant) END,
        array_agg(level), array_agg(height),
        CASE WHEN count(estimate) > 0 THEN array_agg(estimate) END, CASE WHEN count(soft) > 0 THEN array_agg(soft) END,
        CASE WHEN count(hard) > 0 THEN array_agg(hard) END,
        array_agg(ready_at), array_agg(start_at), array_agg(active)
    FROM (
        SELECT j.dag, j.node, j.name, j.task COLLATE "C" AS task, j.executor COLLATE "C" AS executor,
            d.tenant COLLATE "C" AS tenant, j.level, j.height, j.estimate, j.soft, j.hard, j.ready_at, j.start_at,
            d.started_at IS NOT NULL OR j.claimed_at IS NOT NULL AS active
        FROM dags d JOIN jobs j ON j.dag = d.dag
        WHERE d.completed_on IS NULL AND d.dag >= after_dag AND (j.dag, j.node) > (after_dag, after_node)
            AND j.waits = 0 AND j.state IN ('created', 'retry')
        ORDER BY d.dag, j.node LIMIT most
    ) page
$$;

-- Take the oldest news; `more` says that there may be others.  A process that was the scheduler and does not know yet that another is takes nothing away from it.
CREATE FUNCTION take_news(by_process text, most integer) RETURNS SETOF told LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    c_dags bigint[];
    c_nodes integer[];
    f_dags bigint[];
    e_dags bigint[];
    of_settings boolean;
    of_workers boolean;
    found bigint;
BEGIN
    IF EXISTS (SELECT FROM leader WHERE process <> by_process AND until > clock()) THEN
        RETURN;
    END IF;
    WITH oldest AS (SELECT ctid FROM news ORDER BY number LIMIT most FOR UPDATE SKIP LOCKED),
    taken AS (DELETE FROM news n USING oldest o WHERE n.ctid = o.ctid RETURNING n.*),
    others AS (SELECT * FROM taken WHERE process IS DISTINCT FROM by_process),
    changed AS (SELECT DISTINCT c.dag, c.node FROM others o, unnest(o.dags, o.nodes) AS c(dag, node))
    SELECT (SELECT array_agg(dag) FROM changed), (SELECT array_agg(node) FROM changed),
        (SELECT array_agg(DISTINCT dag) FROM others o, unnest(o.refreshed) AS dag),
        (SELECT array_agg(DISTINCT dag) FROM others o, unnest(o.ended) AS dag),
        coalesce(bool_or(settings), false), coalesce(bool_or(workers), false), (SELECT count(*) FROM taken)
    INTO c_dags, c_nodes, f_dags, e_dags, of_settings, of_workers, found FROM others;

    IF of_settings OR of_workers OR found = most THEN
        RETURN QUERY SELECT 'flags', (found = most)::integer::bigint, of_settings::integer, null::text, null::text, null::text, null::text,
            of_workers::integer, 0::float8, 0::float8, 0::float8, 0::float8, 0::float8, 0::float8, false;
    END IF;
    IF c_dags IS NOT NULL THEN
        RETURN QUERY SELECT 'ended', c.dag, c.node, null::text, null::text, null::text, null::text, 0, 0::float8,
            0::float8, 0::float8, 0::float8, 0::float8, 0::float8, false
        FROM unnest(c_dags, c_nodes) AS c(dag, node) LEFT JOIN jobs j ON j.dag = ANY (ARRAY[c.dag]) AND j.node = c.node
        WHERE j.state IS DISTINCT FROM 'active' AND (j.claimed_at IS NOT NULL OR j.dag IS NULL);
        RETURN QUERY SELECT r.* FROM ready_of(c_dags, c_nodes) r WHERE r.dag <> ALL (coalesce(f_dags, '{}'));
    END IF;
    IF e_dags IS NOT NULL THEN
        RETURN QUERY SELECT 'run', e, 0, null::text, null::text, null::text, null::text, 0, 0::float8, 0::float8,
            0::float8, 0::float8, 0::float8, 0::float8, false
        FROM unnest(e_dags) AS e LEFT JOIN dags d ON d.dag = ANY (ARRAY[e]) WHERE d.dag IS NULL OR d.completed_on IS NOT NULL;
    END IF;
    IF f_dags IS NOT NULL THEN
        RETURN QUERY SELECT 'refreshed', f, 0, null::text, null::text, null::text, null::text, 0, 0::float8, 0::float8,
            0::float8, 0::float8, 0::float8, 0::float8, false FROM unnest(f_dags) AS f;
        RETURN QUERY SELECT 'ready', j.dag, j.node, j.name, j.task, j.executor, d.tenant, j.level, j.height,
            j.estimate, j.soft, j.hard, j.ready_at, j.start_at,
            d.started_at IS NOT NULL OR j.claimed_at IS NOT NULL
        FROM unnest(f_dags) AS f JOIN dags d ON d.dag = ANY (ARRAY[f]) JOIN jobs j ON j.dag = ANY (ARRAY[f])
        WHERE CASE WHEN d.completed_on IS NULL THEN j.waits = 0 AND j.state IN ('created', 'retry') END
        ORDER BY j.dag + 0, j.node + 0;
    END IF;
END $$;

-- Acknowledge what was claimed for workers and not fetched yet; `of_calls` are fetches whose answers were lost.
CREATE FUNCTION acknowledge(of_workers bigint[], by_call bigint, of_calls bigint[])
RETURNS TABLE (
    dag bigint, node integer, worker bigint, fence bigint, name text, task text, payload text, uses integer[],
    results text[], attempts integer, crashes integer, retries integer, retry_delay double precision,
    timeout double precision
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now double precision := clock();
BEGIN
    RETURN QUERY
    WITH mine AS (
        SELECT j.ctid FROM claims c, unnest(c.dags, c.nodes) AS a(dag, node)
        JOIN jobs j ON j.dag = ANY (ARRAY[a.dag]) AND j.node = a.node
        WHERE c.worker = ANY (of_workers) AND (NOT c.fetched OR of_calls IS NOT NULL) AND j.worker = c.worker
            AND CASE j.state WHEN 'active' THEN j.acked IS NULL OR j.acked = ANY (of_calls) END
            AND EXISTS (SELECT FROM workers w WHERE w.id = c.worker)
        FOR NO KEY UPDATE OF j SKIP LOCKED
    ), taken AS (
        UPDATE jobs j SET acked = by_call, started_at = now FROM (SELECT DISTINCT ctid FROM mine) m
        WHERE j.ctid = m.ctid
        RETURNING j.dag, j.node, j.worker, j.fence, j.name, j.task, j.payload, j.uses, j.attempts, j.crashes,
            j.retries, j.retry_delay, j.timeout
    )
    SELECT t.dag, t.node, t.worker, t.fence, t.name, t.task, t.payload, t.uses,
        CASE WHEN t.uses IS NOT NULL THEN ARRAY(
            SELECT (SELECT j.result FROM jobs j WHERE j.dag = t.dag AND j.node = u.node) FROM unnest(t.uses) AS u(node)
        ) END,
        t.attempts, t.crashes, t.retries, t.retry_delay, t.timeout
    FROM taken t ORDER BY t.dag, t.node;
END $$;

-- All that is active.
CREATE FUNCTION active_jobs() RETURNS TABLE (dag bigint, node integer) LANGUAGE sql STABLE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
    SELECT DISTINCT j.dag, j.node FROM claims c, unnest(c.dags, c.nodes) AS a(dag, node)
    JOIN jobs j ON j.dag = ANY (ARRAY[a.dag]) AND j.node = a.node WHERE CASE j.state WHEN 'active' THEN true END
$$;

-- Forget claims of which nothing is active any more, and shorten the others to what is.  One that is being made or
-- fetched now is left alone.
CREATE FUNCTION sweep_claims() RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    WITH held AS (
        SELECT number, dags, nodes, fetched FROM claims ORDER BY number + 0 FOR UPDATE SKIP LOCKED
    ), live AS (
        SELECT h.number, array_agg(j.dag) AS dags, array_agg(j.node) AS nodes, bool_and(j.acked IS NOT NULL) AS fetched
        FROM held h, unnest(h.dags, h.nodes) AS a(dag, node)
        JOIN jobs j ON j.dag = ANY (ARRAY[a.dag]) AND j.node = a.node
        WHERE CASE j.state WHEN 'active' THEN true END GROUP BY h.number
    ), gone AS (
        DELETE FROM claims c USING held h
        WHERE c.number = ANY (ARRAY[h.number]) AND NOT EXISTS (SELECT FROM live l WHERE l.number = h.number)
    )
    UPDATE claims c SET dags = l.dags, nodes = l.nodes, fetched = l.fetched FROM live l, held h
    WHERE c.number = ANY (ARRAY[l.number]) AND h.number = l.number
        AND (cardinality(h.dags) > cardinality(l.dags) OR h.fetched <> l.fetched);
END $$;
