"""The pictures of the docs: made here, from the fake server, so that they show the dashboard as it is.

They are written to docs/images with FAIRLEAD_PICTURES=1, else only tried.
"""

import os
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.dashboard.browsing import opened, table

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LARGEST = 200_000  # bytes
DESK, PHONE = {"width": 1280, "height": 820}, {"width": 390, "height": 844}


def now(page: Page) -> None:
    expect(table(page, "Who waits at gateway/default, and why")).to_be_visible()


def tenants(page: Page) -> None:
    expect(page.locator(".chart canvas")).to_be_visible()


def run(page: Page) -> None:
    page.get_by_role("button", name="extract-15: created").click()
    expect(page.locator(".detail")).to_contain_text("it waits for")


def timeline(page: Page) -> None:
    page.get_by_role("tab", name="Timeline").click()
    expect(page.get_by_role("group", name="Timeline")).to_be_visible()


def what_if(page: Page) -> None:
    page.get_by_label("Setting", exact=True).fill("classes.interactive.reserved_per_slot")
    page.get_by_label("New value").fill("0.2")
    page.get_by_role("button", name="Run the simulation").click()
    expect(table(page, "Before and after, Everything together")).to_be_visible()


def streams(page: Page) -> None:
    expect(table(page, "Withheld jobs")).to_be_visible()


def decisions(page: Page) -> None:
    expect(table(page, "Decisions, newest first").get_by_role("row").nth(8)).to_be_visible()


def config(page: Page) -> None:
    editor = page.get_by_label("Configuration (YAML)")
    editor.fill(editor.input_value().replace("capacity: 24", "capacty: 24"))
    expect(page.get_by_role("button", name="Go to line")).to_be_visible()


def drawn(page: Page) -> None:
    """Let the page follow a change of theme: canvases are painted in the frame after it."""
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.evaluate(frame)


BOTH = {"now", "run", "what-if", "phone"}  # shown in the docs in either theme
SCENES = {
    "now": ("now?gate=gateway%2Fdefault", now, DESK),
    "classes": ("classes?gate=gateway%2Fdefault", tenants, DESK),
    "run": ("jobs/r-0001", run, DESK),
    "timeline": ("jobs/r-0001", timeline, DESK),
    "what-if": ("what-if", what_if, DESK),
    "streams": ("streams", streams, DESK),
    "decisions": ("decisions", decisions, {**DESK, "height": 560}),
    "config": ("config", config, DESK),
    "phone": ("now?gate=gateway%2Fdefault", now, PHONE),
}


def test_pictures(page, server, tmp_path):
    place = IMAGES if os.environ.get("FAIRLEAD_PICTURES") else tmp_path
    place.mkdir(exist_ok=True)
    server.world.look = lambda t: None  # nothing moves while it is painted
    for name, (view, prepare, size) in SCENES.items():
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(size)
        opened(page, server, view)
        expect(page.get_by_text("Loading…")).to_have_count(0)
        prepare(page)
        page.evaluate("document.activeElement.blur()")
        for theme in ("light", "dark") if name in BOTH else ("light",):
            page.emulate_media(color_scheme=theme)
            drawn(page)
            picture = place / f"dashboard-{name}-{theme}.png"
            page.screenshot(path=picture)
            assert 5_000 < picture.stat().st_size < LARGEST
