"""Jobs as a process: the scheduler, the local executors and the HTTP API on one event loop, to a graceful end.

On the first SIGTERM or SIGINT nothing more is claimed, `/readyz` says so, and what runs may finish for as long as
`grace` allows; what has not by then, or by the second signal, is stopped and handed back: another process runs it.
The HTTP API answers until all of that is done.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Self

from fairlead.config import secret
from fairlead.documents.addresses import is_loopback
from fairlead.documents.watching import Watch
from fairlead.errors import BadFile, ConfigError
from fairlead.jobs.api import JobsApi
from fairlead.jobs.tokens import load, load_content
from fairlead.jobs.worker import NOTHING_LEFT
from fairlead.serving import process
from fairlead.serving.access import Access
from fairlead.serving.limits import USUAL
from fairlead.serving.listener import LAST_MOMENT, Listener
from fairlead.serving.locality import notice
from fairlead.serving.logs import set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlead.jobs.service import Jobs
    from fairlead.jobs.tokens import Loaded
    from fairlead.serving.access import Token
    from fairlead.serving.limits import Limits

HTTP = "127.0.0.1:8089"  # if nothing else is asked for
GRACE = 30.0  # seconds for what runs when the end is near


class JobServer:
    """The whole service: `async with JobServer(jobs) as server: ...` serves while inside."""

    def __init__(
        self,
        jobs: Jobs,
        *,
        http: str | None = HTTP,
        token: str | None = None,
        tokens: Iterable[Token] = (),
        limits: Limits = USUAL,
        grace: float = GRACE,
        app: str | None = None,
        view: bool = False,
        on_stuck: Callable[[str], None] | None = None,
    ) -> None:
        token, tokens = secret(token, "token"), tuple(tokens)
        if http is not None:
            try:
                alone = is_loopback(http)
            except ValueError as error:
                raise ConfigError(f"--http {error}") from None
            if token is None and not tokens and not alone:
                raise ConfigError(
                    f"{http} can be reached from other machines: set a token that clients must show (--token, "
                    "--tokens or FAIRLEAD_JOBS_TOKEN), or listen on 127.0.0.1"
                )
        self.jobs = jobs
        self.api = JobsApi(jobs, token=token, tokens=tokens)
        self.grace = grace
        self.http: Listener | None = None
        self._address, self._limits = http, limits
        self._app = app
        self._view = view
        self._on_stuck = on_stuck

    async def __aenter__(self) -> Self:
        if self._address is not None:
            self.http = Listener(self.api, self._address, limits=lambda: self._limits)
            self.http.bind()
        try:
            await self.jobs.start(app=self._app, view=self._view, on_stuck=self._on_stuck)
        except BaseException:
            if self.http is not None:
                self.http.close()
            await self.jobs.close()
            raise
        if self.http is not None:
            await self.http.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.api.draining = True
        try:
            await self.jobs.stop(self.grace)
        finally:
            if self.http is not None:
                await self.http.end(LAST_MOMENT)
            await self.api.aside.close()
            await self.api.metrics.close()
            await self.jobs.close()

    def follow(self, loaded: Loaded) -> None:
        """Ask for the tokens that stand in the file now."""
        self.api.access = Access(loaded.settings.given, realm="fairlead jobs")

    def hurry(self) -> None:
        """Wait for nothing that runs: hand it back."""
        self.grace = 0.0
        if self.jobs.crew is not None:
            self.jobs.crew.hurry()

    def left(self) -> str:
        """Say which jobs nobody was told of."""
        return NOTHING_LEFT if self.jobs.crew is None else self.jobs.crew.left()

    def describe(self) -> str:
        """Say what is served where, and whom it answers."""
        where = "no HTTP" if self.http is None else self.http.url
        count = len(self.jobs.tasks)
        if not count:
            does = "only shows what its database holds" if self._view else "plans, and runs nothing"
            return f"fairlead jobs: {where}; no tasks: this process {does}"
        slots = [
            f"{one.name} {one.slots or ''}{' by ' + one.kind if one.kind != 'local' else ''}"
            for one in self.jobs.executors.values()
        ]
        return (
            f"fairlead jobs: {where}; {count} task{'s' * (count != 1)}; "
            f"slots {', '.join(' '.join(one.split()) for one in slots)}"
            f"{self._notice()}"
        )

    def _notice(self) -> str:
        open_here = self.http is not None and self.api.access.open
        return "\n" + notice("it", setting="--token") if open_here else ""


def run(
    jobs: Jobs,
    *,
    http: str | None = HTTP,
    token: str | None = None,
    tokens: str | None = None,
    grace: float = GRACE,
    app: str | None = None,
) -> int:
    """Serve until a signal ends it; return the exit code.

    `app` is "module:jobs", by which processes find tasks; `tokens` the path of a file, which is followed.
    """
    loaded = None if tokens is None else load(tokens)
    if loaded is not None and loaded.problems:
        raise BadFile(loaded.lines)
    given = () if loaded is None else loaded.settings.given
    stuck: list[str] = []

    def on_stuck(sentence: str) -> None:
        """End as on SIGTERM, but with a code that has this process restarted."""
        stuck.append(sentence)
        if len(stuck) > 1:
            return  # it ends already
        process.say(f"fairlead jobs: this process ends, to be restarted: {sentence}")
        os.kill(os.getpid(), signal.SIGTERM)

    server = JobServer(
        jobs, http=http, token=token, tokens=given, grace=grace, app=app, on_stuck=on_stuck
    )

    def follow(server: JobServer) -> Watch[Loaded] | None:
        if tokens is None:
            return None
        return Watch(tokens, load_content, server.follow, losses=lambda loaded: (), since=loaded)

    with set_up_logging():
        code = process.run(lambda: server, name="fairlead jobs", following=follow, hurried=0)
    return code or int(bool(stuck))
