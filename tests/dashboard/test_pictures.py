"""The pictures of the docs: made here, from the fake server, so that they show the dashboard as it is.

They are written to docs/images with FAIRLEAD_PICTURES=1, else only tried.
"""

import os
from pathlib import Path

import pytest
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


BOTH = {"now", "run", "what-if", "phone"}  # shown in the docs in either theme
SCENES = {
    "now": ("now?gate=gateway%2Fdefault", now, DESK),
    "classes": ("classes?gate=gateway%2Fdefault", tenants, DESK),
    "run": ("jobs/r-0001", run, DESK),
    "timeline": ("jobs/r-0001", timeline, DESK),
    "what-if": ("what-if", what_if, DESK),
    "streams": ("streams", streams, DESK),
    "phone": ("now?gate=gateway%2Fdefault", now, PHONE),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures(page, server, tmp_path, theme):
    place = IMAGES if os.environ.get("FAIRLEAD_PICTURES") else tmp_path
    place.mkdir(exist_ok=True)
    page.emulate_media(color_scheme=theme)
    server.world.look = lambda t: None  # nothing moves while it is painted
    for name, (view, prepare, size) in SCENES.items():
        if theme == "dark" and name not in BOTH:
            continue
        page.set_viewport_size(size)
        page.goto("about:blank")
        opened(page, server, view)
        expect(page.get_by_text("Loading…")).to_have_count(0)
        prepare(page)
        page.evaluate("document.activeElement.blur()")
        picture = place / f"dashboard-{name}-{theme}.png"
        page.screenshot(path=picture)
        assert 5_000 < picture.stat().st_size < LARGEST
