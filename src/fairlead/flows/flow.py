"""One flow: a ticket that asks for tokens at a control point, and what became of it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Literal

from fairlead.config import shown
from fairlead.core.ticket import (
    DONE,
    EXPIRED,
    NEW,
    REFUSED,
    UNSET,
    LeanTicket,
    Outcome,
    QueueLimit,
)
from fairlead.errors import ConfigError, Misuse, NeverFits, QueueFull, Refused, WaitedTooLong

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlead.core.ticket import Evicted
    from fairlead.flows.point import Point

    Status = Literal["ok", "error"]

NO_LABELS: Mapping[str, str] = {}
DEFAULT = ("default", 1.0)  # a workload: its name and its priority
# An enum looks its members up anew each time: benchmarks/flows.py.
OK, FAILED = Outcome.OK, Outcome.FAILED


def read_labels(labels: Any) -> dict[Any, Any]:
    """Copy labels: a caller may go on to change its own, and what is held is given back by the same key."""
    try:
        return dict(labels)
    except (TypeError, ValueError):
        raise ConfigError(
            f'labels are a mapping of texts, such as {{"user_id": "u1"}}; got {shown(labels)}'
        ) from None


def bad_status(status: object) -> Misuse:
    """Say what a flow ends with; nothing has changed."""
    return Misuse(f'a flow ends "ok" or "error", not {shown(status)}')


class Flow(LeanTicket):
    """What `flow()` and `start_flow()` give: whether to run, and if not, why and for how long not.

    What is read of every flow has a slot, for that is the fastest there is (benchmarks/flows.py).  The rest has one
    value for most flows, which stands here and not in each of them.  What only a gate reads of a ticket is unset until
    the flow is offered, and stays so if it is drawn (see `line_up`).
    """

    __slots__ = (
        "__dict__",
        "accepted",
        "control_point",
        "cost",
        "drawn",
        "ended",
        "labels",
        "point",
        "queued_ahead",
        "scheduler",
        "tenant",
        "timeout",
        "user",
        "workload",
    )

    # The core's
    work: Any = None
    priority = 50
    rank = 1
    reason: QueueLimit | Evicted | str | None = None
    # The door's
    ignored: tuple[str, ...] = ()
    moved = False  # its control point was replaced while it waited
    retry_after: float | None = None
    shut: str | None = None  # the limit that admits nothing while its ledger is lost
    admitted_before = left_before = 0.0
    place_in_line = 0

    labels: Mapping[str, str]

    def __init__(
        self,
        control_point: str,
        labels: Mapping[str, str] | None = None,
        scheduler: Any = None,
        point: Point | None = None,
    ) -> None:
        self.control_point = control_point
        self.labels = NO_LABELS if labels is None else read_labels(labels)
        self.scheduler = scheduler
        self.point = point
        self.timeout: float | None = None
        self.state = NEW
        self.cost = 1.0
        self.workload: Any = DEFAULT
        self.accepted = self.ended = False
        # While it runs it is one of these, if it holds nothing.
        self.drawn: dict[Flow, None] | None = None

    def line_up(self) -> None:
        """Become a ticket to offer: set what is read of that, and not of who is drawn (benchmarks/flows.py)."""
        self.arrived_at = UNSET
        self.wait_until = self.hold_until = self.started_at = inf
        self.seq = 0
        self.scopes = ()
        self.place = None
        self.promoted = self.can_preempt = self.evictable = False
        self.user = self.tenant = ""
        self.queued_ahead = -1.0  # tokens that waited when it came; -1 if it did not wait

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.control_point} {self.state.value}>"

    @property
    def patience(self) -> float | None:
        """What its caller said: neither the margin nor the limit of its workload."""
        return self.timeout

    def should_run(self) -> bool:
        """Tell whether the work may be done."""
        return self.accepted

    @property
    def tokens(self) -> float:
        """What it was charged."""
        return self.cost

    @property
    def reject_reason(self) -> str | None:
        """Why it was refused, in a word: `queue_full`, `timeout`, `never_fits` or `cancelled`."""
        if self.accepted or self.state is NEW:
            return None
        if self.state is REFUSED:
            return "queue_full" if isinstance(self.reason, QueueLimit) else "never_fits"
        return "timeout" if self.state is EXPIRED else "cancelled"

    @property
    def had_no_wait(self) -> bool:
        """Whether it was refused because it would not wait, or may not."""
        return self.reject_reason in ("queue_full", "timeout")

    @property
    def message(self) -> str | None:
        """Why it was refused, in a sentence."""
        why = self.reject_reason
        if why is None:
            return None
        again = "" if self.retry_after is None else f"; retry in {self.retry_after:.3g} s"
        if isinstance(self.reason, QueueLimit):
            said = f"{self.reason.waiting} flows wait already, the limit is {self.reason.limit}"
        elif why == "timeout":
            said = self.shut or "no tokens came free in the time it would wait"
        else:
            said = str(self.reason or why)
        return f"{self.control_point}: {said}{again}"

    def refusal(self) -> Refused:
        """Make the error to raise for a flow that was refused."""
        carried = {"ticket": self, "retry_after": self.retry_after}
        if isinstance(self.reason, QueueLimit):
            return QueueFull(self.control_point, self.reason.waiting, self.reason.limit, **carried)
        kinds = {"timeout": WaitedTooLong, "never_fits": NeverFits}
        kind = kinds.get(self.reject_reason or "", Refused)
        return kind(self.message or "refused", **carried)  # type: ignore[arg-type]

    def renew(self) -> None:
        """Stand as a new ticket, with the old time of arrival."""
        self.state = NEW
        self.scopes = ()
        self.place = self.shut = None

    def move(self, point: Point | None) -> None:
        """Ask again at another control point, as a new ticket with the old time of arrival."""
        self.renew()
        self.moved = False
        self.rank = 1
        self.user = self.tenant = ""
        self.ignored = ()
        self.wait_until = inf
        self.queued_ahead = -1.0
        self.point = point
        self.accepted = point is None

    def told(self) -> None:
        """Carry out a verdict that another's verb brought."""
        raise NotImplementedError

    def rejected(self, on_reject: Callable[[], Any] | None) -> Any:
        """Answer for a flow that was refused, or raise the refusal."""
        if on_reject is None:
            raise self.refusal()
        return on_reject()

    def end_drawn(self) -> bool:
        """End a flow that holds nothing; False if that was done before.  Needs no lock."""
        try:
            del self.drawn[self]  # type: ignore[union-attr]
        except KeyError:
            return False
        self.ended = True
        self.state = DONE
        return True

    def end(self, status: Status = "ok", tokens: float | None = None) -> bool:
        """Say that the work is done, and what it really cost, if that differs from what was charged.

        A second end, one of a flow that was refused, and one that comes after its tokens were given to others are
        harmless: they return False and free nothing.  The last still settles a quota that is this process's own.
        """
        failed = status == "error"
        if not failed and status != "ok":
            raise bad_status(status)
        if tokens is not None and not 0 <= tokens < inf:
            raise Misuse(f"{self!r} cannot have spent {tokens!r}; give a finite number, 0 or more")
        if not self.accepted:
            return False
        if self.point is None:
            again, self.ended = self.ended, True
            return not again
        return self.point.end(self, FAILED if failed else OK, tokens)
