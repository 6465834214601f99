"""A real browser: Debian's chromium, driven by playwright.  Where there is none, these tests are skipped."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.dashboard.fake import Fake

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DESK = {"width": 1360, "height": 900}
WAIT = 15_000  # ms until something that should appear is taken to be missing
expect.set_options(timeout=WAIT)


@dataclass
class Complaints:
    """What a page said against itself: errors, warnings, violations of the policy."""

    expected: tuple[str, ...] = ()  # parts of sentences that this test provokes
    heard: list[str] = field(default_factory=list)

    def watch(self, page: Any) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.heard.append(f"error: {error}"))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.heard.append(f"{message.type}: {message.text}")

    @property
    def unexpected(self) -> list[str]:
        return [one for one in self.heard if not any(part in one for part in self.expected)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for a module; playwright's loop must not outlive it, or asyncio.run of other tests would fail."""
    if CHROMIUM is None:
        pytest.skip(
            "no chromium here: apt-get install chromium brings the browser these tests drive"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    """One context for a module: what pages load is kept, and what they store is theirs (see `page`)."""
    context = browser.new_context(viewport=DESK, reduced_motion="reduce")
    context.set_default_timeout(WAIT)
    yield context
    context.close()


@pytest.fixture(scope="module")
def fake() -> Iterator[Fake]:
    with Fake() as fake:
        yield fake


@pytest.fixture
def server(fake: Fake) -> Fake:
    """A server that nobody has asked for anything yet."""
    fake.begin_anew()
    return fake


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    heard = Complaints()
    yield heard
    assert heard.unexpected == []


@pytest.fixture
def page(context: Any, complaints: Complaints) -> Iterator[Any]:
    """A page of desk size that must not complain; a new tab has a session storage of its own."""
    page = context.new_page()
    complaints.watch(page)
    yield page
    page.close()
