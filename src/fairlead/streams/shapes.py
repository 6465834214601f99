"""What is known of a consumer once: how it is made, which methods it has, and which of them are coroutines.

`app.topic` is given a class, a partial of one, a function that makes a consumer, or an instance.  Each is looked at
when it is given, so that a consumer that cannot be made is an error at that line and not in a worker, for ever.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.config import error_text, shown
from fairlead.errors import ConfigError
from fairlead.streams.consumer import Consumer
from fairlead.streams.jobs import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = {
    Kind.CONSUMPTION: "consume",
    Kind.REVOCATION: "revoked",
    Kind.SHUTDOWN: "shutdown",
    Kind.PERIODIC: "tick",
    Kind.EOFED: "eofed",
}


class Shape:
    """A class of consumers, and how one of them is made."""

    def __init__(
        self,
        consumer: type[Consumer],
        make: Callable[[], Any] | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self.consumer = consumer
        self.shared = shared  # one instance for all partitions
        self.processes = consumer.processes
        self.ticks = self._own("tick")
        self.eofs = self._own("eofed")
        self.describes = any(map(self._own, ("tenant", "cost", "deadline")))
        self.methods = {kind: name for kind, name in CALLS.items() if self._own(name)}
        self._make = consumer if make is None else make
        for name in self.methods.values():
            written = getattr(consumer, name)
            if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
                raise ConfigError(
                    f"{consumer.__name__}.{name} has a yield in it, so to call it would run nothing; "
                    "write it without"
                )
        self.coroutines = {
            kind
            for kind, name in self.methods.items()
            if inspect.iscoroutinefunction(getattr(consumer, name))
        }

    def _own(self, name: str) -> bool:
        return getattr(self.consumer, name) is not getattr(Consumer, name)

    def make(self) -> Consumer:
        """Make a consumer for a partition, or return the shared one."""
        made = self._make()
        if not isinstance(made, self.consumer):
            raise TypeError(
                f"the factory made {shown(made)}; it has to make a {self.consumer.__name__} each time, "
                "as it did when the topic was added"
            )
        return made


def shape_of(given: Any, what: str) -> Shape:
    """Find out how consumers are made of what a topic was given; `what` names the topic in errors."""
    if isinstance(given, Consumer):
        shape = Shape(type(given), lambda: given, shared=True)
    elif inspect.isclass(given):
        shape = _of_class(given, given, what)
    elif isinstance(given, partial) and inspect.isclass(given.func):
        shape = _of_class(given.func, given, what)
    elif callable(given):
        shape = _of_factory(given, what)
    else:
        raise _no_consumer(given, what)
    if shape.consumer.consume is Consumer.consume:
        raise ConfigError(
            f"{what}: {shape.consumer.__name__} has to define consume(self, messages)"
        )
    if shape.processes and given is not shape.consumer:
        raise ConfigError(
            f"{what}: {shape.consumer.__name__} has processes = True, and its process makes it from the class alone; "
            "give the class, and have it find there what it needs"
        )
    return shape


def _of_class(consumer: type, make: Callable[[], Any], what: str) -> Shape:
    if not issubclass(consumer, Consumer):
        raise _no_consumer(consumer, what)
    if inspect.isabstract(consumer):
        names = ", ".join(sorted(getattr(consumer, "__abstractmethods__", ())))
        raise ConfigError(f"{what}: {consumer.__name__} is abstract; it has to define {names}")
    _refuse_arguments(make, consumer.__name__, what)
    return Shape(consumer, make)


def _of_factory(make: Callable[[], Any], what: str) -> Shape:
    """Make one to see which class it is; the first partition gets that instance."""
    name = getattr(make, "__name__", None) or type(make).__name__
    _refuse_arguments(make, name, what)
    try:
        first = make()
    except Exception as error:
        raise ConfigError(
            f"{what}: the factory {name} made no consumer: {error_text(error)}"
        ) from error
    if inspect.iscoroutine(first):
        first.close()
        raise ConfigError(f"{what}: the factory {name} is a coroutine function; write it with def")
    if not isinstance(first, Consumer):
        raise ConfigError(
            f"{what}: the factory {name} must make a consumer, an instance of a class derived from Consumer; "
            f"it made {shown(first)}"
        )
    spare = [first]

    def next_one() -> Any:
        try:
            return spare.pop()
        except IndexError:
            return make()

    return Shape(type(first), next_one)


def _refuse_arguments(make: Callable[[], Any], name: str, what: str) -> None:
    """Refuse what cannot be called without arguments, as far as its signature says."""
    args, keywords = (make.args, make.keywords) if isinstance(make, partial) else ((), {})
    try:
        signature = inspect.signature(make.func if isinstance(make, partial) else make)
    except (TypeError, ValueError):
        return  # its call will show
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        raise ConfigError(
            f"{what}: {name} cannot be made without arguments ({error}); give functools.partial({name}, ...), "
            f"a function without arguments that makes one, or an instance"
        ) from None


def _no_consumer(given: Any, what: str) -> ConfigError:
    return ConfigError(
        f"{what}: the consumer must be a class derived from Consumer, a partial of one, a function that makes one, "
        f"or an instance; got {shown(given)}"
    )
