"""The flows door: weighted fair queueing over quota, concurrency and load, in one process or many."""
