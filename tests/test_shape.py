"""Hold the shape of the source tree: who may import whom, module names, file lengths, public names.

Nothing is imported: sources are parsed, so the rules also cover modules whose extra is not installed.
Each rule is a function from one source to its complaints, so that the second half of this file can
hand it a source that breaks the rule and see it complain.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1] / "src"
LONGEST = 500
BANNED_WORDS = {"util", "utils", "common", "helper", "helpers", "manager", "managers"}
PUBLIC = (
    "",
    ".core",
    ".policies",
    ".capacities",
    ".tasks",
    ".gateway",
    ".flows",
    ".jobs",
    ".streams",
    ".observe",
    ".testing",
)

DOORS = frozenset({"tasks", "gateway", "flows", "jobs", "streams"})
PURE = frozenset({"errors", "core", "policies", "capacities"})
# `pip install fairlead` must be enough for these, whatever the extras bring to the others.
LIGHT = PURE | {"fairlead", "config", "runtime", "tasks"}
BENEATH_DOORS = PURE | {"config", "runtime"}
LIBRARY = BENEATH_DOORS | DOORS | {"documents", "serving", "sim", "observe"}
EVERYTHING = LIBRARY | {"fairlead", "server", "cli", "testing"}

# What each unit (a package or module directly under fairlead) may import besides itself.
# "fairlead" is the root's own __init__, which the layers beneath it must not reach back to.
LAYERS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "core": frozenset({"errors"}),
    "policies": frozenset({"core", "errors"}),
    "capacities": frozenset({"core", "errors"}),
    "config": frozenset({"errors"}),
    "documents": frozenset({"config", "errors"}),
    "runtime": PURE,
    "serving": frozenset({"config", "documents", "errors"}),
    "ledger": PURE | {"config"},
    **dict.fromkeys(sorted(DOORS), BENEATH_DOORS | {"documents", "ledger", "serving"}),
    # The simulator builds what the doors build, with their own functions.
    "sim": EVERYTHING - {"sim", "server", "cli", "testing"},
    "observe": frozenset({"config", "core", "errors"}),
    "server": EVERYTHING - {"cli"},
    "cli": EVERYTHING,
    "testing": EVERYTHING,
    "fairlead": LIBRARY,
    "__main__": frozenset({"cli"}),
}

# An allow-list, because the standard library has more clocks and files than anyone remembers.
PURE_STANDARD_LIBRARY = frozenset(
    "__future__ abc array bisect collections contextlib copy dataclasses enum fractions functools "
    "heapq itertools json math numbers operator re statistics string types typing weakref".split()
)
IMPURE_BUILTINS = frozenset({"__import__", "breakpoint", "eval", "exec", "input", "open", "print"})


@dataclass(frozen=True)
class Source:
    """One module: its dotted name, its text, and whether it is a package's __init__."""

    name: str
    text: str
    package: bool = False

    @property
    def unit(self) -> str:
        return unit_of(self.name)


@dataclass(frozen=True)
class Import:
    target: str
    line: int
    typing_only: bool


def unit_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def is_fairlead(target: str) -> bool:
    return target.split(".")[0] == "fairlead"


def read_tree() -> list[Source]:
    found = []
    for path in sorted((TREE / "fairlead").rglob("*.py")):
        package = path.name == "__init__.py"
        parts = path.relative_to(TREE).with_suffix("").parts
        name = ".".join(parts[:-1] if package else parts)
        found.append(Source(name, path.read_text(encoding="utf-8"), package))
    return found


def imports_of(source: Source) -> Iterator[Import]:
    """Yield every import, also those inside functions, with relative ones made absolute."""

    def walk(node: ast.AST, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and names_type_checking(node.test):
            for guarded in node.body:
                yield from walk(guarded, True)
            for other in node.orelse:
                yield from walk(other, typing_only)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, typing_only)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(source, node)
            for alias in node.names:
                # `from fairlead import core` names the unit core, not the root.
                named = f"{module}.{alias.name}"
                is_unit = module == "fairlead" and alias.name in LAYERS
                yield Import(named if is_unit else module, node.lineno, typing_only)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, typing_only)

    yield from dict.fromkeys(walk(ast.parse(source.text), False))


