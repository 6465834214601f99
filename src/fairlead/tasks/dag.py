"""In-process DAG runs over a scheduler: a node takes a slot only when its inputs are ready.

Handing a node a slot earlier would let nodes hold every slot while the ones they wait for are queued behind them.

**How results arrive.**  A node given as an argument, or inside a list, a tuple or a dict, stands for its result.  A
dependency named in `after` fills the parameter of its own name; parameters still open and without a default are filled
with the remaining results in the order of `after`; a function with none open gets none.  One whose signature Python
does not know, as of `int`, gets all results in that order.
"""

from __future__ import annotations

import asyncio
import inspect
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.errors import ConfigError, CycleFound, DuplicateNode, FairleadError, UnknownNode
from fairlead.tasks.priority import Priority, read_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlead.tasks.submitting import Submitting

FILLABLE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
CONTAINERS = frozenset({dict, list, tuple})  # of arguments, in which nodes are found
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Node:
    """A step of a DAG; give it to another as an argument to hand its result on."""

    __slots__ = ("_open", "after", "args", "fn", "given", "kwargs", "name", "priority")

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        after: tuple[str, ...],
        priority: int,
    ) -> None:
        self.name = name
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.after = after
        self.priority = priority
        self.given = _nodes_in((*args, *kwargs.values()))
        self._open = _open_parameters(fn, len(args), kwargs) if after else []

    @property
    def dependencies(self) -> dict[str, None]:
        """The names of the nodes this one waits for, each once."""
        return dict.fromkeys((*self.after, *(node.name for node in self.given)))

    def arguments(self, results: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Put results where nodes stand, and the results of `after` where the function takes them."""
        args, kwargs = list(self.args), dict(self.kwargs)
        if self.given:
            args, kwargs = _filled(args, results), _filled(kwargs, results)
        left = list(self.after)
        # By parameter: first those of a dependency's own name, then in order.
        taken: dict[str, Any] = {}
        for parameter in self._open:
            if parameter.kind in NAMED and parameter.name in left:
                taken[parameter.name] = results[parameter.name]
                left.remove(parameter.name)
        fillable = [parameter for parameter in self._open if parameter.kind in FILLABLE]
        for parameter in fillable:
            if left and parameter.name not in taken and parameter.default is parameter.empty:
                taken[parameter.name] = results[left.pop(0)]
        kinds = {parameter.kind for parameter in self._open}
        rest = bool(left) and inspect.Parameter.VAR_POSITIONAL in kinds
        for parameter in fillable:
            if parameter.name not in taken:
                rest = False  # a default stands before what *args would take
                break
            if rest or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                args.append(taken.pop(parameter.name))
        if rest:
            args.extend(results[name] for name in left)
        elif inspect.Parameter.VAR_KEYWORD in kinds:
            taken.update({name: results[name] for name in left})
        return args, {**kwargs, **taken}

    def __repr__(self) -> str:
        return f"<Node {self.name}>"


class Dag:
    """A graph of functions; it can be run any number of times, also at once.

    >>> from fairlead.tasks import Scheduler
    >>> dag = Dag()
    >>> one = dag.add("one", lambda: 1)
    >>> two = dag.add("two", lambda: 2)
    >>> total = dag.add("total", lambda one, two: one + two, after=["one", "two"], priority=80)
    >>> async def main():
    ...     async with Scheduler.bounded(max_concurrency=2) as scheduler:
    ...         return await dag.run(scheduler)
    >>> asyncio.run(main())["total"]
    3
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def add(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        after: Iterable[str | Node] = (),
        priority: int = Priority.NORMAL,
        **kwargs: Any,
    ) -> Node:
        """Add a step that runs after others, named or given as arguments; names may be added later."""
        if not name or not isinstance(name, str):
            raise ConfigError(f"a node needs a name, a text that is not empty; got {shown(name)}")
        if name in self._nodes:
            raise DuplicateNode(f"the DAG has a node {name!r} already; give each node its own name")
        if not callable(fn):
            raise ConfigError(f"node {name!r} needs a function to run; got {shown(fn)}")
        if isinstance(after, str | Node):
            raise ConfigError(
                f"after= of node {name!r} takes a list of nodes or names; got {shown(after)}"
            )
        names = []
        for dependency in after:
            if not isinstance(dependency, str | Node):
                raise ConfigError(
                    f"after= of node {name!r} takes nodes or names; got {shown(dependency)}"
                )
            names.append(dependency if isinstance(dependency, str) else dependency.name)
        priority = read_priority(priority)
        node = self._nodes[name] = Node(
            name, fn, args, kwargs, tuple(dict.fromkeys(names)), priority
        )
        return node

    async def run(self, scheduler: Submitting) -> dict[str, Any]:
        """Run every node as soon as its dependencies are done; return the results by name.

        The first failure cancels what runs, starts nothing more, and is raised as it is; a note names the node.
        """
        return await _Run(scheduler, self._checked()).run()

    def _checked(self) -> dict[str, Node]:
        nodes = dict(self._nodes)
        for node in nodes.values():
            strangers = [each.name for each in node.given if nodes.get(each.name) is not each]
            unknown = [name for name in node.dependencies if name not in nodes]
            for dependency in (*unknown, *strangers):
                message = f"node {node.name!r} waits for {dependency!r}, which is not in the DAG"
                raise UnknownNode(message)
        try:
            TopologicalSorter({name: node.dependencies for name, node in nodes.items()}).prepare()
        except CycleError as error:
            raise CycleFound(error.args[1][1:]) from None
        return nodes


class _Run:
    """One execution: how many dependencies each node still waits for, and the futures of those under way."""

    def __init__(self, scheduler: Submitting, nodes: dict[str, Node]) -> None:
        self._scheduler = scheduler
        self._nodes = nodes
        self._waits_for = {name: len(node.dependencies) for name, node in nodes.items()}
        self._feeds: dict[str, list[Node]] = {name: [] for name in nodes}
        for node in nodes.values():
            for dependency in node.dependencies:
                self._feeds[dependency].append(node)
        self._under_way: dict[str, asyncio.Future[Any]] = {}
        self._results: dict[str, Any] = {}
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> dict[str, Any]:
        try:
            for node in [node for name, node in self._nodes.items() if not self._waits_for[name]]:
                self._start(node)
            if self._nodes:
                await self._over
        finally:
            await self._cancel_rest()
        return {name: self._results[name] for name in self._nodes}

    def _start(self, node: Node) -> None:
        if not self._over.done():
            try:
                future = self._scheduler.spawn(node.priority, self._step, node)
            except FairleadError as error:
                self._fail(node, error)
                return
            self._under_way[node.name] = future
            future.add_done_callback(lambda done: self._ended(node, done))

    async def _step(self, node: Node) -> Any:
        if self._over.done():
            raise asyncio.CancelledError  # another node has failed since this one was queued
        try:
            args, kwargs = node.arguments(self._results)
            result = node.fn(*args, **kwargs)
            return await result if hasattr(type(result), "__await__") else result
        except (StopIteration, GeneratorExit):
            raise  # no future can carry the one: it leaves as a RuntimeError; the other closes this coroutine
        except BaseException as error:
            self._fail(node, error)  # before the slot goes to another node of this run
            raise

    def _ended(self, node: Node, future: asyncio.Future[Any]) -> None:
        del self._under_way[node.name]
        if self._over.done():
            if not future.cancelled():
                future.exception()  # it is being raised, or another one is
            return
        try:
            self._results[node.name] = future.result()
            for fed in self._feeds[node.name]:
                self._waits_for[fed.name] -= 1
                if not self._waits_for[fed.name]:
                    self._start(fed)
        except BaseException as error:
            self._fail(node, error)
        else:
            if len(self._results) == len(self._nodes):
                self._over.set_result(None)

    def _fail(self, node: Node, error: BaseException) -> None:
        if self._over.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self._over.cancel(f"node {node.name!r} was cancelled")
        else:
            error.add_note(f"in node {node.name!r} of a DAG run")
            self._over.set_exception(error)

    async def _cancel_rest(self) -> None:
        if not self._over.done():
            self._over.cancel()
        rest = list(self._under_way.values())
        for future in rest:
            future.cancel()
        if rest:
            await asyncio.wait(rest)


def _open_parameters(
    fn: Callable[..., Any], given: int, kwargs: dict[str, Any]
) -> list[inspect.Parameter]:
    """Tell the parameters that the arguments given leave open."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        return [inspect.Parameter("results", inspect.Parameter.VAR_POSITIONAL)]
    still_open = []
    by_name = False  # after a parameter that is given by name no other can be given by position
    for parameter in parameters:
        if parameter.kind in FILLABLE and given:
            given -= 1
        elif parameter.name in kwargs:
            by_name = True
        elif not (by_name and parameter.kind is inspect.Parameter.VAR_POSITIONAL):
            still_open.append(parameter)
    return still_open


def _nodes_in(values: Iterable[Any]) -> list[Node]:
    """Find the nodes among values and inside lists, tuples and dicts, each of which is looked into once."""
    looked_at = list(values)
    nodes, containers = [], set()
    for value in looked_at:  # which grows meanwhile
        if isinstance(value, Node):
            nodes.append(value)
        elif type(value) in CONTAINERS and id(value) not in containers:
            containers.add(id(value))
            looked_at.extend(value.values() if type(value) is dict else value)
    return nodes


def _filled(value: Any, results: dict[str, Any], inside: tuple[int, ...] = ()) -> Any:
    """Put results where nodes stand; what holds none stays the object it is, as does what holds itself."""
    if isinstance(value, Node):
        return results[value.name]
    if type(value) not in CONTAINERS or id(value) in inside or not _nodes_in([value]):
        return value
    inside = (*inside, id(value))
    if type(value) is dict:
        return {key: _filled(each, results, inside) for key, each in value.items()}
    return type(value)([_filled(each, results, inside) for each in value])
