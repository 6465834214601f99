-- One tenant's runs in a state that few are in, however many of it others have, and however many runs that tenant has.

CREATE INDEX dags_few_tenant ON dags (tenant, state, id)
    WHERE state IN ('active', 'suspended', 'failed', 'cancelled') AND tenant <> '';
