"""Functions whose calls are flows: one decorator for coroutine functions, one for plain ones.

Schedulers and clients share them: all either needs is `flow()`.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from fairlead.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Labels = Mapping[str, str] | Callable[..., Mapping[str, str]] | None
    Function = Callable[..., Any]


def _is(kind: Callable[[Any], bool], function: Any) -> bool:
    """Tell the kind of a function, or of what an object runs when it is called."""
    while isinstance(function, functools.partial):
        function = function.func
    return kind(function) or kind(type(function).__call__)


def _name_of(function: Function) -> str:
    """Tell what to call a function; refuse generators, whose bodies run after the call and so outside the flow."""
    name = getattr(function, "__qualname__", None) or repr(function)
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise Misuse(
            f"{name} is a generator function, whose body runs after the call: enter a flow() inside it instead"
        )
    return name


class Decorating:
    """`decorate` for coroutine functions; `twin` names what is there for others."""

    twin: str
    flow: Callable[..., Any]

    def decorate(
        self,
        control_point: str,
        labels: Labels = None,
        timeout: float | None = None,
        on_reject: Callable[[], Any] | None = None,
    ) -> Callable[[Function], Function]:
        """Make each call of a coroutine function a flow, ended however the call ends.

        A call that is refused does not run: `on_reject()` answers for it, or the refusal is raised.
        """

        def wrap(function: Function) -> Function:
            name = _name_of(function)
            if not _is(inspect.iscoroutinefunction, function):
                raise Misuse(
                    f"{name} is not a coroutine function: decorate it with a {self.twin}, "
                    "which can wait in a thread"
                )

            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> Any:
                said = labels(*args, **kwargs) if callable(labels) else labels
                async with self.flow(control_point, said, timeout) as flow:
                    if flow.should_run():
                        return await function(*args, **kwargs)
                    answer = flow.rejected(on_reject)
                    return await answer if inspect.isawaitable(answer) else answer

            return call

        return wrap


class BlockingDecorating:
    """`decorate` for plain functions; `twin` names what is there for coroutine functions."""

    twin: str
    flow: Callable[..., Any]

    def decorate(
        self,
        control_point: str,
        labels: Labels = None,
        timeout: float | None = None,
        on_reject: Callable[[], Any] | None = None,
    ) -> Callable[[Function], Function]:
        """Make each call of a function a flow, ended however the call ends.

        A call that is refused does not run: `on_reject()` answers for it, or the refusal is raised.
        """

        def wrap(function: Function) -> Function:
            name = _name_of(function)
            if _is(inspect.iscoroutinefunction, function):
                raise Misuse(
                    f"{name} is a coroutine function: decorate it with a {self.twin}; "
                    "waiting here would block its event loop"
                )

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                said = labels(*args, **kwargs) if callable(labels) else labels
                with self.flow(control_point, said, timeout) as flow:
                    if not flow.should_run():
                        return flow.rejected(on_reject)
                    result = function(*args, **kwargs)
                    if inspect.isawaitable(result):
                        raise self._begun_too_late(name, result)
                    return result

            return call

        return wrap

    def _begun_too_late(self, name: str, result: Any) -> Misuse:
        if inspect.iscoroutine(result):
            result.close()
        return Misuse(
            f"{name} returned an awaitable, whose work would begin when the flow has ended: "
            f"decorate a coroutine function with a {self.twin}"
        )
