"""The dashboard of a real `fairlead serve` with its demo: every view, live, without a complaint."""

import re

import pytest
from playwright.sync_api import expect

from tests.dashboard.browsing import table
from tests.dashboard.conftest import CHROMIUM
from tests.dashboard.serving import serving

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium brings it"
)
TITLES = {
    "now": "Who waits, and why",
    "classes": "Tenants: share against fair share",
    "jobs": "Runs",
    "streams": "Assignment",
    "decisions": "Decisions",
    "what-if": "What if the settings had been different?",
    "config": "Problems",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served"), "--listen", "127.0.0.1:0") as found:
        yield found["dashboard"]


def test_every_view_of_a_real_server(page, url):
    for view, title in TITLES.items():
        page.goto(f"{url}/#/{view}")
        expect(page.locator("[data-connection=live]")).to_be_visible()
        expect(
            page.locator("#main").get_by_role("heading", name=title, exact=True).last
        ).to_be_visible()
    assert page.locator(".trouble").count() == 0


def test_real_figures_arrive_and_move(page, url):
    page.goto(f"{url}/#/decisions")
    feed = table(page, "Decisions, newest first")
    before = feed.get_by_role("row").nth(1).inner_text(timeout=60_000)
    page.wait_for_function(
        "(before) => document.querySelectorAll('.feed tr')[1].innerText !== before", arg=before
    )
    page.goto(f"{url}/#/classes?gate=gateway%2Fdefault")
    expect(table(page, "Classes of gateway/default")).to_contain_text("interactive")
    expect(table(page, "Tenants of gateway/default")).to_contain_text("acme")


def test_a_real_gate_is_resized(page, url):
    page.goto(f"{url}/#/now?gate=gateway%2Fdefault")
    page.get_by_role("button", name="Resize…").click()
    page.get_by_label("Slots", exact=True).fill("5")
    page.get_by_role("button", name="Resize", exact=True).click()
    expect(page.get_by_role("button", name="gateway/default")).to_contain_text("of 5")


def test_a_real_gate_of_workers_has_no_more_than_there_are(page, url, complaints):
    complaints.expected = ("422",)
    page.goto(f"{url}/#/now?gate=streams%2Fworkers")
    page.get_by_role("button", name="Resize…").click()
    slots = page.get_by_label("Slots", exact=True)
    slots.fill("4")
    page.get_by_role("button", name="Resize", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("there are 3 workers")
    slots.fill("1")
    page.get_by_role("button", name="Resize", exact=True).click()
    expect(page.get_by_role("button", name="streams/workers")).to_contain_text("of 1")


def test_a_real_stream_shows_assignment_lag_and_what_is_withheld(page, url):
    # One worker is left of three (the test above), so that work is withheld.
    page.goto(f"{url}/#/streams")
    held = table(page, "Partitions held by this process")
    expect(held.get_by_role("row")).to_have_count(6)
    expect(held).to_contain_text("orders 2")
    expect(page.get_by_role("img", name=re.compile("Lag by topic.*orders [0-9]"))).to_be_visible()
    why = table(page, "Withheld jobs").get_by_role("row").nth(1)
    expect(why).to_contain_text(re.compile("has waited in the gate for .* s"), timeout=60_000)


def test_a_decision_is_listed_once(page, url):
    """The list the page begins with, and the stream that follows, overlap."""
    page.goto(f"{url}/#/decisions")
    page.get_by_label("What").select_option("started")
    page.get_by_label("Gate", exact=True).select_option("gateway/default")
    feed = table(page, "Decisions, newest first")
    expect(feed.get_by_role("row").nth(20)).to_be_visible(timeout=60_000)
    keys = feed.locator("td.key").all_inner_texts()
    assert len(keys) == len(set(keys))


def test_a_real_run_is_shown_and_explained(page, url):
    page.goto(f"{url}/#/jobs?state=active")
    page.locator("tbody a").first.click(timeout=60_000)
    expect(
        page.get_by_role("group", name="Graph of the run").get_by_role("button").first
    ).to_be_visible()
    page.get_by_role("group", name="Graph of the run").get_by_role("button").last.click()
    expect(page.locator(".detail .explain")).not_to_have_text("…")


def test_a_real_what_if(page, url):
    page.goto(f"{url}/#/what-if")
    page.get_by_label("Setting", exact=True).fill("capacity")
    page.get_by_label("New value").fill("5")
    page.get_by_role("button", name="Run the simulation").click()
    expect(table(page, "Before and after, Everything together")).to_contain_text(
        "p95 wait", timeout=60_000
    )


def test_a_real_configuration_is_judged(page, url):
    page.goto(f"{url}/#/config")
    page.get_by_label("Configuration (YAML)").fill("gateway: {capacty: 1}")
    expect(page.get_by_role("button", name=re.compile("Go to line 1"))).to_be_visible()
