"""A call that leaves this process: what is sent, how its function is found there, what comes back.  JSON, no pickle.

**How the function is found.**  If the `Jobs` object was named ("module:jobs", as `fairlead worker --app` does), that
module is imported and the task looked up by its name.  Otherwise the function's own module is imported and the function
looked up in it; a script that was run as such (`__main__`) is loaded from its file under another name, so guard what it
does with `if __name__ == "__main__":`.  A function that cannot be found so (a lambda, one defined in another) fails its
jobs with an error that says this.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from fairlead.errors import ConfigError
from fairlead.jobs.context import CurrentJob, running
from fairlead.jobs.payload import decode_call, encode_result, error_of
from fairlead.runtime.finding import load, place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.jobs.executors.base import Call


def result_text(value: Any) -> str:
    """Write what a call returned as JSON; a coroutine that nobody will await is closed."""
    try:
        return encode_result(value)
    except BaseException:
        if inspect.iscoroutine(value):
            value.close()
        raise


def message_of(call: Call, app: str | None) -> str:
    """Write everything that another process needs to know to make a call."""
    claimed, fn = call.claimed, call.task.fn
    module, script = place_of(fn)
    return json.dumps(
        {
            "task": call.task.name,
            "app": app,
            "module": module,
            "function": getattr(fn, "__qualname__", None),
            "script": script,
            "payload": claimed.payload,
            "inputs": {str(node): result for node, result in claimed.inputs.items()},
            "job": [claimed.dag, claimed.node, claimed.name, call.job.attempt, claimed.fence],
        }
    )


def perform(message: str) -> tuple[bool, str]:
    """Make the call that a message describes: whether it returned, and the result or the error."""
    try:
        sent = json.loads(message)
        fn = find(sent)
        args, kwargs = decode_call(
            sent["payload"], {int(node): result for node, result in sent["inputs"].items()}
        )
        token = running.set(CurrentJob(*sent["job"]))
        try:
            value = fn(*args, **kwargs)
            if inspect.iscoroutinefunction(fn):
                with asyncio.Runner() as runner:
                    # Not runner.run(), which minds SIGINT and, doing so, looks at what the job raised.
                    loop = runner.get_loop()
                    value = loop.run_until_complete(loop.create_task(value, context=copy_context()))
            return True, result_text(value)
        finally:
            running.reset(token)
    except BaseException as error:
        # Also KeyboardInterrupt and SystemExit: what a job raises ends the job and nothing else.
        return False, error_of(error)


def find(sent: dict[str, Any]) -> Callable[..., Any]:
    """Find the function that a message names."""
    name, app = sent["task"], sent["app"]
    if app is not None:
        tasks = load_app(app).tasks
        if name not in tasks:
            raise ConfigError(
                f"{app} has no task {name!r} in the process that is to run it; "
                "register tasks when the module is imported, not later"
            )
        found: Callable[..., Any] = tasks[name].fn
        return found
    module, path = sent["module"], sent["function"]
    if not module or not path or "<" in path or (module == "__main__" and not sent["script"]):
        raise ConfigError(
            f"task {name!r} cannot be found by another process: it is "
            f"{path or 'no function'} of {module or 'no module'}; "
            "define it with def at the top of a module, or name the Jobs object with --app"
        )
    try:
        value: Any = load(module, sent["script"])
    except ImportError as error:
        raise ConfigError(
            f"task {name!r} cannot be found by the process that is to run it, for it cannot import "
            f"{module!r}: {error}"
        ) from error
    for part in path.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        raise ConfigError(f"task {name!r} cannot be found: {module} has no function {path}")
    return value  # type: ignore[no-any-return]


def load_app(app: str) -> Any:
    """Import the `Jobs` object that "module:name" says; whatever is wrong is a ConfigError."""
    module_name, _, path = app.partition(":")
    if not module_name or not path:
        raise ConfigError(f'the app must be written "module:jobs"; got {app!r}')
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import {module_name!r} of {app!r}: {error}") from error
    for part in path.split("."):
        value = getattr(value, part, None)
    if not isinstance(getattr(value, "tasks", None), dict):
        raise ConfigError(
            f"{app!r} is not a Jobs object; it must be one, made when {module_name} is imported"
        )
    return value
