-- The tasks that a worker's process knows, as a JSON array, so that it is given no others; null of a worker that does not tell.

ALTER TABLE workers ADD COLUMN tasks TEXT;
