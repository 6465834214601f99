"""How Hypothesis runs here: the same examples every time in CI, fresh ones at home; and a heap that stays small."""

import gc
import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile(
    "home",
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("home"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "home")

# A shell starts what runs in the background with Ctrl-C ignored, and so would be all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Thousands of collected tests stay to the end: no collection of garbage need look through them again."""
    gc.collect()
    gc.freeze()
