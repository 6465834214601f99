"""Judging a configuration for people: first with stand-ins for its secrets, then as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import StringConstraints

from fairlead.documents.loading import tree_of
from fairlead.documents.reading import MOST_BYTES, digest_of
from fairlead.documents.reading import Problem as Fault
from fairlead.server.loading import load_tree
from fairlead.serving.http import Body, strictly

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fairlead.documents.reading import Node
    from fairlead.server.loading import Loaded
    from fairlead.server.masking import Masks

NOT_VALID = "a secret in here is not valid; write it anew (a number needs quotes)"
LossPath = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class NewText(Body):
    """A whole configuration, as YAML; secrets that were shown as marks may stay marks."""

    text: Annotated[str, StringConstraints(max_length=MOST_BYTES)]


class ChangedText(NewText):
    """A whole configuration to follow; `allow_loss` are the paths of what it may lose."""

    allow_loss: tuple[LossPath, ...] = ()


class Judged(NamedTuple):
    """What is wrong with a text; and if nothing is, the text with its secrets, and what it says."""

    problems: Sequence[Fault]
    text: str = ""
    loaded: Loaded | None = None


class Judge(NamedTuple):
    """What judging needs: the marks that were shown, the name of the text, the files and apps that it may name.

    It can be sent to another process, where a large text is judged.
    """

    masks: Masks
    source: str
    named: Collection[str]

    def sent(self, text: str) -> Judged:
        """Judge a text that a caller sent: it may name no files and apps but those that the server has already."""
        text = text.removeprefix("\ufeff")  # a mark of the encoding, as a file has it
        restored, problems = self.masks.restore(text)
        if problems:
            return Judged(problems)
        return self.judgment(text, restored, self.named)

    def judgment(self, shown: str, text: str, named: Collection[str] | None = None) -> Judged:
        """Judge a text as it is shown, then as it is; what is wrong only then is with a secret, and not quoted."""
        covered: list[tuple[Node, Any]] = []

        def cover(tree: Node) -> None:
            covered.extend(self.masks.cover(tree))

        tree = tree_of(shown.encode(), self.source)
        digest = digest_of(text.encode())
        loaded = load_tree(tree, digest, named=named, cover=cover)
        if (covered or shown != text) and not loaded.problems:
            for node, value in covered:
                node.value = value
            real = tree if shown == text else tree_of(text.encode(), self.source)
            loaded = load_tree(real, digest, named=named)
            told = (one._replace(path=one.section, message=NOT_VALID) for one in loaded.problems)
            return Judged(tuple(dict.fromkeys(told)), text, loaded)
        return Judged(loaded.problems, text, loaded)


async def problems_of(judge: Judge, body: bytes) -> Sequence[Fault]:
    """Judge the large body of a caller who only asks."""
    return judge.sent(strictly(NewText, body).text).problems


async def judged_body(judge: Judge, body: bytes) -> tuple[Judged, tuple[str, ...]]:
    """Judge the large body of a caller who changes the configuration; return what may be lost too."""
    asked = strictly(ChangedText, body)
    return judge.sent(asked.text), asked.allow_loss
