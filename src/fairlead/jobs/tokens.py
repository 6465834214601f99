"""The tokens of `fairlead jobs serve`: a file like `server.tokens`, with the roles that jobs know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError, field_validator

from fairlead.documents import loading
from fairlead.documents.advice import Adviser
from fairlead.documents.reading import Node, Problem, content_of, digest_of
from fairlead.documents.repeats import refuse_repeats
from fairlead.documents.values import Digest, Model
from fairlead.serving.access import Role, Token

if TYPE_CHECKING:
    from collections.abc import Sequence


class JobsToken(Model):
    """A caller, by the hash of a secret."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
    role: Literal["viewer", "submitter", "operator"] = "viewer"
    sha256: Digest


class TokensFile(Model):
    """What the file holds: at least one token, for without any the port would be open."""

    tokens: Annotated[list[JobsToken], Field(min_length=1)]

    @field_validator("tokens")
    @classmethod
    def _each_once(cls, given: list[JobsToken]) -> list[JobsToken]:
        refuse_repeats(given, "name", "sha256")
        return given

    @property
    def given(self) -> Sequence[Token]:
        """The tokens, as the port asks for them."""
        return [Token(one.name, Role[one.role.upper()], one.sha256) for one in self.tokens]


ADVISER = Adviser(TokensFile, secret={"sha256"})
NOBODY = TokensFile.model_construct(tokens=[])


class Loaded(loading.Loaded[TokensFile]):
    """Tokens, where they came from, and what was wrong."""

    __slots__ = ()


def load(path: str) -> Loaded:
    """Read a file of tokens."""
    return load_content(content_of(path), path)


def load_content(content: bytes | Problem, source: str) -> Loaded:
    """Read what a file held: a list of tokens, or a mapping with `tokens`."""
    tree, problems, _ = loading.tree_of(content, source)
    settings = NOBODY
    if tree is not None and isinstance(tree.value, list):
        tree = Node({"tokens": tree}, tree.at)
        tree.keys = {"tokens": tree.value["tokens"].at}
    if tree is None or not isinstance(tree.value, dict):
        at = (0, 0) if tree is None else tree.at
        problems = problems or [Problem(*at, "", "must be a list of tokens, with one at least")]
    else:
        try:
            settings = TokensFile.model_validate(tree.plain())
        except ValidationError as error:
            problems += ADVISER.problems(error, tree)
    found = tuple(sorted(problems))
    return Loaded(NOBODY if found else settings, found, source, (), digest_of(content))
