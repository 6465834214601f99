"""One process for everything: the doors a configuration names, a control API, and a dashboard to look at them.

`fairlead serve` runs it.  Nothing is imported here: each part is loaded when it is needed.
"""

from __future__ import annotations

__all__: list[str] = []
