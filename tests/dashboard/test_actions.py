"""What a page does to the server: only after a confirmation, only if the role allows it, and with the answer shown."""

import re
import time

import pytest
from playwright.sync_api import expect

from tests.dashboard.browsing import opened, table
from tests.dashboard.fake import Refusal


def test_a_run_is_cancelled_after_a_confirmation(page, server):
    opened(page, server, "jobs/r-0001")
    page.get_by_role("button", name="Cancel…").click()
    dialog = page.get_by_role("dialog", name="Cancel nightly-report?")
    dialog.get_by_role("button", name="Leave as it is").click()
    expect(dialog).to_have_count(0)
    assert server.world.asked == []
    page.get_by_role("button", name="Cancel…").click()
    dialog.get_by_role("button", name="Cancel the run").click()
    expect(page.get_by_role("status").filter(has_text="is being cancelled")).to_be_visible()
    assert server.world.asked == [("POST", "jobs/runs/r-0001/cancel", {})]
    expect(page.get_by_role("button", name="Cancel…")).to_be_disabled()
    expect(page.get_by_role("button", name="Retry…")).to_be_enabled()


def test_a_run_is_retried(page, server):
    opened(page, server, "jobs/r-0002")
    page.get_by_role("button", name="Retry…").click()
    page.get_by_role("button", name="Retry the run").click()
    expect(page.get_by_role("button", name="Retry…")).to_be_disabled()
    assert server.world.asked == [("POST", "jobs/runs/r-0002/retry", {})]


def test_slas_are_changed(page, server):
    opened(page, server, "jobs/r-0001")
    page.get_by_role("button", name="Change SLAs…").click()
    dialog = page.get_by_role("dialog", name="SLAs of nightly-report")
    tomorrow = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 86_400 + 100))
    dialog.get_by_label("Soft SLA").fill(tomorrow)
    expect(dialog.get_by_role("button", name="Change the SLAs")).to_be_disabled()
    expect(dialog).to_contain_text("has to come before")
    dialog.get_by_label("Hard SLA").fill("")
    dialog.get_by_role("button", name="Change the SLAs").click()
    expect(page.locator(".facts").first).to_contain_text("soft in 1 d")
    ((_, path, body),) = server.world.asked
    assert path == "jobs/runs/r-0001/sla"
    assert body["hard"] is None
    assert body["soft"].endswith("Z")


def test_an_sla_that_is_not_touched_is_not_sent(page, server):
    opened(page, server, "jobs/r-0001")
    page.get_by_role("button", name="Change SLAs…").click()
    dialog = page.get_by_role("dialog", name="SLAs of nightly-report")
    expect(dialog.get_by_role("button", name="Change the SLAs")).to_be_disabled()
    dialog.get_by_label("Soft SLA").fill("")
    dialog.get_by_role("button", name="Change the SLAs").click()
    expect(dialog).to_have_count(0)
    assert server.world.asked == [("POST", "jobs/runs/r-0001/sla", {"soft": None})]


def test_the_planner_is_changed(page, server):
    opened(page, server, "jobs")
    expect(table(page, "Workers")).to_contain_text("silent")
    page.get_by_role("button", name="Change the planner…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Change the planner")).to_be_disabled()
    dialog.get_by_label("Planner").select_option("SJFSExecutionPlanner")
    dialog.get_by_role("button", name="Change the planner").click()
    expect(page.get_by_text("ordered by SJFSExecutionPlanner")).to_be_visible()
    assert server.world.planner == "SJFSExecutionPlanner"


def test_a_refused_action_shows_the_sentence_and_changes_nothing(page, server, complaints):
    complaints.expected = ("409",)
    server.fail["jobs/runs/r-0001/cancel"] = Refusal(
        409, "the run has just ended; nothing to cancel"
    )
    opened(page, server, "jobs/r-0001")
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel the run").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("has just ended")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_gate_is_resized_and_a_tenant_weighed(page, server):
    opened(page, server, "now?gate=gateway%2Fdefault")
    page.get_by_role("button", name="Resize…").click()
    page.get_by_label("Slots", exact=True).fill("2.5")
    expect(page.get_by_role("button", name="Resize", exact=True)).to_be_disabled()
    page.get_by_label("Slots", exact=True).fill("32")
    page.get_by_role("button", name="Resize", exact=True).click()
    expect(page.locator(".kpi", has_text="slots in use")).to_contain_text("of 44")
    assert server.world.asked == [
        (
            "POST",
            "gates/gateway%2Fdefault/adjust",
            {"part": "slots", "verb": "resize", "args": [32]},
        )
    ]
    page.get_by_role("button", name="Resize…").click()
    page.get_by_label("Slots", exact=True).fill("")
    page.get_by_role("button", name="Resize", exact=True).click()
    expect(page.get_by_role("button", name="gateway/default")).to_contain_text("of 24")
    assert server.world.asked[-1][2]["args"] == [None]
    opened(page, server, "classes?gate=gateway%2Fdefault")
    page.get_by_role("button", name="Weight of globex: 1. Change").click()
    page.get_by_label("Weight", exact=True).fill("3")
    page.get_by_role("button", name="Set the weight").click()
    expect(page.get_by_role("button", name="Weight of globex: 3. Change")).to_be_visible()


