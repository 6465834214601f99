"""`fairlead.yaml`, from a file to settings, with everything that is wrong said at once, each with its line.

The gateway's and the flows' documents are judged by the very functions those doors use, whether they stand here or in a
file of their own.  Content never raises.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from fairlead.documents.addresses import split_address
from fairlead.documents.advice import Adviser
from fairlead.documents.loading import tree_and_digest_of, tree_of
from fairlead.documents.reading import Node, Problem, content_of, digest_of, lines_of, written
from fairlead.server.settings import Demo, FlowsListening, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from fairlead.documents.loading import Tree
    from fairlead.flows.loading import Loaded as FlowsLoaded
    from fairlead.gateway.loading import Loaded as GatewayLoaded

MOST_PROBLEMS = 100
MOST_NAMED = 20  # gates in one sentence
SECRET = {"token", "tokens", "sha256", "database", "webhook"}
STRANGE_FILE = (
    "is not a file that the running configuration names, so it was not read; "
    "write its name into the configuration file where the server runs"
)
STRANGE_APP = (
    "is not an app that the running configuration names, and none is imported for a request; "
    "write its name into the configuration file where the server runs"
)
ADVISER = Adviser(Settings, secret=SECRET)
LISTENING = Adviser(FlowsListening, secret=SECRET)


class Loaded(NamedTuple):
    """Settings of everything, where they came from, and what was wrong; `files` are those named, with digests."""

    settings: Settings
    gateway: GatewayLoaded | None
    flows: FlowsLoaded | None
    flows_listening: FlowsListening
    problems: tuple[Problem, ...]
    source: str
    warnings: tuple[str, ...] = ()
    digest: str = ""
    files: tuple[tuple[str, str], ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Each problem on a line: `fairlead.yaml:17:3 gateway.priority_scheduler: what is wrong`."""
        return lines_of(self.problems, self.source)

    @property
    def addresses(self) -> Iterator[tuple[str, str]]:
        """Where it listens, and by which setting."""
        yield "server.listen", self.settings.server.listen
        if self.gateway is not None:
            yield "gateway.listen", self.gateway.settings.listen
            yield "gateway.admin.listen", self.gateway.settings.admin.listen
        if self.flows is not None:
            if self.flows_listening.http is not None:
                yield "flows.http", self.flows_listening.http
            if self.flows_listening.grpc is not None:
                yield "flows.grpc", self.flows_listening.grpc
        if self.settings.jobs is not None and self.settings.jobs.http is not None:
            yield "jobs.http", self.settings.jobs.http

    @property
    def apps(self) -> dict[str, str]:
        """The applications that are imported at a start, by door."""
        doors = {"jobs": self.settings.jobs, "streams": self.settings.streams}
        return {name: one.app for name, one in doors.items() if one is not None and one.app}

    @property
    def demo(self) -> Demo:
        """What of the demonstration runs; nothing unless it is asked for."""
        return self.settings.demo or Demo(upstream=False, traffic=False)


def load(path: str) -> Loaded:
    """Read a configuration file."""
    return load_content(content_of(path), path)


def load_content(
    content: bytes | Problem,
    source: str,
    *,
    named: Collection[str] | None = None,
    cover: Callable[[Node], object] = lambda tree: None,
) -> Loaded:
    """Read what a file held, or what `content_of` said of it.

    With `named` no other files and apps may be named, whatever the content asks for; `cover` may change what was read
    before it is judged.
    """
    return load_tree(tree_of(content, source), digest_of(content), named=named, cover=cover)


def load_tree(
    read: Tree,
    digest: str,
    *,
    named: Collection[str] | None = None,
    cover: Callable[[Node], object] = lambda tree: None,
) -> Loaded:
    """Judge what was read from a content of this digest; like `load_content`."""
    tree, problems, source = read
    reading = _Reading(tree, [*problems], source, named, cover)
    return reading.loaded()._replace(digest=digest)


def load_mapping(given: Mapping[str, Any]) -> Loaded:
    """Read a configuration made by a program."""
    tree, _ = tree_and_digest_of(given)
    return _Reading(*tree).loaded()


def _nothing(problems: tuple[Problem, ...], source: str) -> Loaded:
    return Loaded(Settings(), None, None, FlowsListening(), problems, source)


