"""Consumers that keep a core busy, in processes of their own: one call at a time in each, JSON between, no pickle.

A process is started when it is first needed, by executing Python anew, and used again as long as it lives.  It imports
the consumer's module and makes one instance per partition and assignment.  If it dies, the call it ran has failed, and
the next one gets a new process.  It ends when its parent closes the line.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Any, cast

from fairlead.config import error_text
from fairlead.errors import FairleadError
from fairlead.runtime.finding import load, place_of
from fairlead.streams.broker import Batch, Message, Tp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.streams.consumer import Consumer
    from fairlead.streams.jobs import Job

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fairlead.streams.processes import serve; serve()"
)


class ProcessFailed(FairleadError):
    """A consumer raised in its process, or its process ended."""


class Children:
    """The processes; `consume` is called by worker threads, each waits for its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def consume(self, job: Job) -> None:
        """Run a job in a process; raise `ProcessFailed` with what went wrong there."""
        message = describe(job)
        with self._lock:
            child = self._idle.pop() if self._idle else None
        if child is None:
            child = self._spawn()
        try:
            write(child.stdin, message)
            answer = read(child.stdout)
        except OSError:
            answer = None
        if answer is None:
            self._bury(child)
            name = job.holding.topic.shape.consumer.__name__
            raise ProcessFailed(f"the process of {name} ended with exit code {child.returncode}")
        with self._lock:
            self._idle.append(child)
        if answer:
            raise ProcessFailed(answer.decode(errors="replace"))

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise ProcessFailed("the app has stopped")
            child = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", BOOT, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            self._all.add(child)
        return child

    def _bury(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        _close(child)
        with self._lock:
            self._all.discard(child)

    def close(self) -> None:
        """End every process; one that is busy is killed."""
        with self._lock:
            self._closed = True
            children, idle = list(self._all), set(self._idle)
            self._idle.clear()
        for child in children:
            if child not in idle:
                child.kill()
        for child in idle:
            _close(child)
        for child in idle:
            child.wait()


def _close(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass


def write(pipe: IO[bytes] | None, data: bytes) -> None:
    """Write a frame: four bytes of length, and so many bytes."""
    if pipe is not None:
        pipe.write(len(data).to_bytes(4, "big") + data)
        pipe.flush()


def read(pipe: IO[bytes] | None) -> bytes | None:
    """Read a frame; None if the other end is closed."""
    head = pipe.read(4) if pipe is not None else b""
    if pipe is None or len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    data = pipe.read(size)
    return data if len(data) == size else None


def describe(job: Job) -> bytes:
    """Write everything that another process needs to know to run a job."""
    consumer = job.holding.topic.shape.consumer
    module, script = place_of(consumer)
    return json.dumps(
        {
            "module": module,
            "script": script,
            "consumer": consumer.__qualname__,
            "topic": job.topic,
            "partition": job.partition,
            "generation": job.holding.partition.generation,
            "messages": [
                [
                    message.offset,
                    _text(message.key),
                    _text(message.value),
                    [[name, _text(value)] for name, value in message.headers],
                    message.timestamp,
                ]
                for message in job.messages
            ],
        }
    ).encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


# The other end


def serve() -> None:
    """Run calls that come through standard input until it is closed."""
    with os.fdopen(os.dup(0), "rb") as calls, os.fdopen(os.dup(1), "wb") as answers:
        # What a consumer, or a tool that it runs, reads is not a call, and what it writes is not an answer.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdout = sys.stderr  # at once, line by line
        consumers: dict[tuple[str, int, int], Consumer] = {}
        while (data := read(calls)) is not None:
            write(answers, perform(json.loads(data), consumers).encode(errors="replace"))


def perform(sent: dict[str, Any], consumers: dict[tuple[str, int, int], Consumer]) -> str:
    """Run one call; return what went wrong, or nothing."""
    topic, partition = sent["topic"], sent["partition"]
    try:
        place = (topic, partition, sent["generation"])
        consumer = consumers.get(place)
        if consumer is None:
            for old in [old for old in consumers if old[:2] == place[:2]]:
                del consumers[old]
            consumer = consumers[place] = find(sent)()
            object.__setattr__(consumer, "_tp", Tp(topic, partition))
        messages = [
            Message(topic, partition, offset, _data(key), _data(value), _headers(headers), at)
            for offset, key, value, headers, at in sent["messages"]
        ]
        answer = consumer.consume(Batch(Tp(topic, partition), messages))
        if inspect.iscoroutine(answer):
            with asyncio.Runner() as runner:
                runner.run(answer)
    except BaseException as error:
        return error_text(error)
    return ""


def _headers(given: Sequence[tuple[str, str | None]]) -> list[tuple[str, bytes]]:
    # A header without a value has None, on this side as on the other.
    return [(name, cast("bytes", _data(value))) for name, value in given]


def find(sent: dict[str, Any]) -> type[Consumer]:
    """Find the consumer class that a message names."""
    value: Any = load(sent["module"], sent["script"])
    for part in sent["consumer"].split("."):
        value = getattr(value, part, None)
    if not inspect.isclass(value):
        raise ProcessFailed(
            f"{sent['consumer']} cannot be found in {sent['module']} by another process; "
            "define the consumer at the top of a module"
        )
    return cast("type[Consumer]", value)
