"""The stream of events breaks, the server goes and comes back, or wants a token: the page says so and goes on."""

from playwright.sync_api import expect

from tests.dashboard.browsing import at_rest, opened

REFUSED = (
    "ERR_CONNECTION_REFUSED",
    "ERR_CONNECTION_RESET",
    "ERR_EMPTY_RESPONSE",
    "ERR_INCOMPLETE_CHUNKED_ENCODING",
)


def test_a_lost_connection_is_shown_and_taken_up_again(page, server, complaints):
    complaints.expected = REFUSED
    opened(page, server)
    known = at_rest(page, server)
    server.go_away()
    expect(page.locator("[data-connection=lost]")).to_be_visible()
    banner = page.get_by_role("alert")
    expect(banner).to_contain_text("Connection lost. Shown is what was known at")
    server.come_back()
    page.get_by_role("button", name="Try now").click()
    expect(page.locator("[data-connection=live]")).to_be_visible()
    expect(banner).to_have_count(0)
    assert server.events_seen[-1] == str(known)


def test_what_was_missed_is_asked_for(page, server):
    opened(page, server)
    known = at_rest(page, server)
    server.cut()
    # The page comes back by itself, and names the last snapshot it has seen.
    while len(server.events_seen) < 2:
        page.wait_for_timeout(20)
    assert server.events_seen[1] == str(known)
    server.world.slots = 100
    server.tick()
    expect(page.locator(".kpi", has_text="slots in use")).to_contain_text("of 112")


def test_a_server_that_was_started_anew_is_believed(page, server):
    opened(page, server)
    server.silent = True
    server.world.started += 1000
    server.world.slots = 100
    server.world.seq = 0
    server.world.snapshots = []
    server.tick()
    server.cut()
    expect(page.locator(".kpi", has_text="slots in use")).to_contain_text("of 112")


def test_a_token_is_asked_for_and_kept_for_the_tab(page, server, complaints):
    complaints.expected = ("401",)
    server.world.tokens = {"look": "viewer", "lead": "admin"}
    page.goto(server.url)
    dialog = page.get_by_role("dialog", name="This server asks for a token")
    expect(dialog).to_be_visible()
    dialog.get_by_label("Token").fill("wrong")
    dialog.get_by_role("button", name="Use this token").click()
    expect(dialog).to_contain_text("was not accepted")
    dialog.get_by_label("Token").fill("look")
    page.keyboard.press("Enter")
    expect(page.locator("[data-connection=live]")).to_be_visible()
    expect(page.get_by_text("you are viewer")).to_be_visible()
    expect(dialog).to_have_count(0)
    page.reload()
    expect(page.get_by_text("you are viewer")).to_be_visible()
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_a_token_that_ends_is_asked_for_again(page, server, complaints):
    complaints.expected = ("401",)
    server.world.tokens = {"old": "viewer"}
    page.add_init_script("sessionStorage.setItem('fairlead.token', 'old')")
    opened(page, server)
    server.world.tokens = {"new": "operator"}
    server.cut()
    dialog = page.get_by_role("dialog", name="This server asks for a token")
    expect(dialog).to_contain_text("was not accepted")
    dialog.get_by_label("Token").fill("new")
    dialog.get_by_role("button", name="Use this token").click()
    expect(page.get_by_text("you are operator")).to_be_visible()
    expect(page.get_by_role("button", name="gateway/default")).to_be_visible()


def test_a_line_that_falls_silent_is_given_up(browser, server, complaints):
    # A clock belongs to its context, so this page has one to itself.
    with browser.new_context() as context:
        page = context.new_page()
        complaints.watch(page)
        fall_silent(page, server)


def fall_silent(page, server):
    page.clock.install()
    opened(page, server)
    server.silent = True
    connections = len(server.events_seen)
    page.clock.fast_forward(26_000)  # the server's heartbeat comes every 10 s
    while len(server.events_seen) == connections:
        page.wait_for_timeout(20)
    expect(page.locator("[data-connection=live]")).to_be_visible()


def test_a_complaint_of_the_page_is_heard(page, server, complaints):
    """Every test of this folder leans on it."""
    opened(page, server)
    page.evaluate(
        "console.error('something is wrong'); setTimeout(() => { throw new Error('badly') })"
    )
    page.wait_for_function("!0")
    assert [one for one in complaints.unexpected if "something is wrong" in one]
    complaints.expected = ("something is wrong", "badly")