def names_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = source.name.split(".")
    dropped = node.level - 1 if source.package else node.level
    return ".".join(parts[: len(parts) - dropped] + ([node.module] if node.module else []))


def check_layers(source: Source) -> list[str]:
    """Hold core <- policies, capacities <- runtime <- doors <- server, cli."""
    unit = source.unit
    if unit not in LAYERS:
        return [f"{source.name}: fairlead.{unit} has no layer yet; give it one in LAYERS"]
    complaints = []
    for found in imports_of(source):
        target = unit_of(found.target)
        if not is_fairlead(found.target) or target == unit or may_import(source, found):
            continue
        allowed = ", ".join(sorted(LAYERS[unit])) or "nothing of fairlead"
        complaints.append(
            f"{source.name}:{found.line}: {unit} may not import {found.target}; "
            f"besides itself it may import {allowed}"
        )
    return complaints


def may_import(source: Source, found: Import) -> bool:
    target = unit_of(found.target)
    if target == "testing":
        # Test equipment stays out of production code; demos show a checked gate, and a broker in memory, at work.
        return source.name.startswith(("fairlead.cli.demo", "fairlead.server.demo"))
    if source.unit == "errors" and target == "core":
        # A refusal carries its ticket; the annotation may say so.
        return found.typing_only
    if source.unit == "observe" and target in DOORS | {"sim", "fairlead"}:
        # It reads what doors show, so it may name their public types and nothing inside them.
        return found.typing_only and found.target in {"fairlead", f"fairlead.{target}"}
    return target in LAYERS[source.unit]


def check_purity(source: Source) -> list[str]:
    """Keep clocks, chance, threads and I/O out of the decisions, and extras out of the base."""
    unit = source.unit
    complaints = []
    for found in imports_of(source):
        top = found.target.split(".")[0]
        where = f"{source.name}:{found.line}"
        if is_fairlead(found.target):
            continue
        if unit in PURE and top not in PURE_STANDARD_LIBRARY:
            complaints.append(
                f"{where}: {unit} is pure and may not import {found.target}; time, chance and I/O "
                f"belong to runtime and the doors"
            )
        elif unit in LIGHT and top not in sys.stdlib_module_names:
            complaints.append(
                f"{where}: {unit} works without extras and may not import {found.target}"
            )
    if unit in PURE:
        complaints += [
            f"{source.name}:{node.lineno}: {unit} is pure and may not use {node.id}"
            for node in ast.walk(ast.parse(source.text))
            if isinstance(node, ast.Name) and node.id in IMPURE_BUILTINS
        ]
    return complaints


def check_name(source: Source) -> list[str]:
    """Refuse module names that say nothing about what is inside."""
    words = {word for part in source.name.split(".") for word in part.split("_")}
    return [
        f"{source.name}: {word!r} names no idea; call the module after what it decides or does"
        for word in sorted(words & BANNED_WORDS)
    ]


def check_length(source: Source) -> list[str]:
    """Keep one idea to a file."""
    lines = len(source.text.splitlines())
    if lines <= LONGEST:
        return []
    return [f"{source.name}: {lines} lines, over {LONGEST}; look for the second idea and move it"]


def check_public_names(source: Source) -> list[str]:
    """Compare a package's __all__ with the public names its __init__ imports or defines."""
    listed: list[str] | None = None
    offered: set[str] = set()
    nodes = ast.parse(source.text).body
    # A door tries its imports, to name the extra that a failing one belongs to; the root loads its own when used.
    guarded = (
        node.body
        for node in nodes
        if isinstance(node, ast.Try)
        or (isinstance(node, ast.If) and names_type_checking(node.test))
    )
    for node in chain(nodes, *guarded):
        if isinstance(node, ast.ImportFrom) and is_fairlead(absolute(source, node)):
            offered.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            offered.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if "__all__" in names:
                listed = list(ast.literal_eval(node.value)) if node.value else []
            offered |= names - {"TYPE_CHECKING"}
    if listed is None:
        return [f"{source.name}: __init__ has no __all__"]

    public = {name for name in offered if not name.startswith("_")}
    shown = {name for name in listed if not name.startswith("_")}
    complaints = []
    if missing := sorted(public - shown):
        complaints.append(f"{source.name}: missing from __all__: {', '.join(missing)}")
    if unknown := sorted(shown - public) + sorted(set(listed) - shown - offered):
        complaints.append(f"{source.name}: in __all__ but not there: {', '.join(unknown)}")
    if len(set(listed)) < len(listed):
        complaints.append(f"{source.name}: __all__ lists a name twice")
    if listed != sorted(listed):
        complaints.append(f"{source.name}: __all__ should read {sorted(listed)}")
    return complaints


