"""An HTTP/1.1 client for backends: connections that are pooled, answers that are passed on as they come.

It knows bytes, connections and how they fail.  Which backend to ask, what a failure means for it, and what its client
is told are decided elsewhere.
"""

from fairlead.gateway.client.answer import Answer
from fairlead.gateway.client.connection import Connection
from fairlead.gateway.client.faults import BadAnswer, Lost, Unconnected
from fairlead.gateway.client.origin import Origin
from fairlead.gateway.client.pool import Client, Pool

__all__ = ["Answer", "BadAnswer", "Client", "Connection", "Lost", "Origin", "Pool", "Unconnected"]
