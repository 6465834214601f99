"""A flow that a service elsewhere decides on: what it answered, and what to do if it did not.

Nothing here knows how a service is reached; the two clients do.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from fairlead.config import hide_password, is_readable, shown
from fairlead.errors import ConfigError, Misuse, NeverFits, Refused, WaitedTooLong
from fairlead.flows.flow import bad_status, read_labels
from fairlead.flows.settings import MOST_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from urllib.parse import SplitResult

Policy = Literal["open", "closed"]
Decision = Literal["accepted", "rejected", "unreachable"]

CHECK, END = "/v1/flows/check", "/v1/flows/end"
CHECK_TIMEOUT = 0.2  # seconds a flow may wait, if nobody says otherwise
# Seconds beyond the flow's own timeout: a service that is slow to answer must not turn its refusals into admissions.
ANSWER_GRACE = 0.25
END_TIMEOUT = 2.0
# The service was reached and cannot take the question: to run would let anyone pass who makes up odd labels.  It says
# so in a problem document; whatever else answers like that is no flow service, and does not stand in the way.
UNUSABLE = frozenset({400, 413, 422})
KEPT = 15.0  # seconds a connection is kept for the next flow; the service keeps it for 60


class RemoteFlow:
    """What a client's `flow()` gives: the decision, and why."""

    def __init__(
        self, control_point: str, labels: Mapping[str, str], timeout: float | None, fail: Policy
    ) -> None:
        self.control_point = control_point
        self.labels = labels
        self.timeout = timeout
        self.decision: Decision = "unreachable"
        self.flow_id: str | None = None
        self.workload: str | None = None
        self.priority: float | None = None
        self.tokens: float | None = None
        self.wait: float | None = None
        self.ignored: tuple[str, ...] = ()
        self.reject_reason: str | None = None
        self.message: str | None = None
        self.retry_after: float | None = None
        self.denied_status: int | None = None
        self.ended = False
        self._asked = False
        self._runs_unasked = fail == "open"

    def should_run(self) -> bool:
        """Tell whether the work may be done: it was accepted, or nobody could be asked and the policy is open."""
        if self.decision == "unreachable":
            return self._runs_unasked
        return self.decision == "accepted"

    @property
    def accepted(self) -> bool:
        """Whether the work may be done."""
        return self.should_run()

    def question(self) -> bytes:
        """Write what to ask, once: a second answer would have an id that nobody ends."""
        if self._asked:
            raise Misuse(
                f"the flow at {self.control_point} was entered before; make a new flow for each turn"
            )
        self._asked = True
        said: dict[str, Any] = {"control_point": self.control_point, "labels": dict(self.labels)}
        if self.timeout is not None:
            said["timeout"] = self.timeout
        return json.dumps(said).encode()

    def patience(self) -> float | None:
        """Tell how long to wait for the answer; None is for ever."""
        return None if self.timeout is None else self.timeout + ANSWER_GRACE

    def answer(self, status: int, body: bytes) -> None:
        """Read what the service answered."""
        try:
            said = json.loads(body)
            decision = said.get("decision")
        except (ValueError, AttributeError):
            said, decision = {}, None
        if decision == "accepted" and status == 200:
            self.decision = "accepted"
            self.flow_id = said.get("flow_id")
            self.workload, self.priority = said.get("workload"), said.get("priority")
            self.tokens, self.wait = said.get("tokens"), said.get("wait")
        elif decision == "rejected":
            self.decision = "rejected"
            self.denied_status = status
            self.reject_reason, self.message = said.get("reason"), said.get("message")
            self.retry_after = said.get("retry_after")
        else:
            detail = said.get("detail") if isinstance(said, dict) else None
            why = f"the service answered {status}: {detail or 'not as a flow service does'}"
            if status in UNUSABLE and isinstance(said, dict) and said.get("status") == status:
                self.decision, self.reject_reason = "rejected", "invalid"
                self.denied_status, self.message = status, f"{self.control_point}: {why}"
            else:
                self.lost(why)
            return
        self.ignored = tuple(said.get("ignored_labels", ()))

    def lost(self, why: object) -> None:
        """Note that no decision could be had."""
        self.decision = "unreachable"
        self.reject_reason = "unreachable"
        self.message = f"{self.control_point}: no decision: {why or type(why).__name__}"
        self.retry_after = None if self._runs_unasked else 1.0

    def to_end(self, status: str, tokens: float | None) -> bytes | None:
        """Write what ends it, once; None if there is nothing to end."""
        failed = status == "error"
        if not failed and status != "ok":
            raise bad_status(status)
        if tokens is not None and not 0 <= tokens <= MOST_TOKENS:
            raise Misuse(
                f"{self.control_point}: a flow cannot have spent {shown(tokens)}; "
                f"give a number from 0 to {MOST_TOKENS:g}"
            )
        if self.ended or self.flow_id is None:
            return None
        self.ended = True
        said: dict[str, Any] = {
            "flow_id": self.flow_id,
            "status": "error" if failed else "ok",
        }
        if tokens is not None:
            said["tokens"] = tokens
        return json.dumps(said).encode()

    def refusal(self) -> Refused:
        """Make the error to raise for a flow that was refused."""
        kinds = {"timeout": WaitedTooLong, "never_fits": NeverFits}
        kind = kinds.get(self.reject_reason or "", Refused)
        return kind(self.message or "refused", retry_after=self.retry_after)

    def rejected(self, on_reject: Callable[[], Any] | None) -> Any:
        """Answer for a flow that was refused, or raise the refusal."""
        if on_reject is None:
            raise self.refusal()
        return on_reject()


