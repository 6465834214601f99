"""How large the long tests are.

The issues name counts: 200 kills, 10,000 histories.  FAIRLEAD_STORM=1 runs them in full, FAIRLEAD_STORM=10 ten times as
many.  Without it, as in CI, each runs with a fifth of its count, and is judged by the same rules.
"""

import os

TIMES = float(os.environ.get("FAIRLEAD_STORM") or 0.2)
FULL = TIMES >= 1
REPEATS = max(1, round(TIMES))  # of what is short enough to run whole in CI


def times(count: int, least: int = 1) -> int:
    """Tell how many of a count to run, at least so many."""
    return max(least, round(count * TIMES))
