-- Verbs tell whether they changed anything: what is cancelled or paused once more was so already.

CREATE OR REPLACE FUNCTION cancel(of_dag bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off SET lock_timeout = '5s'
AS $$
DECLARE
    now double precision;
    stopped integer;
    ended boolean;
BEGIN
    PERFORM FROM dags WHERE dag = of_dag AND completed_on IS NULL AND NOT cancelling FOR NO KEY UPDATE;
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

CREATE OR REPLACE FUNCTION pause(of_dag bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off SET lock_timeout = '5s'
AS $$
BEGIN
    -- One that is being cancelled has nothing left that could be suspended.
    UPDATE dags SET paused = true WHERE dag = of_dag AND completed_on IS NULL AND NOT cancelling AND NOT paused;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET state = 'suspended' WHERE dag = of_dag AND state IN ('created', 'retry');
    INSERT INTO news (refreshed) VALUES (ARRAY[of_dag]);
    RETURN true;
END $$;

-- An SLA of a run is told once, and changed for all jobs that have it of their run.

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
        -- A job with one SLA of its own has the other of its run, but never a soft one after its own hard one.
        UPDATE jobs SET soft = CASE WHEN NOT own_sla THEN new_soft WHEN soft IS DISTINCT FROM old_soft THEN soft
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

CREATE OR REPLACE FUNCTION missed_slas(most integer) RETURNS TABLE (dag bigint, node integer, kind text, at double precision)
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
    -- What a job has of its run, the run tells.
    SELECT t.dag, t.node, k.kind, k.at FROM told t JOIN dags d ON d.dag = t.dag,
        LATERAL (VALUES (1, 'soft', t.soft, d.soft), (2, 'hard', t.hard, d.hard)) AS k(bit, kind, at, of_run)
    WHERE t.fresh & k.bit > 0 AND k.at IS DISTINCT FROM k.of_run;
END $$;
