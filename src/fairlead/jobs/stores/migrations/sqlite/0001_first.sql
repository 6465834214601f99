-- Runs, jobs and everything around them.
--
-- A job's id is its run's number times 2^20 plus its node: one integer key, so that a run's jobs lie together and
-- no second index is needed.  Instants are seconds since the epoch; what ends in _until is on the host's monotonic
-- clock, which no setting of the wall clock moves.  A column that is NULL has no value yet.

CREATE TABLE dags (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again, also after the archive took it
    state        TEXT NOT NULL,
    left         INTEGER NOT NULL,                   -- jobs that have not ended
    failed       INTEGER NOT NULL DEFAULT 0,         -- jobs that ended as failed or expired
    cancelled    INTEGER NOT NULL DEFAULT 0,
    jobs         INTEGER NOT NULL,
    cancelling   INTEGER NOT NULL DEFAULT 0,
    announced    INTEGER NOT NULL DEFAULT 0,
    told         INTEGER NOT NULL DEFAULT 0,         -- misses told: 1 soft, 2 hard
    created_at   REAL NOT NULL,
    start_at     REAL,
    started_at   REAL,
    completed_on REAL,
    soft         REAL,
    hard         REAL,
    soft_due     REAL,                               -- when to tell a miss; NULL once told or ended in time
    hard_due     REAL,
    tenant       TEXT NOT NULL,
    name         TEXT NOT NULL,
    key          TEXT
);
CREATE INDEX dags_ended ON dags (completed_on) WHERE completed_on IS NOT NULL;
CREATE INDEX dags_unannounced ON dags (id) WHERE completed_on IS NOT NULL AND announced = 0;
CREATE INDEX dags_soft_due ON dags (soft_due) WHERE soft_due IS NOT NULL;
CREATE INDEX dags_hard_due ON dags (hard_due) WHERE hard_due IS NOT NULL;

-- Keys outlive their runs: the archive does not free them.
CREATE TABLE keys (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    dag    INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;

CREATE TABLE jobs (
    id           INTEGER PRIMARY KEY,
    state        TEXT NOT NULL,
    waits        INTEGER NOT NULL,                   -- dependencies that have not completed
    start_at     REAL NOT NULL,                      -- 0: at once
    ready_at     REAL,
    fence        INTEGER,
    worker       INTEGER,
    acked        INTEGER NOT NULL DEFAULT 0,
    cancelling   INTEGER NOT NULL DEFAULT 0,
    attempts     INTEGER NOT NULL DEFAULT 0,
    crashes      INTEGER NOT NULL DEFAULT 0,
    claimed_at   REAL,
    started_at   REAL,
    completed_on REAL,
    name         TEXT NOT NULL,
    task         TEXT NOT NULL,
    executor     TEXT NOT NULL,
    level        INTEGER NOT NULL,
    height       REAL NOT NULL,
    estimate     REAL,
    soft         REAL,
    hard         REAL,
    own_sla      INTEGER NOT NULL,
    soft_due     REAL,                               -- only with an SLA of its own
    hard_due     REAL,
    told         INTEGER NOT NULL DEFAULT 0,
    retries      INTEGER NOT NULL,
    retry_delay  REAL NOT NULL,
    timeout      REAL,
    needs        TEXT,                               -- JSON lists of nodes; NULL: none
    uses         TEXT,
    dependents   TEXT,
    payload      TEXT,                               -- NULL: it is long, and in `payloads`
    result       TEXT,
    error        TEXT
);
CREATE INDEX jobs_ready ON jobs (id, ready_at) WHERE state IN ('created', 'retry') AND waits = 0;
CREATE INDEX jobs_active ON jobs (worker, acked) WHERE state = 'active';
CREATE INDEX jobs_soft_due ON jobs (soft_due) WHERE soft_due IS NOT NULL;
CREATE INDEX jobs_hard_due ON jobs (hard_due) WHERE hard_due IS NOT NULL;

-- An update writes a whole row again, so what is long and never changes lies apart.
CREATE TABLE payloads (id INTEGER PRIMARY KEY, payload TEXT NOT NULL);

-- Kept in step by every transaction: counting a million jobs would take too long.
CREATE TABLE counts (state TEXT PRIMARY KEY, jobs INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counts VALUES
    ('created', 0), ('retry', 0), ('active', 0), ('completed', 0), ('skipped', 0), ('expired', 0), ('cancelled', 0),
    ('failed', 0), ('suspended', 0);

CREATE TABLE news (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL);

CREATE TABLE leader (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    process     TEXT,
    epoch       INTEGER NOT NULL,
    lease       REAL NOT NULL,
    lease_until REAL NOT NULL
);
INSERT INTO leader VALUES (1, NULL, 0, 0, 0);

CREATE TABLE workers (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT NOT NULL,
    executor    TEXT NOT NULL,
    slots       INTEGER NOT NULL,
    process     TEXT NOT NULL,
    beats       INTEGER NOT NULL DEFAULT 0,
    draining    INTEGER NOT NULL DEFAULT 0,
    lease       REAL NOT NULL,
    lease_until REAL NOT NULL
);

CREATE TABLE executors (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE estimates (task TEXT PRIMARY KEY, mean REAL NOT NULL, runs INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE schedules (
    name     TEXT PRIMARY KEY,
    cron     TEXT NOT NULL,
    timezone TEXT NOT NULL,
    run      TEXT NOT NULL,
    misfire  TEXT NOT NULL,
    cursor   REAL NOT NULL,
    paused   INTEGER NOT NULL
) WITHOUT ROWID;

-- A run and its jobs as JSON, the jobs compressed: read seldom, kept long.
CREATE TABLE archive (dag INTEGER PRIMARY KEY, run TEXT NOT NULL, jobs BLOB NOT NULL);
