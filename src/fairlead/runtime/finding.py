"""How another process finds a function or class of ours: by its module, or by the file of the script that was run.

A script is `__main__` only here.  There it is loaded from its file under another name, so that what it guards with
`if __name__ == "__main__":` does not run again.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = "__fairlead_main__"  # what a script is called where it is not the main module


def place_of(obj: Any) -> tuple[str | None, str | None]:
    """Tell the module of a function or class, if it has one, and the path of its script, if it is one that was run."""
    module = getattr(obj, "__module__", None)
    if module != "__main__":
        return module, None
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return spec.name, None
    path = getattr(main, "__file__", None)
    return module, None if path is None else str(Path(path).resolve())


def load(module: str, script: str | None) -> ModuleType:
    """Import what `place_of` told; a script once, or anew if that failed: each call sees what is wrong."""
    if not script:
        return importlib.import_module(module)
    if SCRIPT in sys.modules:
        return sys.modules[SCRIPT]
    loader = SourceFileLoader(SCRIPT, script)
    spec = spec_from_loader(SCRIPT, loader)
    loaded = sys.modules[SCRIPT] = module_from_spec(spec)  # type: ignore[arg-type]
    try:
        loader.exec_module(loaded)
    except BaseException:
        del sys.modules[SCRIPT]
        raise
    return loaded
