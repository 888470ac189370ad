"""A real portal, started as a newcomer starts it, and a browser that notes every complaint."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Page

from scripts.busy_demo import PASSWORDS, end_jobs, make_busy, wait_until_busy
from tests.support.browsing import RunningPortal, sign_in

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 240.0
END_SECONDS = 60.0
_READY = re.compile(r"Tessera is ready after .*?(http://\S+?)/\s*$")
_LOGIN = re.compile(r"^ {4}(\w+) +(\S{8,})$")


@pytest.fixture(scope="session")
def running_portal() -> Iterator[RunningPortal]:
    """``./tessera up`` in a fresh data directory on a free port, with its demo cluster."""
    folder = Path(tempfile.mkdtemp(prefix="tessera-e2e-"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
    command = [str(ROOT / "tessera"), "up", "--port", "0", "--data-dir", str(folder / "var")]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment | {"TESSERA_ROUND_SECONDS": "2"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = _Said(process)
    try:
        portal = said.portal(folder / "var")
        # The examples of the demo train for minutes, on processors that the browser needs.
        end_jobs(portal.url, portal.logins)
        yield portal
        end_jobs(portal.url, portal.logins)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        finally:
            process.kill()
            process.wait()
            said.thread.join(5)
            if process.stdout is not None:
                process.stdout.close()
            shutil.rmtree(folder, ignore_errors=True)


class _Said:
    """What the starting portal prints, read by a thread so that it never blocks."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.lines: list[str] = []
        self.process = process
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def portal(self, data: Path) -> RunningPortal:
        """The address and the logins, once they have been printed."""
        if not self.ready.wait(START_SECONDS) or self.process.poll() is not None:
            pytest.fail("the portal did not start:\n" + "\n".join(self.lines[-60:]))
        url = next(m[1] for line in self.lines if (m := _READY.search(line)))
        logins = {m[1]: m[2] for line in self.lines if (m := _LOGIN.match(line))}
        return RunningPortal(url=url, data=data, logins=logins)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if "Stop: Ctrl-C" in line:
                self.ready.set()
        self.ready.set()


@pytest.fixture(scope="session")
def base_url(running_portal: RunningPortal) -> str:
    """Where relative addresses lead."""
    return running_portal.url


@dataclass
class Complaints:
    """What a browser found wrong with the pages."""

    console: list[str] = field(default_factory=list)
    policy: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """Chromium of the system, if the one of Playwright is not installed."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on this machine")
    return {
        **browser_type_launch_args,
        "executable_path": found,
        "args": ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
    }


@pytest.fixture
def complaints(context: BrowserContext) -> Iterator[Complaints]:
    """Collects console errors and violations of the content policy; there may be none."""
    found = Complaints()

    def refused(said: str) -> None:
        found.policy.append(said)

    context.expose_function("tesseraPolicy", refused)
    context.add_init_script(
        "document.addEventListener('securitypolicyviolation', (e) => "
        "window.tesseraPolicy(`${e.violatedDirective} ${e.blockedURI} ${document.URL}`));"
        # A part without a place: which page it was, and what of it was there.
        "document.addEventListener('htmx:oobErrorNoTarget', () => console.error("
        "`${document.URL} ${document.readyState} ${document.title} ids: ` + "
        "[...document.querySelectorAll('[id]')].map((e) => e.id).join(' ')));"
    )

    def heard(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            found.console.append(f"{message.text} ({message.location.get('url')})")

    context.on("console", heard)
    context.on("weberror", lambda error: found.console.append(str(error.error.stack)))
    yield found
    assert found.policy == []
    assert found.console == []


@pytest.fixture
def alice(running_portal: RunningPortal, complaints: Complaints, page: Page) -> Page:
    """The browser of a member of vision."""
    return sign_in(page, running_portal, "alice")


@pytest.fixture(scope="session")
def busy_portal(running_portal: RunningPortal) -> RunningPortal:
    """The same portal with more people, jobs of all kinds, and what they leave behind.

    From here on the cluster is full: tests that need idle devices stand in a module before.
    """
    make_busy(running_portal.url, running_portal.logins)
    wait_until_busy(running_portal.url, running_portal.logins)
    return replace(running_portal, logins=running_portal.logins | PASSWORDS)


@pytest.fixture
def summed_portal(busy_portal: RunningPortal) -> RunningPortal:
    """The same portal, whose hours have just been summed up, as they are every five minutes."""
    code = "from portal.tasks import sum_up_usage; sum_up_usage()"
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("TESSERA_", "DJANGO_"))
    }
    subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "--command", code],
        cwd=ROOT,
        env=environment | {"TESSERA_DATA_DIR": str(busy_portal.data)},
        timeout=300,
        check=True,
    )
    return busy_portal


@pytest.fixture
def carol(busy_portal: RunningPortal, complaints: Complaints, page: Page) -> Page:
    """The browser of the lead of vision."""
    return sign_in(page, busy_portal, "carol")


@pytest.fixture
def admin(busy_portal: RunningPortal, complaints: Complaints, page: Page) -> Page:
    """The browser of the cluster admin."""
    return sign_in(page, busy_portal, "admin")
