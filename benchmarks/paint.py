"""The overview of a large cluster in a browser: first contentful paint and long tasks.

Run by hand: ``python -m benchmarks.paint [--loads N]``; prints JSON entries. Needs Chromium
and the extra ``dev``; without a browser it prints a message and exits with 0 and no entries.
"""

import argparse
import json
import shutil
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.entries import entry, p95
from benchmarks.site import SIZE, Site, session_cookie, site

OBSERVE = """
globalThis.longTasks = [];
const note = (list) => globalThis.longTasks.push(...list.getEntries().map((e) => e.duration));
new PerformanceObserver(note).observe({ type: "longtask", buffered: true });
"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
SETTLE_SECONDS = 4.0


def measure(loads: int, browser_path: str) -> list[dict[str, Any]]:
    """All entries, as in ``results/latest.json``."""
    with site() as found:
        paints, longest = _load(found, loads, browser_path)
    context = (
        f"overview as cluster admin, {loads} loads, headless Chromium on this machine; {SIZE}"
    )
    return [
        entry("overview_first_paint_median", statistics.median(paints), "ms", "lower", context),
        entry("overview_first_paint_p95", p95(paints), "ms", "lower", context),
        entry("overview_longest_task_median", statistics.median(longest), "ms", "lower", context),
        entry("overview_longest_task", max(longest), "ms", "lower", context),
    ]


def _load(found: Site, loads: int, browser_path: str) -> tuple[list[float], list[float]]:
    """Milliseconds to the first paint, and of the longest task, of each load with a cold cache."""
    from playwright.sync_api import sync_playwright

    name, _, value = session_cookie("root").partition("=")
    paints, longest = [], []
    with ThreadPoolExecutor(1) as beside, sync_playwright() as playwright:
        # The measurement is of the page and not of a sandbox that root cannot have.
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for _load_number in range(loads + 1):
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            context.add_cookies([{"name": name, "value": value, "url": found.url}])
            context.add_init_script(OBSERVE)
            page = context.new_page()
            page.goto(found.url, wait_until="load")
            # The live part is swapped once while the page is open. Playwright's thread has an
            # event loop, in which Django does not allow queries.
            beside.submit(_end_some).result()
            page.wait_for_timeout(SETTLE_SECONDS * 1e3)
            paints.append(float(page.evaluate(PAINTED)))
            longest.append(max(page.evaluate("globalThis.longTasks"), default=0.0))
            context.close()
        browser.close()
    # The first load also warms the web process up.
    return paints[1:], longest[1:]


def _end_some() -> None:
    from django.utils import timezone

    from benchmarks.rounds import end_some_jobs

    end_some_jobs(timezone.now(), count=5)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loads", type=int, default=10)
    options = parser.parse_args()
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        print("no Chromium on this machine; nothing was measured", file=sys.stderr)
        print("[]")
        return
    print(json.dumps(measure(options.loads, found), indent=2))


if __name__ == "__main__":
    main()
