"""Durable DAGs of jobs with SLAs, planned onto executors."""