def test_what_if_compares_side_by_side(page, server, complaints):
    complaints.expected = ("422",)
    opened(page, server, "what-if")
    run = page.get_by_role("button", name="Run the simulation")
    expect(run).to_be_disabled()
    page.get_by_label("Setting", exact=True).fill("colour")
    page.get_by_label("New value").fill("blue")
    run.click()
    expect(page.get_by_role("alert")).to_contain_text("no such setting")
    page.get_by_label("Setting", exact=True).fill("classes.interactive.reserved_per_slot")
    page.get_by_label("New value").fill("0.2")
    run.click()
    everything = table(page, "Before and after, Everything together")
    expect(everything.get_by_role("row").nth(1)).to_contain_text("p50 wait")
    expect(everything.get_by_role("row").nth(1)).to_contain_text(
        re.compile("20 ms.*14 ms.*−30 %.*better", re.DOTALL)
    )
    expect(everything).to_contain_text("same")
    expect(table(page, "Before and after, By class")).to_contain_text("interactive")
    assert server.world.asked[-1] == (
        "POST",
        "whatif",
        {
            "gate": "gateway/default",
            "minutes": 15,
            "seed": 1,
            "changes": {"classes.interactive.reserved_per_slot": 0.2},
        },
    )
    page.get_by_role("link", name="Now").click()
    page.get_by_role("link", name="What-if").click()
    expect(everything).to_be_visible()


def test_config_is_checked_as_it_is_typed_and_applied_when_good(page, server):
    opened(page, server, "config")
    editor = page.get_by_label("Configuration (YAML)")
    expect(editor).to_have_value(server.world.text)
    good = server.world.text
    apply = page.get_by_role("button", name="Apply…")
    expect(apply).to_be_disabled()
    editor.fill(good.replace("capacity: 24", "capacty: 24"))
    problem = page.get_by_role("button", name="Go to line 9, column 3")
    expect(problem).to_be_visible()
    expect(apply).to_be_disabled()
    problem.click()
    assert page.evaluate("document.activeElement.selectionStart") == good.index("capacity")
    editor.fill(good.replace("capacity: 24", "capacity: 48"))
    expect(page.get_by_text("This configuration can be applied.")).to_be_visible()
    apply.click()
    page.get_by_role("dialog").get_by_role("button", name="Apply", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="is applied")).to_be_visible()
    assert "capacity: 48" in server.world.text


def test_a_server_without_a_file_cannot_be_configured(page, server):
    server.world.path = None
    opened(page, server, "config")
    page.get_by_label("Configuration (YAML)").fill("server: {}")
    expect(page.get_by_text("This configuration can be applied.")).to_be_visible()
    expect(page.get_by_role("button", name="Apply…")).to_be_disabled()
    expect(page.get_by_text("fairlead init")).to_be_visible()


@pytest.mark.parametrize(
    ("role", "operates", "governs"),
    [("viewer", False, False), ("operator", True, False), ("admin", True, True)],
)
def test_a_role_sees_only_what_it_may_do(page, server, role, operates, governs):
    server.world.role = role
    opened(page, server, "jobs/r-0001")
    expect(page.get_by_text(f"you are {role}")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel…")).to_have_count(int(operates))
    opened(page, server, "now?gate=gateway%2Fdefault")
    expect(page.get_by_role("heading", name="Slots and reservations")).to_be_visible()
    expect(page.get_by_role("button", name="Resize…")).to_have_count(int(operates))
    opened(page, server, "config")
    expect(page.get_by_label("Configuration (YAML)")).to_be_editable(editable=operates)
    expect(page.get_by_role("button", name="Validate")).to_have_count(int(operates))
    expect(page.get_by_role("button", name="Apply…")).to_have_count(int(governs))
