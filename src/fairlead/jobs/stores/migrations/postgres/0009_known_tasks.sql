-- The tasks that a worker's process knows, so that it is given no others; null of a worker that does not tell.

ALTER TABLE workers ADD COLUMN tasks text[];
