"""Takes a picture of every page of a busy demo portal into ``docs/screenshots``.

All pages in light, the main ones also in the dark, as on a phone and in Chinese.

Needs Chromium on PATH, and a font with Chinese. ``make screenshots``; page names as arguments take
only some, without them all pictures are made anew.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.busy_demo import end_jobs, make_busy, wait_until_busy  # noqa: E402 found from the root

PASSWORD = "only-for-pictures-" + os.urandom(6).hex()
START_SECONDS = 600.0
SETTLE_SECONDS = 150.0

JOBS = r"/jobs/\d+/$"
PAGES: dict[str, tuple[str, ...]] = {
    # name: the start, then the address of a link to follow (a pattern), and so on; an entry that
    # begins with # is clicked and opens a dialog
    "login": ("/login/",),
    "home": ("/mine/",),
    "overview": ("/cluster/",),
    "submit": ("/submit/",),
    "jobs": ("/jobs/",),
    "job": ("/jobs/?q=resnet", JOBS),
    "job-waiting": ("/jobs/?q=detector", JOBS),
    "job-change": ("/jobs/?q=detector", JOBS, "#do-change"),
    "job-failed": ("/jobs/?q=broken", JOBS),
    "job-reason": ("/jobs/?q=detector", JOBS, "evidence/$"),
    "job-attempts": ("/jobs/?q=resnet", JOBS, "attempts/$"),
    "job-events": ("/jobs/?q=resnet", JOBS, "events/$"),
    "job-receipts": ("/jobs/?q=perplexity+sweep+9", JOBS, "receipts/$"),
    "job-spec": ("/jobs/?q=resnet", JOBS, "spec/$"),
    "job-calls": ("/jobs/?q=resnet", JOBS, "calls/$"),
    "estimates": ("/estimates/",),
    "timeline": ("/timeline/?span=24h",),
    "sweeps": ("/sweeps/",),
    "sweep": ("/sweeps/", r"/sweeps/\d+/$"),
    "job-templates": ("/job-templates/",),
    "nodes": ("/nodes/",),
    "node": ("/nodes/", r"/nodes/\d+/$"),
    "node-add": ("/nodes/new/",),
    "virtual-clusters": ("/virtual-clusters/",),
    "virtual-cluster": ("/virtual-clusters/?q=vision-a", r"/virtual-clusters/1/$"),
    "reconfigure": ("/virtual-clusters/reconfigure/",),
    "priority-classes": ("/priority-classes/",),
    "tenants": ("/tenants/",),
    "tenant": ("/tenants/", r"/tenants/\d+/$"),
    "people": ("/people/",),
    "usage": ("/usage/",),
    "usage-people": ("/usage/?by=person",),
    "fleet": ("/fleet/",),
    "policies": ("/policies/",),
    "what-if": ("/policies/what-if/",),
    "what-if-answer": ("/policies/what-if/1/",),  # of the demo's history
    "announcements": ("/announcements/",),
    "notifications": ("/notifications/",),
    "hooks": ("/hooks/",),
    "log-rules": ("/log-rules/",),
    "tokens": ("/tokens/",),
    "import-rules": ("/import-rules/",),
    "job-limits": ("/job-limits/",),
    "audit": ("/audit/",),
    "documentation": ("/docs/",),
    "glossary": ("/glossary/",),
    "api": ("/api/docs/",),
}


@dataclass(frozen=True)
class Size:
    """A window size; phones get pictures of fewer pages."""

    name: str
    width: int
    height: int


@dataclass(frozen=True)
class Look:
    """Variant of pictures, with its target."""

    theme: str
    size: Size
    folder: Path
    language: str = "en"

    def shows(self, name: str) -> bool:
        """Whether a page has this variant: all in light, the main ones in the dark as well."""
        if self.language != "en":
            return name in IN_CHINESE
        if self.size is PHONE:
            return name in ON_PHONES
        return self.theme == "light" or name in IN_THE_DARK

    def target(self, name: str) -> Path:
        """Path of the picture of a page."""
        language = "" if self.language == "en" else "-zh"
        return self.folder / f"{name}{self.size.name}{language}-{self.theme}.png"


DESK, PHONE = Size("", 1280, 800), Size("-phone", 390, 844)
ON_PHONES = ("home", "overview", "job", "jobs", "timeline")
IN_CHINESE = ("home", "overview", "submit", "jobs", "job-waiting", "virtual-cluster")
IN_THE_DARK = (
    "login", "home", "overview", "submit", "jobs", "job", "job-waiting", "timeline", "nodes",
    "node", "virtual-clusters", "virtual-cluster", "tenant", "usage", "policies", "what-if-answer",
)  # fmt: skip
TALLEST = 1600


def main() -> None:
    """Start a demo, let its jobs run for a while, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=", ".join(PAGES))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots")
    options = parser.parse_args()
    wanted = options.pages or list(PAGES)
    if unknown := set(wanted) - set(PAGES):
        parser.error(f"no such page: {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    with _portal() as (url, logins), sync_playwright() as playwright:
        make_busy(url, logins)
        wait_until_busy(url, logins)
        time.sleep(SETTLE_SECONDS)  # curves of devices come after two whole minutes
        if not options.pages:
            for old in options.out.glob("*.png"):
                old.unlink()
        browser = playwright.chromium.launch(**_browser_arguments())
        for look in _looks(options.out):
            _take(browser, url, wanted, look)
        browser.close()
        end_jobs(url, logins)


def _looks(folder: Path) -> Iterator["Look"]:
    for theme in ("light", "dark"):
        for size in (DESK, PHONE):
            yield Look(theme, size, folder)
    yield Look("light", DESK, folder, "zh-CN")


@contextmanager
def _portal() -> Iterator[tuple[str, dict[str, str]]]:
    folder = Path(tempfile.mkdtemp(prefix="tessera-pictures-"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
    environment |= {"TESSERA_ADMIN_PASSWORD": PASSWORD, "TESSERA_ROUND_SECONDS": "2"}
    log = (folder / "up.log").open("w+")
    process = subprocess.Popen(
        [str(ROOT / "tessera"), "up", "--port", "0", "--data-dir", str(folder / "var")],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        url = _address(process, folder / "up.log")
        said = re.findall(r"^ {4}(\w+) +(\S{8,})$", (folder / "up.log").read_text(), re.MULTILINE)
        yield url, dict(said) | {"admin": PASSWORD}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        said = log.read_text()
        found = re.search(r"is ready after .*?(http://\S+?)/\s", said)
        if found and "Stop: Ctrl-C" in said:
            return found[1]
        time.sleep(0.2)
    sys.exit("the portal did not start:\n" + log.read_text())


def _browser_arguments() -> dict[str, Any]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium on this machine")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    return {"executable_path": chromium, "args": arguments}


def _sign_in(page: Page, url: str) -> None:
    page.goto(f"{url}/login/")
    page.get_by_label("Username").or_(page.locator("[name=username]")).first.fill("admin")
    page.locator("[name=password]").fill(PASSWORD)
    page.locator("form [type=submit]").first.click()
    page.wait_for_url(re.compile(r"/(\?.*)?$"))


def _take(browser: Browser, url: str, wanted: list[str], look: Look) -> None:
    context = browser.new_context(
        viewport={"width": look.size.width, "height": look.size.height},
        color_scheme="dark" if look.theme == "dark" else "light",
        device_scale_factor=1,
        locale="zh-CN" if look.language != "en" else "en-GB",
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    if "login" in wanted and look.shows("login"):
        page.goto(f"{url}/login/")
        page.screenshot(path=look.target("login"))
    _sign_in(page, url)
    for name in wanted:
        if name == "login" or not look.shows(name):
            continue
        if not _go(page, url, PAGES[name]):
            print(f"{name}: nothing to show", file=sys.stderr)
            continue
        _draw_whole(page, look)
        page.screenshot(path=look.target(name))
        print(look.target(name), flush=True)
    context.close()


def _draw_whole(page: Page, look: Look) -> None:
    """Make the window as high as the page, within bounds, and wait for its charts."""
    page.set_viewport_size({"width": look.size.width, "height": look.size.height})
    page.wait_for_timeout(500)
    height = page.evaluate("document.documentElement.scrollHeight")
    height = max(look.size.height, min(height, TALLEST))
    page.set_viewport_size({"width": look.size.width, "height": height})
    deadline = time.monotonic() + 20
    while "Loading the" in page.inner_text("body") and time.monotonic() < deadline:
        page.wait_for_timeout(200)
    page.wait_for_timeout(700)


def _go(page: Page, url: str, steps: tuple[str, ...]) -> bool:
    """Follow links to a page, or open a dialog on it; false if one is missing."""
    page.goto(url + steps[0])
    for pattern in steps[1:]:
        if pattern.startswith("#"):
            page.locator(pattern).click()
            page.locator("dialog[open] form").first.wait_for()
            continue
        hrefs = [link.get_attribute("href") or "" for link in page.locator("main a[href]").all()]
        found = next((href for href in hrefs if re.search(pattern, href)), None)
        if found is None:
            return False
        page.goto(urljoin(page.url, found))
    return True


if __name__ == "__main__":
    main()
