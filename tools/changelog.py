"""Gather the fragments of changes/ into CHANGELOG.md.

    python tools/changelog.py            show what a release would say
    python tools/changelog.py 0.2.0      write it under that version, and delete the fragments

Kinds come in a fixed order, fragments in the order of their names, so that the result depends on nothing else.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("added", "changed", "fixed", "removed")
FRAGMENT = re.compile(rf"(?P<name>[\w-]+)\.(?P<kind>{'|'.join(KINDS)})\.md")
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
MARK = "<!-- releases -->\n"


def fragments(folder: Path) -> dict[str, list[Path]]:
    """Find the fragments by kind; complain of what is called otherwise."""
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.glob("*")):
        if path.name == "README.md":
            continue
        match = FRAGMENT.fullmatch(path.name)
        if match is None:
            raise SystemExit(f"{path.name} is no fragment: <name>.<{'|'.join(KINDS)}>.md")
        found[match["kind"]].append(path)
    return found


def section(found: dict[str, list[Path]], title: str) -> str:
    """Write one release."""
    lines = [f"## {title}"]
    for kind, paths in found.items():
        if paths:
            lines += ["", f"### {kind.capitalize()}", ""]
            lines += [f"- {' '.join(path.read_text('utf-8').split())}" for path in paths]
    return "\n".join(lines) + "\n"


def released(changelog: str, text: str) -> str:
    """Put a release at the top of a changelog."""
    if MARK not in changelog:
        raise SystemExit(f"CHANGELOG.md has no line {MARK.strip()}, under which releases go")
    return changelog.replace(MARK, f"{MARK}\n{text}", 1)


def main(words: list[str], root: Path = ROOT) -> None:
    found = fragments(root / "changes")
    if not words:
        print(section(found, "Unreleased"), end="")
        return
    (version,) = words
    if not VERSION.fullmatch(version):
        raise SystemExit(f"{version!r} is no version such as 0.2.0")
    if not any(found.values()):
        raise SystemExit("there is nothing to release: changes/ has no fragments")
    changelog = root / "CHANGELOG.md"
    if f"## {version} " in changelog.read_text("utf-8"):
        raise SystemExit(f"{version} is in CHANGELOG.md already")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    changelog.write_text(
        released(changelog.read_text("utf-8"), section(found, f"{version} – {today}"))
    )
    for paths in found.values():
        for path in paths:
            path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
