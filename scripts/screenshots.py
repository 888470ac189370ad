"""Takes a picture of every page of a fresh demo portal, light and dark, into ``docs/screenshots``.

Needs Chromium on PATH. ``make screenshots``; page names as arguments take only some.
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

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PASSWORD = "only-for-pictures-" + os.urandom(6).hex()
START_SECONDS = 600.0
BUSY_SECONDS = 40.0

PAGES = {
    "overview": "/",
    "submit": "/submit/",
    "jobs": "/jobs/",
    "job": "first link to a job",
    "timeline": "/timeline/?span=1h",
    "sweeps": "/sweeps/",
    "nodes": "/nodes/",
    "node": "first link to a node",
    "virtual-clusters": "/virtual-clusters/",
    "virtual-cluster": "first link to a virtual cluster",
    "reconfigure": "/virtual-clusters/reconfigure/",
    "tenants": "/tenants/",
    "tenant": "first link to a tenant",
    "usage": "/usage/",
    "policies": "/policies/",
    "what-if": "/policies/what-if/",
    "tokens": "/tokens/",
    "audit": "/audit/",
}
FIRST_LINKS = {
    "job": ("/jobs/", r"/jobs/\d+/$"),
    "node": ("/nodes/", r"/nodes/\d+/$"),
    "virtual-cluster": ("/virtual-clusters/", r"/virtual-clusters/\d+/$"),
    "tenant": ("/tenants/", r"/tenants/\d+/$"),
}


@dataclass(frozen=True)
class Size:
    """A window; phones get a picture of fewer pages."""

    name: str
    width: int
    height: int


@dataclass(frozen=True)
class Look:
    """How a picture is taken, and where it goes."""

    theme: str
    size: Size
    folder: Path
    is_whole: bool


DESK, PHONE = Size("", 1440, 900), Size("-phone", 390, 844)
ON_PHONES = ("overview", "job", "jobs")


def main() -> None:
    """Start a demo, let its jobs run for a while, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=", ".join(PAGES))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots")
    parser.add_argument("--full", action="store_true", help="whole pages, not one window")
    options = parser.parse_args()
    wanted = options.pages or list(PAGES)
    if unknown := set(wanted) - set(PAGES):
        parser.error(f"no such page: {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    with _portal() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(**_browser_arguments())
        _wait_for_goodput(browser, url)
        for theme in ("light", "dark"):
            for size in (DESK, PHONE):
                _take(browser, url, wanted, Look(theme, size, options.out, options.full))
        browser.close()


@contextmanager
def _portal() -> Iterator[str]:
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
        yield _address(process, folder / "up.log")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"is ready after .*?(http://\S+?)/\s", log.read_text())
        if found:
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
    page.get_by_label("User name").or_(page.locator("[name=username]")).first.fill("admin")
    page.locator("[name=password]").fill(PASSWORD)
    page.locator("form [type=submit]").first.click()
    page.wait_for_url(re.compile(r"/(\?.*)?$"))


def _wait_for_goodput(browser: Browser, url: str) -> None:
    """Pictures of an empty cluster say little: wait until a demo job has reported."""
    page = browser.new_page()
    _sign_in(page, url)
    deadline = time.monotonic() + BUSY_SECONDS
    while time.monotonic() < deadline:
        page.goto(f"{url}/jobs/")
        if page.locator(".state-running, [data-state=running]").count():
            page.wait_for_timeout(12_000)
            break
        page.wait_for_timeout(1_000)
    page.close()


def _take(browser: Browser, url: str, wanted: list[str], look: "Look") -> None:
    context = browser.new_context(
        viewport={"width": look.size.width, "height": look.size.height},
        color_scheme="dark" if look.theme == "dark" else "light",
        device_scale_factor=1,
    )
    page = context.new_page()
    _sign_in(page, url)
    for name in wanted:
        if look.size is PHONE and name not in ON_PHONES:
            continue
        address = _find(page, url, name)
        if address is None:
            print(f"{name}: nothing to show", file=sys.stderr)
            continue
        page.goto(address)
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(800)
        target = look.folder / f"{name}{look.size.name}-{look.theme}.png"
        page.screenshot(path=target, full_page=look.is_whole)
        print(target)
    context.close()


def _find(page: Page, url: str, name: str) -> str | None:
    if name not in FIRST_LINKS:
        return url + PAGES[name]
    listing, pattern = FIRST_LINKS[name]
    page.goto(url + listing)
    for link in page.locator("main a[href]").all():
        href = link.get_attribute("href") or ""
        if re.search(pattern, href):
            return url + href
    return None


if __name__ == "__main__":
    main()