SOURCES = read_tree()
RULES = [check_layers, check_purity, check_name, check_length]
PACKAGES = [source for source in SOURCES if source.name in {f"fairlead{name}" for name in PUBLIC}]


def test_the_tree_was_found():
    assert "fairlead" in {source.name for source in SOURCES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_shape(source: Source, rule: Callable[[Source], list[str]]):
    complaints = rule(source)
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize("source", PACKAGES, ids=lambda source: source.name)
def test_public_names_are_sorted_and_complete(source: Source):
    complaints = check_public_names(source)
    assert not complaints, "\n" + "\n".join(complaints)


def test_every_folder_is_a_package():
    folders = {path.parent for path in (TREE / "fairlead").rglob("*.py")}
    bare = sorted(str(folder) for folder in folders if not (folder / "__init__.py").exists())
    assert not bare, f"no __init__.py in {', '.join(bare)}"


# From here on, the rules themselves: each must be able to fail.

CROSSINGS = [
    ("core.gate", "import fairlead.policies.fifo"),
    ("core.gate", "from fairlead.runtime import Timer"),
    ("core.gate", "from fairlead import Ticket"),
    ("core.gate", "from ..policies import Fifo"),
    ("core.gate", "from .. import runtime"),
    ("core.gate", "def pick():\n    from fairlead.tasks import Scheduler"),
    ("core.gate", "if TYPE_CHECKING:\n    from fairlead.tasks import Scheduler"),
    ("errors", "from fairlead.core.ticket import Ticket"),
    ("errors", "if TYPE_CHECKING:\n    from fairlead.tasks import Scheduler"),
    ("policies.fair", "from fairlead.capacities import Slots"),
    ("capacities.slots", "from fairlead.policies import Fifo"),
    ("capacities.slots", "from fairlead.config import Settings"),
    ("config", "from fairlead.core import Gate"),
    ("runtime.timer", "from fairlead.tasks import Scheduler"),
    ("tasks.scheduler", "from fairlead.gateway import Middleware"),
    ("tasks.scheduler", "from fairlead.observe import app"),
    ("tasks.scheduler", "from fairlead.server import api"),
    ("tasks.scheduler", "from fairlead.testing import CheckedGate"),
    ("jobs.stores.sqlite", "from ...tasks.dag import Dag"),
    ("sim.run", "from fairlead.server import api"),
    ("sim.run", "from fairlead.testing import CheckedGate"),
    ("observe.metrics", "from fairlead.tasks import Scheduler"),
    ("observe.metrics", "if TYPE_CHECKING:\n    from fairlead.tasks.scheduler import Scheduler"),
    ("observe.metrics", "if TYPE_CHECKING: pass\nelse:\n    from fairlead.tasks import Scheduler"),
    ("server.api", "from fairlead.cli import main"),
    ("cli.worker", "from fairlead.testing import ManualClock"),
]
ALLOWED = [
    ("core.gate", "from fairlead.core.ticket import Ticket\nfrom fairlead.errors import Misuse"),
    ("core.gate", "from .ticket import Ticket\nfrom heapq import heappush"),
    ("errors", "if TYPE_CHECKING:\n    from fairlead.core.ticket import Ticket"),
    ("policies.fair", "from ..core import Policy\nfrom fairlead import errors"),
    ("runtime.timer", "import asyncio, threading, time\nfrom fairlead.core import Gate"),
    ("tasks.scheduler", "from fairlead import config\nfrom fairlead.policies import Aging"),
    ("sim.gateway_site", "from fairlead.gateway.pool import Pool"),
    ("observe.metrics", "if TYPE_CHECKING:\n    from fairlead.tasks import Scheduler"),
    ("observe.metrics", "import prometheus_client"),
    ("cli.demo", "import rich\nfrom fairlead.testing import CheckedGate"),
    ("testing.checked", "from fairlead.core import Gate\nfrom fairlead.tasks import Scheduler"),
]
IMPURITIES = [
    *(
        ("core.gate", f"import {name}")
        for name in "asyncio time random threading logging socket os io datetime sys uuid".split()
    ),
    ("policies.fair", "from time import monotonic"),
    ("capacities.slots", "from os.path import exists"),
    ("core.gate", "import sortedcontainers"),
    ("core.gate", "import importlib"),
    ("core.gate", "def pick():\n    import time"),
    ("core.gate", "def pick():\n    print('picked')"),
    ("core.trace", "log = open('trace')"),
    ("tasks.scheduler", "import anyio"),
    ("runtime.loop", "import uvloop"),
    ("config", "from pydantic import BaseModel"),
]


def named(name: str, text: str) -> Source:
    return Source(f"fairlead.{name}", text)


@pytest.mark.parametrize(("name", "text"), CROSSINGS)
def test_a_crossed_layer_is_reported(name: str, text: str):
    (complaint,) = check_layers(named(name, text))
    assert complaint.startswith(f"fairlead.{name}:")
    assert "may not import fairlead" in complaint


@pytest.mark.parametrize(("name", "text"), ALLOWED)
def test_what_the_design_allows_is_not_reported(name: str, text: str):
    assert check_layers(named(name, text)) == check_purity(named(name, text)) == []


@pytest.mark.parametrize(("name", "text"), IMPURITIES)
def test_an_impurity_is_reported(name: str, text: str):
    (complaint,) = check_purity(named(name, text))
    assert "may not" in complaint


def test_relative_imports_count_from_the_package():
    sibling = Source("fairlead.tasks", "from .dag import Dag\nfrom ..gateway import Fleet", True)
    (complaint,) = check_layers(sibling)
    assert "fairlead.tasks:2: tasks may not import fairlead.gateway" in complaint


def test_a_unit_without_a_layer_is_reported():
    (complaint,) = check_layers(named("novelty.thing", ""))
    assert "no layer" in complaint


@pytest.mark.parametrize(
    "name", ["utils", "core.common", "tasks.helpers", "jobs.manager", "jobs.task_manager"]
)
def test_an_empty_name_is_reported(name: str):
    assert len(check_name(named(name, ""))) == 1


def test_a_long_file_is_reported():
    assert check_length(named("core.gate", "pass\n" * LONGEST)) == []
    assert len(check_length(named("core.gate", "pass\n" * (LONGEST + 1)))) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from fairlead.core.gate import Gate", "has no __all__"),
        ("from fairlead.core.gate import Gate\n__all__ = []", "missing from __all__: Gate"),
        ("from .gate import Gate as Door\n__all__ = []", "missing from __all__: Door"),
        ("def replay(): ...\n__all__ = []", "missing from __all__: replay"),
        ("LIMIT: int = 1\n__all__ = []", "missing from __all__: LIMIT"),
        ("__all__ = ['Gate']", "in __all__ but not there: Gate"),
        ("__all__ = ['__version__']", "in __all__ but not there: __version__"),
        ("from .a import A, B\n__all__ = ['B', 'A']", "should read ['A', 'B']"),
        ("from .a import A\n__all__ = ['A', 'A']", "lists a name twice"),
    ],
)
def test_a_wrong_list_of_public_names_is_reported(text: str, expected: str):
    (complaint,) = check_public_names(Source("fairlead.core", text, package=True))
    assert expected in complaint


def test_a_right_list_of_public_names_is_not_reported():
    text = (
        "from typing import TYPE_CHECKING\n"
        "from fairlead.core.gate import Gate, _private\n"
        "try:\n    from .ticket import Ticket\nexcept ImportError:\n    raise\n"
        "__version__ = '0.1.0'\n"
        "__all__ = ['Gate', 'Ticket', '__version__']\n"
    )
    assert check_public_names(Source("fairlead.core", text, package=True)) == []
