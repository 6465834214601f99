"""What a page does to a real server with a file, tokens of three roles, and jobs that obey the test."""

import json
import re
import time
from hashlib import sha256
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import expect

from tests.dashboard.browsing import table
from tests.dashboard.conftest import CHROMIUM
from tests.dashboard.serving import serving

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium brings it"
)
ROLES = ("viewer", "operator", "admin")
WORK = """
import asyncio
from pathlib import Path
from fairlead.jobs import Jobs

jobs = Jobs("sqlite:///jobs.db")

@jobs.task(name="stand")
async def stand() -> None:
    await asyncio.sleep(3600)

@jobs.task(name="doubt")
async def doubt() -> None:
    if not Path("permit").exists():
        raise RuntimeError("there is no permit yet")
"""
CONFIG = """# What the tests of the dashboard run on.
server:
  listen: 127.0.0.1:0
  shutdown_grace: 1s
  tokens:
{tokens}
gateway:
  listen: 127.0.0.1:0
  admin: {{listen: "127.0.0.1:0"}}
  access_log: false
  shutdown_grace: 1s
  tenants: {{trusted_header: x-tenant}}
  priority_scheduler:
    enabled: true
    default_max_class: interactive
    classes:
      interactive: {{reserved_floor: 0, reserved_per_slot: 0.25}}
      default: {{reserved_floor: 0, reserved_per_slot: 0}}
      system: {{reserved_floor: 0}}
jobs: {{app: "work:jobs", http: "127.0.0.1:0"}}
demo: {{upstream: true, traffic: true}}
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    place = tmp_path_factory.mktemp("real")
    (place / "work.py").write_text(WORK)
    tokens = [
        f"    - {{name: the-{role}, role: {role}, sha256: {sha256(role.encode()).hexdigest()}}}"
        for role in ROLES
    ]
    (place / "fairlead.yaml").write_text(CONFIG.format(tokens="\n".join(tokens)))
    with serving(place, "--config", "fairlead.yaml") as found:
        yield SimpleNamespace(place=place, url=found["dashboard"], jobs=found["jobs"])


def asked(url, body=None, token=None):
    """Ask as a program would."""
    headers = {"content-type": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, headers), timeout=15) as answer:
        return json.load(answer)


def submitted(real, task, **more):
    run = {"name": f"{task}ing", "jobs": [{"name": task, "task": task}], **more}
    return asked(f"{real.jobs}/v1/runs", run)["id"]


def seen_by(page, real, role, view):
    """Go to a view with a role's token."""
    page.add_init_script(f"sessionStorage.setItem('fairlead.token', '{role}')")
    return at(page, real, view)


def at(page, real, view):
    page.goto(f"{real.url}/#/{view}")
    expect(page.locator("[data-connection=live]")).to_be_visible()
    return page


def confirmed(page, opens, title, verb):
    """Open a dialog, leave it without doing anything, open it again, and do it."""
    dialog = page.get_by_role("dialog", name=title)
    page.get_by_role("button", name=opens).click()
    dialog.get_by_role("button", name="Leave as it is").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name=opens).click()
    dialog.get_by_role("button", name=verb).click()
    return dialog


def state_of(page, word):
    expect(page.locator(".card > header .badge").first).to_have_text(word)


def test_a_real_run_is_cancelled(page, real):
    run = submitted(real, "stand", hard_sla="1h")
    seen_by(page, real, "operator", f"jobs/{run}")
    state_of(page, "active")
    confirmed(page, "Cancel…", "Cancel standing?", "Cancel the run")
    state_of(page, "cancelled")
    expect(page.get_by_role("button", name="Cancel…")).to_be_disabled()


def test_a_run_that_was_cancelled_meanwhile_is_not_cancelled_twice(page, real, complaints):
    complaints.expected = ("409",)
    run = submitted(real, "stand")
    seen_by(page, real, "operator", f"jobs/{run}")
    page.get_by_role("button", name="Cancel…").click()
    asked(f"{real.url}/api/v1/jobs/runs/{run}/cancel", {}, "operator")
    while asked(f"{real.url}/api/v1/jobs/runs/{run}", token="viewer")["state"] != "cancelled":
        time.sleep(0.05)
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text(f"run {run}")


def test_a_real_run_is_retried(page, real):
    run = submitted(real, "doubt")
    seen_by(page, real, "operator", f"jobs/{run}")
    state_of(page, "failed")
    page.get_by_role("button", name="doubt: failed").click()
    expect(page.locator(".detail .trouble")).to_contain_text("there is no permit yet")
    (real.place / "permit").touch()
    confirmed(page, "Retry…", "Retry doubting?", "Retry the run")
    state_of(page, "completed")
    # What is said of the job follows it.
    expect(page.locator(".detail .explain")).to_contain_text("completed")


def test_real_slas_are_changed(page, real):
    run = submitted(real, "stand", soft_sla="10m", hard_sla="1h")
    before = asked(f"{real.url}/api/v1/jobs/runs/{run}", token="viewer")
    seen_by(page, real, "operator", f"jobs/{run}")
    expect(page.locator(".facts").first).to_contain_text("soft in 9 m")
    page.get_by_role("button", name="Change SLAs…").click()
    dialog = page.get_by_role("dialog", name="SLAs of standing")
    dialog.get_by_label("Soft SLA").fill("2000-01-01T00:00:00")
    dialog.get_by_role("button", name="Change the SLAs").click()
    expect(page.locator(".facts").first).to_contain_text("soft missed")
    after = asked(f"{real.url}/api/v1/jobs/runs/{run}", token="viewer")
    assert after["hard_sla"] == before["hard_sla"]


