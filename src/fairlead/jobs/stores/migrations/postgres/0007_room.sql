-- Room on its page for the next version of a row: a claim makes every job of a page longer, and with less room four of ten
-- went to another page, with a new entry in the index.  A run is written anew when it ends.
ALTER TABLE jobs SET (fillfactor = 50);
ALTER TABLE dags SET (fillfactor = 50);