def ended(status: int, body: bytes) -> bool:
    """Read what the service answered to an end."""
    try:
        return status == 200 and json.loads(body).get("ended") is True
    except (ValueError, AttributeError):
        return False


class Asking:
    """What both clients know: how flows are asked for, and what to do unanswered."""

    def __init__(
        self,
        *,
        check_timeout: float | None = CHECK_TIMEOUT,
        fail: Policy = "open",
        fail_at: Mapping[str, Policy] | None = None,
        baggage: bool = True,
    ) -> None:
        for policy in (fail, *(fail_at or {}).values()):
            if policy not in ("open", "closed"):
                raise ConfigError(f"a client fails open or closed, not {shown(policy)}")
        self._check_timeout = _seconds(check_timeout)
        self._fail, self._fail_at = fail, dict(fail_at or {})
        self._baggage = _baggage_reader() if baggage else None

    def about(
        self, control_point: str, labels: Mapping[str, str] | None, timeout: float | None
    ) -> tuple[str, Mapping[str, str], float | None, Policy]:
        """Read what one flow is asked for with: `RemoteFlow`'s arguments."""
        given = read_labels(labels or {})
        for key, value in given.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise ConfigError(f"labels are texts: {shown(key)} has {shown(value)}")
        if self._baggage is not None:
            given = {key: str(value) for key, value in self._baggage().items()} | given
        seconds = self._check_timeout if timeout is None else _seconds(timeout)
        return control_point, given, seconds, self._fail_at.get(control_point, self._fail)


def read_url(url: Any) -> SplitResult:
    """Read where a service is."""
    parts = urlsplit(url) if isinstance(url, str) and is_readable(url) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        given = shown(hide_password(url) if isinstance(url, str) else url)
        raise ConfigError(
            f"the service is at an http or https URL, like http://127.0.0.1:8088; got {given}"
        )
    return parts


def _seconds(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise ConfigError(f"timeout must be a number of seconds, 0 or more; got {shown(timeout)}")
    return float(timeout) if isfinite(timeout) else None


def _baggage_reader() -> Callable[[], Mapping[str, object]] | None:
    try:
        from opentelemetry import baggage
    except ImportError:
        return None
    return baggage.get_all
