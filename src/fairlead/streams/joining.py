"""Several batches of one partition as one, without touching their records before somebody looks at them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, overload

from fairlead.streams.broker import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlead.streams.broker import Message


class Joined(Batch):
    """Batches that follow each other."""

    __slots__ = ("_parts", "_size")

    def __init__(self, parts: Sequence[Batch]) -> None:
        self.tp = parts[0].tp
        self.first = parts[0].first
        self.last = parts[-1].last
        self._parts = parts
        self._size = sum(map(len, parts))

    @property
    def offsets(self) -> list[int]:
        return [offset for part in self._parts for offset in part.offsets]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self._parts)

    def _whole(self) -> Sequence[Message]:
        if len(self._parts) > 1:
            self._parts = [Batch(self.tp, list(self))]
        return self._parts[0]

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Message | Batch:
        if index == 0 and self._size:
            return self._parts[0][0]
        return self._whole()[index]  # type: ignore[return-value]
