"""What tests of the dashboard do all the time."""

from playwright.sync_api import Locator, Page, expect

from tests.dashboard.fake import Fake

VIEWS = ("now", "classes", "jobs", "jobs/r-0001", "streams", "decisions", "what-if", "config")


def opened(page: Page, server: Fake, view: str = "now") -> Page:
    """Go to a view and see that it is live."""
    page.goto(f"{server.url}/#/{view}")
    expect(page.locator("[data-connection=live]")).to_be_visible()
    return page


def at_rest(page: Page, server: Fake) -> int:
    """End the server's ticking, see that the page has its last snapshot, and return which that is."""
    server.silent = True
    server.world.slots += 1000
    server.tick()
    expect(page.locator(".kpi", has_text="slots in use")).to_contain_text(" of 1,")
    return server.world.seq


def table(page: Page, caption: str) -> Locator:
    return page.get_by_role("table", name=caption)
