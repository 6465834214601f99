-- Most endings are of jobs that are alone in their runs and have completed: what becomes of such a run need not be
-- counted, and it is found where it was locked, without a second way through the index.

-- Apply endings: the jobs, those that wait for them, the runs, and the news, or nothing.  States that are all the same
-- are given as the first; a column that is null all through, or delays that are all 0, as null.
CREATE OR REPLACE FUNCTION finish(
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
    l_dags bigint[];         -- the runs, locked
    l_rows tid[];            -- where they are: whoever would move them waits for us
    a_dags bigint[];         -- applied
    a_nodes integer[];
    a_states text[];
    a_rows tid[];
    plain boolean;           -- are they all jobs alone in their runs, which have completed?
    first_claimed double precision[];
    made_ready told[];
    retried boolean;         -- is one of them to be tried again?
    ended_here integer;
    s_dags bigint[] := '{}'; -- skipped
    e_dags bigint[];         -- runs that ended
    e_states text[];
BEGIN
    SELECT bool_or(l.marked), array_agg(l.dag), array_agg(l.at) INTO marked, l_dags, l_rows FROM (
        SELECT d.dag, d.ctid AS at, d.cancelling OR d.paused AS marked FROM dags d WHERE d.dag = ANY (of_dags)
        ORDER BY d.dag + 0 FOR NO KEY UPDATE
    ) l;
    IF l_dags IS DISTINCT FROM of_dags THEN
        l_rows := NULL;      -- only where each ending is of another run, in order, are these their rows
    END IF;
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
                g.crashes, g.at
            FROM unnest(of_dags, of_nodes, of_fences, of_states, of_results, of_errors, of_delays, of_attempts,
                of_crashes, l_rows) AS g(dag, node, fence, state, result, error, delay, attempts, crashes, at)
        ) e
        WHERE j.dag = ANY (ARRAY[e.dag]) AND j.node = e.node AND CASE j.state WHEN 'active' THEN j.fence = e.fence END
        RETURNING j.dag, j.node, j.state, j.claimed_at, j.feeds, e.at, j.alone AND e.state = 'completed' AS plain
    ), freed AS (
        UPDATE jobs j SET waits = j.waits - f.completed,
            -- Only a cancel skips what in the end has all it needs; in its run it counts as cancelled already.
            state = CASE WHEN j.state = 'skipped' AND j.waits = f.completed THEN 'cancelled' ELSE j.state END,
            ready_at = CASE WHEN j.waits = f.completed THEN coalesce(j.ready_at, now) ELSE j.ready_at END
        FROM (
            SELECT n.dag, fed AS node, count(*)::integer AS completed FROM ended n, unnest(n.feeds) AS fed
            WHERE n.state = 'completed' AND n.feeds IS NOT NULL GROUP BY n.dag, fed
        ) f
        WHERE j.dag = ANY (ARRAY[f.dag]) AND j.node = f.node
        RETURNING j.*
    )
    SELECT array_agg(dag), array_agg(node), array_agg(state), array_agg(claimed_at), bool_or(state = 'retry'),
        array_agg(at), l_rows IS NOT NULL AND bool_and(plain), ARRAY(
        -- Their run is active: it has just had an ending.
        SELECT ROW('ready', f.dag, f.node, f.name, f.task, f.executor, d.tenant, f.level, f.height, f.estimate, f.soft,
            f.hard, f.ready_at, f.start_at, true)::told
        FROM freed f JOIN dags d ON d.dag = ANY (ARRAY[f.dag]) WHERE f.waits = 0 AND f.state IN ('created', 'retry')
    )
    INTO a_dags, a_nodes, a_states, first_claimed, retried, a_rows, plain, made_ready
    FROM ended;

    IF a_states && ARRAY['failed', 'expired', 'cancelled'] THEN
        s_dags := skip_after(a_dags, a_nodes, now);
    END IF;
    IF plain THEN
        UPDATE dags d SET remaining = 0, state = 'completed', completed_on = now,
            started_at = coalesce(d.started_at, c.claimed_at),
            missed = CASE WHEN d.soft IS NOT NULL OR d.hard IS NOT NULL
                THEN settled(d.missed, d.soft, d.hard, now) ELSE d.missed END
        FROM unnest(a_rows, first_claimed) AS c(at, claimed_at) WHERE d.ctid = c.at;
        GET DIAGNOSTICS ended_here = ROW_COUNT;
        IF ended_here <> cardinality(a_rows) THEN
            -- Something in this very transaction has moved them, such as a trigger of somebody's.
            UPDATE dags d SET remaining = 0, state = 'completed', completed_on = now,
                started_at = coalesce(d.started_at, c.claimed_at),
                missed = CASE WHEN d.soft IS NOT NULL OR d.hard IS NOT NULL
                    THEN settled(d.missed, d.soft, d.hard, now) ELSE d.missed END
            FROM unnest(a_dags, first_claimed) AS c(dag, claimed_at)
            WHERE d.dag = ANY (ARRAY[c.dag]) AND d.completed_on IS NULL;
        END IF;
        e_dags := a_dags;
        e_states := a_states;
    ELSE
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
    END IF;

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
