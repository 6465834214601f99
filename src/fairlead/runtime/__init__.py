"""Where time begins: gates on event loops and between threads."""

from fairlead.runtime.loop import LoopGate
from fairlead.runtime.making import MakeGate, MakeGates, plain_gates
from fairlead.runtime.sharing import GatePool
from fairlead.runtime.threads import ThreadGate

__all__ = ["GatePool", "LoopGate", "MakeGate", "MakeGates", "ThreadGate", "plain_gates"]
