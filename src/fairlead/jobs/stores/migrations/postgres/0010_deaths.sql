-- What died with a process.  A job that died in company is a suspect: it is run in a process of its own.

CREATE TABLE deaths (
    dag bigint NOT NULL,
    node integer NOT NULL,
    at double precision NOT NULL,
    alone boolean NOT NULL,                  -- no other job was in the process: only such a death counts against the job
    beside text NOT NULL                     -- the other jobs in the process, or how the process ended
);
CREATE INDEX deaths_of_job ON deaths (dag, node);

-- The processes of workers that were given up.  A worker that left by itself has no row: nothing died with it.
CREATE TABLE graves (
    worker bigint PRIMARY KEY,
    process text NOT NULL,
    at double precision NOT NULL
);
