-- Store runs of one job each that differ in nothing but names and payloads, and have neither key nor SLA: what `submit`
-- does, without the columns that say nothing.  Names and payloads that are all the same are given once.

CREATE FUNCTION submit_alike(
    many integer, of_names text[], in_names text[], in_payloads text[], of_tenant text, of_task text, of_executor text,
    of_height double precision, of_estimate double precision, of_retries integer, of_delay double precision,
    of_timeout double precision, of_start double precision, OUT owners bigint[], OUT fresh boolean[]
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    numbers bigint[] := ARRAY(SELECT nextval('dag_numbers') FROM generate_series(1, many));
    now double precision := clock();
    begins double precision := greatest(now, of_start);
BEGIN
    owners := numbers;
    INSERT INTO dags (dag, name, tenant, created_at, start_at, jobs, remaining)
    SELECT r.dag, coalesce(r.name, of_names[1]), of_tenant, now, of_start, 1, 1
    FROM unnest(numbers, of_names) AS r(dag, name);
    INSERT INTO jobs (dag, node, state, waits, level, height, retries, own_sla, alone, retry_delay, start_at, estimate,
        timeout, ready_at, name, task, executor, payload)
    SELECT j.dag, 0, 'created', 0, 0, of_height, of_retries, false, true, of_delay, coalesce(of_start, 0), of_estimate,
        of_timeout, begins, coalesce(j.name, in_names[1]), of_task, of_executor, coalesce(j.payload, in_payloads[1])
    FROM unnest(numbers, in_names, in_payloads) AS j(dag, name, payload);
    INSERT INTO news (refreshed) VALUES (numbers);
END $$;
