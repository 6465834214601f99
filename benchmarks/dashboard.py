"""How long a view of the dashboard takes in a real browser, with a million jobs in the database.

Measured is the time from going to a view until all of it is drawn, by the browser's own clock: the questions to the
control API, the database behind them, and the drawing.  Each figure is the p95 of many visits.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Table, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.sizes import Sizes

LIMIT = 300.0  # ms
VISITS = 40
# Goes to a view from another one and waits until it is there: its heading, no loading, and what is asked for.
VISIT = """async ([view, wanted]) => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const until = async (ready) => {
    for (const begun = performance.now(); !ready(); await frame()) {
      if (performance.now() - begun > 20000) {
        throw new Error(`${view} does not come: ${document.querySelector("#main").innerText.slice(0, 500)}`);
      }
    }
  };
  location.hash = view === "#/config" ? "#/decisions" : "#/config";
  await until(() => document.querySelector(view === "#/config" ? ".feed, .empty" : ".editor"));
  await frame();
  const begun = performance.now();
  location.hash = view;
  await until(() => document.querySelector(wanted) && !document.querySelector("#main .skeleton"));
  await frame();
  return performance.now() - begun;
}"""
# What is there when a view is complete.
VIEWS = {
    "now": ("#/now", ".gates + .two"),
    "classes and tenants": ("#/classes", ".filters + .card canvas"),
    "jobs, the newest": ("#/jobs", "tbody .progress"),
    "jobs, active ones (the oldest)": ("#/jobs?state=active", "tbody .progress"),
    "jobs of a rare tenant": ("#/jobs?tenant=rare", "tbody .progress"),
    "a run": ("#/jobs/{run}", ".node"),
    "streams": ("#/streams", ".empty"),
    "decisions": ("#/decisions", ".feed, .empty"),
    "what-if": ("#/what-if", ".changes"),
    "config": ("#/config", ".editor"),
}


class Visitor:
    """A server with a full database and a browser that looks at it, begun when first needed."""

    def __init__(self, runs: int, visits: int = VISITS) -> None:
        self.runs, self.visits = runs, visits
        self._held: ExitStack | None = None
        self._page: Any = None

    def page(self) -> Any:
        """Begin, or go on."""
        if self._held is not None:
            return self._page
        held = self._held = ExitStack()
        from playwright.sync_api import sync_playwright

        url = held.enter_context(serving(self.runs))
        playwright = held.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        held.callback(browser.close)
        page = self._page = browser.new_page(viewport={"width": 1360, "height": 900})
        page.goto(url)
        page.wait_for_selector("[data-connection=live]")
        return page

    def visit(self, view: str, wanted: str) -> float:
        """Go to a view many times; the p95 in milliseconds."""
        page = self.page()
        arguments = [view.format(run=self.runs // 2), wanted]
        taken = sorted(page.evaluate(VISIT, arguments) for _ in range(self.visits))
        return float(taken[min(len(taken) - 1, int(len(taken) * 0.95))])

    def close(self) -> None:
        """End the browser and the server."""
        if self._held is not None:
            self._held.close()
            self._held = None


class serving:  # noqa: N801
    """A server over a database of so many runs, as a process of its own."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self._read: Thread | None = None

    def __enter__(self) -> str:
        from tests.server.million import fill_sqlite

        self._place = tempfile.TemporaryDirectory()
        place = Path(self._place.name)
        fill_sqlite(str(place / "jobs.db"), self.runs)
        config = place / "fairlead.yaml"
        config.write_text(
            f"server: {{listen: '127.0.0.1:0'}}\njobs: {{database: 'sqlite:///{place}/jobs.db'}}\n"
        )
        self._log = (place / "log").open("w+")
        command = [
            str(Path(sys.executable).with_name("fairlead")),
            "serve",
            "--config",
            str(config),
        ]
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=self._log, text=True
        )
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if found := re.search(r"dashboard (http://\S+)", line):
                # A pipe that nobody reads would one day stop the server.
                self._read = Thread(target=self._process.stderr.read)
                self._read.start()
                return found[1]
        self.__exit__()
        raise RuntimeError("".join(said))

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        if self._read is not None:
            self._read.join()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._log.close()
        self._place.cleanup()


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def cases(visitor: Visitor) -> dict[str, Callable[[], float]]:
    return {name: partial(visitor.visit, *place) for name, place in VIEWS.items()}


def tables(sizes: Sizes) -> Iterator[Table]:
    if chromium() is None or find_spec("playwright") is None:
        return
    visitor = Visitor(sizes.stored)
    yield Table(
        f"Dashboard: a view in chromium, {sizes.stored:,} jobs in SQLite, p95 of {VISITS} visits",
        "ms",
        cases(visitor),
        targets=[Target(name, LIMIT) for name in VIEWS],
        notes=["From going to the view until everything is drawn, by the browser's clock."],
        at_most=3,
        done=visitor.close,
    )
