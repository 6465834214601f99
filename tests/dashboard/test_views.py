"""Every view shows what the server tells, and follows it."""

import re

from playwright.sync_api import expect

from tests.dashboard.browsing import VIEWS, opened, table
from tests.dashboard.fake import Refusal


def test_now_shows_room_reservations_queues_and_who_waits_and_why(page, server):
    opened(page, server)
    server.silent = True
    page.get_by_role("button", name="gateway/default").click()
    expect(page.get_by_role("heading", name="Slots and reservations")).to_be_visible()
    reservations = table(page, "Reservations").get_by_role("row")
    expect(reservations).to_have_count(3)
    expect(reservations.nth(2)).to_contain_text("interactive")
    classes = table(page, "Classes of gateway/default").get_by_role("row")
    expect(classes).to_have_count(5)
    expect(classes.nth(1)).to_contain_text("system")
    waiting = table(page, "Who waits at gateway/default, and why")
    expect(waiting.get_by_role("row").nth(1)).to_contain_text("waits: ")
    expect(waiting).to_contain_text("24 slots are in use")


def test_an_outage_is_seen(page, server):
    opened(page, server)
    page.get_by_role("button", name="gateway/default").click()
    backends = table(page, "Backends of gateway/default")
    expect(backends).to_contain_text("healthy")
    server.world.outage = "no backend is up, of 1"
    expect(page.get_by_role("button", name="gateway/default")).to_contain_text(
        "degraded: no backend is up, of 1"
    )
    expect(page.locator(".doors")).to_contain_text("degraded")
    expect(backends).to_contain_text("unhealthy")
    expect(backends).to_contain_text("it is unreachable: connection refused")
    server.world.outage = None
    expect(page.locator(".doors")).not_to_contain_text("degraded")


def test_figures_follow_the_stream_of_events(page, server):
    opened(page, server)
    slots = page.locator(".kpi", has_text="slots in use")
    total = 24 + 8 + 4
    expect(slots).to_contain_text(f"of {total}")
    server.world.slots = 100
    expect(slots).to_contain_text("of 112")


def test_a_reload_is_not_empty(page, server):
    server.silent = True
    opened(page, server, "classes?gate=gateway%2Fdefault")
    chart = page.get_by_role("img", name="p95 by class at gateway/default, last 15 minutes")
    expect(chart).to_be_visible()
    filled = """() => [...document.querySelectorAll(".chart canvas")].some((one) =>
      one.getContext("2d").getImageData(0, 0, one.width, one.height).data.some((part) => part))"""
    page.wait_for_function(filled)
    expect(
        page.get_by_role("button", name=re.compile("interactive .*ms|interactive .*s"))
    ).to_be_visible()


def test_classes_and_tenants_show_shares_against_fair_shares(page, server):
    opened(page, server, "classes?gate=gateway%2Fdefault")
    tenants = table(page, "Tenants of gateway/default")
    expect(tenants.get_by_role("row")).to_have_count(6)
    acme = tenants.get_by_role("row").filter(has_text="acme")
    expect(
        acme.get_by_role("img", name=re.compile("of the room; fair would be [1-9][0-9]* %"))
    ).to_be_visible()
    page.get_by_text("p99", exact=True).first.click()
    expect(page.get_by_role("heading", name="Wait until started, p99")).to_be_visible()
    page.get_by_label("Gate", exact=True).select_option("flows/checkout")
    expect(table(page, "Tenants of flows/checkout")).to_be_visible()
    page.get_by_role("button", name=re.compile("^bulk")).click()
    expect(page.get_by_role("button", name=re.compile("^bulk"))).to_have_attribute(
        "aria-pressed", "false"
    )


def test_runs_are_filtered_and_paged(page, server):
    opened(page, server, "jobs")
    runs = table(page, "Runs, newest first")
    expect(runs.get_by_role("row")).to_have_count(51)
    expect(runs).to_contain_text("soft in 1 m")
    page.get_by_role("button", name="Older").click()
    expect(runs).to_contain_text("r-0051")
    expect(runs).not_to_contain_text("r-0050")
    page.get_by_role("button", name="Newer").click()
    expect(runs).to_contain_text("r-0050")
    page.get_by_label("State").select_option("failed")
    expect(runs.get_by_role("row").nth(1)).to_contain_text("failed")
    expect(page).to_have_url(re.compile("state=failed"))
    page.get_by_label("Tenant").fill("nobody")
    expect(page.get_by_text("No run matches.")).to_be_visible()


def test_a_run_shows_its_graph_with_live_states(page, server):
    opened(page, server, "jobs")
    page.get_by_role("link", name="nightly-report").click()
    graph = page.get_by_role("group", name=re.compile("Graph of the run"))
    expect(graph.get_by_role("button")).to_have_count(20)
    expect(graph.get_by_role("button", name="extract-10: active")).to_be_visible()
    server.world.runs["r-0001"]["jobs"][10]["state"] = "completed"
    expect(graph.get_by_role("button", name="extract-10: completed")).to_be_visible()
    graph.get_by_role("button", name="extract-15: created").click()
    detail = page.locator(".detail")
    expect(detail).to_contain_text("it waits for publish-14")
    expect(page.locator(".edge.lit")).to_have_count(3)


