import pytest

from fairlead.gateway.client import pool as pools


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Use connections again at once; tests of greetings set these times themselves."""
    monkeypatch.setattr(pools, "LISTEN", 0.0)
    monkeypatch.setattr(pools, "REST", 0.0)
