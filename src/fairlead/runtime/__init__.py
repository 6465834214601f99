"""Where time begins: gates on event loops and between threads."""

from fairlead.runtime.loop import LoopGate, LoopTicket

__all__ = ["LoopGate", "LoopTicket"]
