"""Five hundred viewers on one web process: delay and volume of live updates.

Run by hand: ``python -m benchmarks.viewers [--viewers N] [--seconds N] [--fetches N]``;
prints JSON entries.
Jobs end twice a second. Every viewer follows the overview, and a tenth of them also their queue.
Parts of the page are fetched at the pace that the server requests.
"""

import argparse
import asyncio
import json
import statistics
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.entries import entry, p95
from benchmarks.site import SIZE, Site, session_cookie, site

PERIOD_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
FETCHES_PER_SECOND = 25.0


@dataclass
class Watch:
    """Committed and received changes, identified by ``in_use``, which falls with every change."""

    changes: list[tuple[int, float]] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    first_seen: dict[int, float] = field(default_factory=dict)
    behind: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    ready: int = 0
    cpu_seconds: float = 0.0


class Viewer:
    """One tab, which gets the devices in use only from its messages."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.version: int | None = None
        self.value: int | None = None
        self.told = 0

    def take(self, text: str) -> None:
        at = time.perf_counter()
        message = json.loads(text)
        self.watch.bytes.append(len(text))
        if message["topic"] != "overview":
            return
        if self.version is None:
            self.watch.ready += 1
        self.version = message["version"]
        self.watch.first_seen.setdefault(self.version, at)
        newest = sorted(self.watch.first_seen)[-8:]
        self.watch.behind.append(sum(version > self.version for version in newest))
        self.value = message["data"].get("in_use", self.value)
        while self.told < len(self.watch.changes):
            value, changed = self.watch.changes[self.told]
            if self.value is None or self.value > value:
                break
            self.watch.latencies.append(at - changed)
            self.told += 1


def measure(
    viewers: int, seconds: float, fetches: float = FETCHES_PER_SECOND
) -> list[dict[str, Any]]:
    """All entries, as in ``results/latest.json``."""
    with site() as found:
        before = found.resident_mib("web")
        watch = asyncio.run(_watch(found, viewers, seconds, fetches))
        after, peak = found.resident_mib("web"), found.peak_mib("web")
    context = f"{viewers} websockets on one web process, jobs end every 0.5 s; {SIZE}"
    return [
        entry("viewers_delta_median", statistics.median(watch.latencies), "s", "lower", context),
        entry("viewers_delta_p95", p95(watch.latencies), "s", "lower", context),
        entry("viewers_largest_message", max(watch.bytes), "bytes", "lower", context),
        entry("viewers_most_versions_behind", max(watch.behind), "versions", "lower", context),
        entry("viewers_versions", len(watch.first_seen), "versions", "higher", context),
        entry(
            "viewers_web_cpu_per_change",
            watch.cpu_seconds / len(watch.changes),
            "s",
            "lower",
            f"{context}; {len(watch.changes)} changes, {fetches:g} fetches/s included",
        ),
        entry("viewers_web_memory", after, "MiB", "lower", f"{context}; {before:.0f} before"),
        entry("viewers_web_memory_peak", peak, "MiB", "lower", context),
    ]


async def _watch(found: Site, viewers: int, seconds: float, fetches: float) -> Watch:
    watch = Watch()
    cookies = [await asyncio.to_thread(session_cookie, name) for name in ("root", "alice", "bob")]
    gate = asyncio.Semaphore(20)
    tabs = [
        asyncio.create_task(_view(found, watch, cookies[number % len(cookies)], number, gate))
        for number in range(viewers)
    ]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while watch.ready < viewers:
        _raise_first(tabs)
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {watch.ready} of {viewers} viewers have a message")
        await asyncio.sleep(0.1)
    fetching = asyncio.create_task(_fetch_parts(found, cookies, watch, fetches))
    before = found.cpu_seconds("web")
    await asyncio.to_thread(_change, watch, seconds)
    await asyncio.sleep(2)
    watch.cpu_seconds = found.cpu_seconds("web") - before
    _raise_first(tabs)
    fetching.cancel()
    for tab in tabs:
        tab.cancel()
    await asyncio.gather(*tabs, fetching, return_exceptions=True)
    missing = viewers * len(watch.changes) - len(watch.latencies)
    if missing or not watch.changes:
        raise RuntimeError(f"{missing} of {len(watch.changes)} changes were not told to somebody")
    return watch


async def _view(
    found: Site, watch: Watch, cookie: str, number: int, gate: asyncio.Semaphore
) -> None:
    from websockets.asyncio.client import connect

    viewer = Viewer(watch)
    address = found.url.replace("http", "ws", 1) + "/ws/live/"
    async with gate:
        socket = await connect(
            address,
            additional_headers={"Cookie": cookie, "Origin": found.url},
            compression=None,
            open_timeout=PATIENCE_SECONDS,
        )
    topics = ["overview", "rounds"]
    if number % 30 == 1:  # alice
        topics.append("queue:scale-vision-a")
    await socket.send(json.dumps({"subscribe": topics}))
    async for text in socket:
        viewer.take(str(text))
    raise ConnectionError("a viewer was thrown out")


async def _fetch_parts(found: Site, cookies: Sequence[str], watch: Watch, fetches: float) -> None:
    number = 0
    while fetches:
        await asyncio.sleep(1 / fetches)
        number += 1
        cookie = cookies[number % len(cookies)]
        newest = max(watch.first_seen)
        await asyncio.to_thread(_fetch, f"{found.url}/?part=live&v={newest}", cookie)


def _fetch(address: str, cookie: str) -> None:
    request = urllib.request.Request(address, headers={"Cookie": cookie, "HX-Request": "true"})
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def _change(watch: Watch, seconds: float) -> None:
    """End jobs, two at a time, and note the commit time and the devices in use then."""
    from django.utils import timezone

    from benchmarks.rounds import end_some_jobs
    from scheduling.runs.models import Lease

    live = Lease.objects.filter(released_at=None, kind="using")
    known = live.values("device_id").distinct().count()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.monotonic()
        end_some_jobs(timezone.now(), count=2)
        committed = time.perf_counter()
        value = live.values("device_id").distinct().count()
        if value < known:
            watch.changes.append((value, committed))
            known = value
        time.sleep(max(0.0, begun + PERIOD_SECONDS - time.monotonic()))


def _raise_first(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        if task.done():
            task.result()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--viewers", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--fetches", type=float, default=FETCHES_PER_SECOND, help="per second")
    options = parser.parse_args()
    print(json.dumps(measure(options.viewers, options.seconds, options.fetches), indent=2))


if __name__ == "__main__":
    main()
