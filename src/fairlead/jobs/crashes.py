"""What follows from the death of a process that ran jobs, and which of them it counts against.

**Only a death alone counts.**  When a process dies, everything in it dies, and unless there was one job only, the job
that ended the process is not known.  So a death in company condemns no job: each job of the company becomes a
*suspect*, which is run again in a process of its own, beside other work.  There a crash is a crash of one job, and
counts.

**Crashes age.**  A job is quarantined for `max_crashes` deaths alone within `crash_window`; older deaths are forgotten.
A job that dies in company again and again (one of the company kills the whole container) waits longer each time, by
chance: the harm is bounded, and the company parts until the job that kills is alone.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from fairlead.jobs.endings import died, handed_back, retry_delay
from fairlead.jobs.payload import error_json
from fairlead.jobs.records import Death
from fairlead.jobs.states import FAILED
from fairlead.jobs.wording import roughly

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlead.jobs.endings import Held
    from fairlead.jobs.records import Ending, RunningJob
    from fairlead.jobs.stores.base import Store

MOST_NAMED = 10  # jobs in an error
LONGEST_NAME = 60
SECOND_DELAY = 1.0  # seconds before a job that died in company for the second time runs again; doubled with each death
LONGEST_DELAY = 300.0  # and twice that by chance


class Limits(NamedTuple):
    """How many deaths alone condemn a job, and within how many seconds."""

    max_crashes: int = 3
    window: float = 3600.0


DEFAULT_LIMITS = Limits()


def crashed(job: Held, how: str) -> Ending:
    """Note that a job died alone in its process; `judged` decides what follows."""
    return died(job, Death(True, how))


def deaths(orphans: Sequence[RunningJob], processes: Mapping[int, str]) -> list[Ending]:
    """Note how acknowledged jobs of workers that are gone ended; `processes` are those of workers that were given up.

    A job of a worker that has left by itself is handed back: nothing died.
    """
    groups: dict[str, list[RunningJob]] = {}
    endings = []
    for job in orphans:
        process = processes.get(job.worker)
        if process is None:
            endings.append(handed_back(job))
        else:
            groups.setdefault(process, []).append(job)
    for process, jobs in groups.items():
        if len(jobs) == 1:
            how = f"the process {process} gave no sign of life any more"
            endings.append(crashed(jobs[0], how))
        else:
            for job in jobs:
                beside = _named([one for one in jobs if one is not job])
                endings.append(died(job, Death(False, beside)))
    return endings


async def judged(store: Store, endings: Sequence[Ending], limits: Limits) -> list[Ending]:
    """Decide what follows from deaths that were noted, by those that are remembered."""
    noted = [one for one in endings if _is_open(one)]
    if not noted:
        return list(endings)
    before = await store.deaths([(one.dag, one.node) for one in noted], limits.window)
    return [
        judge(one, *before.get((one.dag, one.node), (0, 0)), limits, random.random())
        if _is_open(one)
        else one
        for one in endings
    ]


def judge(ending: Ending, alone: int, company: int, limits: Limits, draw: float = 0.0) -> Ending:
    """Decide what follows from a death; `alone` and `company` count the deaths before within the window.

    `draw` is from [0, 1).
    """
    death = ending.death
    if death is None:
        return ending
    window = roughly(limits.window)
    if not death.alone:
        said = (
            f"the process that ran the job died with other jobs in it ({death.beside}); which of them ended it is not "
            "known, so it counts against none, and each runs again in a process of its own"
        )
        delay = retry_delay(SECOND_DELAY, company - 1, 0.0) if company else 0.0
        delay = min(LONGEST_DELAY, delay) * (1 + draw)
        return ending._replace(error=error_json("WorkerDied", said), delay=delay, crashes=alone)
    crashes = alone + 1
    if crashes < limits.max_crashes:
        said = (
            f"the process that ran the job, and no other, died: {death.beside}; "
            f"crash {crashes} of {limits.max_crashes} within {window}"
        )
        return ending._replace(error=error_json("WorkerDied", said), crashes=crashes)
    times = "once" if crashes == 1 else f"{crashes} times"
    said = (
        f"quarantined: the job crashed {times} within {window}, each time alone in its process; "
        f"the last time {death.beside}; find out why, then retry the run"
    )
    return ending._replace(state=FAILED, error=error_json("Quarantined", said), crashes=crashes)


def _is_open(ending: Ending) -> bool:
    return ending.death is not None and ending.crashes is None


def _named(jobs: Sequence[RunningJob]) -> str:
    """Name jobs, the first of them if there are many.

    >>> _named([])
    'none'
    """
    names = [_name(job) for job in jobs[:MOST_NAMED]]
    if len(jobs) > MOST_NAMED:
        names.append(f"{len(jobs) - MOST_NAMED} more")
    return ", ".join(names) or "none"


def _name(job: RunningJob) -> str:
    name = job.name or job.task
    short = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."
    return f"{job.dag}.{job.node} {short}"