class _Reading:
    def __init__(
        self,
        tree: Node | None,
        problems: list[Problem],
        source: str,
        named: Collection[str] | None = None,
        cover: Callable[[Node], object] = lambda tree: None,
    ) -> None:
        self._tree = tree
        self._problems = problems
        self._source = source
        self._named_before = named
        self._cover = cover
        self._files: list[tuple[str, str]] = []
        self._warnings: list[str] = []

    def loaded(self) -> Loaded:
        tree = self._tree
        if tree is None or tree.value is None:  # unreadable, or an empty document
            return _nothing(tuple(self._problems), self._source)
        self._cover(tree)
        if not isinstance(tree.value, dict):
            kind = "a list" if isinstance(tree.value, list) else "a single value"
            self._problems.append(
                Problem(*tree.at, "", f"must be a mapping of sections; got {kind}")
            )
            return _nothing(tuple(self._problems), self._source)
        settings = self._judged(Settings, tree, tree.plain(), ADVISER, ()) or Settings()
        gateway = self._gateway(tree.value.get("gateway"))
        flows, listening = self._flows(tree.value.get("flows"))
        loaded = Loaded(settings, gateway, flows, listening, (), self._source)
        self._find_new_apps(loaded)
        if not self._problems:
            self._find_clashes(loaded)
            self._find_strangers(loaded)
        found = sorted(self._problems)
        return loaded._replace(
            settings=settings if not found else Settings(),
            problems=tuple(found[:MOST_PROBLEMS]),
            warnings=tuple(self._warnings),
            files=tuple(self._files),
        )

    def _judged(
        self, model: Any, tree: Node, plain: Any, adviser: Adviser, prefix: tuple[str, ...]
    ) -> Any:
        try:
            return model.model_validate(plain)
        except ValidationError as error:
            self._problems.extend(adviser.problems(error, tree, prefix))
        return None

    def _note(self, at: tuple[int, int], path: tuple[Any, ...], message: str) -> None:
        self._problems.append(Problem(*at, written(path), message))

    def _gateway(self, node: Node | None) -> GatewayLoaded | None:
        if node is None or not isinstance(node.value, dict):
            return None
        from fairlead.gateway.loading import load_tree

        loaded: GatewayLoaded = self._document(node, "gateway", load_tree)
        self._warnings += [f"gateway: {warning}" for warning in loaded.warnings]
        return loaded

    def _flows(self, node: Node | None) -> tuple[FlowsLoaded | None, FlowsListening]:
        if node is None or not isinstance(node.value, dict):
            return None, FlowsListening()
        from fairlead.flows.loading import load_tree

        ours = _part(node, lambda key: key in FlowsListening.model_fields)
        rest = _part(node, lambda key: key not in FlowsListening.model_fields)
        listening = self._judged(FlowsListening, ours, ours.plain(), LISTENING, ("flows",))
        loaded: FlowsLoaded = self._document(rest, "flows", load_tree)
        self._warnings += [f"flows: {warning}" for warning in loaded.warnings]
        return loaded, listening or FlowsListening()

    def _document(self, node: Node, name: str, load_tree: Callable[..., Any]) -> Any:
        """Read a door's own document: what stands in its section, or the file that is named there."""
        file = node.value.get("file")
        if file is None:
            loaded = load_tree(node, [], self._source)
            for one in loaded.problems:
                path = f"{name}.{one.path}" if one.path else name
                line, column = (one.line, one.column) if one.line else node.at
                self._problems.append(Problem(line, column, path, one.message))
            return loaded
        at = node.keys.get("file", node.at)
        if len(node.value) > 1 or not isinstance(file.value, str):
            self._note(at, (name, "file"), "is the path of a file, and then stands alone here")
            return load_tree(None, [], self._source)
        path = str(Path(self._source).parent / file.value)
        if self._named_before is not None and path not in self._named_before:
            self._note(at, (name, "file"), STRANGE_FILE)
            return load_tree(None, [], self._source)
        content = content_of(path)
        self._files.append((path, digest_of(content)))
        tree, problems, _ = tree_of(content, path)
        if tree is not None:
            self._cover(tree)
        loaded = load_tree(tree, problems, path)._replace(digest=digest_of(content))
        for line in loaded.lines:
            self._note(at, (name, "file"), line)
        return loaded

    def _find_new_apps(self, loaded: Loaded) -> None:
        """Refuse apps that the running configuration does not name."""
        for door, app in loaded.apps.items():
            if self._named_before is not None and app not in self._named_before:
                at = self._tree.find((door, "app"))[0] if self._tree else (0, 0)
                self._note(at, (door, "app"), STRANGE_APP)

    def _find_clashes(self, loaded: Loaded) -> None:
        """Refuse two listeners on one port; better now than when the second one starts."""
        taken: dict[tuple[str, int], str] = {}
        for path, address in loaded.addresses:
            place = split_address(address)
            if place[1] and taken.setdefault(place, path) != path:
                section = path.split(".")[0]
                at = self._tree.find((section,))[0] if self._tree else (0, 0)
                self._problems.append(
                    Problem(
                        *at,
                        path,
                        f"{address} is {taken[place]} too; give one of them another port",
                    )
                )

    def _find_strangers(self, loaded: Loaded) -> None:
        """Refuse pools of gates that are not there, or are in two pools."""
        settings = loaded.settings
        known, any_model = _gateway_gates(loaded.gateway)
        if loaded.flows is not None:
            known += [f"flows/{name}" for name in loaded.flows.settings.control_points]
        known += ["jobs/leader"] * (settings.jobs is not None)
        known += ["streams/workers"] * (settings.streams is not None)
        there = frozenset(known)
        few = ", ".join(known[:MOST_NAMED]) + ", …" * (len(known) > MOST_NAMED)
        taken: dict[str, str] = {}
        for name, pool in settings.pools.items():
            for gate in pool.doors:
                path = ("pools", name, "doors", gate)
                at = self._tree.find(path)[0] if self._tree else (0, 0)
                if gate not in there and not (any_model and gate.startswith("gateway/")):
                    said = f"there is no such gate; there are {few or 'none'}"
                    self._note(at, path, said)
                elif taken.setdefault(gate, name) != name:
                    self._note(at, path, f"is in pool {taken[gate]} already; keep one")


def _gateway_gates(gateway: GatewayLoaded | None) -> tuple[list[str], bool]:
    """Name the gates of a gateway; True if there may be one of any model, for backends come and go at run time."""
    if gateway is None:
        return [], False
    from fairlead.gateway.reservations import ONLY, gate_name

    return [f"gateway/{gate_name(ONLY)}"], gateway.settings.pool_by is not None


def _part(node: Node, wanted: Callable[[str], bool]) -> Node:
    found = Node({key: value for key, value in node.value.items() if wanted(key)}, node.at)
    found.keys = {key: at for key, at in node.keys.items() if wanted(key)}
    return found
