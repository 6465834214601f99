"""Where time begins: gates on event loops and between threads."""

from fairlead.runtime.loop import LoopGate
from fairlead.runtime.threads import ThreadGate

__all__ = ["LoopGate", "ThreadGate"]
