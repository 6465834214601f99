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
