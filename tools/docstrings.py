"""Make the examples of docstrings show as code on the site.

In a docstring an example stands by itself, as doctest wants it; in Markdown it has to be fenced, or `[1]` in what it
prints is taken for a link.
"""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Fence the doctests of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change a docstring before it is read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""Put each run of lines that begins with a prompt, up to an empty line, into a fence.

    >>> print(fenced("Say it.\n\n>>> 1 + 1\n2\n\nDone."))
    Say it.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    Done.
    """
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if not inside and line.startswith(">>> "):
            if lines and lines[-1]:
                lines.append("")
            lines.append("```pycon")
            inside = True
        elif inside and not line:
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join(lines).rstrip("\n")
