-- Room on each page of jobs for what a claim and an ending write: a row grows by a quarter with each of them, and the
-- version before it is cleared away at the next look.  With less room one claim in three, and as many endings, leave
-- their page, and the primary key gets another entry for each.  Pages that are there already stay as they are.

ALTER TABLE jobs SET (fillfactor = 40);
