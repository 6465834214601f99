-- Lists of one tenant's runs, and of runs in states that few are in, need not walk past a million others.
-- What every run goes through (created, completed) has no index: the newest are found by their number alone.

CREATE INDEX dags_tenant ON dags (tenant, id) WHERE tenant <> '';
CREATE INDEX dags_few ON dags (state, id) WHERE state IN ('active', 'suspended', 'failed', 'cancelled');
