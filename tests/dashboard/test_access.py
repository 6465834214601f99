"""Everybody can use it: screen readers (axe, in both themes), the keyboard alone, a phone."""

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.dashboard.browsing import VIEWS, opened, table
from tests.dashboard.fake import Fake

COLOURS = {"runOnly": ["color-contrast"]}  # all that a theme can change


def violations(page: Page, options: dict[str, Any] | None = None) -> list[str]:
    if not page.evaluate("'axe' in window"):  # it stays until the page is loaded anew
        page.evaluate(AXE_SCRIPT)
    asked = {"resultTypes": ["violations"], "preload": False, **(options or {})}
    found = page.evaluate("async (asked) => (await axe.run(asked)).violations", asked)
    return [
        f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for one in found
        for node in one["nodes"]
    ]


def violations_in_both_themes(page: Page) -> list[str]:
    """Everything in the light, and again in the dark what depends on it."""
    found = violations(page)
    page.emulate_media(color_scheme="dark")
    found += violations(page, COLOURS)
    page.emulate_media(color_scheme="light")
    return found


def few(server: Fake) -> None:
    """Keep a dozen of what comes in hundreds: axe looks at every cell."""
    server.silent = True
    world = server.world
    world.runs = dict(list(world.runs.items())[:12])
    world.decisions = world.decisions[-12:]


def settled(page: Page, server: Fake, view: str) -> None:
    opened(page, server, view)
    server.silent = True
    expect(page.get_by_text("Loading…")).to_have_count(0)


def test_axe_finds_nothing_in_any_view(page, server):
    few(server)
    page.emulate_media(color_scheme="light")
    found = {}
    for view in VIEWS:
        settled(page, server, view)
        found[view] = violations_in_both_themes(page)
        for tab in page.get_by_role("tab").all()[1:]:
            tab.click()
            found[f"{view} {tab.inner_text()}"] = violations_in_both_themes(page)
    assert {view: said for view, said in found.items() if said} == {}


def test_axe_finds_nothing_in_dialogs_and_troubles(page, server, complaints):
    complaints.expected = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
    page.emulate_media(color_scheme="light")
    settled(page, server, "jobs/r-0001")
    page.get_by_role("button", name="join-17: created").click()
    expect(page.locator(".detail")).to_contain_text("it waits for")
    page.get_by_role("button", name="Change SLAs…").click()
    assert violations_in_both_themes(page) == []
    page.keyboard.press("Escape")
    settled(page, server, "what-if")
    page.get_by_label("Setting", exact=True).fill("capacity")
    page.get_by_label("New value").fill("12")
    page.get_by_role("button", name="Run the simulation").click()
    expect(table(page, "Before and after, By tenant")).to_be_visible()
    assert violations_in_both_themes(page) == []
    settled(page, server, "config")
    page.get_by_label("Configuration (YAML)").fill("capacty: 1")
    expect(page.get_by_role("button", name="Go to line 1, column 1")).to_be_visible()
    assert violations_in_both_themes(page) == []
    server.go_away()
    expect(page.locator("[data-connection=lost]")).to_be_visible()
    found = violations_in_both_themes(page)
    server.come_back()
    assert found == []


def test_axe_can_fail(page, server):
    page.emulate_media(color_scheme="light")
    settled(page, server, "now")
    page.evaluate(
        "document.querySelector('.menu-button').parentElement.append(document.createElement('input'))"
    )
    assert any("label" in one for one in violations(page))
    assert violations(page, COLOURS) == []
    page.evaluate("document.querySelector('h1').style.color = '#bbb'")
    assert any("contrast" in one for one in violations(page, COLOURS))


def test_a_phone_needs_no_sideways_scrolling(page, server):
    few(server)
    page.set_viewport_size({"width": 390, "height": 844})
    wide = {}
    for view in VIEWS:
        settled(page, server, view)
        for tab in page.get_by_role("tab").all() or [page.locator("h1")]:
            tab.click()
            wide[f"{view} {tab.inner_text()}"] = page.evaluate(
                "document.documentElement.scrollWidth"
            )
    assert {view: width for view, width in wide.items() if width > 390} == {}
    assert violations(page) == []
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Decisions").click()
    expect(page.get_by_role("heading", name="Decisions", level=1)).to_be_visible()
    expect(page.get_by_role("link", name="Decisions")).to_be_hidden()
    assert violations(page) == []


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent"))


def test_the_keyboard_is_enough(page, server):
    settled(page, server, "now")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the view"
    page.keyboard.press("Enter")
    assert focused(page) == "Now"
    page.keyboard.press("Tab")
    assert "gateway/default" in focused(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(table(page, "Classes of flows/checkout")).to_be_visible()


def test_rows_are_walked_and_opened_with_keys(page, server):
    settled(page, server, "jobs")
    page.get_by_role("row").nth(1).focus()
    page.keyboard.press("ArrowDown")
    assert "r-0002" in focused(page)
    page.keyboard.press("End")
    assert "r-0050" in focused(page)
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Graph")).to_be_visible()
    assert focused(page) == "Jobs"
    page.get_by_role("tab", name="Graph").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Timeline")).to_be_focused()
    expect(page.get_by_role("group", name="Timeline")).to_be_visible()


def test_a_graph_is_walked_along_its_edges(page, server):
    settled(page, server, "jobs/r-0001")
    page.get_by_role("button", name="extract-0: completed").focus()
    page.keyboard.press("ArrowRight")
    assert (
        page.evaluate("document.activeElement.getAttribute('aria-label')") == "clean-1: completed"
    )
    page.keyboard.press("ArrowDown")
    assert (
        page.evaluate("document.activeElement.getAttribute('aria-label')") == "extract-5: completed"
    )
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.locator(".detail")).to_contain_text("extract-0")


def test_a_dialog_gives_the_focus_back(page, server):
    settled(page, server, "jobs/r-0001")
    page.get_by_role("button", name="Cancel…").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Leave as it is")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Cancel…")).to_be_focused()


def test_the_theme_is_chosen_and_kept(page, server):
    page.emulate_media(color_scheme="light")
    settled(page, server, "now")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("radio", name="Dark").check(force=True)
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    page.get_by_role("radio", name="Auto").check(force=True)
    assert page.evaluate(ground) == light
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) == dark
