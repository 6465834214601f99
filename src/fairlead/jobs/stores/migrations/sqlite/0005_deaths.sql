-- What died with a process.  A job that died in company is a suspect: it is run in a process of its own.

CREATE TABLE deaths (
    job    INTEGER NOT NULL,
    at     REAL NOT NULL,
    alone  INTEGER NOT NULL,                         -- no other job was in the process: only such a death counts
    beside TEXT NOT NULL                             -- the other jobs in the process, or how the process ended
);
CREATE INDEX deaths_of_job ON deaths (job);

-- The processes of workers that were given up.  A worker that left by itself has no row: nothing died with it.
CREATE TABLE graves (worker INTEGER PRIMARY KEY, process TEXT NOT NULL, at REAL NOT NULL);
