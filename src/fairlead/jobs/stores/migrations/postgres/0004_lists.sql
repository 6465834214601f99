-- Lists of runs that need not walk past a million others: by tenant, and by the states that few of them are in.
-- What every run goes through (created, completed) has no index here: the newest are found by their number alone.

CREATE INDEX dags_tenant ON dags (tenant, dag) WHERE tenant <> '';
CREATE INDEX dags_begun ON dags (dag) WHERE completed_on IS NULL AND started_at IS NOT NULL;
CREATE INDEX dags_paused ON dags (dag) WHERE completed_on IS NULL AND paused;
CREATE INDEX dags_unwell ON dags (state, dag) WHERE completed_on IS NOT NULL AND state <> 'completed';
CREATE INDEX dags_unwell_tenant ON dags (tenant, state, dag)
    WHERE completed_on IS NOT NULL AND state <> 'completed' AND tenant <> '';
