"""The status page in a real browser, watched: errors, foreign requests and violations are kept."""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Request, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--no-proxy-server", "--disable-gpu", "--disable-dev-shm-usage"]
"""Chromium's sandbox does not work as root, and not in many containers; the page is our own."""
WATCH = """
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) =>
    window.violations.push(`${event.effectiveDirective} ${event.blockedURI}`));
"""
PATIENCE_S = 20.0


def chromium() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(
            "The tests of the status page need Chromium. Install it: apt install chromium",
            pytrace=False,
        )
    return found


@contextmanager
def browsing() -> Generator[Browser, None, None]:
    with sync_playwright() as playwright, launched(playwright) as browser:
        yield browser


@contextmanager
def launched(playwright: Playwright) -> Generator[Browser, None, None]:
    browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
    try:
        yield browser
    finally:
        browser.close()


@dataclass
class Visit:
    """A page that was opened, and what it did that it should not have."""

    page: Page
    origin: str
    problems: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def note(self, problem: str) -> None:
        self.problems.append(problem)

    def requested(self, request: Request) -> None:
        self.asked.append(request.url)
        if request.url.startswith("data:"):
            return
        parts = urlsplit(request.url)
        if f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.note(f"foreign request: {request.url}")

    def check(self) -> None:
        problems = self.problems + self.page.evaluate("window.violations")
        assert not problems, "\n".join(problems)

    def until(self, condition: str) -> None:
        """Waits for a JavaScript expression to come true. (The policy forbids the page itself to
        evaluate one, as Playwright's own way of waiting has it do.)
        """
        deadline = time.monotonic() + PATIENCE_S
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, f"waited in vain for {condition}"
            self.page.wait_for_timeout(20)

    def look_again(self) -> None:
        """As when a person comes back to the tab: the page asks at once."""
        self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def resize(self, width: int, height: int = 800) -> None:
        """Returns when the page has been laid out anew."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    def text(self, selector: str) -> str:
        return (self.page.text_content(selector) or "").strip()

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_text_contents()]

    def dataset(self, selector: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.page.eval_on_selector_all(
            selector, "nodes => nodes.map((node) => ({...node.dataset}))"
        )
        return found


@contextmanager
def visit(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    height: int = 900,
    scheme: Any = "light",
    board: bool = True,
    frozen: bool = False,
    faults: tuple[str, ...] = (),
) -> Generator[Visit, None, None]:
    """`board`: wait until it shows what the daemon told. `frozen`: no timer of the page ever ends,
    so that it asks once, unless its clock is set going. Messages of the browser that contain one
    of `faults` are expected; any other problem fails the test when the visit ends.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        reduced_motion="reduce",
        timezone_id="Europe/Berlin",
    )
    try:
        if frozen:
            context.clock.install()
        found = _opened(context, url, faults)
        if board:
            found.until("!document.getElementById('board').hidden")
        yield found
        found.check()
    finally:
        context.close()


def _opened(context: BrowserContext, url: str, faults: tuple[str, ...]) -> Visit:
    context.set_default_timeout(PATIENCE_S * 1e3)
    page = context.new_page()
    found = Visit(page, url.rstrip("/"))

    def heard(kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(fault in text for fault in faults):
            found.note(f"{kind}: {text}")

    page.on("console", lambda message: heard(message.type, message.text))
    page.on("pageerror", lambda error: found.note(f"exception: {error}"))
    page.on("request", found.requested)
    page.add_init_script(WATCH)
    page.goto(url)
    return found
