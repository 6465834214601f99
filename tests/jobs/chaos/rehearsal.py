"""Roles for a test of the nursery itself: nothing of Fairlead."""

import signal
import time
from pathlib import Path
from typing import Any

from tests.jobs.chaos.ledger import NOTE, Ledger


def play(role: str, settings: dict[str, Any]) -> int:
    ledger = Ledger(Path(settings["ledger"]))
    if role == "leaves":
        return int(settings["code"])
    if role == "breaks":
        raise RuntimeError("as it should")
    if role == "sleeps":
        ledger.write(NOTE, text="asleep")
        signal.pause()
    while role == "writes":
        ledger.write(NOTE, text="x" * settings["length"])
        time.sleep(0.0005)
    return 0
