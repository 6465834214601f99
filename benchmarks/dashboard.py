"""How long a view of the dashboard takes in a real browser, with a million jobs in the database.

Measured is the time from going to a view until all of it is drawn, by the browser's own clock: the questions to the
control API, the database behind them, and the drawing.  Each figure is the p95 of many visits.  Beside the stored jobs
the server runs its demonstration, every door with its traffic, so that each view has something to show.
"""

from __future__ import annotations

import asyncio
import json
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
from benchmarks.jobs_engine import Engine, installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.sizes import Sizes

LIMIT = 300.0  # ms
VISITS = 40
ANSWERS = 5  # simulations that are asked for
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
  await until(() => document.querySelector(view === "#/config" ? ".feed tbody tr" : ".editor"));
  await frame();
  const begun = performance.now();
  location.hash = view;
  await until(() => document.querySelector(wanted) && !document.querySelector("#main .skeleton"));
  await frame();
  return performance.now() - begun;
}"""
# Asks for the simulation that was filled in, and waits for its figures: the answer before stays until they come.
ANSWER = """async (change) => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const there = () => document.querySelector("#main .content-like b")?.textContent === change;
  if (there()) throw new Error("an answer is there before it was asked for");
  const begun = performance.now();
  [...document.querySelectorAll("button")].find((one) => one.textContent === "Run the simulation").click();
  while (!there() || !document.querySelector("#main tbody tr")) {
    if (performance.now() - begun > 60000) throw new Error(document.querySelector("#main").innerText.slice(0, 500));
    await frame();
  }
  await frame();
  return performance.now() - begun;
}"""
# What is there when a view is complete: never only that there is nothing to show.
VIEWS = {
    "now": ("#/now", ".gates + .two"),
    "classes and tenants": ("#/classes", ".filters + .card canvas"),
    "jobs, the newest": ("#/jobs", "tbody .progress"),
    "jobs, active ones (the oldest)": ("#/jobs?state=active", "tbody .progress"),
    "jobs of a rare tenant": ("#/jobs?tenant=rare", "tbody .progress"),
    "a run": ("#/jobs/{run}", ".node"),
    "streams": ("#/streams", "#main:has(canvas) tbody tr"),
    "decisions": ("#/decisions", ".feed tbody tr"),
    "what-if, the form": ("#/what-if", ".changes"),
    "config": ("#/config", ".editor"),
}


REPLY = "what-if, the answer"


class Visitor:
    """A server with a full database and a browser that looks at it, begun when first needed."""

    def __init__(self, runs: int, visits: int = VISITS, *, postgresql: bool = False) -> None:
        self.runs, self.visits, self.postgresql = runs, visits, postgresql
        self._held: ExitStack | None = None
        self._page: Any = None
        self._slots = 16  # that were asked about last

    def page(self) -> Any:
        """Begin, or go on."""
        if self._held is not None:
            return self._page
        held = self._held = ExitStack()
        from playwright.sync_api import sync_playwright

        place = Path(held.enter_context(tempfile.TemporaryDirectory()))
        url = held.enter_context(serving(place, self._filled(place, held)))
        playwright = held.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        held.callback(browser.close)
        page = self._page = browser.new_page(viewport={"width": 1360, "height": 900})
        page.goto(url)
        page.wait_for_selector("[data-connection=live]")
        for view in ("streams", "decisions"):  # until the demonstration has begun everywhere
            page.goto(f"{url}#{VIEWS[view][0].removeprefix('#')}")
            page.wait_for_selector(VIEWS[view][1])
        return page

    def _filled(self, place: Path, held: ExitStack) -> str:
        """Make the database; tell its address."""
        from fairlead.jobs.stores.opening import open_store
        from tests.server.million import fill_postgres, fill_sqlite

        if not self.postgresql:
            fill_sqlite(str(place / "jobs.db"), self.runs)
            return f"sqlite:///{place}/jobs.db"
        engine = Engine()
        held.callback(engine.close)
        url = engine.url()
        asyncio.run(open_store(url).migrate())
        asyncio.run(fill_postgres(url, self.runs))
        return url

    def visit(self, view: str, wanted: str) -> float:
        """Go to a view many times; the p95 in milliseconds."""
        page = self.page()
        arguments = [view.format(run=self.runs // 2), wanted]
        return p95([page.evaluate(VISIT, arguments) for _ in range(self.visits)])

    def answer(self) -> float:
        """Ask what would have been with other slots, each time others; the p95 in milliseconds."""
        page = self.page()
        taken = []
        for _ in range(min(ANSWERS, self.visits)):
            self._slots = 16 if self._slots == 6 else self._slots - 1
            page.evaluate(VISIT, [*VIEWS["what-if, the form"]])
            page.get_by_label("Setting", exact=True).fill("capacity")
            page.get_by_label("New value").fill(str(self._slots))
            taken.append(page.evaluate(ANSWER, f"capacity = {self._slots}"))
        return p95(taken)

    def close(self) -> None:
        """End the browser and the server."""
        if self._held is not None:
            self._held.close()
            self._held = None


def p95(taken: list[float]) -> float:
    taken.sort()
    return float(taken[min(len(taken) - 1, int(len(taken) * 0.95))])


class serving:  # noqa: N801
    """A server with the demonstration, over a database of jobs, as a process of its own."""

    def __init__(self, place: Path, database: str) -> None:
        self.place, self.database = place, database
        self._read: Thread | None = None

    def __enter__(self) -> str:
        from fairlead.server import demo

        said = demo.settings(self.place, dict.fromkeys(demo.PORTS, f"{demo.HERE}:0"))
        said["jobs"]["database"] = self.database
        config = self.place / "fairlead.yaml"
        config.write_text(json.dumps(said))  # which is YAML too
        self._log = (self.place / "log").open("w+")
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
        told = []
        for line in self._process.stderr:
            told.append(line)
            if found := re.search(r"dashboard (http://\S+)", line):
                # A pipe that nobody reads would one day stop the server.
                self._read = Thread(target=self._process.stderr.read)
                self._read.start()
                return found[1]
        self.__exit__()
        raise RuntimeError("".join(told))

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        if self._read is not None:
            self._read.join()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._log.close()


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def cases(visitor: Visitor) -> dict[str, Callable[[], float]]:
    views = {name: partial(visitor.visit, *place) for name, place in VIEWS.items()}
    return {**views, REPLY: visitor.answer}


def tables(sizes: Sizes) -> Iterator[Table]:
    if chromium() is None or find_spec("playwright") is None:
        return
    for engine, there in (("SQLite", True), ("PostgreSQL", installed())):
        if not there:
            continue
        visitor = Visitor(sizes.stored, postgresql=engine == "PostgreSQL")
        yield Table(
            f"Dashboard: a view in chromium, {sizes.stored:,} jobs in {engine}, p95 of {VISITS} visits",
            "ms",
            cases(visitor),
            targets=[Target(name, LIMIT) for name in VIEWS],
            notes=[
                "From going to the view until everything is drawn, by the browser's clock.",
                "Every door of the demonstration runs beside it, so no view is empty.",
                f"The what-if's answer (of {ANSWERS}) is no view but two simulations of all that has arrived since the "
                "start: it grows with the traffic, and has no target.",
            ],
            at_most=3,
            done=visitor.close,
        )
