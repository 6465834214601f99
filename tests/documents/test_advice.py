"""What is said of a configuration that is wrong, in English."""

from typing import Literal

import pytest
from pydantic import ValidationError

from fairlead.documents.advice import Adviser
from fairlead.documents.loading import tree_and_digest_of
from fairlead.documents.values import Model


class Weights(Model):
    weights: dict[Literal["gold", "free"], int]


@pytest.mark.parametrize(
    ("called", "plural"), [("class", "classes"), ("key", "keys"), ("tenant", "tenants")]
)
def test_literal_keys_are_named_in_the_plural(called: str, plural: str):
    given = {"weights": {"nobody": 1}}
    (tree, _, _), _ = tree_and_digest_of(given)
    assert tree is not None
    adviser = Adviser(Weights, keys=("gold", "free"), called=called)
    with pytest.raises(ValidationError) as caught:
        Weights.model_validate(given)
    (problem,) = adviser.problems(caught.value, tree)
    assert problem.message == f"unknown {called} 'nobody'; the {plural} are gold, free"