def test_the_real_planner_is_changed(page, real):
    seen_by(page, real, "admin", "jobs")
    planner = "EarliestDeadlineExecutionPlanner"
    page.get_by_role("button", name="Change the planner…").click()
    page.get_by_label("Planner", exact=True).select_option(planner)
    page.get_by_role("dialog").get_by_role("button", name="Change the planner").click()
    expect(page.get_by_text(f"ordered by {planner}")).to_be_visible()
    assert asked(f"{real.url}/api/v1/jobs/planner", token="viewer")["planner"] == planner


def test_a_real_tenant_is_weighed_and_its_share_told(page, real):
    seen_by(page, real, "operator", "classes?gate=gateway%2Fdefault")
    tenants = table(page, "Tenants of gateway/default")
    acme = tenants.get_by_role("row").filter(has_text="header:acme")
    expect(acme.get_by_role("img", name=re.compile("of the room; fair would be"))).to_be_visible()
    # It may come and go as its requests do; the dialog stays.
    page.get_by_role("button", name="Weight of header:acme: 1. Change").click()
    page.get_by_label("Weight", exact=True).fill("2.5")
    page.get_by_role("button", name="Set the weight").click()
    expect(page.get_by_role("button", name="Weight of header:acme: 2.5. Change")).to_be_visible()


def test_a_real_configuration_is_judged_applied_and_written(page, real):
    seen_by(page, real, "admin", "config")
    editor = page.get_by_label("Configuration (YAML)")
    expect(editor).to_have_value(re.compile("reserved_per_slot: 0.25"))
    shown = editor.input_value()
    # Secrets are masked, and come back as they were.
    assert sha256(b"admin").hexdigest() not in shown
    apply = page.get_by_role("button", name="Apply…")
    editor.fill(shown.replace("enabled: true", "enabld: true"))
    expect(page.get_by_role("button", name=re.compile("^Go to line"))).to_be_visible()
    expect(apply).to_be_disabled()
    new = shown.replace("reserved_per_slot: 0.25", "reserved_per_slot: 0.5")
    editor.fill(new.replace("1s\n  tokens", "1s\n  logs: json\n  tokens"))
    expect(page.get_by_text("This configuration can be applied.")).to_be_visible()
    confirmed(page, "Apply…", "Apply this configuration?", "Apply")
    expect(page.get_by_text("server.logs changes only at the next start")).to_be_visible()
    written = (real.place / "fairlead.yaml").read_text()
    assert "reserved_per_slot: 0.5" in written
    assert sha256(b"admin").hexdigest() in written
    assert written.startswith("# What the tests")
    at(page, real, "now?gate=gateway%2Fdefault")
    kept = table(page, "Reservations").get_by_role("row").filter(has_text="interactive")
    expect(kept.get_by_role("cell").first).to_have_text("4")  # of 8 slots


@pytest.mark.parametrize("role", ROLES)
def test_a_real_role_is_offered_what_it_may_do(page, real, role):
    operates, governs = int(role != "viewer"), int(role == "admin")
    run = submitted(real, "stand")
    seen_by(page, real, role, f"jobs/{run}")
    expect(page.get_by_text(f"you are {role}")).to_be_visible()
    state_of(page, "active")
    for name in ("Cancel…", "Retry…", "Change SLAs…"):
        expect(page.get_by_role("button", name=name)).to_have_count(operates)
    at(page, real, "jobs")
    expect(table(page, "Workers").get_by_role("row").nth(1)).to_be_visible()
    expect(page.get_by_role("button", name="Change the planner…")).to_have_count(governs)
    at(page, real, "now?gate=gateway%2Fdefault")
    expect(page.get_by_role("heading", name="Slots and reservations")).to_be_visible()
    expect(page.get_by_role("button", name="Resize…")).to_have_count(operates)
    at(page, real, "what-if")
    page.get_by_label("Setting", exact=True).fill("capacity")
    page.get_by_label("New value").fill("5")
    simulate = page.get_by_role("button", name="Run the simulation")
    expect(simulate).to_be_enabled(enabled=bool(operates))
    at(page, real, "config")
    expect(page.get_by_label("Configuration (YAML)")).to_be_editable(editable=bool(operates))
    expect(page.get_by_role("button", name="Apply…")).to_have_count(governs)


def test_a_wrong_token_is_refused_and_another_can_be_used(page, real, complaints):
    complaints.expected = ("401",)
    page.goto(real.url)
    dialog = page.get_by_role("dialog", name="This server asks for a token")
    dialog.get_by_label("Token").fill("nobody's")
    dialog.get_by_role("button", name="Use this token").click()
    expect(dialog).to_contain_text("was not accepted")
    dialog.get_by_label("Token").fill("viewer")
    page.keyboard.press("Enter")
    expect(page.get_by_text("you are viewer")).to_be_visible()
    page.get_by_role("button", name="Use another token…").click()
    other = page.get_by_role("dialog", name="Use another token")
    expect(other).not_to_contain_text("was not accepted")
    other.get_by_label("Token", exact=True).fill("admin")
    page.keyboard.press("Enter")
    expect(page.get_by_text("you are admin")).to_be_visible()
