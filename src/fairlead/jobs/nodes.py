"""A job to be: a call of a task within a DAG, and what it waits for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.errors import ConfigError, PayloadError
from fairlead.jobs.payload import NOTHING, Placeholder, encode_call
from fairlead.jobs.sla import Sla, sla_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlead.jobs.graph import Dag

LONGEST_TEXT = 255
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


def text_of(value: Any, what: str) -> str:
    """Read a name or a key: some text that fits on a line."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{what} must be text that is not empty; got {shown(value)}")
    if len(value) > LONGEST_TEXT:
        raise ConfigError(
            f"{what} may have {LONGEST_TEXT} characters; got {len(value):,}: {shown(value)}"
        )
    if found := _UNFIT.search(value):
        raise ConfigError(f"{what} may not contain {found.group()!a}; got {shown(value)}")
    return value


class Node(Placeholder):
    """A job of a DAG; as an argument of another it stands for its result.

    It is made by `Dag.add`.  `name` is unique in its DAG.
    """

    __slots__ = ("after", "call", "dag", "fault", "hard", "name", "payload", "soft", "uses")

    def __init__(self, dag: Dag, index: int, name: str, call: Any) -> None:
        self.dag = dag
        self.index = index
        self.name = name
        self.call = call
        self.payload = NOTHING
        self.uses: Sequence[Any] = ()
        self.fault: PayloadError | None = None
        self.after: tuple[Node | str, ...] = ()
        self.soft: Sla | None = None
        self.hard: Sla | None = None

    def give(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take arguments as they are now; what is wrong with them is told when the DAG is submitted."""
        try:
            self.payload, self.uses = encode_call(args, kwargs)
        except PayloadError as error:
            self.fault = error

    def options(
        self,
        *,
        name: str | None = None,
        after: Iterable[Node | str] | None = None,
        soft_sla: Any = None,
        hard_sla: Any = None,
    ) -> Node:
        """Set what is not an argument of the task; what is left out stays as it is.

        `after` are nodes, or their names, that come first though their results are not needed; SLAs are read as those
        of the DAG, and stand in their place.
        """
        if name is not None:
            self.name = text_of(name, "the name of a job")
            self.dag.given.add(name)
        if after is not None:
            self.after = self._read_after(after)
        if soft_sla is not None:
            self.soft = sla_of(soft_sla, f"soft_sla of job {self.name!r}")
        if hard_sla is not None:
            self.hard = sla_of(hard_sla, f"hard_sla of job {self.name!r}")
        return self

    def _read_after(self, after: Any) -> tuple[Node | str, ...]:
        if isinstance(after, str | Node | dict):
            raise ConfigError(f"after of job {self.name!r} must be a list; got {shown(after)}")
        try:
            given = tuple(after)
        except TypeError:
            raise ConfigError(
                f"after of job {self.name!r} must be a list of jobs; got {shown(after)}"
            ) from None
        for each in given:
            if not isinstance(each, str | Node):
                raise ConfigError(
                    f"after of job {self.name!r} takes jobs of the DAG; got {shown(each)}"
                )
        return given

    def __repr__(self) -> str:
        return f"<Node {self.name!r} of Dag {self.dag.name!r}>"
