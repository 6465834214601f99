-- What people and upkeep do to runs: each locks the run, changes it and its jobs, and tells the scheduler.

CREATE FUNCTION cancel(of_dag bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off SET lock_timeout = '5s'
AS $$
DECLARE
    now double precision;
    stopped integer;
    ended boolean;
BEGIN
    PERFORM FROM dags WHERE dag = of_dag AND completed_on IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    now := clock();
    -- What is skipped counts as cancelled in its run: though what runs may still complete, the run as a whole does not.
    UPDATE jobs SET state = CASE WHEN waits > 0 THEN 'skipped' ELSE 'cancelled' END, completed_on = now,
        missed = CASE WHEN own_sla THEN settled(missed, soft, hard, now) ELSE missed END
    WHERE dag = of_dag AND state IN ('created', 'retry', 'suspended');
    GET DIAGNOSTICS stopped = ROW_COUNT;
    UPDATE dags SET cancelling = true, paused = false, remaining = remaining - stopped, cancelled = cancelled + stopped,
        state = CASE WHEN remaining > stopped THEN state WHEN failed > 0 THEN 'failed' ELSE 'cancelled' END,
        completed_on = CASE WHEN remaining = stopped THEN now END,
        missed = CASE WHEN remaining = stopped AND (soft IS NOT NULL OR hard IS NOT NULL)
            THEN settled(missed, soft, hard, now) ELSE missed END
    WHERE dag = of_dag RETURNING completed_on IS NOT NULL INTO ended;
    INSERT INTO news (refreshed, ended) VALUES (ARRAY[of_dag], CASE WHEN ended THEN ARRAY[of_dag] END);
    RETURN true;
END $$;

CREATE FUNCTION pause(of_dag bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off SET lock_timeout = '5s'
AS $$
BEGIN
    -- One that is being cancelled has nothing left that could be suspended.
    UPDATE dags SET paused = NOT cancelling WHERE dag = of_dag AND completed_on IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET state = 'suspended' WHERE dag = of_dag AND state IN ('created', 'retry');
    INSERT INTO news (refreshed) VALUES (ARRAY[of_dag]);
    RETURN true;
END $$;

CREATE FUNCTION resume(of_dag bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off SET lock_timeout = '5s'
AS $$
BEGIN
    UPDATE dags SET paused = false WHERE dag = of_dag AND paused AND completed_on IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET state = CASE WHEN claimed_at IS NULL THEN 'created' ELSE 'retry' END
    WHERE dag = of_dag AND state = 'suspended';
    INSERT INTO news (refreshed) VALUES (ARRAY[of_dag]);
    RETURN true;
END $$;

CREATE FUNCTION retry(of_dag bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off SET lock_timeout = '5s'
AS $$
DECLARE
    now double precision;
    again integer;
BEGIN
    PERFORM FROM dags WHERE dag = of_dag AND completed_on IS NOT NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    now := clock();
    UPDATE jobs j SET state = 'created', attempts = 0, crashes = 0, start_at = 0, error = NULL, completed_on = NULL,
        claimed_at = NULL, started_at = NULL, worker = NULL, acked = NULL, waits = n.waits,
        ready_at = CASE WHEN n.waits = 0 THEN now END
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

CREATE FUNCTION set_sla(of_dag bigint, of_node integer, new_soft double precision, new_hard double precision)
RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM FROM dags WHERE dag = of_dag FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- What has ended is not told of again; for the rest, a new SLA can be missed anew.
    IF of_node IS NULL THEN
        UPDATE dags SET soft = new_soft, hard = new_hard, missed = CASE WHEN completed_on IS NULL THEN 0 ELSE missed END
        WHERE dag = of_dag;
        UPDATE jobs SET soft = new_soft, hard = new_hard WHERE dag = of_dag AND NOT own_sla;
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

-- Missed SLAs of runs (node null) and of jobs with SLAs of their own, each told once.
CREATE FUNCTION missed_slas(most integer) RETURNS TABLE (dag bigint, node integer, kind text, at double precision)
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now double precision := clock();
BEGIN
    RETURN QUERY
    WITH late AS (
        SELECT d.dag, d.missed FROM dags d
        WHERE (d.soft IS NOT NULL OR d.hard IS NOT NULL) AND d.missed < 3
            AND least(CASE WHEN d.missed & 1 = 0 THEN d.soft END, CASE WHEN d.missed & 2 = 0 THEN d.hard END) < now
        ORDER BY d.dag LIMIT most FOR NO KEY UPDATE SKIP LOCKED
    ), told AS (
        UPDATE dags d SET missed = (d.missed | CASE WHEN d.soft < now THEN 1 ELSE 0 END
            | CASE WHEN d.hard < now THEN 2 ELSE 0 END)::smallint
        FROM late l WHERE d.dag = l.dag
        RETURNING d.dag, d.soft, d.hard, d.missed & ~l.missed AS fresh
    )
    SELECT t.dag, NULL::integer, k.kind, k.at FROM told t,
        LATERAL (VALUES (1, 'soft', t.soft), (2, 'hard', t.hard)) AS k(bit, kind, at) WHERE t.fresh & k.bit > 0;
    RETURN QUERY
    WITH late AS (
        SELECT j.dag, j.node, j.missed FROM jobs j
        WHERE j.own_sla AND j.missed < 3
            AND least(CASE WHEN j.missed & 1 = 0 THEN j.soft END, CASE WHEN j.missed & 2 = 0 THEN j.hard END) < now
        ORDER BY j.dag, j.node LIMIT most FOR NO KEY UPDATE SKIP LOCKED
    ), told AS (
        UPDATE jobs j SET missed = (j.missed | CASE WHEN j.soft < now THEN 1 ELSE 0 END
            | CASE WHEN j.hard < now THEN 2 ELSE 0 END)::smallint
        FROM late l WHERE j.dag = l.dag AND j.node = l.node
        RETURNING j.dag, j.node, j.soft, j.hard, j.missed & ~l.missed AS fresh
    )
    SELECT t.dag, t.node, k.kind, k.at FROM told t,
        LATERAL (VALUES (1, 'soft', t.soft), (2, 'hard', t.hard)) AS k(bit, kind, at) WHERE t.fresh & k.bit > 0;
END $$;

-- Move ended runs away; those that somebody holds are left for the next time.
CREATE FUNCTION archive(ended_before double precision, most integer) RETURNS integer LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moved bigint[];
BEGIN
    SELECT array_agg(l.dag) INTO moved FROM (
        SELECT d.dag FROM dags d WHERE d.announced IN (false, true) AND d.completed_on < ended_before
        ORDER BY d.dag LIMIT most FOR UPDATE SKIP LOCKED
    ) l;
    IF moved IS NULL THEN
        RETURN 0;
    END IF;
    WITH gone AS (DELETE FROM jobs WHERE dag = ANY (moved) RETURNING *)
    INSERT INTO archived_jobs SELECT * FROM gone;
    WITH gone AS (DELETE FROM dags WHERE dag = ANY (moved) RETURNING *)
    INSERT INTO archived_dags SELECT * FROM gone;
    RETURN cardinality(moved);
END $$;
