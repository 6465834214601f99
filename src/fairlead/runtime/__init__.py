"""Where time begins: gates on event loops and between threads."""

from fairlead.runtime.loop import LoopGate, LoopTicket
from fairlead.runtime.threads import ThreadGate, ThreadTicket

__all__ = ["LoopGate", "LoopTicket", "ThreadGate", "ThreadTicket"]
