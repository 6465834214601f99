"""What a gate is made of, and that it is the only gate: room given back at one would wake nobody at another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Part:
    """A policy or a capacity."""

    gated = False  # True: it has a gate, and can have no other

    def whole(self) -> Iterator[Part]:
        """Tell what a gate has with this: itself, and whatever it is made of."""
        yield self


def claim(*parts: Part) -> None:
    """Note that these have a gate from now on, all or none; each can have but one."""
    claimed = [one for part in parts for one in part.whole()]
    for one in claimed:
        if one.gated:
            raise ConfigError(
                f"{type(one).__name__} has a gate already; make a new one, "
                "or let schedulers share one with SharedPool"
            )
    for one in claimed:
        one.gated = True
