"""Traces of other people as arrivals: CSV files of Azure and of Alibaba, read where they lie.

What cannot be read is said with its line, all of it at once.  Times count from the first arrival.
"""

from __future__ import annotations

import csv
import stat
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

from fairlead.config import shown
from fairlead.documents.values import LONGEST, DurationOrZero, Model
from fairlead.errors import BadFile, ConfigError
from fairlead.sim.records import jsonl, recorder, see_size
from fairlead.sim.result import Arrival

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairlead.sim.sources import Trace

MOST_PROBLEMS = 20


class Costs(Model):
    """How long a request to a language model takes, by its tokens."""

    base: DurationOrZero = 0.0
    prompt_token: DurationOrZero = 0.00025
    generated_token: DurationOrZero = 0.02


class Lines:
    """The problems of one file, by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def wrong(self, line: int, message: str) -> None:
        """Note a problem; when there are very many, it is the wrong file."""
        self.problems.append(f"{self.path}:{line}: {message}")
        if len(self.problems) >= MOST_PROBLEMS:
            self.stop()

    def stop(self) -> None:
        """Raise if anything was wrong."""
        if self.problems:
            raise BadFile(self.problems)


def read_trace(source: Trace, folder: Path) -> list[Arrival]:
    """Read the file a source names, in order of time, its times divided by its speed."""
    path = folder / source.file
    lines = Lines(path)
    try:
        see_file(path)
        kind = source.format or _guessed(path)
        if kind == "recorder":
            found = recorder(source, folder, path, lines)
        elif kind == "jsonl":
            found = jsonl(path, lines, source.classes)
        else:
            found = list(READERS[kind](path, lines, source.costs))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; is it a trace?") from None
    except csv.Error as error:
        raise ConfigError(f"{path} cannot be read as CSV: {error}") from None
    lines.stop()
    if not found:
        raise ConfigError(f"{path} holds no arrivals")
    longest = max(one.service for one in found)
    if longest > LONGEST:
        raise ConfigError(
            f"{path} holds work of {longest:g} s; {LONGEST:,.0f} s are the most, or set costs"
        )
    return window(found, source.skip, source.limit, source.speed)


def see_file(path: Path) -> None:
    """See that a path is one of a file: to open anything else might wait for ever."""
    if "\0" in str(path):
        raise ConfigError(f"{shown(str(path))} is no name of a file")
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"{path} is no file")


def _guessed(path: Path) -> str:
    if path.suffix.lower() in {".jsonl", ".ndjson"}:
        return "jsonl"
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline(1000)
        for name, columns in COLUMNS.items():
            if all(column in head for column in columns):
                return name
    raise ConfigError(f"{path}: say which format it has: {', '.join(FORMATS)}")


def window(
    arrivals: list[Arrival], skip: float = 0.0, limit: int | None = None, speed: float = 1.0
) -> list[Arrival]:
    """Cut a part out of arrivals and let it pass at another speed; on what was cut off nothing depends any more."""
    order = sorted(range(len(arrivals)), key=lambda index: (arrivals[index].at, index))
    first = arrivals[order[0]].at + skip
    kept = [index for index in order if arrivals[index].at >= first]
    kept = kept if limit is None else kept[:limit]
    places = {index: place for place, index in enumerate(kept)}
    moved = []
    for index in kept:
        one = arrivals[index]
        at = (one.at - first) / speed
        left = None if one.deadline is None else at + (one.deadline - one.at)
        deps = tuple(places[dep] for dep in one.deps if dep in places) if one.deps else ()
        moved.append(one._replace(at=at, deadline=left, deps=deps))
    return moved


def _rows(
    path: Path, lines: Lines, columns: tuple[str, ...]
) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            lines.wrong(1, f"has no column {', '.join(missing)}; is it this kind of trace?")
            return
        for count, row in enumerate(reader):
            see_size(path, count)
            yield reader.line_num, row


def _moment(text: Any) -> float:
    """Read a date and time, with as many digits as it has, as seconds."""
    whole, _, part = str(text).strip().partition(".")
    at = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    return at.timestamp() + (float(f"0.{part}") if part else 0.0)


def _number(text: Any) -> float:
    value = float(text)
    if not (isfinite(value) and value >= 0):
        raise ValueError
    return value


def azure(path: Path, lines: Lines, costs: Costs) -> Iterator[Arrival]:
    """Read requests to a language model: when, and how many tokens went in and came out."""
    for line, row in _rows(path, lines, COLUMNS["azure-llm"]):
        try:
            at = _moment(row["TIMESTAMP"])
            prompt, made = _number(row["ContextTokens"]), _number(row["GeneratedTokens"])
        except (TypeError, ValueError):
            lines.wrong(line, f"needs a time and two numbers of tokens; got {shown(row)}")
            continue
        service = costs.base + prompt * costs.prompt_token + made * costs.generated_token
        yield Arrival(at, service, workload="llm", cost=max(1.0, prompt + made))


def alibaba(path: Path, lines: Lines, costs: Costs) -> Iterator[Arrival]:
    """Read requests for images: when, how long they took, and whose they are."""
    for line, row in _rows(path, lines, COLUMNS["alibaba"]):
        try:
            at, service = _moment(row["gmt_create"]), _number(row["exec_time_seconds"])
        except (TypeError, ValueError):
            lines.wrong(line, f"needs a time and the seconds it took; got {shown(row)}")
            continue
        workload = (row["predict_type"] or "").lower()
        yield Arrival(at, service, tenant=row["groupId"] or "", workload=workload)


COLUMNS: dict[str, tuple[str, ...]] = {
    "azure-llm": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "alibaba": ("gmt_create", "exec_time_seconds", "groupId", "predict_type"),
}
READERS: dict[str, Callable[[Path, Lines, Costs], Iterator[Arrival]]] = {
    "azure-llm": azure,
    "alibaba": alibaba,
}
FORMATS = (*READERS, "jsonl", "recorder")