def test_a_run_has_a_timeline_and_a_countdown(page, server):
    opened(page, server, "jobs/r-0001")
    facts = page.locator(".facts").first
    expect(facts).to_contain_text("soft in 1 m")
    before = facts.inner_text()
    page.wait_for_function(
        "(before) => document.querySelector('.facts').innerText !== before", arg=before
    )
    page.get_by_role("tab", name="Timeline").click()
    timeline = page.get_by_role("group", name=re.compile("Timeline of the run"))
    expect(timeline.get_by_role("img")).to_have_count(20)
    expect(
        timeline.get_by_role(
            "img", name=re.compile("extract-0: completed, ran 4.50 s after waiting")
        )
    ).to_be_attached()
    expect(timeline).to_contain_text("soft SLA")
    page.get_by_role("tab", name="Jobs", exact=True).click()
    expect(table(page, "Jobs of the run").get_by_role("row")).to_have_count(21)


def test_a_large_run_is_drawn(page, server):
    world = server.world
    root = world.runs["r-0001"]
    job = root["jobs"][0]
    root["jobs"] = [
        {
            **job,
            "node": node,
            "name": f"job-{node}",
            "deps": [] if node < 40 else [node - 40, node - 39],
        }
        for node in range(2000)
    ]
    root["total"] = 2000
    opened(page, server, "jobs/r-0001")
    # By selector: roles of thousands of elements take seconds to work out.
    expect(page.locator(".node[role=button]")).to_have_count(2000)
    page.locator("[role=tab]", has_text="Timeline").click()
    page.locator(".gantt button", has_text="Show all 2000 jobs").click()
    expect(page.locator(".gantt [role=img]")).to_have_count(2000)


def test_a_run_that_is_not_there_is_said_so(page, server, complaints):
    complaints.expected = ("404",)
    opened(page, server, "jobs/r-9999")
    expect(page.get_by_role("alert")).to_contain_text("there is no run r-9999")


def test_streams_show_assignment_lag_and_what_is_withheld(page, server):
    opened(page, server, "streams")
    expect(table(page, "Partitions held by this process").get_by_role("row")).to_have_count(7)
    expect(table(page, "Partitions held by this process")).to_contain_text("paused")
    expect(table(page, "Withheld jobs")).to_contain_text("all 4 workers are busy")
    expect(page.get_by_role("img", name=re.compile("Lag by topic"))).to_be_visible()


def test_decisions_can_be_filtered_and_paused(page, server):
    opened(page, server, "decisions")
    feed = table(page, "Decisions, newest first")
    newest = feed.get_by_role("row").nth(1)
    before = newest.inner_text()
    page.wait_for_function(
        "(before) => document.querySelectorAll('.feed tr')[1].innerText !== before", arg=before
    )
    page.get_by_role("button", name="Pause").click()
    held = newest.inner_text()
    expect(page.get_by_text(re.compile("paused; [1-9][0-9]* newer"))).to_be_visible()
    assert newest.inner_text() == held
    page.get_by_role("button", name="Go on").click()
    page.get_by_label("What").select_option("refused")
    expect(newest).to_contain_text("queue for 'bulk' is full")
    page.get_by_label("Find").fill("nothing like this")
    expect(page.get_by_text("No decision matches.")).to_be_visible()


def test_decisions_the_page_was_not_sent_are_counted(page, server):
    opened(page, server, "decisions")
    expect(page.get_by_text(re.compile("decisions of the last"))).to_be_visible()
    expect(page.get_by_text("were not sent")).to_have_count(0)
    server.world.seq += 100  # of three decisions each
    expect(page.get_by_text(re.compile("; 300 others were not sent"))).to_be_visible()


def test_an_empty_server_says_what_to_do(page, server, complaints):
    complaints.expected = ("404",)
    world = server.world

    def bare(t: float):
        world.seq += 1
        world.snapshots = [{"seq": world.seq, "t": t, "gates": [], "jobs": None, "streams": None}]
        world.decisions = []

    world.look = bare
    bare(1.0)
    server.fail["jobs/runs"] = Refusal(404, "no jobs are hosted here; add a jobs section")
    server.fail["streams"] = Refusal(404, "no streams are hosted here")
    for view, said in (
        ("now", "hosts no gate"),
        ("classes", "hosts no gate"),
        ("jobs", "hosts no jobs"),
        ("streams", "hosts no stream app"),
        ("decisions", "No decision yet"),
        ("what-if", "Nothing compared yet"),
    ):
        opened(page, server, view)
        expect(page.get_by_text(re.compile(said)).first).to_be_visible()


def test_a_question_that_fails_is_answered_with_its_sentence(page, server, complaints):
    complaints.expected = ("503",)
    server.fail["gates/gateway%2Fdefault/waiting"] = Refusal(503, "the database sleeps; try again")
    opened(page, server)
    expect(page.get_by_role("alert")).to_contain_text("the database sleeps")
    server.fail.clear()
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_policy_holds_and_nothing_comes_from_elsewhere(page, server, complaints):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.add_init_script("""document.addEventListener("securitypolicyviolation",
      (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))""")
    answer = page.goto(server.url)
    for view in VIEWS:
        opened(page, server, view)
        for tab in page.get_by_role("tab").all():
            tab.click()
    assert (
        "default-src 'none'; script-src 'self'; style-src 'self'"
        in answer.headers["content-security-policy"]
    )
    assert [one for one in asked if not one.startswith(server.url)] == []
    assert page.evaluate("document.querySelectorAll('script:not([src]), style').length") == 0
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">')")
    page.wait_for_function("!0")
    assert any("policy: style-src" in one for one in complaints.heard)
    complaints.expected = ("style-src", "Content Security Policy")
