-- A start that was asked for, and is still ahead, holds after a retry, too.

CREATE OR REPLACE FUNCTION retry(of_dag bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off SET lock_timeout = '5s'
AS $$
DECLARE
    now double precision;
    begins double precision;
    again integer;
BEGIN
    SELECT start_at INTO begins FROM dags WHERE dag = of_dag AND completed_on IS NOT NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    now := clock();
    begins := CASE WHEN begins > now THEN begins ELSE 0 END;
    UPDATE jobs j SET state = 'created', attempts = 0, crashes = 0, start_at = begins, error = NULL, completed_on = NULL,
        claimed_at = NULL, started_at = NULL, worker = NULL, acked = NULL, waits = n.waits,
        ready_at = CASE WHEN n.waits = 0 THEN greatest(now, begins) END
    FROM (
        SELECT r.node, count(u.node)::integer AS waits FROM jobs r
        LEFT JOIN jobs u ON u.dag = of_dag AND u.node = ANY (r.needs) AND u.state <> 'completed'
        WHERE r.dag = of_dag AND r.state <> 'completed' GROUP BY r.node
    ) n
    WHERE j.dag = of_dag AND j.node = n.node;
    GET DIAGNOSTICS again = ROW_COUNT;
    IF again = 0 THEN
        RETURN false;
    END IF;
    UPDATE dags SET state = 'active', completed_on = NULL, remaining = again, failed = 0, cancelled = 0,
        cancelling = false, announced = false WHERE dag = of_dag;
    INSERT INTO news (refreshed) VALUES (ARRAY[of_dag]);
    RETURN true;
END $$;

-- A job's soft SLA never is after its hard one, whoever changes which.

CREATE OR REPLACE FUNCTION set_sla(of_dag bigint, of_node integer, new_soft double precision, new_hard double precision)
RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off SET lock_timeout = '5s'
AS $$
DECLARE
    old_soft double precision;
    old_hard double precision;
BEGIN
    SELECT soft, hard INTO old_soft, old_hard FROM dags WHERE dag = of_dag FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- What has ended is not told of again; for the rest, a new SLA can be missed anew.
    IF of_node IS NULL THEN
        UPDATE dags SET soft = new_soft, hard = new_hard, missed = CASE WHEN completed_on IS NULL THEN 0 ELSE missed END
        WHERE dag = of_dag;
        -- A job with one SLA of its own has the other of its run, but never a soft one after a hard one.
        UPDATE jobs SET soft = CASE WHEN NOT own_sla THEN new_soft WHEN soft IS DISTINCT FROM old_soft
                THEN CASE WHEN hard IS NOT DISTINCT FROM old_hard AND soft > new_hard THEN new_hard ELSE soft END
                WHEN hard IS DISTINCT FROM old_hard AND hard < new_soft THEN hard ELSE new_soft END,
            hard = CASE WHEN NOT own_sla OR hard IS NOT DISTINCT FROM old_hard THEN new_hard ELSE hard END
        WHERE dag = of_dag;
    ELSE
        UPDATE jobs SET soft = new_soft, hard = new_hard, own_sla = true,
            missed = CASE WHEN completed_on IS NULL THEN 0 ELSE missed END
        WHERE dag = of_dag AND node = of_node;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    INSERT INTO news (refreshed, settings) VALUES (ARRAY[of_dag], true);
    RETURN true;
END $$;

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
