"""All control points of one scheduler: made from settings, followed through reloads."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from fairlead.errors import ConfigError
from fairlead.flows.loading import load
from fairlead.flows.point import Parts, Point

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.core import Gate
    from fairlead.flows.flow import Flow
    from fairlead.flows.settings import Settings


class Points:
    """What the twins share; `runtime_of` makes a gate usable on a loop or between threads."""

    runtime_of: Callable[[Gate], Any]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.points: dict[str, Point] = {}
        self.unknown: Counter[str] = Counter()  # flows at control points nothing is said of
        self._build(settings)

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Make a scheduler of a YAML file, a mapping or settings; everything wrong with it is said at once."""
        loaded = load(config)
        if loaded.problems:
            raise ConfigError("\n".join(loaded.lines))
        return cls(loaded.settings)

    def _build(self, settings: Settings) -> None:
        for name, said in settings.control_points.items():
            self.points[name] = Point(name, said, type(self).runtime_of, Parts(said))

    def place(self, flow: Flow, timeout: float | None) -> None:
        """Bring a flow to its control point; where there is none, nothing limits it."""
        if timeout is not None and not timeout >= 0:
            raise ConfigError(f"timeout must be a number of seconds, 0 or more; got {timeout!r}")
        flow.timeout = timeout
        flow.point = self.points.get(flow.control_point)
        if flow.point is None:
            key = flow.control_point if len(self.unknown) < 100 else "other"
            self.unknown[key] += 1
