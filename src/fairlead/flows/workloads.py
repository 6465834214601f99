"""What one flow is worth: its workload, priority, tokens, user and timeout, read from its labels.

Tokens by precedence: label, estimate, workload, 1.  Priority: label, workload; clamped to the tenant's ceiling.  A
label that cannot be used (negative, NaN, text, tokens 0) changes nothing, is counted, and is said in the decision.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.flows.matchers import compiled, labels_read
from fairlead.flows.settings import MOST_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fairlead.flows.settings import Scheduler

    Labels = Mapping[str, str]

MOST_KNOWN = 1_000  # combinations of label values of which the meaning is remembered
ABSENT = object()  # a label that is not there; one that is None is not text, and is not remembered
LONGEST_KEY = 128  # characters of a user, tenant or limit key; longer ones go by their hash


class Parameters(NamedTuple):
    """What a flow asks with; who its user is comes apart, for there are many."""

    workload: tuple[str, float]  # its name, and its priority: the weight it shares by
    tokens: float
    tenant: str
    queue_timeout: float | None
    ignored: tuple[str, ...] = ()  # labels that could not be used


class Resolver:
    """Reads parameters from labels, by settings that were compiled once.

    What was read is remembered by the values it was read from, unless there was something to count.
    """

    def __init__(self, settings: Scheduler) -> None:
        self._settings = settings
        default = settings.default_workload
        self._default = ("default", default.priority, default.tokens or 1.0, default.queue_timeout)
        self._workloads = [
            (
                compiled(one),
                (one.name or str(index), one.priority, one.tokens or 1.0, one.queue_timeout),
            )
            for index, one in enumerate(settings.workloads)
        ]
        self._ceilings = {name: one.max_priority for name, one in settings.tenants.items()}
        self.bad_labels: Counter[str] = Counter()
        self.missing_labels: Counter[str] = Counter()
        self._counted = (settings.workload_label_key, settings.tenant_label_key)  # if missing
        keys = (*self._counted, settings.tokens_label_key, settings.priority_label_key)
        matched = set().union(*map(labels_read, settings.workloads))
        self._reads = sorted(matched.union(key for key in keys if key is not None))
        self._known: dict[tuple[object, ...], Parameters] = {}
        # What a flow asks with that says nothing: the same every time, unless a label should have said it.
        self.fixed: Parameters | None = None
        if not any(keys) and not settings.workload_latency_based_tokens and not self._test({}):
            workload = (self._default[0], self._default[1])
            self.fixed = Parameters(workload, self._default[2], "", self._default[3])
        self.estimate: Callable[[str], float | None] | None = None  # tokens by workload, learned

    def count_on_from(self, former: Resolver) -> None:
        """Share the counters of the resolver before this one."""
        self.bad_labels, self.missing_labels = former.bad_labels, former.missing_labels

    def regroups(self, waiters: Iterable[Any]) -> bool:
        """Tell whether a waiter's workload is another here: newcomers that are like it would not stand behind it."""
        return any(self.parameters(flow.labels).workload != flow.workload for flow in waiters)

    def _test(self, labels: Labels) -> bool:
        return any(test(labels) for test, _ in self._workloads)

    def parameters(self, labels: Labels) -> Parameters:
        """Tell the parameters of one flow."""
        if self.fixed is not None and (not labels or not self._workloads):
            return self.fixed
        if self.estimate is not None:
            return self._read(labels)  # which changes with time
        get = labels.get
        values = tuple([get(key, ABSENT) for key in self._reads])
        try:
            found = self._known.get(values)
        except TypeError:  # a value that is no text
            found = None
        if found is None:
            found = self._read(labels)
            if not found.ignored and all(map(self._memorable, self._reads, values)):
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[values] = found
        return found

    def _memorable(self, key: str, value: object) -> bool:
        if value is ABSENT:
            return key not in self._counted
        return type(value) is str and len(value) <= LONGEST_KEY

    def user(self, labels: Labels) -> str:
        """Tell whose a flow is, inside its workload."""
        key = self._settings.fairness_label_key
        return "" if key is None else self._text(labels, key)

    def _read(self, labels: Labels) -> Parameters:
        said = self._settings
        name, priority, tokens, timeout = self._default
        for test, found in self._workloads:
            if test(labels):
                name, priority, tokens, timeout = found
                break
        ignored: list[str] = []
        if said.workload_label_key is not None:
            name = self._text(labels, said.workload_label_key) or name
        if self.estimate is not None:
            tokens = self.estimate(name) or tokens
        if said.tokens_label_key is not None:
            tokens = self._number(labels, said.tokens_label_key, tokens, ignored, zero=False)
        if said.priority_label_key is not None:
            priority = self._number(labels, said.priority_label_key, priority, ignored, zero=True)
        tenant = ""
        if said.tenant_label_key is not None:
            tenant = self._text(labels, said.tenant_label_key)
            ceiling = self._ceilings.get(tenant, said.default_max_priority)
            if ceiling is not None and priority > ceiling:
                priority = ceiling
        return Parameters((name, priority), tokens, tenant, timeout, tuple(ignored))

    def _text(self, labels: Labels, key: str) -> str:
        value = labels.get(key)
        if value is None:
            self.missing_labels[key] += 1
            return ""
        return canonical(value)

    def _number(
        self, labels: Labels, key: str, otherwise: float, ignored: list[str], *, zero: bool
    ) -> float:
        text = labels.get(key)
        if text is None:
            return otherwise
        try:
            text = str(text)  # labels are text, but a number is no reason to fail
            value = float(text) if len(text) <= 64 else -1.0
        except ValueError:
            value = -1.0
        if isfinite(value) and value <= MOST_TOKENS and (value > 0 or (zero and value == 0)):
            return value
        self.bad_labels[key] += 1
        ignored.append(key)
        return otherwise


def canonical(value: object) -> str:
    """Make a key of a label's value: equal text, equal key, of bounded length, and nothing that could harm a log.

    >>> canonical("u1"), canonical("caf\\u0065\\u0301") == canonical("caf\\u00e9"), len(canonical("x" * 10_000))
    ('u1', True, 71)
    >>> canonical("a\\x1b[2J"), canonical(5)
    ('a\\\\x1b[2J', '5')
    """
    text = value if isinstance(value, str) else str(value)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if not text.isprintable():  # control characters, half characters, marks that turn text around
        text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    if len(text) > LONGEST_KEY:
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    return text
