"""The report in a real browser: nothing is fetched or complained of, axe finds nothing, and a phone shows it whole."""

import shutil
from typing import Any

import pytest

from fairlead.sim.figures import summarise
from fairlead.sim.report import Contender, make_report
from fairlead.sim.report_page import report_html as written
from tests.sim.handmade import run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    contenders = [
        Contender(
            name,
            "policy: x",
            [summarise(run(name, seed, ranked=name == "ranked")) for seed in (1, 2, 3)],
        )
        for name in ("fifo", "ranked")
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(written(make_report("overload", "seconds: 120", contenders)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip(
            "no chromium here: apt-get install chromium brings the browser this test drives"
        )
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright comes with fairlead[dev]"
    )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.mark.parametrize(
    ("theme", "width", "unfolded"), [("light", 1180, True), ("dark", 390, False)]
)
def test_everybody_can_read_it(browser: Any, report: str, theme: str, width: int, unfolded: bool):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="comes with fairlead[dev]"
    )
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
    page = context.new_page()
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("request", lambda request: heard.append(request.url))
    page.goto(report)
    assert heard == [report]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(16, 20, 27)") == (theme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if unfolded:
        page.locator("summary").first.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    context.close()
