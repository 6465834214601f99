"""The words of the ledger of a stream storm; how lines are written and read is as in the storms of jobs.

Every process writes what it does, right before or after it: the consumers which records they begin and end, the
spy between Fairlead and its client what the group gave and took and what was committed, the storm whom it killed and
what the broker says is stored.  A partition is written as "topic:number".  A *generation* is one assignment of one
partition to one process, counted by the spy and not by Fairlead.
"""

from tests.jobs.chaos.ledger import KILLED, NOTE, UP, Ledger, Line, Tail, read

ASSIGNED = "assigned"  # at: {partition: generation}
GONE = "gone"  # at: {partition: generation}, how: revoked, lost or closed
DELIVERED = "delivered"  # at, generation, offsets
START = "start"  # at, generation, offsets, keys (None: in order), call: a number in its process
END = "end"  # call: it is about to return
FAILED = "failed"  # call: it is about to raise
# offsets: {partition: next}, generations: {partition: generation or None}, number
COMMITTING = "committing"
COMMITTED = "committed"  # number: the broker has it
SEEN = "seen"  # offsets: {partition: next}, as the broker told an onlooker

__all__ = [
    "ASSIGNED",
    "COMMITTED",
    "COMMITTING",
    "DELIVERED",
    "END",
    "FAILED",
    "GONE",
    "KILLED",
    "Ledger",
    "Line",
    "NOTE",
    "SEEN",
    "START",
    "Tail",
    "UP",
    "read",
]
