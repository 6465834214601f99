"""What a job may ask about itself."""

import pytest

from fairlead.errors import Misuse
from fairlead.jobs import current_job
from fairlead.jobs.context import CurrentJob, running


def test_outside_a_job_there_is_none():
    with pytest.raises(Misuse, match="outside a job"):
        current_job()


def test_inside_one_there_is():
    job = CurrentJob(1042, 3, "third", 2, 77)
    token = running.set(job)
    try:
        assert current_job() is job
    finally:
        running.reset(token)
    assert (job.id, job.run, job.name, job.attempt, job.fence) == ("1042.3", "1042", "third", 2, 77)
    assert not job.cancelled
    with pytest.raises(AttributeError):
        job.cancelled = True  # type: ignore[misc]
    job.cancel()
    assert job.cancelled
    assert repr(job) == "<job 1042.3 'third', attempt 2>"
