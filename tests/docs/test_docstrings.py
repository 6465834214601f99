"""Every example in a docstring runs."""

import doctest
import importlib
import pkgutil

import pytest

import fairlead

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(fairlead.__path__, "fairlead.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", ["fairlead", *MODULES])
def test_examples_in(name: str):
    failed, _ = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS, raise_on_error=False
    )
    assert failed == 0


def test_the_core_shows_examples():
    """Guards the walk itself: it finds the modules and what they show."""
    shown = sum(len(test.examples) for test in doctest.DocTestFinder().find(fairlead.core.gate))
    assert shown >= 4
