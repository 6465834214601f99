"""A gateway in the server: each of its gates has a policy to replay, whatever its models are called."""

from typing import Any

import pytest

from fairlead.gateway.loading import load
from fairlead.observe.watched import Feed
from fairlead.server.hosted_gateway import HostedGateway
from tests.server.rig import GATEWAY


@pytest.mark.parametrize("model", ["gpt-default-7b", "default", "defaults/default", None])
def test_a_gate_is_found_by_the_name_it_is_shown_with(model: str | None):
    upstream: dict[str, Any] = {"url": "http://127.0.0.1:1", "capacity": 3}
    if model is not None:
        upstream["models"] = [model]
    said = GATEWAY | {"upstreams": [upstream], "pool_by": "model" if model else None}
    door = HostedGateway(load(said), Feed())
    door.gateway.admission.set_capacities({model or "": 3})
    (view,) = door.views()
    policy = door.policy(view.id)
    assert view.id == f"gateway/{model or 'default'}"
    assert policy is not None
    assert policy["capacity"] == 3
    assert door.policy("gateway/another") is None
