"""A real `fairlead serve`: the page shows what `/metrics` and the API say, and overrides leave their marks."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import expect
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboard.browsing import table
from tests.dashboard.conftest import CHROMIUM
from tests.dashboard.serving import serving

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium brings it"
)
HERE = "127.0.0.1:0"
SENT = 60  # requests: some seconds of them, so that snapshots see their tenant
QUIET = {
    "server": {"listen": HERE},
    "gateway": {
        "listen": HERE,
        "admin": {"listen": HERE},
        "tenants": {"trusted_header": "x-tenant"},
        "priority_scheduler": {
            "enabled": True,
            "classes": {"interactive": {"reserved_floor": 0}, "system": {"reserved_floor": 0}},
        },
    },
    "jobs": {"database": "sqlite:///quiet.db", "http": HERE},
    "demo": {"upstream": True, "traffic": False},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("quiet")
    (folder / "fairlead.yaml").write_text(json.dumps(QUIET))
    with serving(folder) as found:
        asked = Request(found["gateway"] + "/x", headers={"x-tenant": "acme"})
        with ThreadPoolExecutor(20) as some:
            list(some.map(lambda _: urlopen(asked).read(), range(SENT)))
        yield found["dashboard"]


def metric(url: str, name: str, **labels: str) -> float:
    text = urlopen(f"{url}/metrics").read().decode()
    found = [
        one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == name and labels.items() <= one.labels.items()
    ]
    return sum(found)


def send(url: str, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    with urlopen(Request(f"{url}/api/v1/{path}", data, headers, method=method)) as answer:
        return json.load(answer)


def test_the_page_shows_the_numbers_of_the_metrics(page, url):
    page.goto(f"{url}/#/now?gate=gateway%2Fdefault")
    expect(page.locator("[data-connection=live]")).to_be_visible()
    slots = metric(url, "fairlead_gate_slots", gate="gateway/default")
    used = metric(url, "fairlead_gate_running", gate="gateway/default")
    expect(page.get_by_role("button", name="gateway/default")).to_contain_text(
        f"{used:.0f} of {slots:.0f}"
    )
    page.goto(f"{url}/#/classes?gate=gateway%2Fdefault")
    done = metric(url, "fairlead_gate_decisions_total", gate="gateway/default", outcome="completed")
    assert done == SENT
    expect(page.locator("#main")).to_contain_text(re.compile(rf"completed\s*{SENT}"))


def test_a_server_that_does_not_lead_says_so(page, url):
    page.goto(f"{url}/#/now")
    expect(page.locator(".kpi", has_text="jobs running")).to_contain_text("another process leads")
    expect(page.get_by_text("it only shows what its database holds")).to_be_visible()
    assert metric(url, "fairlead_jobs_leader") == 0


def test_an_override_is_marked_listed_and_reset(page, url):
    page.goto(f"{url}/#/classes?gate=gateway%2Fdefault")
    page.get_by_role("button", name=re.compile("Weight of header:acme: 1")).click()
    page.get_by_label("Weight", exact=True).fill("5")
    page.get_by_role("button", name="Set the weight").click()
    tenants = table(page, "Tenants of gateway/default")
    expect(tenants).to_contain_text("set by hand (configured: 1)")
    page.goto(f"{url}/#/config")
    listed = table(page, "Overrides in force")
    expect(listed).to_contain_text("the weight of header:acme")
    expect(listed).to_contain_text("local")
    expect(table(page, "Latest changes")).to_contain_text("set_weight('header:acme', 5.0)")
    listed.get_by_role("button", name=re.compile("^Reset")).click()
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    expect(page.get_by_text("Everything is as it is configured.")).to_be_visible()
    assert send(url, "GET", "overrides") == {"items": []}
